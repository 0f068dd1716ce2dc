"""Solves conda environments for sconce: solve.py REQUEST ANSWER, both JSON. Needs py-rattler.

The answer is {"packages": [...], ...} or {"error": {...}}. Whatever goes wrong in a way that is not foreseen ends with a
traceback and without an answer.
"""

import asyncio
import datetime
import difflib
import json
import os
import re
import sys
import warnings

from rattler import (
    Channel,
    ChannelPriority,
    Client,
    Config,
    Gateway,
    GenericVirtualPackage,
    MatchSpec,
    PackageName,
    PackageRecord,
    RepoDataRecord,
    SourceConfig,
    Version,
    solve,
)
from rattler.exceptions import GatewayError, SolverError
from rattler.networking import (
    AuthenticationMiddleware,
    GCSMiddleware,
    MirrorMiddleware,
    OciMiddleware,
    RetryMiddleware,
    S3Middleware,
)
from rattler.package import BuildString

# The first word of a MatchSpec that may stand behind a channel.
NAME = re.compile(r"^(?:.*::)?\s*([A-Za-z0-9_][A-Za-z0-9._-]*)")


class Failure(Exception):
    """A failure with all that the one who asked can make a message of."""

    def __init__(self, kind, text, **more):
        super().__init__(text)
        self.said = {"kind": kind, "text": text, **more}


def described(r):
    """A record as the request and the answer have it."""
    noarch = r.noarch
    return {
        "name": r.name.normalized,
        "version": str(r.version),
        "build": str(r.build),
        "build_number": r.build_number,
        "channel": r.channel or "",
        "subdir": str(r.subdir),
        "fn": r.file_name,
        "url": str(r.url),
        "sha256": r.sha256.hex() if r.sha256 else "",
        "md5": r.md5.hex() if r.md5 else "",
        "size": r.size or 0,
        "noarch": "python" if noarch.python else "generic" if noarch.generic else "",
        "depends": list(r.depends),
        "constrains": list(r.constrains),
        "license": r.license or "",
        "python_site_packages_path": r.python_site_packages_path or "",
    }


def record(p):
    """The record of a description."""
    hashes = {k: bytes.fromhex(p[k]) for k in ("sha256", "md5") if p.get(k)}
    whole = PackageRecord(
        p["name"], p["version"], BuildString(p["build"]), p["build_number"], p["subdir"],
        noarch=p.get("noarch") or None, depends=p.get("depends") or [], constrains=p.get("constrains") or [],
        size=p.get("size") or None, license=p.get("license") or None,
        python_site_packages_path=p.get("python_site_packages_path") or None, **hashes,
    )
    return RepoDataRecord(whole, p["fn"], p["url"], p["channel"])


class Solver:
    def __init__(self, request):
        self.request = request
        self.platforms = [request["platform"], "noarch"]
        self.channels = [Channel(c) for c in request["channels"]]
        self.virtual = [
            GenericVirtualPackage(PackageName(v["name"]), Version(v["version"]), BuildString(v["build"]))
            for v in request["virtual"]
        ]
        self.priority = {
            "strict": ChannelPriority.Strict,
            "flexible": ChannelPriority.Flexible,
            "disabled": ChannelPriority.Disabled,
        }[request["priority"]]
        self.pinned = []  # what packages must fit if they are there at all
        self.add_pip = False
        self.gateway = Gateway(
            cache_dir=request["cache"],
            default_config=SourceConfig(
                cache_action="force-cache-only" if request["offline"] else "cache-or-fetch", **request["repodata"]
            ),
            client=self.client(),
        )

    def client(self):
        """The client of the configuration. That would look for logins under the usual host, not the mirror's, so where nothing
        else is configured, the client is put together here."""
        how = {"user_agent": self.request["user_agent"]}
        retries, mirrors = self.request["retries"], self.request["mirrors"]
        if not self.request["plain"]:
            return Client.from_config(Config.from_toml(self.request["config"]), max_retries=retries, **how)
        first = [RetryMiddleware(retries)] + ([MirrorMiddleware(mirrors)] if mirrors else [])
        return Client(first + [AuthenticationMiddleware(), OciMiddleware(), GCSMiddleware(), S3Middleware()], **how)

    async def solve(self, specs, locked=()):
        return await solve(
            self.channels, specs, gateway=self.gateway, platforms=self.platforms, virtual_packages=self.virtual,
            locked_packages=list(locked), constraints=self.pinned, channel_priority=self.priority,
            timeout=datetime.timedelta(seconds=self.request["timeout"]),
            add_pip_as_python_dependency=self.add_pip,
        )

    def parsed(self):
        """The specs of each source. All that are wrong are told at once."""
        groups, wrong = [], []
        for i, source in enumerate(self.request["sources"]):
            specs = []
            for j, text in enumerate(source["specs"]):
                try:
                    specs.append(MatchSpec(text))
                except Exception as e:  # each part of a spec has an exception of its own
                    wrong.append({"source": i, "spec": j, "text": str(e)})
            groups.append(specs)
        for j, text in enumerate(self.request["pinned"]):
            try:
                self.pinned.append(MatchSpec(text))
            except Exception as e:
                wrong.append({"source": len(groups), "spec": j, "text": str(e)})
        if wrong:
            raise Failure("specs", "", wrong=wrong)
        return groups

    async def chain(self):
        """Solves source after source. What was chosen stays where it can."""
        chosen = [record(p) for p in self.request["locked"]]
        specs, groups = [], self.parsed()
        self.add_pip = self.request["add_pip"] and await self.has("pip")
        for i, group in enumerate(groups):
            specs = specs + group
            try:
                chosen = await self.solve(specs, chosen)
            except SolverError as e:
                raise await self.conflict(groups, i, str(e)) from e
        return chosen

    def as_it_came(self, p):
        """A package as its channel has it: what it is made into must not depend on who asked for pip."""
        if self.add_pip and p["name"] == "python" and p["depends"][-1:] == ["pip"]:
            p["depends"].pop()
        return p

    async def has(self, name):
        """Whether a channel has a package."""
        found = await self.gateway.query(self.channels, self.platforms, [name], recursive=False)
        return any(records for records in found)

    async def conflict(self, groups, i, text):
        """Finds between which sources a conflict is: those with which source i alone has no solution either."""
        rivals = []
        try:
            await self.solve(groups[i])
            for j in range(i):
                try:
                    await self.solve(groups[j] + groups[i])
                except SolverError as e:
                    rivals, text = rivals + [j], text if rivals else str(e)
            if not rivals:
                rivals = list(range(i))
        except SolverError as e:
            text = str(e)
        return Failure("conflict", text, source=i, rivals=rivals, unknown=await self.unknown(groups[: i + 1]))

    async def unknown(self, groups):
        """The packages asked for that no channel has, each with similar names and the platforms that have it."""
        asked = {n for g in groups for n in map(self.name, g) if n and not n.startswith("__")}
        there = {n.normalized for n in await self.gateway.names(self.channels, self.platforms)}
        missing = sorted(asked - there)
        if not missing:
            return []
        elsewhere = {}
        for platform in ["linux-64", "linux-aarch64", "osx-64", "osx-arm64", "win-64"]:
            if platform in self.platforms:
                continue
            try:
                names = {n.normalized for n in await self.gateway.names(self.channels, [platform])}
            except GatewayError:
                continue  # a channel need not have it
            for name in missing:
                if name in names:
                    elsewhere.setdefault(name, []).append(platform)
        return [
            {"name": n, "similar": difflib.get_close_matches(n, there, 3, 0.75), "platforms": elsewhere.get(n, [])}
            for n in missing
        ]

    @staticmethod
    def name(spec):
        m = NAME.match(str(spec))
        return m.group(1).lower() if m else None

    async def without_cuda(self, chosen):
        """The packages of which there is a build for CUDA, of the same version, and another one was chosen: nobody may get that
        without being told. Who asks for a build by its name, or for NAME-cpu, knows."""
        here = {r.name.normalized: r for r in chosen if not self.cuda(r)}
        asked = {}
        for spec in (MatchSpec(t) for source in self.request["sources"] for t in source["specs"]):
            asked.setdefault(self.name(spec), []).append(spec.build)
        names = {n for n in here if not any(asked.get(n, [])) and f"{n}-cpu" not in here}
        if "cpuonly" in here:
            return []
        found = await self.gateway.query(self.channels, self.platforms, sorted(names), recursive=False)
        left = {}
        for r in (r for records in found for r in records):
            name = r.name.normalized
            if name in names and r.subdir == here[name].subdir and self.cuda(r) and r.version == here[name].version:
                left.setdefault(name, set()).update(self.cuda(r))
        return [{"name": n, "wants": sorted(left[n]), "asked": n in asked} for n in sorted(left)]

    @staticmethod
    def cuda(r):
        """What a record wants of the driver."""
        return [d for d in r.depends if d.split()[:1] == ["__cuda"]]

    async def complete(self):
        """Looks packages up in their channels by their file names."""
        wanted = {p["fn"]: p for p in self.request["complete"]}
        names = sorted({p["name"] for p in wanted.values()})
        found = await self.gateway.query(self.channels, self.platforms, names, recursive=False)
        return [described(r) for records in found for r in records if r.file_name in wanted]

    async def answer(self):
        if self.request["complete"]:
            return {"packages": await self.complete()}
        chosen = await self.chain()
        left = await self.without_cuda(chosen) if self.request["check_cuda"] else []
        return {
            "packages": [self.as_it_came(described(r)) for r in chosen],
            "without_cuda": left,
        }


async def main(request):
    try:
        return await Solver(request).answer()
    except Failure as e:
        return {"error": e.said}
    except GatewayError as e:
        return {"error": {"kind": "channel", "text": str(e)}}


with open(sys.argv[1], encoding="utf-8") as f:
    asked = json.load(f)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    answer = asyncio.run(main(asked))
answer["warnings"] = sorted({str(w.message) for w in caught})
with open(sys.argv[2] + ".part", "w", encoding="utf-8") as f:
    json.dump(answer, f)
os.rename(sys.argv[2] + ".part", sys.argv[2])
os._exit(0)  # at an ordinary end, the library sometimes crashes
