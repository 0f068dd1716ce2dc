"""Locks realistic stacks with `sconce lock` and with uv alone, and says where the versions differ.

Both ask the configured index. uv alone runs the code of sources on this machine, so this is made by hand and not by the tests.
usage: locks.py SCONCE DIRECTORY [NAME...]
"""

import io
import os
import pathlib
import re
import struct
import subprocess
import sys
import tarfile
import time
import tomllib

LIMIT = 300  # seconds for one lock


def elf(text):
    """As much of a program as is read of the base: a header, a loader, a text."""
    loader = b"/lib64/ld-linux-x86-64.so.2\0"
    head = bytearray(64 + 56)
    head[:7] = b"\x7fELF\x02\x01\x01"
    struct.pack_into("<H", head, 18, 62)
    struct.pack_into("<Q", head, 32, 64)
    struct.pack_into("<H", head, 56, 1)
    struct.pack_into("<IIQQQQQ", head, 64, 3, 0, 120, 0, 0, len(loader), 0)
    return bytes(head) + loader + text


def make_base(path):
    """A root file system of which only a Python 3.11 and glibc 2.36 can be seen."""
    files = {
        "usr/bin/python3.11": elf(b"\x003.11.2\0"),
        "usr/lib/python3.11/os.py": b"",
        "usr/lib/python3/dist-packages/.x": b"",
        "usr/lib/x86_64-linux-gnu/libc.so.6": elf(b"GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n"),
    }
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("usr/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, "python3.11"
        tar.addfile(link)


def versions(path):
    try:
        packages = tomllib.loads(path.read_text())["packages"]
    except FileNotFoundError:
        return None
    return {p["name"]: p.get("version", "") for p in packages}


def run(command, directory, cache):
    env = dict(os.environ, UV_CACHE_DIR=str(cache), NO_COLOR="1")
    begin = time.monotonic()
    try:
        done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=LIMIT)
        said = done.stderr if done.returncode == 0 else "FAILED " + done.stderr
    except subprocess.TimeoutExpired:
        said = f"FAILED: not done after {LIMIT} s"
    return time.monotonic() - begin, said


def reason(said):
    found = re.search(r"(Failed to [^\n]*|not done after[^\n]*|was not found[^\n]*|error: [^\n]*)", said)
    return found.group(1)[:120] if found else said.strip()[:120]


def lock(sconce, top, name, packages):
    directory = top / name
    directory.mkdir(exist_ok=True)
    for old in directory.glob("*lock*"):
        old.unlink()
    (directory / "sconce.toml").write_text(
        f'name = "{name}"\nversion = "1"\n[base]\nimage = "tar:../base.tar"\n[target]\nplatform = "linux/amd64"\n[python]\npackages = {packages!r}\n'.replace("'", '"'))
    (directory / "in.txt").write_text("\n".join(packages) + "\n")
    own, said = run([sconce, "--store", str(top / "store"), "--progress", "plain", "lock"], directory, top / "cache-sconce")
    (directory / "sconce.log").write_text(said)
    uv, plain = run(["uv", "pip", "compile", "--quiet", "--format", "pylock.toml", "--python-version", "3.11.2",
                     "--python-platform", "x86_64-manylinux_2_36", "-o", "pylock.plain.toml", "in.txt"], directory, top / "cache-uv")
    (directory / "uv.log").write_text(plain)
    a, b = versions(directory / "pylock.toml"), versions(directory / "pylock.plain.toml")
    built = re.search(r"built from source: (.*)", said)
    return own, uv, said, plain, a, b, built.group(1) if built else ""


def compare(said, plain, a, b):
    if a is None:
        return "both fail: " + reason(said) if b is None else "sconce fails: " + reason(said)
    if b is None:
        return "uv alone fails: " + reason(plain)
    lines = [f"{n} {a.get(n, 'none')}, uv alone {b.get(n, 'none')}" for n in sorted(a.keys() | b.keys()) if a.get(n) != b.get(n)]
    return "; ".join(lines) or "same"


def main():
    sconce, top = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).absolute()
    top.mkdir(parents=True, exist_ok=True)
    make_base(top / "base.tar")
    print("| stack | packages | versions | sconce lock | uv alone | built from source |\n|---|---|---|---|---|---|", flush=True)
    for line in (pathlib.Path(__file__).parent / "stacks.txt").read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, _, packages = line.partition(":")
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        own, uv, said, plain, a, b, built = lock(sconce, top, name, packages.split())
        count = len(a) if a else "-"
        print(f"| {name} | {count} | {compare(said, plain, a, b)} | {own:.1f} s | {uv:.1f} s | {built} |", flush=True)


main()
