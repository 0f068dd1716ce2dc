#!/usr/bin/env python3
"""Measures what a check of a large image in a registry costs by facts that are signed, and without them.

    bench.py [--size GB] [--real GB] [--sconce FILE] [--rounds N] [--work DIR]

Makes an image of SIZE gigabytes: REAL of them are programs, libraries and packages of this machine, so that rules have something to
judge, and all else is made, and mostly zeros, so that making and compressing it is soon done. It goes into a docker-registry on 127.0.0.1 with its
facts, by `sconce push --sign`, and is checked from an empty store: with --key, some rounds, and once without. Both have to find the same,
and with --key no layer may be asked for. Prints a table; requests and bytes are those of the registry's log. All goes away in the end.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scale"))
import image  # noqa: E402

LAYER = 4e9  # bytes of files in one
FILE = 256 << 20
NOISE = 1 << 20


class Made:
    """Content of a file that no other has: some noise, and zeros."""

    def __init__(self, seed):
        self.rest = random.Random(seed).randbytes(NOISE)

    def read(self, n):
        part, self.rest = self.rest[:n], self.rest[n:]
        return part + bytes(n - len(part))


def layers_of(size, real):
    def layers(new):
        source, left, left_real, made = image.files(image.ROOTS), size, real, 0
        while left > 0:
            layer, room = new(), min(left, LAYER)
            left -= room
            while room > 0 and left_real > 0:
                path, length = next(source, (None, 0))
                if path is None:
                    sys.exit("bench: this machine has fewer files; say fewer by --real")
                layer.add(path)
                room, left_real = room - length, left_real - length
            while room > 0:
                length = min(FILE, int(room) + 1)
                layer.add_made(f"opt/made/{made:04}.bin", length, Made(made))
                room, made = room - length, made + 1
            yield layer

    return layers


class Registry:
    """docker-registry on 127.0.0.1, and what its log says."""

    def __init__(self, work):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.host = "127.0.0.1:%d" % s.getsockname()[1]
        self.log, config = work / "registry.log", work / "registry.json"
        config.write_text(json.dumps({
            "version": "0.1", "log": {"level": "error", "accesslog": {"disabled": False}},
            "storage": {"filesystem": {"rootdirectory": str(work / "registry")}}, "http": {"addr": self.host, "secret": "bench"},
        }))
        env = {k: v for k, v in os.environ.items() if not k.startswith("REGISTRY_")}  # which are settings of it
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(["docker-registry", "serve", str(config)], env=env, stdout=log, stderr=log)
        while self.process.poll() is None:
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", int(self.host.split(":")[1]))) == 0:
                    return
            time.sleep(0.05)
        sys.exit("bench: docker-registry does not start: " + self.log.read_text())

    def requests(self, since):
        """What was asked for since a size of the log: (path, bytes of the answer)."""
        with open(self.log, "rb") as f:
            f.seek(since)
            found = re.findall(r'"[A-Z]+ (/\S*) HTTP/1\.1" \d+ (\d+)', f.read().decode())
        return [(path, int(length)) for path, length in found]

    def stop(self):
        self.process.terminate()
        self.process.wait()


def measure(command, store):
    """Runs a command with a store that is new: what it printed, seconds, CPU seconds."""
    shutil.rmtree(store, ignore_errors=True)
    env = dict(os.environ, SCONCE_STORE=str(store))
    out = store.with_name("out")
    begin = time.monotonic()
    with open(out, "wb") as f:
        process = subprocess.Popen(command, env=env, stdout=f)
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begin
    if os.waitstatus_to_exitcode(status) not in (0, 3):  # 3: it has found something
        sys.exit(f"bench: {command} ended with status {status}")
    shutil.rmtree(store, ignore_errors=True)
    return out.read_bytes(), {"seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime}


def row(name, r):
    print(f"| {name} | {r['seconds']:.2f} | {r['cpu']:.2f} | {r['requests']} | {r['bytes'] / 1e6:.3f} |", flush=True)


def bench(o, work):
    image.LEVEL = 1
    image.write(work / "oci", layers_of(o.size * 1e9, o.real * 1e9))
    index = json.loads((work / "oci/index.json").read_text())
    layers = json.loads((work / "oci/blobs" / index["manifests"][0]["digest"].replace(":", "/")).read_text())["layers"]
    for command in (["genpkey", "-algorithm", "ed25519", "-out", "team.key"], ["pkey", "-in", "team.key", "-pubout", "-out", "team.pub"]):
        subprocess.run(["openssl", *command], cwd=work, check=True)
    registry = Registry(work)
    try:
        name = registry.host + "/bench/large:1"
        print(f"{o.size:g} GB of files, {o.real:g} GB of them of this machine; {sum(l['size'] for l in layers) / 1e9:.2f} GB in {len(layers)} layers; {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}\n")
        print("| | seconds | CPU seconds | requests | MB sent by the registry |\n|---|---|---|---|---|")

        def one(*command):
            since = registry.log.stat().st_size
            out, result = measure([o.sconce, "-q", *command], work / "store")
            asked = registry.requests(since)
            result.update(requests=len(asked), bytes=sum(n for _, n in asked), layers=sum(any(l["digest"] in path for l in layers) for path, _ in asked))
            return out, result

        row("push --sign", one("push", f"oci:{work}/oci:v1", name, "--sign", str(work / "team.key"))[1])
        shutil.rmtree(work / "oci")
        check = ["check", "--json", name, "--gpu", "9.0", "--glibc", "2.31"]
        rounds = [one(*check, "--key", str(work / "team.pub")) for _ in range(o.rounds)]
        row(f"check --key, median of {o.rounds}", {k: statistics.median(r[k] for _, r in rounds) for k in rounds[0][1]})
        by_layers, result = one(*check)
        row("check, by the layers", result)
        found = json.loads(by_layers)
        for by_facts, result in rounds:
            trusted = json.loads(by_facts)
            if not trusted.pop("signedFacts", False) or trusted != found or result["layers"]:
                sys.exit(f"bench: by signed facts: {result['layers']} requests for layers, and the same findings: {trusted == found}")
        print(f"\n{len(found['findings'])} findings, the same each time")
    finally:
        registry.stop()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--size", type=float, default=20, help="gigabytes of files")
    p.add_argument("--real", type=float, default=3, help="how many of them are of this machine")
    p.add_argument("--sconce", default=str(HERE.parents[1] / "bin" / "sconce"))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--work", type=Path, help="where all is kept meanwhile: a directory (default: a temporary one)")
    o = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all goes away then, too
    work = Path(tempfile.mkdtemp(prefix="sconce-bench-", dir=o.work))
    try:
        bench(o, work)
    finally:
        shutil.rmtree(work)


main()
