"""A root file system tar as an OCI layout of one gzip layer (OCI image-spec 1.1, image-layout)."""

import gzip
import hashlib
import json
import pathlib
import shutil
import subprocess

CHUNK = 1 << 20


def bootstrap(tar):
    """Debian with Python, from the distribution's mirror."""
    packages = "python3,python3-venv,python3-pip,ca-certificates"
    subprocess.run(["mmdebstrap", "--quiet", "--variant=apt", f"--include={packages}", "bookworm", str(tar)], check=True)


def add_blob(layout, data):
    digest = hashlib.sha256(data).hexdigest()
    (layout / "blobs/sha256" / digest).write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def add_layer(layout, tar):
    """The tar compressed into the layout; its descriptor and the digest of the plain tar."""
    plain, packed, temporary = hashlib.sha256(), hashlib.sha256(), layout / "layer"
    with open(tar, "rb") as source, open(temporary, "wb") as sink:
        with gzip.GzipFile(fileobj=sink, mode="wb", compresslevel=6, mtime=0, filename="") as z:
            while chunk := source.read(CHUNK):
                plain.update(chunk)
                z.write(chunk)
    with open(temporary, "rb") as f:
        while chunk := f.read(CHUNK):
            packed.update(chunk)
    descriptor = {"digest": f"sha256:{packed.hexdigest()}", "size": temporary.stat().st_size}
    temporary.rename(layout / "blobs/sha256" / packed.hexdigest())
    return descriptor, f"sha256:{plain.hexdigest()}"


def write_layout(tar, layout):
    """Write the image "latest" to a new layout; whole or not at all."""
    final, layout = pathlib.Path(layout), pathlib.Path(f"{layout}.new")
    shutil.rmtree(layout, ignore_errors=True)
    (layout / "blobs/sha256").mkdir(parents=True)
    layer, diff_id = add_layer(layout, tar)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": ["/bin/sh"]},
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created_by": "mmdebstrap"}],
    }
    media = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{media}.manifest.v1+json",
        "config": {"mediaType": f"{media}.config.v1+json", **add_blob(layout, json.dumps(config).encode())},
        "layers": [{"mediaType": f"{media}.layer.v1.tar+gzip", **layer}],
    }
    entry = {
        "mediaType": f"{media}.manifest.v1+json",
        **add_blob(layout, json.dumps(manifest).encode()),
        "annotations": {"org.opencontainers.image.ref.name": "latest"},
    }
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    layout.rename(final)
