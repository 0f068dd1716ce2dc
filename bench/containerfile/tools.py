"""How sconce and buildah build a Containerfile, each with storage of its own."""

import os
import pathlib
import shutil
import subprocess

import peers

CONTEXT = "context"


class User:
    """A user of this machine, for the time of the benchmark; with a range of subordinate ids or without."""

    FIRST, LAST = 900_000_000, 900_065_535  # beyond what useradd gives to anybody else

    def __init__(self, name, subordinate):
        self.name = name
        subprocess.run(["useradd", "--system", "--no-create-home", "--user-group", name], check=True)
        if subordinate:
            ids = f"{self.FIRST}-{self.LAST}"
            subprocess.run(["usermod", "--add-subuids", ids, "--add-subgids", ids, name], check=True)

    def prefix(self):
        return ["setpriv", f"--reuid={self.name}", f"--regid={self.name}", "--init-groups"]

    def remove(self):
        subprocess.run(["userdel", self.name], check=True)  # and its subordinate ids


class Tool:
    """One tool below work/NAME. A user of None is root."""

    def __init__(self, work, user, proxy):
        self.dir, self.user, self.proxy = work / self.name, user, proxy
        self.storage, self.out = self.dir / "storage", self.dir / "out"

    def start(self, context):
        """Begin with the files of the benchmark and nothing else."""
        self.wipe()
        shutil.rmtree(self.dir, ignore_errors=True)
        shutil.copytree(context, self.dir / CONTEXT)
        for name in ("home", "run", "tmp"):
            (self.dir / name).mkdir(mode=0o700)
        self.give()

    def wipe(self):
        """Forget what was built and imported; the files stay."""
        for point in peers.mounts_below(self.dir):
            subprocess.run(["umount", point], check=True)
        for directory in (self.storage, self.out):
            shutil.rmtree(directory, ignore_errors=True)

    def give(self):
        if self.user:
            subprocess.run(["chown", "-R", f"{self.user.name}:", self.dir], check=True)

    def argv(self, command):
        return [*(self.user.prefix() if self.user else []), *map(str, command)]

    def env(self):
        return {
            "PATH": os.environ["PATH"], "HOME": str(self.dir / "home"), "TMPDIR": str(self.dir / "tmp"),
            "XDG_RUNTIME_DIR": str(self.dir / "run"), "LANG": "C.UTF-8",
        }

    def run(self, *command):
        """Run a command outside the clock."""
        done = subprocess.run(
            self.argv(command), env=self.env(), cwd=self.dir, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        if done.returncode:
            raise SystemExit(f"{done.stdout}\nbench: {self.name} failed: {command}")

    def edit(self, file, old, new):
        path = self.dir / CONTEXT / file
        text = path.read_text()
        if old not in text:
            raise SystemExit(f"bench: {path} has no {old!r}")
        path.write_text(text.replace(old, new))

    def prime(self, layout):
        """Have the base, unpacked, under the name that base() gives."""
        self.take(layout)
        file = self.dir / "prime"
        file.write_text("ARG BASE\nFROM $BASE\nRUN true\n")
        self.run(*self.build("primed", self.base(), file))


class Sconce(Tool):
    name, subordinate = "sconce", False  # whether its user has subordinate ids; None: it runs as root
    text = "an ordinary user without subordinate ids"

    def env(self):
        return {**super().env(), "SCONCE_STORE": str(self.storage)}

    def binary(self):
        return self.dir.parent / "bin/sconce"

    def take(self, layout):
        self.run(self.binary(), "pull", f"oci:{layout}:latest", "--name", self.base())

    def base(self):
        return "bench-base:1"

    def build(self, tag, base, file=pathlib.Path(CONTEXT) / "Containerfile"):
        return [
            self.binary(), "build", "-f", file, "-t", tag, "--build-arg", f"BASE={base}",
            "--build-arg", f"http_proxy={self.proxy}", CONTEXT,
        ]

    def write(self, tag):
        return [self.binary(), "copy", tag, f"oci:{self.out}:latest"]


class Buildah(Tool):
    name, subordinate = "buildah", True
    text = "an ordinary user with 65536 subordinate ids and newuidmap; overlay of the kernel, chroot isolation, --layers"
    driver = "overlay"

    def take(self, layout):
        self.run(*self.buildah(), "pull", f"oci:{layout}:latest")
        self.run("sh", "-euc", " ".join(map(str, [*self.buildah(), "tag", "$(", *self.buildah(), "images", "-q", ")", self.base()])))

    def base(self):
        return "localhost/bench-base:1"

    def buildah(self):
        return ["buildah", "--root", self.storage, "--runroot", self.dir / "run/containers", "--storage-driver", self.driver]

    def build(self, tag, base, file=pathlib.Path(CONTEXT) / "Containerfile"):
        return [
            *self.buildah(), "bud", "--layers", "--isolation", "chroot", "--network", "host", "-f", file, "-t", tag,
            "--build-arg", f"BASE={base}", "--build-arg", f"http_proxy={self.proxy}", CONTEXT,
        ]

    def write(self, tag):
        return [*self.buildah(), "push", tag, f"oci:{self.out}:latest"]

    def wipe(self):
        super().wipe()
        shutil.rmtree(self.dir / "run/containers", ignore_errors=True)


class BuildahRoot(Buildah):
    name, subordinate = "buildah-root", None
    text = "root; overlay of the kernel, chroot isolation, --layers"


TOOLS = {t.name: t for t in (Sconce, Buildah, BuildahRoot)}
