#!/usr/bin/env python3
"""Measures how the conversion of an image to squashfs grows with the cores. See README.md beside this file.

    bench.py [--sconce FILE]... [--cores N,N,...] [--work DIR] [--size GB] [--peers-cores N,N] [ROOT...]

Prints a table: for each number of cores the time, CPU time and peak memory of a conversion, how many times as fast it is as
with one core (or the least given), and its CPU time as a multiple of that with four. Below: what peers take.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def measure(command, cores, env=None):
    """Runs a command on the first cores this process may use: seconds, CPU seconds and peak memory in MB."""
    allowed = set(sorted(os.sched_getaffinity(0))[:cores])
    begin = time.monotonic()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, allowed))
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"bench: {command} ended with status {status}")
    return {"seconds": time.monotonic() - begin, "cpu": usage.ru_utime + usage.ru_stime, "mb": usage.ru_maxrss / 1000}


def convert(sconce, work, cores):
    store, target = work / "store", work / "image.sqsh"
    shutil.rmtree(store, ignore_errors=True)
    target.unlink(missing_ok=True)
    env = dict(os.environ, SCONCE_STORE=str(store))
    result = measure([sconce, "copy", "--no-reuse", f"oci:{work}/oci:v1", str(target)], cores, env)
    result["size"] = target.stat().st_size
    shutil.rmtree(store, ignore_errors=True)
    return result


def layers(work):
    """The files of the layers, lowest first."""
    blobs = work / "oci" / "blobs"
    read = lambda digest: json.loads((blobs / digest.replace(":", "/")).read_text())
    manifest = read(json.loads((work / "oci" / "index.json").read_text())["manifests"][0]["digest"])
    return [blobs / l["digest"].replace(":", "/") for l in manifest["layers"]]


def together(*commands):
    return ["sh", "-ec", " & ".join(commands) + " & wait"]


def peers(work, cores):
    """What people do without sconce, and the steps of it. The image has no file in two layers."""
    found = {}
    root = work / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    found["zcat and tar, layers side by side"] = measure(together(*[f"zcat < {l} | tar -xf - -C {root}" for l in layers(work)]), cores)
    if shutil.which("mksquashfs"):
        target = work / "peer.sqsh"
        target.unlink(missing_ok=True)
        command = ["mksquashfs", str(root), str(target), "-comp", "zstd", "-Xcompression-level", "3", "-processors", str(cores), "-no-progress", "-quiet", "-all-root"]
        found["then mksquashfs, zstd 3"] = measure(command, cores)
        target.unlink()
    shutil.rmtree(root, ignore_errors=True)
    largest = max(layers(work), key=lambda l: l.stat().st_size)
    found["zcat, the largest layer alone"] = measure(["sh", "-c", f"zcat < {largest} > /dev/null"], cores)
    if shutil.which("rapidgzip"):
        found["rapidgzip, the largest layer alone"] = measure(["sh", "-c", f"rapidgzip -P {cores} -d -c {largest} > /dev/null"], cores)
    if shutil.which("tar2sqfs"):
        target = work / "peer.sqsh"
        found["zcat and tar2sqfs, the largest layer alone"] = measure(["sh", "-c", f"zcat < {largest} | tar2sqfs -q -f -c zstd -X level=3 -j {cores} {target}"], cores)
        target.unlink()
    return found


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--sconce", action="append")
    p.add_argument("--cores", default="")
    p.add_argument("--peers-cores", default="")
    p.add_argument("--work", type=Path, default=HERE.parent / "out" / "scale")
    p.add_argument("--size", default="4")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("roots", nargs="*")
    o = p.parse_args()
    every = len(os.sched_getaffinity(0))
    steps = [int(n) for n in o.cores.split(",") if n] or [1 << i for i in range(every.bit_length()) if 1 << i < every] + [every]
    subprocess.run([sys.executable, "-B", HERE / "image.py", o.work, o.size, *o.roots], check=True)
    for layer in layers(o.work):  # into the page cache
        layer.read_bytes()
    results = {}
    for sconce in o.sconce or [str(HERE.parent.parent / "bin" / "sconce")]:
        runs = {n: [convert(sconce, o.work, n) for _ in range(o.rounds)] for n in steps}
        runs = {n: {k: statistics.median(r[k] for r in rs) for k in rs[0]} for n, rs in runs.items()}
        results[sconce] = runs
        least, four = runs[steps[0]], runs.get(4, runs[steps[0]])
        print(f"\n{sconce}\n\n| cores | seconds | times as fast | CPU seconds | of those with 4 | peak MB | file MB |\n|---|---|---|---|---|---|---|")
        for n, r in runs.items():
            print(f"| {n} | {r['seconds']:.1f} | {least['seconds'] / r['seconds']:.1f} | {r['cpu']:.0f} | {r['cpu'] / four['cpu']:.2f} | {r['mb']:.0f} | {r['size'] / 1e6:.0f} |", flush=True)
    for n in [int(n) for n in o.peers_cores.split(",") if n] or steps[-1:]:
        results[f"peers, {n} cores"] = found = peers(o.work, n)
        print(f"\n| on {n} cores | seconds | CPU seconds | peak MB |\n|---|---|---|---|")
        for name, r in found.items():
            print(f"| {name} | {r['seconds']:.1f} | {r['cpu']:.0f} | {r['mb']:.0f} |", flush=True)
    (o.work / "results.json").write_text(json.dumps(results, indent=1))


main()
