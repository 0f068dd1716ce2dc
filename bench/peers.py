"""How each tool makes the image, and what an OCI layout holds."""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess

import index

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
# Variables that would make a tool read something else than the benchmark gives it.
FOREIGN = re.compile(r"^(PIP|UV|SCONCE|BUILDAH|CONTAINERS|STORAGE|PYTHON)_|_proxy$", re.IGNORECASE)


def clean_env():
    return {k: v for k, v in os.environ.items() if not FOREIGN.search(k)}


def mounts_below(path):
    """Mount points at or under path, deepest first."""
    with open("/proc/self/mountinfo") as f:
        points = [line.split()[4].encode().decode("unicode_escape") for line in f]
    inside = [p for p in points if p == str(path) or p.startswith(f"{path}/")]
    return sorted(inside, key=len, reverse=True)


class Tool:
    """One tool with caches of its own under work/NAME, empty at the start of a round."""

    def __init__(self, work, base, address):
        self.dir = work / self.name
        self.out = self.dir / "out"
        self.base, self.address = base, address

    def start(self):
        self.clean()
        self.dir.mkdir(parents=True)

    def clean(self):
        for point in mounts_below(self.dir):
            subprocess.run(["umount", point], check=True)
        shutil.rmtree(self.dir, ignore_errors=True)


class Sconce(Tool):
    name = "sconce"
    python_options = ""

    def write_recipe(self, requirements):
        packages = ", ".join(json.dumps(r) for r in requirements)
        (self.dir / "sconce.toml").write_text(
            f'name = "bench"\n\n[base]\nimage = "oci:{self.base}:latest"\n\n[python]\npackages = [{packages}]\n'
            + self.python_options
        )

    def env(self):
        env = clean_env()
        env.update(UV_DEFAULT_INDEX=self.address, PIP_INDEX_URL=self.address, UV_CACHE_DIR=str(self.dir / "uv"))
        env.update(SCONCE_STORE=str(self.dir / "store"), XDG_CACHE_HOME=str(self.dir / "cache"))
        return env

    def command(self, step):
        return f"{sconce_binary()} build -o oci:{self.out}:{step}"


class SconceNoBytecode(Sconce):
    name = "sconce-no-bytecode"
    python_options = "bytecode = false\n"


class Buildah(Tool):
    """RUN in a Containerfile, then push to an OCI layout; overlay storage, layer cache and cache mount on."""

    push_options = ""

    def start(self):
        super().start()
        (self.dir / "tmp").mkdir()  # TMPDIR, where buildah keeps cache mounts
        (self.dir / "context").mkdir()
        (self.dir / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self.dir}/storage"\nrunroot = "{self.dir}/run"\n'
        )

    def write_recipe(self, requirements):
        context = self.dir / "context"
        (context / "requirements.txt").write_text("\n".join(requirements) + "\n")
        (context / "Containerfile").write_text(
            f"FROM oci:{self.base}:latest\n"
            "ARG INDEX\n"
            'ENV PATH="/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"\n'
            "COPY requirements.txt /tmp/requirements.txt\n" + self.run_lines()
        )

    def env(self):
        return {**clean_env(), "TMPDIR": str(self.dir / "tmp"), "CONTAINERS_STORAGE_CONF": str(self.dir / "storage.conf")}

    def command(self, step):
        return (
            f"buildah bud --layers --isolation chroot --network host --volume {uv_binary()}:/usr/local/bin/uv:ro"
            f" --build-arg INDEX={self.address} --tag bench:{step} context\n"
            f"buildah push {self.push_options} bench:{step} oci:{self.out}:{step}"
        )


class BuildahUv(Buildah):
    name = "uv"
    uv_options = ""
    cache = "--mount=type=cache,target=/root/.cache/uv"

    def run_lines(self):
        return (
            f"RUN {self.cache} uv venv --quiet --python /usr/bin/python3 /opt/venv"
            " && UV_LINK_MODE=copy UV_DEFAULT_INDEX=$INDEX VIRTUAL_ENV=/opt/venv"
            f" uv pip install {self.uv_options} -r /tmp/requirements.txt\n"
        )


class BuildahUvBytecode(BuildahUv):
    name = "uv-bytecode"
    uv_options = "--compile-bytecode"


class BuildahUvZstd(BuildahUvBytecode):
    name = "uv-bytecode-zstd"
    push_options = "--compression-format zstd"


class BuildahUvNoCache(BuildahUv):
    name = "uv-no-cache"
    uv_options = "--no-cache"
    cache = ""


class BuildahPip(Buildah):
    name = "pip"

    def run_lines(self):
        return (
            "RUN --mount=type=cache,target=/root/.cache/pip python3 -m venv /opt/venv"
            " && PIP_INDEX_URL=$INDEX PIP_DISABLE_PIP_VERSION_CHECK=1 pip install --quiet -r /tmp/requirements.txt\n"
        )


MEASURED = (Sconce, SconceNoBytecode, BuildahUv, BuildahUvBytecode, BuildahUvZstd, BuildahUvNoCache, BuildahPip)
TOOLS = {t.name: t for t in MEASURED}
DEFAULT = ["sconce", "sconce-no-bytecode", "uv", "uv-bytecode", "pip"]


def sconce_binary():
    path = pathlib.Path(os.environ.get("SCONCE", REPOSITORY / "bin/sconce")).resolve()
    if not path.exists():
        raise SystemExit(f"bench: {path} is missing; run make build, or name the binary in SCONCE")
    return path


def uv_binary():
    """The real file: it is mounted into the containers."""
    return os.path.realpath(shutil.which("uv"))


def versions():
    def first_line(*command):
        return subprocess.run(command, env=clean_env(), capture_output=True, text=True, check=True).stdout.splitlines()[0]

    found = {"buildah": first_line("buildah", "--version"), "uv": first_line("uv", "--version")}
    if pathlib.Path(os.environ.get("SCONCE", REPOSITORY / "bin/sconce")).exists():
        found["sconce"] = first_line(str(sconce_binary()), "version")
    return found


@dataclasses.dataclass
class Content:
    projects: set  # "name==version" of every package in the venv
    bytecode: int  # .pyc files in the venv


METADATA = re.compile(r"^\.?/?opt/venv/lib/python[^/]+/site-packages/([^/]+)-([^-/]+)\.dist-info/METADATA$")


def content(layout, tag):
    """Read the image's layers. Later layers win; only whole-package replacement is understood."""
    found, bytecode = {}, 0
    for layer in layers(layout, tag):
        for name in members(layout, layer):
            if m := METADATA.match(name):
                found[index.normalised(m[1])] = m[2]
            bytecode += "opt/venv/" in name and name.endswith(".pyc")
    return Content({f"{p}=={v}" for p, v in found.items()}, bytecode)


def blob(layout, digest):
    return layout / "blobs" / digest.replace(":", "/")


def layers(layout, tag):
    """Layer descriptors of the image under a tag, lowest first."""
    manifests = json.loads((layout / "index.json").read_text())["manifests"]
    chosen = [m for m in manifests if m.get("annotations", {}).get("org.opencontainers.image.ref.name") == tag]
    if len(chosen) != 1:
        raise SystemExit(f"bench: {layout} has {len(chosen)} images tagged {tag}, want 1")
    return json.loads(blob(layout, chosen[0]["digest"]).read_text())["layers"]


def members(layout, layer):
    """Paths in a layer."""
    program = {"gzip": ["gzip", "-dc"], "zstd": ["zstd", "-dcq"], "tar": ["cat"]}[re.split(r"[.+]", layer["mediaType"])[-1]]
    unpack = subprocess.Popen([*program, blob(layout, layer["digest"])], stdout=subprocess.PIPE)
    listing = subprocess.run(["tar", "-t"], stdin=unpack.stdout, capture_output=True, text=True, check=True).stdout
    unpack.stdout.close()
    if unpack.wait() != 0:
        raise SystemExit(f"bench: {layout}: layer {layer['digest']} does not unpack")
    return listing.splitlines()
