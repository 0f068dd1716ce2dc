"""Conda environment to SIF file, by sconce and by what people use today, on one channel and in one run.

    bench.py WORK [--rounds N] [--set small|default]

Each figure is a median over the rounds; in a round the tools take turns.
"""

import argparse
import functools
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import channel  # noqa: E402

REPOSITORY = HERE.parent.parent
MEASURE = HERE.parent / "measure.py"
SCONCE = pathlib.Path(os.environ.get("SCONCE", REPOSITORY / "bin" / "sconce")).resolve()
PREFIX = "/opt/cotainr/conda/envs/conda_container_env"
MKSQUASHFS = "mksquashfs {tree} {out} {comp} -b 131072 -noappend -no-progress -quiet -all-root"
GZIP = "-comp gzip"  # what mksquashfs does by itself, and how apptainer build, and so cotainr, calls it
ZSTD = "-comp zstd -Xcompression-level 3"  # as sconce
MB = 1e6


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


class Handler(http.server.SimpleHTTPRequestHandler):
    """Gives files out with a validator, which rattler wants."""

    protocol_version = "HTTP/1.1"

    def end_headers(self):
        self.send_header("ETag", '"' + hashlib.sha256(self.path.encode()).hexdigest()[:16] + '"')
        super().end_headers()

    def log_message(self, *_):
        pass


class Bench:
    def __init__(self, work, url, names):
        self.work, self.url, self.names = work, url, names
        self.out, self.results = work / "run", {}

    def run(self, name, script, out, tree=None):
        report, log = self.work / "measured.json", self.work / f"{name.replace(' ', '-')}.log"
        os.sync()
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SCONCE_", "SOURCE_DATE", "CONDA_"))} | {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
        if subprocess.run([sys.executable, "-B", MEASURE, report, log, "--", "sh", "-euc", script], cwd=self.out, env=env, check=False).returncode:
            sys.exit(f"{name} failed, see {log}")
        figures = json.loads(report.read_text())
        if out:
            figures["size_bytes"] = (self.out / out).stat().st_size
        if tree:
            figures["files"] = sum(len(files) for _, _, files in os.walk(self.out / tree))
        self.results.setdefault(name, []).append(figures)
        print(f"  {name}: {figures['wall_s']:.2f} s", file=sys.stderr)

    def environment(self, name, names):
        (self.out / name).write_text(f"channels: [{self.url}, nodefaults]\ndependencies:\n" + "".join(f"  - {n}\n" for n in names))

    def round(self):
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        base, most = self.work / "root", ["python", *self.names[:-1]]
        self.environment("env.yml", most)
        self.environment("more.yml", [*most, self.names[-1]])
        sconce = f"SCONCE_STORE={self.out}/store {SCONCE} cotainr build --quiet --base-image dir:{base}"
        peer = f"{sys.executable} {HERE}/install.py {self.url} {channel.SUBDIR} {PREFIX}"
        self.run("sconce", f"{sconce} --conda-env env.yml sconce.sif", "sconce.sif")
        for kind, compiles, comp in (
            ("rattler + mksquashfs", "", GZIP),
            ("rattler, byte code + mksquashfs", f"; {sys.executable} -m compileall -q -j 0 tree{PREFIX} || true", GZIP),
            ("rattler + mksquashfs zstd", "", ZSTD),
            ("rattler, byte code + mksquashfs zstd", f"; {sys.executable} -m compileall -q -j 0 tree{PREFIX} || true", ZSTD),
        ):
            shutil.rmtree(self.out / "tree", ignore_errors=True)
            shutil.rmtree(self.out / "cache", ignore_errors=True)
            pack = MKSQUASHFS.format(tree="tree", out="r.sqsh", comp=comp)
            self.run(kind, f"cp -a {base} tree; {peer} tree{PREFIX} cache {' '.join(most)}{compiles}; rm -f r.sqsh; {pack}", "r.sqsh", "tree")
        self.run("rattler alone", f"rm -rf tree cache; mkdir tree; {peer} tree{PREFIX} cache {' '.join(most)}", None, "tree")
        self.run("again sconce", f"{sconce} --conda-env more.yml more.sif", "more.sif")
        for kind, comp in (("again rattler + mksquashfs", GZIP), ("again rattler + mksquashfs zstd", ZSTD)):
            pack = MKSQUASHFS.format(tree="tree", out="m.sqsh", comp=comp)
            self.run(kind, f"rm -rf tree m.sqsh; cp -a {base} tree; {peer} tree{PREFIX} cache {' '.join([*most, self.names[-1]])}; {pack}", "m.sqsh", "tree")
        self.nothing(base)
        self.starts()

    def nothing(self, base):
        """A recipe of the same environment, when all of it is there."""
        app = self.out / "app"
        app.mkdir()
        shutil.copy(self.out / "env.yml", app)
        (app / "sconce.toml").write_text(
            f'name = "app"\n[base]\nimage = "dir:{base}"\n[conda]\nenvironment = ["env.yml"]\nprefix = "{PREFIX}"\n[image]\ncompression = "zstd"\n'
        )
        build = f"SCONCE_STORE={self.out}/store {SCONCE} --quiet build app"
        self.run("a recipe of it", build, None)
        self.run("nothing to do", f"{build} --locked --offline", None)

    def starts(self):
        """A program in the environment, as the image has it, and behind an activation when the container starts."""
        run = f"SCONCE_STORE={self.out}/store {SCONCE} --quiet run sconce.sif --"
        self.run("start, active", f"{run} python -c pass", None)
        self.run("start, activated by sh", f"{run} sh -c '. /opt/cotainr/conda/bin/activate; python -c pass'", None)
        if conda := shutil.which(os.environ.get("CONDA", "conda")):
            self.run("start, conda activate", f"{run} python -c pass; eval \"$({conda} shell.posix activate)\"", None)


COLUMNS = [("wall s", "wall_s", 1), ("CPU s", "cpu_s", 1), ("tree MB", "peak_tree_bytes", MB), ("size MB", "size_bytes", MB), ("files", "files", 1), ("others", "others_cores", 1)]
TARGETS = [
    ("environment to file, against rattler + mksquashfs", "rattler + mksquashfs", "sconce", 4),
    ("the same with byte code", "rattler, byte code + mksquashfs", "sconce", 4),
    ("one package more", "again rattler + mksquashfs", "again sconce", 4),
]
# To be known and not to be met: who makes SIF files today has them compressed with gzip, and at the same level zstd costs both the same.
BESIDES = [
    ("environment to file, mksquashfs with zstd", "rattler + mksquashfs zstd", "sconce"),
    ("the same with byte code", "rattler, byte code + mksquashfs zstd", "sconce"),
    ("one package more, mksquashfs with zstd", "again rattler + mksquashfs zstd", "again sconce"),
]


def show(results):
    medians = {name: {k: statistics.median(r[k] for r in runs) for k in runs[0]} for name, runs in results.items()}
    width = max(map(len, medians))
    print("  " + " " * width + "".join(f"  {title:>9}" for title, _, _ in COLUMNS))
    for name, figures in medians.items():
        print("  " + name.ljust(width) + "".join(f"  {figures[key] / unit:9.2f}" if key in figures else " " * 11 for _, key, unit in COLUMNS))

    def times(peer, ours):
        return (medians[peer][k] / medians[ours][k] for k in ("wall_s", "cpu_s"))

    print("\nTargets")
    good = True
    for text, peer, ours, least in TARGETS:
        wall, cpu = times(peer, ours)
        good &= wall >= least
        print(f"  {'met   ' if wall >= least else 'MISSED'}  {text}: {wall:.2f} times as fast ({cpu:.2f} by CPU), target {least:.2f}")
    print("\nBesides")
    for text, peer, ours in BESIDES:
        wall, cpu = times(peer, ours)
        print(f"  {text}: {wall:.2f} times as fast ({cpu:.2f} by CPU)")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("BENCH_ROUNDS", "1")))
    parser.add_argument("--set", default=os.environ.get("BENCH_SIZE", "default"))
    o = parser.parse_args()
    work = o.work.resolve()
    made = work / f"channel-{o.set}"
    channel.make(made, HERE.parent / "packages" / f"{o.set}.txt")
    channel.root(work / "root")
    server = Server(("127.0.0.1", 0), functools.partial(Handler, directory=made))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    b = Bench(work, f"http://127.0.0.1:{server.server_port}", json.loads((made / "names.json").read_text()))
    for i in range(o.rounds):
        print(f"round {i + 1} of {o.rounds}", file=sys.stderr)
        b.round()
    (work / "results.json").write_text(json.dumps(b.results, indent=1))
    good = show(b.results)
    shutil.rmtree(b.out)
    sys.exit(0 if good or not os.environ.get("BENCH_STRICT") else 1)


if __name__ == "__main__":
    main()
