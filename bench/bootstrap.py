"""A minimal Debian as a tar, by sconce and by mmdebstrap, from one mirror and in one run.

Environment: BENCH_RUNS (rounds, 3), BENCH_DIR (working directory, bench/out), BENCH_MIRROR (the first one of apt here), BENCH_STRICT
(1: exit 1 when the target is missed), SCONCE (the binary, bin/sconce).

The mirror is one on 127.0.0.1 that keeps what it has served, so that only a first round, which is not measured, asks another
server. Each tool begins with nothing: the index is fetched and its signature checked, packages are chosen, downloaded,
unpacked and configured. In a round the tools take turns.
"""

import http.server
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tarfile
import threading
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
SUITE = "bookworm"
TARGET = 0.5  # of mmdebstrap's wall time
SCONCE = pathlib.Path(os.environ.get("SCONCE", HERE.parent / "bin/sconce")).resolve()
COLUMNS = [("wall s", "wall_s", 1), ("CPU s", "cpu_s", 1), ("tree MB", "peak_tree_bytes", 1e6), ("written MB", "written_bytes", 1e6), ("others", "others_cores", 1)]
OF_OTHERS = ("sconce_", "source_date", "apt_", "dpkg_")  # variables that would change what is made


class Mirror(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream, kept):
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream, self.kept = upstream.rstrip("/"), kept
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/debian"

    def file(self, name):
        """The file of that name, fetched when it is not here; None where upstream has none."""
        path = self.kept / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.{threading.get_ident()}")
            try:
                with urllib.request.urlopen(f"{self.upstream}/{name}") as answer, open(part, "wb") as out:
                    shutil.copyfileobj(answer, out)
            except urllib.error.HTTPError as refusal:
                if refusal.code == 404:
                    return None
                raise
            part.rename(path)
        return path


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = self.server.file(self.path.removeprefix("/debian/")) if ".." not in self.path else None
        if path is None:
            self.send_error(404)
            return
        with open(path, "rb") as f:
            self.send_response(200)
            self.send_header("Content-Length", str(os.fstat(f.fileno()).st_size))
            self.end_headers()
            shutil.copyfileobj(f, self.wfile)

    def log_message(self, *_):
        pass


def clean_env():
    env = {k: v for k, v in os.environ.items() if not k.lower().startswith(OF_OTHERS)}
    return env | {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1", "SCONCE_CONFIG": "", "LC_ALL": "C.UTF-8"}


def commands(mirror):
    """What each tool is asked to run in an empty directory, to make root.tar there."""
    hook = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"  # as the distribution's installer does, and sconce
    recipe = f'name = "bench"\n\n[base.bootstrap]\nsuite = "{SUITE}"\nmirror = "{mirror}"\n'
    return {
        "sconce": f"cat >sconce.toml <<'END'\n{recipe}END\nSCONCE_STORE=$PWD/store '{SCONCE}' build --quiet -o tar:root.tar",
        "mmdebstrap": f"mmdebstrap --quiet --mode=root --variant=minbase {hook} --include=apt,usr-is-merged {SUITE} root.tar 'deb {mirror} {SUITE} main'",
    }


def packages(tar):
    """The packages that dpkg calls installed in a root file system."""
    with tarfile.open(tar) as files:
        for member in files:
            if member.name.removeprefix("./") == "var/lib/dpkg/status":
                text = files.extractfile(member).read().decode()
                return {s.splitlines()[0] for s in text.split("\n\n") if "\nStatus: install ok installed\n" in s}
    raise SystemExit(f"bench: {tar} has no packages")


def once(work, name, command):
    """Run one tool; its numbers, and the packages of what it made."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    os.sync()
    out, log = work / "measured.json", work.parent / f"bootstrap-{name}.log"
    argv = [sys.executable, "-B", str(HERE / "measure.py"), str(out), str(log), "--", "sh", "-euc", command]
    if subprocess.run(argv, env=clean_env(), cwd=work).returncode != 0:
        raise SystemExit("\n".join([*log.read_text(errors="replace").splitlines()[-25:], f"bench: {name} failed, its output is in {log}"]))
    numbers, made = json.loads(out.read_text()), packages(work / "root.tar")
    shutil.rmtree(work)
    return numbers, made


def show(rounds):
    """Print medians; whether the target was met."""
    found = {tool: {key: statistics.median(r[tool][key] for r in rounds) for _, key, _ in COLUMNS} for tool in rounds[0]}
    print(f"\nA minimal Debian {SUITE} as a tar, nothing cached; medians of {len(rounds)}, {os.cpu_count()} cores, Linux {platform.release()}")
    print(" " * 13 + "".join(title.rjust(12) for title, _, _ in COLUMNS) + "wall min-max".rjust(16))
    for tool, numbers in found.items():
        walls = [r[tool]["wall_s"] for r in rounds]
        cells = "".join(f"{numbers[key] / unit:12.2f}" for _, key, unit in COLUMNS)
        print(f"  {tool:11}{cells}{f'{min(walls):.1f}-{max(walls):.1f}':>16}")
    wall, cpu = (found["sconce"][k] / found["mmdebstrap"][k] for k in ("wall_s", "cpu_s"))
    pairs = statistics.median(r["sconce"]["wall_s"] / r["mmdebstrap"]["wall_s"] for r in rounds)
    print(f"\nsconce takes {wall:.2f} of mmdebstrap's wall time ({pairs:.2f} as the median of the rounds' ratios), and {cpu:.2f} of its CPU time")
    met = wall <= TARGET
    print(f"  {'met' if met else 'MISSED'}: target {TARGET} of its wall time")
    return met


def apts_mirror():
    """Where apt of this machine gets packages from."""
    out = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"], capture_output=True, text=True, check=True)
    return out.stdout.split()[0]


def main():
    if os.geteuid() != 0:
        raise SystemExit("bench: run as root: mmdebstrap is then at its fastest")
    work = pathlib.Path(os.environ.get("BENCH_DIR", HERE / "out")).resolve()
    mirror = Mirror(os.environ.get("BENCH_MIRROR") or apts_mirror(), work / "mirror")
    tools, rounds = commands(mirror.address), []
    for number in range(int(os.environ.get("BENCH_RUNS", "3")) + 1):
        done = {name: once(work / "bootstrap", name, command) for name, command in tools.items()}
        if done["sconce"][1] != done["mmdebstrap"][1]:
            raise SystemExit(f"bench: the packages differ: {sorted(done['sconce'][1] ^ done['mmdebstrap'][1])}")
        if number == 0:
            continue  # it has filled the mirror
        rounds.append({name: numbers for name, (numbers, _) in done.items()})
        for name, numbers in rounds[-1].items():
            print(f"bench: round {number}: {name}: {numbers['wall_s']:.2f} s, {numbers['cpu_s']:.2f} s of CPU", file=sys.stderr)
    (work / "bootstrap.json").write_text(json.dumps(rounds, indent=1) + "\n")
    if not show(rounds) and os.environ.get("BENCH_STRICT") == "1":
        sys.exit(1)


if __name__ == "__main__":
    main()
