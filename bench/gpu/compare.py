"""Compares what sconce and cuobjdump see in every library of a directory, and how long they take. Prints a table and exits
with 1 when they differ.

    python compare.py SCONCE DIR...
"""

import collections
import json
import os
import re
import subprocess
import sys
import time

SCONCE, DIRS = sys.argv[1], sys.argv[2:]


def libraries():
    seen = set()
    for top in DIRS:
        for directory, _, names in os.walk(top):
            for name in names:
                path = os.path.join(directory, name)
                if os.path.islink(path) or os.path.getsize(path) < 4096 or not re.search(r"\.(so(\.\d+)*|a|fatbin|cubin)$", name):
                    continue
                inode = os.stat(path).st_ino
                if inode not in seen:
                    seen.add(inode)
                    yield path


def by_sconce(paths):
    """Returns the counts of all files by path."""
    done = subprocess.run([SCONCE, "inspect", "--gpu", "--no-search", "--json", *paths], capture_output=True, text=True)
    reports = json.loads(done.stdout)
    counts = {}
    for r in reports if isinstance(reports, list) else [reports]:
        of_file = counts[r["path"]] = collections.Counter()
        # cuobjdump passes over relocatable code where there is linked code, and finds none outside the two sections
        place = "relocatable" if "executable" not in r["regions"] else "executable"
        for c in r["code"]:
            if c["place"] in (place, "bare") and not (r["problems"] and not r["code"]):
                of_file[c["kind"], arch(c["arch"])] += c["images"]
    return counts


def arch(name):
    return name.removesuffix("f")  # cuobjdump does not print it


def by_cuobjdump(path):
    """Counts the images that cuobjdump lists, of machine code and PTX; whatever else there is has a heading of its own."""
    done = subprocess.run(["cuobjdump", path], capture_output=True, text=True, errors="replace")
    if done.returncode != 0 and "does not contain device code" not in done.stdout + done.stderr:
        return None
    counts, kind = collections.Counter(), None
    for line in done.stdout.splitlines():
        line = line.strip()
        if heading := re.match(r"Fatbin (.*) code:$", line):
            kind = heading[1]
        elif kind and (m := re.match(r"arch = (?:sm|compute|lto)_(\w+)$", line)):
            counts[kind, arch(m[1])] += 1
            kind = None
    return counts


def main():
    paths = sorted(libraries())
    for p in paths:  # into the page cache, for both
        with open(p, "rb") as f:
            while f.read(1 << 24):
                pass
    size = sum(os.path.getsize(p) for p in paths)
    started = time.monotonic()
    ours = by_sconce(paths)
    our_time = time.monotonic() - started
    started = time.monotonic()
    theirs = {p: by_cuobjdump(p) for p in paths}  # takes one file
    their_time = time.monotonic() - started
    differ = images = with_code = unread = 0
    for path in paths:
        a, b = ours.get(path), theirs[path]
        if b is None:
            unread += 1
            continue
        if a is None:
            differ += 1
            print(f"NOT READ  {path}")
            continue
        a = +collections.Counter({k: v for k, v in a.items() if k[0] in ("elf", "ptx")})
        b = +collections.Counter({k: v for k, v in b.items() if k[0] in ("elf", "ptx")})
        images += sum(a.values())
        with_code += bool(a or b)
        if a != b:
            differ += 1
            print(f"DIFFERS  {path}\n  only sconce:    {dict(a - b)}\n  only cuobjdump: {dict(b - a)}")
    print(f"{len(paths)} files, {size / 1e9:.2f} GB, {with_code} with device code, {images} images: {differ} differ, {unread} that cuobjdump cannot read")
    print(f"sconce {our_time:.2f} s, cuobjdump {their_time:.2f} s: {their_time / our_time:.0f} times faster")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
