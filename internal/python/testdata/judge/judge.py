"""Writes the JSON files beside it: what the reference implementation, the package "packaging", says.

Run it with packaging >= 26.3 (python3 judge.py) when cases are added; the tests compare sconce's answers with these.
"""
import glob, json, os, sysconfig, tomllib
from packaging import _manylinux, _musllinux, tags
from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.pylock import Pylock, PylockSelectError
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version

HERE = os.path.dirname(os.path.abspath(__file__))


def write(name, value):
    with open(os.path.join(HERE, name), "w") as f:
        json.dump(value, f, indent=0, ensure_ascii=False)
        f.write("\n")


VERSIONS = """1.dev0 1.0.dev456 1.0a1 1.0a2.dev456 1.0a12.dev456 1.0a12 1.0b1.dev456 1.0b2 1.0b2.post345.dev456 1.0b2.post345
1.0rc1.dev456 1.0rc1 1.0 1.0+abc.5 1.0+abc.7 1.0+5 1.0+ubuntu.1 1.0.post456.dev34 1.0.post456 1.0.15 1.1.dev1 1 1.0.0 01.00 1.10 1.9 2 1!0.1 1!1.0.dev1 v1.0
V1.0 1.0-1 1.0-r4 1.0.rev2 1.0c1 1.0-pre.2 1.0preview 1.0_alpha_1 1.0ALPHA 1.0post 1.0dev 1.0+ABC 1.0+a_b-c 1.0+a.b.c 1.0+10 1.0+9 1.0+cu128 2.7.0+cu128 2.7.0
3.11 3.11.2 3.8.0 3.9 3.10 20231201123456789012345678901234567890 20231201123456789012345678901234567891 2024.1.1 0 0.0 0.0.1""".split()
BAD_VERSIONS = ["", "abc", "1.", ".1", "1..2", "1.0+", "1.0+é", "1.0++a", "1 0", "1.0-", "1.0.x", "1.0b1b2", "1!", "!1", "1.0+a..b", "∞", "1.*", "vv1", "１", "1.0po\u017ft1", "1.0+\u017f", "1.0\x00", "1.0 dev1", "1.0\u200b"]
# Blanks around a version are those of Python, and count for nothing.
SPELLED_VERSIONS = [" 1.0 ", "\n1.0rc1\n", "\x0b1.0", "\x1c1.0\x1f", "\u00a01.0\u3000", "\u20281.0"]

SPECIFIERS = """==1.0 ==1.0.* ==1.* ==1.0+abc.5 ==1.0+ABC.5 !=1.0 !=1.0.* ~=1.0 ~=1.0.0 ~=1.0a1 ~=1.0.post1 ~=3.9 >=1.0 >1.0 <1.0 <=1.0 <1.0rc1 >1.0rc1 <1.0.post1
>1.0.post456 >=1.0.dev1 <2.dev1 ===1.0 ===1.0+ABC ===v1.0 ==1!0.1 >1!0 >=3.9,<3.12 >=3.8,!=3.9.* ~=2.7,>=2.7.0 ==2.7.0 ==2.7.0+cu128 ==1!1.* >=1,<2,!=1.0.15 ===1.0POST ===1.0po\u017ft
>1.0a1 <1.0b2.post345 ==01.00.* >0 <3.11 >3.11 ==3.11.*""".split()
BAD_SPECIFIERS = ["1.0", "=1.0", ">=1.0.*", "~=1", "==1.0a1.*", "==1.0+a.*", ">1.0+a", "<=1.*", "==", "==abc", "~=1.0+a", "=> 1", "==1.0 1.1", "!1", "~1.0", "==1.0.dev1.*", "==1.0.*.*", "===foo bar", "===foo;", "===foo)",
                  "==1.0po\u017ft1", "> =1", "==\u200b1.0"]
SPELLED_SPECIFIERS = ["===foo", "=== foo", "===FOO", "===1.0.*", "===\u00e9", "== 1.0", "==\u00a01.0", "==\x0b1.0", "==\x1c1.0", "==\t1.0\n", ">=\n1", "==1.0\u3000", "\u00a0>=1"]

MARKERS = """
python_version >= "3.8"
python_version < "3.10"
python_version == "3.11"
python_version == "3.11.*"
python_version != "3.11.*"
python_version ~= "3.9"
python_version === "3.11"
"3.8" <= python_version
"3.12" < python_version
python_full_version < "3.11.2"
python_full_version >= "3.11.2"
python_full_version > "3.11"
python_full_version == "3.11.*"
python_version in "3.10 3.11"
python_version not in "3.10, 3.12"
'linux' in sys_platform
sys_platform == 'linux'
sys_platform != "win32" and platform_machine == "x86_64"
sys_platform == "win32" or platform_machine == "x86_64"
os_name == "nt" or os_name == "posix" and python_version < "3"
(os_name == "nt" or os_name == "posix") and python_version < "3"
(os_name == 'posix')and(python_version>"3")
((((os_name == "posix"))))
os.name == "posix"
sys.platform == "linux"
platform.machine == "x86_64"
platform.python_implementation == "CPython"
python_implementation == "CPython"
platform_python_implementation != "PyPy"
implementation_name == "cpython"
implementation_version >= "3.11"
platform_system == "Linux"
platform_system > "Linux"
platform_system >= "Linux"
platform_system < "Z"
platform_release >= "5.0"
platform_release == ""
platform_release < "5.0"
platform_release >= "abc"
platform_version == ""
platform_version >= "1"
python_version >= "abc"
python_version == "abc"
python_version != "abc"
python_version < "abc"
python_version ~= "abc"
python_version ~= "3"
os_name ~= "posix"
"train" in extras
"Train_X" in extras
"train-x" in extras
"other" not in extras
"dev" in dependency_groups
"dev" not in dependency_groups and python_version > "3"
"train" in extras or "dev" in dependency_groups
extra == "train"
extra == "x" or python_version > "3"
python_version > "3" or extra == "x"
platform_machine in "x86_64 aarch64"
platform_machine not in "x86_64 aarch64"
platform_machine not   in "aarch64"
sys_platform == "linux" and (platform_machine == "aarch64" or (python_version >= "3.9" and python_version < "4"))
python_full_version != "3.11.0" and python_full_version != "3.11.1"
python_version >= '3.8' and python_version <= "3.11"
"posix" == os_name
os_name == sys_platform
python_version == python_full_version
python_version < python_full_version
os_name != os.name
"posix" == "os_name"
"posix" == "posix"
extras == "train"
"train" == extras
"train-x" == extras
"train-x" != extras
"train-x" < extras
"train-x" === extras
extras in "train"
os_name == "nt" and extras == "train"
os_name === "posix"
platform_machine === "X86_64"
platform_release === "abc"
python_version === "foo"
python_full_version === "3.11.2"
python_full_version === " 3.11.2"
python_version == " 3.11 "
python_version >= " 3.8 "
python_version == "3.11\u00a0"
sys_platform == "LINUX"
os_name == "POSIX"
"LIN" in sys_platform
"\u017f" in os_name
"\u0130" in os_name
python_version == "\u0663.11"
extra == "Tra\u0131n"
os_name\tnot\tin\t"x"
""".strip().split("\n")
BAD_MARKERS = ["", "os_name", "os_name ==", "os_name = 'posix'", "os_name == posix", "foo == 'x'", "os_name == 'posix", "(os_name == 'posix'", "os_name == 'posix')",
               "os_name == 'posix' and", "os_name == 'posix' xor os_name == 'nt'", "os_name notin 'x'", "os_name not 'x'", "and", "()", "os_name == 'a' os_name == 'b'",
               "os_name == 'posix' or or os_name == 'x'", "os_name in", "==", "os_name <> 'x'", "not os_name == 'x'", "os_name == 'a'orx", "OS_NAME == 'posix'", "os_name == 'a' AND os_name == 'b'", "os_name IN 'x'",
               "os_name\u00a0== 'posix'", "os_name\n== 'posix'", "os_name\x0b== 'posix'", "python_version\u2003>'3'", "\u00a0os_name == 'posix'", "o\u017f_name == 'posix'"]

REQUIREMENTS = """
numpy
numpy==1.26.4
numpy >= 1.2, < 2
numpy (>=1.2)
numpy(>=1.2,<2)
a[b]
a[b,c-d]==1.*
a[ B , c_d ] ~= 1.0
a[]
torch==2.7.0+cu128
a; python_version < '3.12'
a ;python_version < '3.12' and os_name == "posix"
a[b]>=1;extra == 'x'
a @ file:///x/a.whl
a@https://example.org/a.whl
a [b] @ git+https://example.org/a.git@main#subdirectory=x ; os_name == "posix"
zope.interface
a===foo-bar
a!=1!2.0
a>=1,
A.B_c-d
a ~= 1.0.post1
a\t>=\t1
a (=== foo , >=1)
a(===foo)
a === FOO.1 ; os_name == 'x'
a===foo;os_name=='x'
a>=\u00a01
a===\u00e9
""".strip().split("\n")
BAD_REQUIREMENTS = ["", "-a", "a-", "a[b", "a]", "a[b,,c]", "a[b c]", "a[,]", "a[-]", "a 1.0", "a=1", "a >> 1", "a>=", "a(>=1", "a >=1)", "a;", "a; foo", "a @", "a @ x; os_name == 'x' and",
                    "a @ https://x y", "==1", "é", "a b", "a>=1.*", "a~=1", "a ; python_version < 3", "a>=1;;os_name=='x'", "a[b][c]", "a,>=1", "a>=1,,<2", "a(,)",
                    "\u017fix", "\u212aeras", "na\u00efve", "a[\u017f]", "a\u00a0>=1", "a\n>=1", "a\x0b>=1", "a\x0c>=1", "a\r\n>=1", "a>=1\n", "a>=1\u00a0,<2", "a>=1,\n<2", "\u00a0a", "a ===foo bar",
                    "a ; os_name\u00a0== 'x'", "a;\nos_name=='x'"]

ENVIRONMENT = {
    "os_name": "posix", "sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "platform_release": "", "platform_version": "",
    "python_version": "3.11", "python_full_version": "3.11.2", "implementation_name": "cpython", "implementation_version": "3.11.2",
    "platform_python_implementation": "CPython", "extras": {"train-x"}, "dependency_groups": {"dev"},
}


def marker(text):
    try:
        m = Marker(text)
    except InvalidMarker:
        return "bad"
    try:
        return m.evaluate(ENVIRONMENT, context="lock_file")
    except (UndefinedComparison, UndefinedEnvironmentName):
        return "error"


def requirement(text):
    try:
        r = Requirement(text)
    except InvalidRequirement:
        return None
    return {"name": r.name, "extras": sorted(r.extras), "specifiers": sorted(str(s) for s in r.specifier), "url": r.url or "", "marker": r.marker is not None}


def interpreter_tags(version, arch, glibc=None, musl=None):
    _manylinux._get_glibc_version = lambda: glibc or (-1, -1)
    _manylinux._have_compatible_abi = lambda *_: glibc is not None
    _musllinux._get_musl_version = lambda _: musl and _musllinux._MuslVersion(*musl)
    sysconfig.get_platform = lambda: "linux-" + arch
    platforms = list(tags._linux_platforms(is_32bit=False))
    name = "cp%d%d" % version
    out = list(tags.cpython_tags(version, [name], platforms))
    out += tags.compatible_tags(version, name, platforms)
    return [str(t) for t in out]


TAGS = {
    "3.11 x86_64 glibc 2.36": dict(version=(3, 11), arch="x86_64", glibc=(2, 36)),
    "3.12 aarch64 glibc 2.39": dict(version=(3, 12), arch="aarch64", glibc=(2, 39)),
    "3.13 x86_64 musl 1.2": dict(version=(3, 13), arch="x86_64", musl=(1, 2)),
    "3.9 x86_64 glibc 2.17": dict(version=(3, 9), arch="x86_64", glibc=(2, 17)),
}
CHOICES = [((), None), (("train",), ()), (("train", "serve"), ("dev", "docs")), ((), ("dev",))]


def select(path, name, extras, groups):
    """What packaging installs from a lock: file names by package, or None where it refuses."""
    with open(path, "rb") as f:
        lock = Pylock.from_dict(tomllib.load(f))
    version = "%d.%d" % TAGS[name]["version"]
    env = {**ENVIRONMENT, "python_version": version, "python_full_version": version + ".1", "implementation_version": version + ".1", "platform_machine": TAGS[name]["arch"]}
    parsed = [next(iter(tags.parse_tag(t))) for t in interpreter_tags(**TAGS[name])]
    try:
        chosen = lock.select(environment=env, tags=parsed, extras=extras, dependency_groups=groups)
        return {p.name: getattr(source, "filename", None) or source.url.rsplit("/")[-1] for p, source in chosen}
    except PylockSelectError as e:
        print(os.path.basename(path), name, extras, groups, e)
        return None


def good(parse, text):
    try:
        parse(text)
        return True
    except (InvalidVersion, InvalidSpecifier):
        return False


if __name__ == "__main__":
    assert not any(good(Version, v) for v in BAD_VERSIONS), [v for v in BAD_VERSIONS if good(Version, v)]
    assert not any(good(Specifier, s) for s in BAD_SPECIFIERS), [v for v in BAD_SPECIFIERS if good(Specifier, v)]
    assert not any(requirement(r) for r in BAD_REQUIREMENTS), [r for r in BAD_REQUIREMENTS if requirement(r)]
    assert all(marker(m) == "bad" for m in BAD_MARKERS), [m for m in BAD_MARKERS if marker(m) != "bad"]
    parsed = [Version(v) for v in VERSIONS]
    order = {a: "".join("<" if va < vb else ">" if va > vb else "=" for vb in parsed) for a, va in zip(VERSIONS, parsed)}
    write("versions.json", {"versions": VERSIONS, "order": order, "bad": BAD_VERSIONS, "spelled": {v: str(Version(v)) for v in SPELLED_VERSIONS}})
    contains = {s: [v for v in VERSIONS if SpecifierSet(s).contains(v, prereleases=True)] for s in SPECIFIERS}
    write("specifiers.json", {"versions": VERSIONS, "contains": contains, "bad": BAD_SPECIFIERS, "spelled": {s: str(SpecifierSet(s)) for s in SPELLED_SPECIFIERS}})
    write("markers.json", {"evaluate": {m: str(marker(m)).lower() for m in MARKERS}, "bad": BAD_MARKERS})
    write("requirements.json", {"parse": {r: requirement(r) for r in REQUIREMENTS}, "bad": BAD_REQUIREMENTS})
    write("tags.json", {name: interpreter_tags(**facts) for name, facts in TAGS.items()})
    write("pylock.json", [
        {"lock": os.path.basename(path), "environment": name, "extras": extras, "groups": groups, "files": select(path, name, extras, groups)}
        for path in sorted(glob.glob(os.path.join(HERE, "../pylock/*.toml"))) for name in TAGS for extras, groups in CHOICES
    ])
