"""Builds a wheel from a source by calling its backend (PEP 517), and writes down what happened.

Run by sconce in its sandbox with the path of a JSON file. Standard library only, Python 3.6 and later.
"""
import importlib
import json
import os
import sys
import tarfile
import zipfile

MISSING = 64  # the exit code that says: look at the requirements first


def unpack(archive, into):
    os.makedirs(into)
    if archive.endswith(".zip"):
        with zipfile.ZipFile(archive) as z:
            z.extractall(into)
    else:
        with tarfile.open(archive) as t:
            if hasattr(tarfile, "tar_filter"):
                t.extraction_filter = tarfile.tar_filter
            t.extractall(into)
    tops = [name for name in os.listdir(into) if name != "pax_global_header"]
    if len(tops) != 1 or not os.path.isdir(os.path.join(into, tops[0])):
        sys.exit("the source does not consist of one directory: " + ", ".join(sorted(tops)[:6]))
    return os.path.join(into, tops[0])


def backend(spec, root):
    paths = [os.path.realpath(os.path.join(root, p)) for p in spec["backendPath"] or []]
    for p in paths:
        if p != root and not p.startswith(root + os.sep):
            sys.exit("backend-path leads out of the source: " + p)
    sys.path[:0] = paths
    module, _, attributes = spec["backend"].partition(":")
    made = importlib.import_module(module)
    for name in filter(None, attributes.split(".")):
        made = getattr(made, name)
    return made


def installed():
    try:
        from importlib.metadata import distributions
    except ImportError:
        from importlib_metadata import distributions
    found = {}
    for d in distributions():
        name = d.metadata["Name"]
        if name and name not in found:  # what comes first on the path counts
            found[name] = d.version
    return found


def main():
    del sys.path[0]  # this file's directory
    with open(sys.argv[1]) as f:
        spec = json.load(f)
    here = spec["dir"]
    os.makedirs(os.path.join(here, "home"), exist_ok=True)
    os.makedirs(os.path.join(here, "tmp"), exist_ok=True)
    os.makedirs(os.path.join(here, "dist"), exist_ok=True)
    root = os.path.realpath(os.path.join(unpack(spec["archive"], os.path.join(here, "src")), spec["subdirectory"]))
    os.chdir(root)
    sys.argv = ["setup.py"]
    hooks = backend(spec, root)
    if spec["phase"] != "build":
        wanted = []
        if hasattr(hooks, "get_requires_for_build_wheel"):
            wanted = list(hooks.get_requires_for_build_wheel(None))
        if wanted:
            with open(os.path.join(here, "requires.json"), "w") as f:
                json.dump({"wanted": wanted, "installed": installed()}, f)
            sys.exit(MISSING)
    if spec["phase"] == "ask":
        return
    name = hooks.build_wheel(os.path.join(here, "dist"), None, None)
    with open(os.path.join(here, "built.json"), "w") as f:
        json.dump({"file": name}, f)


main()
