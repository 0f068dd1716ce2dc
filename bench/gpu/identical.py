"""Compares the digests that operations.py printed: the first file against itself run again, then against the others.

    python identical.py DIR NAME AGAIN OTHER...

An operation that differs between two runs of the same image proves nothing and is named. Exits with 1 when another differs, or
when fewer than 60 are left.
"""

import json
import sys

LEAST = 60


def load(name):
    with open(f"{sys.argv[1]}/{name}.json") as f:
        return json.load(f)


whole, again = load(sys.argv[2]), load(sys.argv[3])
unsteady = sorted(n for n, digest in whole["results"].items() if again["results"].get(n) != digest)
print(f"{whole['device']}, torch {whole['torch']}, {len(whole['results'])} operations on {whole['gpus']} GPU(s)")
print(f"not the same in two runs of one image, and left out: {', '.join(unsteady) or 'none'}")
for n, why in whole["failed"].items():
    print(f"does not work here at all: {n}: {why}")
bad = False
for name in sys.argv[4:]:
    other = load(name)
    steady = {n: d for n, d in whole["results"].items() if n not in unsteady}
    different = sorted(n for n, d in steady.items() if other["results"].get(n) != d)
    print(f"{name:16} {len(steady) - len(different)} of {len(steady)} identical, {other['seconds']} s; whole {whole['seconds']} s {', '.join(different)}")
    bad |= bool(different) or len(steady) < LEAST
sys.exit(bad)
