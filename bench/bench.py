"""sconce and its peers make the same OCI layout from the same packages: driver, see README.md.

Environment: BENCH_SIZE (small, default, full), BENCH_RUNS (repetitions, 3), BENCH_TOOLS (names, comma separated),
BENCH_DIR (working directory, bench/out), BENCH_STRICT (1: exit 1 when a target is missed), SCONCE (the binary, bin/sconce).
"""

import datetime
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys

import base
import index
import peers
import report

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = "3.11"  # of Debian bookworm, the base
NEWEST_GLIBC_MINOR = 36  # glibc 2.36 of Debian bookworm
SEEDED = {"pip", "setuptools"}  # what python -m venv puts into the environment by itself
CHANGED = "einops==0.8.2"  # the second build takes this in the place of the recipe's einops


class Bench:
    def __init__(self, env):
        self.size = env.get("BENCH_SIZE", "default")
        self.runs = int(env.get("BENCH_RUNS", "3"))
        self.dir = pathlib.Path(env.get("BENCH_DIR", HERE / "out")).resolve()
        self.wheels = self.dir / f"wheels-{self.size}"
        self.layout = self.dir / "base"
        self.work = self.dir / "work"
        self.asked = (HERE / f"packages/{self.size}.in").read_text().split()
        self.pinned = (HERE / f"packages/{self.size}.txt").read_text().split()

    def requirements(self, step):
        """What is asked of a tool: "cold" the list as it is, "second" with one package changed."""
        if step == "cold":
            return self.asked
        return [CHANGED if same_project(r, CHANGED) else r for r in self.asked]

    def expected(self, step):
        """Projects and versions that must be in the result, as {"name==version"}."""
        pins = self.pinned if step == "cold" else [CHANGED if same_project(r, CHANGED) else r for r in self.pinned]
        return {f"{index.normalised(name)}=={version}" for name, version in (p.split("==") for p in pins)}

    def prepare(self):
        self.dir.mkdir(parents=True, exist_ok=True)
        self.prepare_base()
        self.prepare_wheels()
        index.write(self.wheels, self.dir / "index")

    def prepare_base(self):
        if self.layout.exists():
            return
        say("base: Debian by mmdebstrap")
        tar = self.dir / "base.tar"
        base.bootstrap(tar)
        base.write_layout(tar, self.layout)
        tar.unlink()

    def prepare_wheels(self):
        if (self.wheels / ".complete").exists():
            return
        say(f"wheels: {len(self.pinned) + 1} from the package index configured for pip")
        env = {k: v for k, v in os.environ.items() if k != "PIP_FIND_LINKS"}
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--implementation=cp", f"--python-version={PYTHON}", *wheel_tags(), f"--dest={self.wheels}"]
        subprocess.run([*command, *self.pinned], env=env, check=True)
        subprocess.run([*command, CHANGED], env=env, check=True)
        (self.wheels / ".complete").touch()

    def wheel_bytes(self):
        return sum(p.stat().st_size for p in self.wheels.glob("*.whl"))

    def log(self, tool):
        return self.dir / f"{tool.name}.log"

    def warm_page_cache(self):
        """Every tool finds its input in memory and no one else's writes under way."""
        for path in [*self.wheels.glob("*.whl"), *self.layout.glob("blobs/sha256/*")]:
            with open(path, "rb") as f:
                while f.read(base.CHUNK):
                    pass
        os.sync()


def same_project(requirement, other):
    return index.normalised(requirement.split("==")[0]) == index.normalised(other.split("==")[0])


def wheel_tags():
    """pip's options for every wheel that runs on the base, best first."""
    machine = platform.machine()
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC_MINOR, 4, -1)]
    tags += [f"{old}_{machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
    abis = [f"cp{PYTHON.replace('.', '')}", "abi3", "none"]
    return [*(f"--platform={t}" for t in [*tags, "any"]), *(f"--abi={a}" for a in abis)]


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def measured(command, env, cwd, log):
    """Run a shell command under measure.py; its numbers."""
    out = cwd / "measured.json"
    argv = [sys.executable, "-B", str(HERE / "measure.py"), str(out), str(log), "--", "sh", "-euc", command]
    if subprocess.run(argv, env=env, cwd=cwd).returncode != 0:
        tail = log.read_text(errors="replace").splitlines()[-25:]
        raise SystemExit("\n".join([*tail, f"bench: a build failed, its output is in {log}"]))
    return json.loads(out.read_text())


def tree_bytes(path):
    return sum(p.lstat().st_size for p in path.rglob("*") if p.is_file())


def one_build(bench, tool, step):
    """Build once and check that what came out is what was asked for."""
    bench.warm_page_cache()
    tool.write_recipe(bench.requirements(step))
    before = tree_bytes(tool.out) if tool.out.exists() else 0
    numbers = measured(tool.command(step), tool.env(), tool.dir, bench.log(tool))
    numbers["size_bytes"] = tree_bytes(tool.out) - before
    content = peers.content(tool.out, step)
    expected, found = without_seeded(bench.expected(step)), without_seeded(content.projects)
    missing, foreign = expected - found, found - expected
    if missing or foreign:
        raise SystemExit(f"bench: {tool.name}, {step}: the image lacks {sorted(missing)} and has {sorted(foreign)} unasked")
    numbers["bytecode_files"] = content.bytecode
    return numbers


def without_seeded(projects):
    return {p for p in projects if p.split("==")[0] not in SEEDED}


def one_round(bench, tools, address, number):
    results = {}
    for make in tools:
        tool = make(bench.work, bench.layout, address)
        tool.start()
        try:
            for step in ("cold", "second"):
                numbers = one_build(bench, tool, step)
                results.setdefault(tool.name, {})[step] = numbers
                say(f"round {number}/{bench.runs}: {tool.name}, {step}: {numbers['wall_s']:.2f} s")
        finally:
            tool.clean()
    return results


def chosen_tools(env):
    names = env.get("BENCH_TOOLS", ",".join(peers.DEFAULT)).split(",")
    unknown = set(names) - set(peers.TOOLS)
    if unknown:
        raise SystemExit(f"bench: BENCH_TOOLS: no such tool {sorted(unknown)}; there are {sorted(peers.TOOLS)}")
    return [peers.TOOLS[name] for name in names]


def run(bench, tools):
    server = subprocess.Popen(
        [sys.executable, "-B", str(HERE / "index.py"), str(bench.dir / "index")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    try:
        address = server.stdout.readline().strip()
        return [one_round(bench, tools, address, n + 1) for n in range(bench.runs)]
    finally:
        server.stdin.close()  # ends it
        server.wait()
        shutil.rmtree(bench.dir / "index", ignore_errors=True)


def main():
    bench = Bench(os.environ)
    tools = chosen_tools(os.environ)
    bench.prepare()
    for tool in tools:
        bench.log(tool).unlink(missing_ok=True)
    rounds = run(bench, tools)
    facts = {
        "date": datetime.date.today().isoformat(),
        "set": bench.size,
        "packages": len(bench.pinned),
        "wheel_bytes": bench.wheel_bytes(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "versions": peers.versions(),
    }
    result = {"facts": facts, "rounds": rounds}
    path = bench.dir / f"bench-{bench.size}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    met = report.show(result)
    say(f"numbers of every round: {path}")
    if os.environ.get("BENCH_STRICT") == "1" and not met:
        sys.exit(1)


if __name__ == "__main__":
    main()
