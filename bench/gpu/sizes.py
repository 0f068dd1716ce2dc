"""Prints, as JSON, the SHA-256 of each library below the directories and its size as zlib packs it at level 1."""

import hashlib
import json
import multiprocessing
import os
import sys
import zlib


def measure(path):
    h, z, packed, size = hashlib.sha256(), zlib.compressobj(1), 0, 0
    with open(path, "rb") as f:
        while chunk := f.read(1 << 22):
            h.update(chunk)
            size += len(chunk)
            packed += len(z.compress(chunk))
    return path, h.hexdigest(), size, packed + len(z.flush())


def libraries():
    for top in sys.argv[1:]:
        for directory, _, names in os.walk(top):
            for name in names:
                path = os.path.join(directory, name)
                if ".so" in name and not os.path.islink(path):
                    yield path


if __name__ == "__main__":
    with multiprocessing.Pool() as pool:
        json.dump({path: [digest, size, packed] for path, digest, size, packed in pool.imap_unordered(measure, list(libraries()))}, sys.stdout)
