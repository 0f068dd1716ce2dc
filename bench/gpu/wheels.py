"""Packs installed distributions back into wheels, with a lock file (PEP 751) that names them: a machine without network can
then build an image of what it has.

    python wheels.py DIR torch [NAME...]     writes DIR/*.whl and DIR/pylock.toml

The distributions are those named and all that they require. Files are stored, not compressed: they are read once.
"""

import base64
import hashlib
import os
import re
import sys
import zipfile
from importlib import metadata

try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(names):
    found, queue = {}, [(n, ()) for n in names]
    while queue:
        name, extras = queue.pop()
        key = normalized(name)
        if key in found and not extras:
            continue
        try:
            dist = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            print(f"{name} is required and not installed", file=sys.stderr)
            continue
        found[key] = dist
        for line in dist.requires or []:
            r = Requirement(line)
            if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in ("", *extras)):
                if normalized(r.name) not in found or r.extras:
                    queue.append((r.name, tuple(r.extras)))
    return found


def tag_of(dist):
    tags = [line.split(":", 1)[1].strip() for line in (dist.read_text("WHEEL") or "").splitlines() if line.startswith("Tag:")]
    if not tags:
        return "py3-none-any"
    python = ".".join(sorted({t.split("-")[0] for t in tags}))
    abi = ".".join(sorted({t.split("-")[1] for t in tags}))
    platform = ".".join(sorted({t.split("-")[2] for t in tags}))
    return f"{python}-{abi}-{platform}"


def pack(dist, directory):
    name = re.sub(r"[-_.]+", "_", dist.metadata["Name"])
    file = os.path.join(directory, f"{name}-{dist.version}-{tag_of(dist)}.whl")
    record, info = [], dist._path.name
    made = tuple(f"{info}/{name}" for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as z:
        for f in dist.files or []:
            path = str(f)
            if path.startswith("..") or path.endswith(".pyc") or path in made or not f.locate().is_file():
                continue  # what an installer made
            data = f.locate().read_bytes()
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if os.access(f.locate(), os.X_OK) else 0o100644) << 16
            z.writestr(entry, data)
            record.append(f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}")
        record.append(f"{info}/RECORD,,")
        z.writestr(zipfile.ZipInfo(f"{info}/RECORD", (1980, 1, 1, 0, 0, 0)), "\n".join(record) + "\n")
    return file


def main():
    directory, names = sys.argv[1], sys.argv[2:]
    os.makedirs(directory, exist_ok=True)
    lock = ['lock-version = "1.0"', 'created-by = "sconce bench"', ""]
    for key, dist in sorted(closure(names).items()):
        file = pack(dist, directory)
        with open(file, "rb") as f:
            digest = hashlib.file_digest(f, "sha256").hexdigest()
        lock += [
            "[[packages]]", f'name = "{key}"', f'version = "{dist.version}"',
            f'wheels = [{{ name = "{os.path.basename(file)}", path = "{os.path.basename(file)}", size = {os.path.getsize(file)}, hashes = {{ sha256 = "{digest}" }} }}]', "",
        ]
        print(f"{key} {dist.version}  {os.path.getsize(file) >> 20} MiB")
    with open(os.path.join(directory, "pylock.toml"), "w") as f:
        f.write("\n".join(lock))


if __name__ == "__main__":
    main()
