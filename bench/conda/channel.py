"""A conda channel of wheels of the package index and of this machine's Python, and a root file system without either.

Wheels for any Python become noarch packages, which have no byte code; others become packages of this machine, with byte code that
names time and size of its source, as conda-build makes them.
"""

import hashlib
import json
import os
import pathlib
import platform
import py_compile
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

SUBDIR = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}[platform.machine()]
MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
PLACEHOLDER = "/home/conda/work/" + "_placehold" * 23 + "_placeho"
LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3", "site-packages", "dist-packages", "__pycache__"}
BUILT = 1704067200  # seconds since 1970, of all files


def make(directory, requirements):
    """Makes the channel in a directory unless it is there."""
    if (directory / "done").exists():
        return
    shutil.rmtree(directory, ignore_errors=True)
    wheels = directory.with_name("wheels-" + requirements.stem)
    subprocess.run(
        ["uv", "tool", "run", "--quiet", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--python-version", MINOR, "--implementation", "cp",
         "--platform", f"manylinux_2_28_{platform.machine()}", "--platform", f"manylinux2014_{platform.machine()}", "-d", wheels, "-r", requirements], check=True,
    )
    names = []
    with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        scratch = pathlib.Path(scratch)
        pack(directory, "python", platform.python_version(), "0_cpython", SUBDIR, python_files(scratch / "python"), {})
        for wheel in sorted(wheels.glob("*.whl")):
            names.append(repack(directory, wheel, scratch / wheel.stem))
    index(directory)
    (directory / "names.json").write_text(json.dumps(names))
    (directory / "done").touch()


def python_files(tree):
    """This machine's Python below a prefix: the program and the standard library."""
    library = tree / "lib" / f"python{MINOR}"
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=lambda _, names: LEFT_OUT & set(names), symlinks=False, ignore_dangling_symlinks=True)
    (library / "site-packages").mkdir()
    (library / "site-packages" / "README.txt").write_text("Packages are installed here.\n")
    (tree / "lib/python3").mkdir()
    (tree / "lib/python3/dist-packages").symlink_to(f"../python{MINOR}/site-packages")  # where Debian's looks
    (tree / "bin").mkdir()
    shutil.copy(os.path.realpath(sys.executable), tree / "bin" / f"python{MINOR}")
    for name in ("python", "python3"):
        (tree / "bin" / name).symlink_to(f"python{MINOR}")
    compile_all(library)
    return tree


def repack(channel, wheel, tree):
    """Makes a conda package of a wheel, and returns its name."""
    name, version, *_, tag = wheel.stem.split("-")
    noarch = tag == "any"
    site = tree / ("site-packages" if noarch else f"lib/python{MINOR}/site-packages")
    with zipfile.ZipFile(wheel) as z:
        z.extractall(site)
    for data in site.glob("*.data"):
        for part in data.iterdir():
            if part.name in ("purelib", "platlib"):
                shutil.copytree(part, site, dirs_exist_ok=True)
        shutil.rmtree(data)
    info = next(site.glob("*.dist-info"))
    entry_points = scripts(info)
    if not noarch:
        compile_all(site)
        (tree / "bin").mkdir()
        for line in entry_points:
            command, function = (s.strip() for s in line.split("=", 1))
            module, function = function.split(":")
            script = tree / "bin" / command
            script.write_text(f"#!{PLACEHOLDER}/bin/python{MINOR}\nimport sys\nfrom {module} import {function.split('.')[0]}\nsys.exit({function}())\n")
            script.chmod(0o755)
        entry_points = []
    name = name.lower().replace("_", "-")
    extra = {"noarch": "python"} if noarch else {}
    pack(channel, name, version, "py_0" if noarch else f"py{MINOR.replace('.', '')}_0", "noarch" if noarch else SUBDIR, tree, {"depends": ["python"], **extra}, entry_points)
    shutil.rmtree(tree)
    return name


def scripts(info):
    file = info / "entry_points.txt"
    lines, inside = [], False
    for line in file.read_text().splitlines() if file.exists() else []:
        if line.startswith("["):
            inside = line.strip() == "[console_scripts]"
        elif inside and "=" in line:
            lines.append(line.split("[")[0].strip())
    return lines


def compile_all(directory):
    for source in sorted(directory.rglob("*.py")):
        os.utime(source, (BUILT, BUILT))
        try:
            py_compile.compile(str(source), dfile=None, doraise=True)
        except (py_compile.PyCompileError, OSError, ValueError):
            pass  # templates


def pack(channel, name, version, build, subdir, tree, extra, entry_points=()):
    """Writes a package in the present form of archives (CEP 35)."""
    stem = f"{name}-{version}-{build}"
    out = channel / subdir / f"{stem}.conda"
    out.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for file in sorted(p for p in tree.rglob("*") if not p.is_dir() or p.is_symlink()):
        entry = {"_path": str(file.relative_to(tree)), "path_type": "softlink" if file.is_symlink() else "hardlink"}
        if not file.is_symlink():
            data = file.read_bytes()
            entry |= {"sha256": hashlib.sha256(data).hexdigest(), "size_in_bytes": len(data)}
            if PLACEHOLDER.encode() in data:
                entry |= {"prefix_placeholder": PLACEHOLDER, "file_mode": "text"}
        paths.append(entry)
    record = {"name": name, "version": version, "build": build, "build_number": 0, "subdir": subdir, "depends": [], "constrains": [], **extra}
    with tempfile.TemporaryDirectory(dir=channel.parent) as info:
        info = pathlib.Path(info)
        (info / "info").mkdir()
        (info / "info/index.json").write_text(json.dumps(record))
        (info / "info/paths.json").write_text(json.dumps({"paths": paths, "paths_version": 1}))
        if "noarch" in extra:
            (info / "info/link.json").write_text(json.dumps({"noarch": {"type": "python", "entry_points": list(entry_points)}, "package_metadata_version": 1}))
        with zipfile.ZipFile(out, "w") as z:
            z.writestr("metadata.json", '{"conda_pkg_format_version": 2}')
            for part, directory in (("pkg", tree), ("info", info)):
                packed = subprocess.run(
                    f"tar -C '{directory}' --sort=name --owner=0 --group=0 --mtime=@{BUILT} -cf - . --transform 's,^\\./,,' | zstd -q -T0 -10", shell=True, check=True, capture_output=True
                ).stdout
                z.writestr(f"{part}-{stem}.tar.zst", packed)


def index(channel):
    """Writes repodata.json of each subdir, of what the archives say."""
    for subdir in ("noarch", SUBDIR):
        packages = {}
        (channel / subdir).mkdir(exist_ok=True)
        for file in sorted((channel / subdir).glob("*.conda")):
            data = file.read_bytes()
            with zipfile.ZipFile(file) as z:
                member = next(n for n in z.namelist() if n.startswith("info-"))
                tar = subprocess.run("zstd -dc | tar -xO info/index.json", shell=True, check=True, input=z.read(member), capture_output=True).stdout
            packages[file.name] = json.loads(tar) | {"sha256": hashlib.sha256(data).hexdigest(), "md5": hashlib.md5(data).hexdigest(), "size": len(data)}
        text = {"info": {"subdir": subdir}, "packages": {}, "packages.conda": packages, "removed": [], "repodata_version": 1}
        (channel / subdir / "repodata.json").write_text(json.dumps(text))


def root(tree):
    """A root file system with a shell, busybox and the libraries that Python loads."""
    if tree.exists():
        return
    fresh = tree.with_name(tree.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    for name in ("bin", "tmp", "etc", "root"):
        (fresh / name).mkdir(parents=True)
    programs = [os.path.realpath(sys.executable), "/bin/bash"]
    shutil.copy("/bin/bash", fresh / "bin/bash")
    shutil.copy(shutil.which("busybox"), fresh / "bin/busybox")
    for name in ("sh", "ls", "cat", "mkdir", "env", "dirname", "basename", "readlink", "rm"):
        (fresh / "bin" / name).symlink_to("busybox")
    extensions = [str(p) for p in pathlib.Path(sysconfig.get_path("stdlib"), "lib-dynload").glob("*.so")]
    for program in programs + extensions:
        for line in subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout.splitlines():
            library = next((word for word in line.split() if word.startswith("/")), None)
            if library and not (fresh / library[1:]).exists():
                (fresh / library[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(library, fresh / library[1:])
    (fresh / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    fresh.rename(tree)
