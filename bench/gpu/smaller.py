"""Compares what sizes.py printed of two images: python smaller.py WHOLE.json SLIM.json."""

import json
import os
import sys

whole, slim = (json.load(open(f)) for f in sys.argv[1:])
changed = [p for p in whole if whole[p][0] != slim[p][0]]
assert whole.keys() == slim.keys() and all(whole[p][1] == slim[p][1] for p in whole), "another file or another length"
print(f"{'library':45} {'bytes':>14} {'zlib -1':>14} {'slimmed':>14}")
for p in sorted(changed, key=lambda p: -whole[p][2]):
    print(f"{os.path.basename(p):45} {whole[p][1]:14,} {whole[p][2]:14,} {slim[p][2]:14,} {slim[p][2] / whole[p][2] - 1:+.1%}")
before, after = (sum(f[p][2] for p in changed) for f in (whole, slim))
print(f"{len(changed)} of {len(whole)} libraries changed: {before:,} -> {after:,} bytes packed ({after / before - 1:+.1%})")
