#!/usr/bin/env python3
"""Makes the image that is measured: an OCI layout with three gzip layers, of files of this machine.

    image.py DIR GB [ROOT...]

DIR/oci holds the image under the tag v1, with GB gigabytes of files in layers of one, two and one and a half parts, read from
ROOT (default: where programs and libraries lie). Each layer is one gzip stream of one member. Streams are compressed on all
cores the way pigz does it: every part of a megabyte knows the 32 KiB before it, and ends in an empty stored block.
"""

import hashlib
import json
import multiprocessing
import os
import stat
import struct
import sys
import tarfile
import zlib
from pathlib import Path

ROOTS = ["/opt", "/usr/local", "/usr/lib", "/usr/share", "/usr/bin"]
SHARES = [1, 2, 1.5]
PART = 1 << 20
WINDOW = 32 << 10
LEVEL = 6


def files(roots):
    """Regular files that can be read, each once, in the order of their paths."""
    seen = set()
    for root in roots:
        for directory, below, names in os.walk(root):
            below.sort()
            for name in sorted(names):
                path = os.path.join(directory, name)
                try:
                    st = os.lstat(path)
                except OSError:
                    continue
                if not stat.S_ISREG(st.st_mode) or (st.st_dev, st.st_ino) in seen or not os.access(path, os.R_OK):
                    continue
                seen.add((st.st_dev, st.st_ino))
                yield path, st.st_size


def deflate(job):
    part, before, last = job
    z = zlib.compressobj(LEVEL, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, before) if before else zlib.compressobj(LEVEL, zlib.DEFLATED, -15, 9)
    return z.compress(part) + z.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)


class Parts:
    """What tarfile writes to: cuts it into parts."""

    def __init__(self, take):
        self.buffer, self.take = bytearray(), take

    def write(self, data):
        self.buffer += data
        while len(self.buffer) > PART:
            self.take(bytes(self.buffer[:PART]), False)
            del self.buffer[:PART]
        return len(data)


class Layer:
    """A layer that is written."""

    def __init__(self, directory, pool):
        self.pool, self.directory = pool, directory
        self.path = directory / "layer"
        self.out = open(self.path, "wb")
        self.digest, self.diff = hashlib.sha256(), hashlib.sha256()
        self.crc, self.size, self.before, self.waiting = 0, 0, b"", []
        self.job, self.deflated = None, None
        self.write(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03")
        self.parts = Parts(self.take)
        self.tar = tarfile.open(fileobj=self.parts, mode="w|", format=tarfile.GNU_FORMAT, bufsize=PART)

    def write(self, data):
        self.out.write(data)
        self.digest.update(data)

    def take(self, part, last):
        self.diff.update(part)
        self.crc, self.size = zlib.crc32(part, self.crc), self.size + len(part)
        job = (part, self.before, last)
        if job != self.job:  # of what repeats, the last one is taken again
            self.job, self.deflated = job, self.pool.apply_async(deflate, (job,))
        self.waiting.append(self.deflated)
        self.before = part[-WINDOW:]
        while len(self.waiting) > (0 if last else 4 * os.cpu_count()):
            self.write(self.waiting.pop(0).get())

    def add(self, path):
        info = tarfile.TarInfo(path.lstrip("/"))
        with open(path, "rb") as f:
            st = os.fstat(f.fileno())
            info.size, info.mode, info.mtime = st.st_size, 0o755 if st.st_mode & 0o100 else 0o644, 1_700_000_000
            self.tar.addfile(info, f)

    def add_made(self, path, size, content):
        """Adds a file of this size with what content, which has read(n), gives."""
        info = tarfile.TarInfo(path)
        info.size, info.mode, info.mtime = size, 0o644, 1_700_000_000
        self.tar.addfile(info, content)

    def close(self):
        self.tar.close()
        self.take(bytes(self.parts.buffer), True)
        self.write(struct.pack("<LL", self.crc, self.size & 0xFFFFFFFF))
        self.out.close()
        digest = "sha256:" + self.digest.hexdigest()
        size = self.path.stat().st_size
        self.path.rename(self.directory / self.digest.hexdigest())
        print(f"image: a layer of {self.size / 1e9:.2f} GB, {size / 1e9:.2f} GB compressed", file=sys.stderr)
        return {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest, "size": size}, "sha256:" + self.diff.hexdigest()


def blob(directory, document, media):
    data = json.dumps(document).encode()
    name = hashlib.sha256(data).hexdigest()
    (directory / name).write_bytes(data)
    return {"mediaType": media, "digest": "sha256:" + name, "size": len(data)}


def write(target, layers_of):
    """Writes an image as the OCI layout target. layers_of is called with a function that returns a new layer, and yields layers that are
    full, lowest first."""
    blobs = target / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    layers, diffs = [], []
    with multiprocessing.Pool() as pool:
        for layer in layers_of(lambda: Layer(blobs, pool)):
            descriptor, diff = layer.close()
            layers.append(descriptor)
            diffs.append(diff)
    config = {"architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine], "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": diffs}}
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(blobs, config, "application/vnd.oci.image.config.v1+json"),
        "layers": layers,
    }
    entry = blob(blobs, manifest, "application/vnd.oci.image.manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": "v1"}
    (target / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (target / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))


def main():
    target, wanted = Path(sys.argv[1]) / "oci", float(sys.argv[2]) * 1e9
    if (target / "index.json").exists():
        return
    source = files(sys.argv[3:] or ROOTS)

    def layers_of(new):
        for share in SHARES:
            room, layer = wanted * share / sum(SHARES), new()
            for path, size in source:
                try:
                    layer.add(path)
                except OSError as e:
                    sys.exit(f"image: {e}")
                room -= size
                if room <= 0:
                    break
            yield layer

    write(target, layers_of)


if __name__ == "__main__":
    main()
