"""One Containerfile, built by sconce and by buildah, as ordinary users: driver, see README.md.

Environment: BENCH_RUNS (repetitions, 3), BENCH_TOOLS (names, comma separated), BENCH_DIR (working directory, bench/out/containerfile),
BENCH_STRICT (1: exit 1 when a target is missed), SCONCE (the binary, bin/sconce).
"""

import dataclasses
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import archive  # noqa: E402
import base  # noqa: E402
import peers  # noqa: E402
import tools  # noqa: E402

BROTLI = "brotli==1.1.0"  # a source distribution with 12 seconds of C
INSTALLED = {"usr/bin/gcc", "usr/bin/make", "usr/local/bin/brotli", "usr/local/share/demo/0.txt"}
CASES = {
    "cold": "nothing there, the base from an OCI layout",
    "base there": "the base there and unpacked, nothing else",
    "unchanged": "built again",
    "last line": "another last RUN",
    "source": "a C file changed: COPY and what follows",
    "layout": "the image written as an OCI layout of gzip layers",
}
# (case, least ratio of buildah's wall time to sconce's)
TARGETS = [("cold", 1.0), ("base there", 1.0), ("last line", 5.0)]
BUSY_CORES = 0.3
MB = 1e6


class Bench:
    def __init__(self, env):
        self.runs = int(env.get("BENCH_RUNS", "3"))
        self.dir = pathlib.Path(env.get("BENCH_DIR", HERE.parent / "out/containerfile")).resolve()
        self.layout, self.context, self.work = self.dir / "base", self.dir / "context", self.dir / "work"

    def prepare(self):
        self.dir.mkdir(parents=True, exist_ok=True)
        if not self.layout.exists():
            say("base: Debian by mmdebstrap")
            tar = self.dir / "base.tar"
            subprocess.run(["mmdebstrap", "--quiet", "--variant=apt", "--include=ca-certificates", "bookworm", str(tar)], check=True)
            base.write_layout(tar, self.layout)
            tar.unlink()
        sources = self.dir / "brotli"
        if not sources.exists():
            say(f"sources: {BROTLI} from the package index configured for pip")
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", f"--dest={sources}.new"]
            subprocess.run([*command, BROTLI], check=True)
            pathlib.Path(f"{sources}.new").rename(sources)
        self.write_context(next(sources.glob("*.tar.gz")))
        shutil.rmtree(self.work, ignore_errors=True)
        (self.work / "bin").mkdir(parents=True)
        shutil.copy(peers.sconce_binary(), self.work / "bin/sconce")

    def write_context(self, sdist):
        shutil.rmtree(self.context, ignore_errors=True)
        (self.context / "share").mkdir(parents=True)
        for i in range(200):
            (self.context / "share" / f"{i}.txt").write_text(f"file {i}\n" * 100)
        with tarfile.open(sdist) as tar:
            for member in tar:
                _, _, path = member.name.partition("/")
                if path.startswith("c/") and member.isfile():
                    target = self.context / "src" / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(tar.extractfile(member).read())
        shutil.copy(HERE / "Containerfile", self.context)
        shutil.copy(HERE / "demo.mk", self.context / "src/Makefile")

    def check_reachable(self, user):
        file = self.layout / "index.json"
        if user and subprocess.run([*user.prefix(), "test", "-r", file]).returncode:
            raise SystemExit(f"bench: an ordinary user cannot read {file}; name a directory in BENCH_DIR that everybody reaches")


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


@dataclasses.dataclass
class Rounds:
    bench: Bench
    tools: list
    archive: archive.Archive
    results: dict = dataclasses.field(default_factory=dict)  # {tool: {case: [numbers of each round]}}
    differ: set = dataclasses.field(default_factory=set)  # names that not all images have

    def measure(self, tool, case, command):
        os.sync()
        log, out, asked = self.bench.dir / f"{tool.name}.log", self.bench.dir / "measured.json", self.archive.requests
        argv = [sys.executable, "-B", str(HERE.parent / "measure.py"), str(out), str(log), "--", *tool.argv(command)]
        if subprocess.run(argv, env=tool.env(), cwd=tool.dir).returncode:
            tail = log.read_text(errors="replace").splitlines()[-25:]
            raise SystemExit("\n".join([*tail, f"bench: {tool.name}, {case} failed, its output is in {log}"]))
        installs = case in ("cold", "base there")
        if (self.archive.requests > asked) != installs:
            raise SystemExit(f"bench: {tool.name}, {case}: packages were {'not ' if installs else ''}installed")
        numbers = json.loads(out.read_text())
        self.results.setdefault(tool.name, {}).setdefault(case, []).append(numbers)
        say(f"{tool.name}, {case}: {numbers['wall_s']:.2f} s, others {numbers['others_cores']:.1f} cores")

    def round(self, number):
        turn = [*self.tools[number % len(self.tools):], *self.tools[: number % len(self.tools)]]
        for tool in turn:
            tool.start(self.bench.context)
            self.measure(tool, "cold", tool.build("demo:1", f"oci:{self.bench.layout}:latest"))
            tool.wipe()
        for tool in turn:
            tool.prime(self.bench.layout)
            self.measure(tool, "base there", tool.build("demo:1", tool.base()))
        for tool in turn:
            self.measure(tool, "unchanged", tool.build("demo:1", tool.base()))
        for tool in turn:
            tool.edit("Containerfile", "echo line 1", "echo line 2")
            self.measure(tool, "last line", tool.build("demo:2", tool.base()))
        for tool in turn:
            tool.edit("src/c/tools/brotli.c", '"brotli %d', '"changed %d')
            self.measure(tool, "source", tool.build("demo:3", tool.base()))
        for tool in turn:
            tool.give()
            self.measure(tool, "layout", tool.write("demo:3"))
        self.differ |= compare({tool.name: content(tool.out) for tool in turn})
        for tool in turn:
            tool.wipe()


def content(layout):
    """Names in the image's layers, and what the last line made."""
    names, made = set(), None
    for descriptor in peers.layers(layout, "latest"):
        with tarfile.open(peers.blob(layout, descriptor["digest"])) as tar:
            for member in tar:
                name = member.name.removeprefix("./").rstrip("/")
                names.add(name)
                if name == "etc/demo":
                    made = tar.extractfile(member).read().decode()
    return names, made


def compare(images):
    """Stop when an image lacks something; names that not all images have."""
    for tool, (names, made) in images.items():
        if missing := INSTALLED - names:
            raise SystemExit(f"bench: {tool}: the image lacks {sorted(missing)}")
        if made != "changed 1.1.0\nline 2\n":
            raise SystemExit(f"bench: {tool}: the last line made {made!r}")
    everything = [names for names, _ in images.values()]
    return {n for n in set.union(*everything) - set.intersection(*everything) if not beside(n)}


def beside(name):
    """What a tool leaves as the place for its own mounts, or makes unasked."""
    return name.split("/")[0] in ("run", "dev", "proc", "sys", "") or name in ("etc/hosts", "etc/resolv.conf", "etc/hostname")


def medians(results):
    return {
        tool: {case: {k: statistics.median(n[k] for n in runs) for k in runs[0]} for case, runs in cases.items()}
        for tool, cases in results.items()
    }


def table(results):
    found = medians(results)
    print("| case | " + " | ".join(f"{t}: wall s (min-max) | CPU s | tree MB" for t in found) + " |")
    print("|---|" + "---|" * 3 * len(found))
    for case in CASES:
        cells = []
        for tool in found:
            n, walls = found[tool][case], [r["wall_s"] for r in results[tool][case]]
            cells += [f"{n['wall_s']:.2f} ({min(walls):.2f}-{max(walls):.2f})", f"{n['cpu_s']:.2f}", f"{n['peak_tree_bytes'] / MB:.0f}"]
        print(f"| {case} | " + " | ".join(cells) + " |")


def ratio(results, tool, case, key):
    """Of the medians, and in brackets the least and the most of any round: tools of one round shared a load."""
    theirs, ours = results[tool][case], results["sconce"][case]
    each = [t[key] / max(o[key], 0.01) for t, o in zip(theirs, ours)]
    whole = statistics.median(t[key] for t in theirs) / max(statistics.median(o[key] for o in ours), 0.01)
    return f"{whole:.2f} ({min(each):.2f}-{max(each):.2f})"


def ratios(results):
    others = [t for t in results if t != "sconce"]
    print("\nHow many times what sconce takes, of the medians (least-most of a round); more than 1: sconce is better\n")
    print("| case | " + " | ".join(f"{t}: wall | CPU" for t in others) + " |")
    print("|---|" + "---|" * 2 * len(others))
    for case in CASES:
        cells = (ratio(results, t, case, key) for t in others for key in ("wall_s", "cpu_s"))
        print(f"| {case} | " + " | ".join(cells) + " |")


def targets(results):
    found, good = medians(results), True
    print("\nTargets, against buildah as an ordinary user\n")
    for case, least in TARGETS:
        times = found["buildah"][case]["wall_s"] / found["sconce"][case]["wall_s"]
        good &= times >= least
        print(f"- {'met' if times >= least else 'MISSED'}: {case}: {times:.2f} times as fast, target {least:.0f}")
    return good


def show(facts, results):
    """Print it all as markdown; whether every target is met (True when there is nothing to compare)."""
    print(
        f"{facts['date']}, {facts['cores']} cores, Linux {facts['kernel']}, medians of {facts['runs']};"
        f" {', '.join(facts['versions'])}; load {facts['load'][0]:.1f} before, {facts['load'][1]:.1f} after\n"
    )
    for name, text in facts["users"].items():
        print(f"- {name}: {text}")
    print()
    for case, text in CASES.items():
        print(f"- {case}: {text}")
    print()
    table(results)
    busy = statistics.median(n["others_cores"] for cases in results.values() for runs in cases.values() for n in runs)
    worst = max(n["others_cores"] for cases in results.values() for runs in cases.values() for n in runs)
    print(f"\nEverything else on the machine took {busy:.1f} cores (median), at most {worst:.1f}.")
    if worst > BUSY_CORES:
        print("It did other work: trust CPU before wall.")
    print(f"Files that not all images have: {', '.join(facts['differ'][:10]) or 'none'}.")
    if not {"sconce", "buildah"} <= set(results):
        return True
    ratios(results)
    return targets(results)


def chosen(env):
    names = env.get("BENCH_TOOLS", "sconce,buildah,buildah-root").split(",")
    if unknown := set(names) - set(tools.TOOLS):
        raise SystemExit(f"bench: BENCH_TOOLS: no such tool {sorted(unknown)}; there are {sorted(tools.TOOLS)}")
    return [tools.TOOLS[name] for name in names]


def run(bench, kinds, users, served):
    made = [kind(bench.work, users.get(kind.name), served.address) for kind in kinds]
    for tool in made:
        bench.check_reachable(tool.user)
        tool.start(bench.context)
        tool.prime(bench.layout)
        if tool is made[0]:
            say("packages: those that apt asks for, from Debian's mirror")
            tool.run(*tool.build("demo:1", tool.base()))
        tool.wipe()
    served.freeze()
    rounds = Rounds(bench, made, served)
    for number in range(bench.runs):
        say(f"round {number + 1} of {bench.runs}")
        rounds.round(number)
    return rounds


def main():
    bench, kinds = Bench(os.environ), chosen(os.environ)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended"))  # and not without taking the users away
    bench.prepare()
    for kind in kinds:
        (bench.dir / f"{kind.name}.log").unlink(missing_ok=True)
    users, served, load = {}, archive.Archive(bench.dir / "archive"), os.getloadavg()[0]
    try:
        for kind in kinds:
            if kind.subordinate is not None:
                users[kind.name] = tools.User(f"bench-{kind.name}-{os.getpid()}", kind.subordinate)
        rounds = run(bench, kinds, users, served)
    finally:
        served.close()
        for point in peers.mounts_below(bench.work):
            subprocess.run(["umount", point], check=False)
        shutil.rmtree(bench.work, ignore_errors=True)
        for user in users.values():
            user.remove()
    facts = {
        "date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "kernel": platform.release(), "runs": bench.runs,
        "load": [load, os.getloadavg()[0]], "differ": sorted(rounds.differ),
        "users": {kind.name: kind.text for kind in kinds},
        "versions": [version(str(peers.sconce_binary()), "version"), version("buildah", "--version")],
    }
    path = bench.dir / "result.json"
    path.write_text(json.dumps({"facts": facts, "results": rounds.results}, indent=1) + "\n")
    met = show(facts, rounds.results)
    say(f"numbers of every round: {path}")
    if os.environ.get("BENCH_STRICT") == "1" and not met:
        sys.exit(1)


def version(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]


if __name__ == "__main__":
    main()
