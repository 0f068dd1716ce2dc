# The one module that uv's Python finds when it is to run a source's build backend, and the first that any Python imports.
# It runs uv's few lines with a backend that asks sconce what the source says of itself, and never lets Python go on: nothing
# of the source is run. There is no standard library here, only what is built into the interpreter. See sources_read.go.
import posix
import time


def read(path):
    fd = posix.open(path, posix.O_RDONLY)
    data = b""
    more = posix.read(fd, 1 << 16)
    while more:
        data += more
        more = posix.read(fd, 1 << 16)
    posix.close(fd)
    return data


def write(path, data):
    fd = posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC, 0o600)
    while data:
        data = data[posix.write(fd, data):]
    posix.close(fd)


def exists(path):
    try:
        posix.stat(path)
    except OSError:
        return False
    return True


def ask(what):
    # Writes what is asked and where the source is, and waits for what sconce says of it: "+" and the answer, or "-" and why not.
    room = posix.environ[b"SCONCE_SOURCES"] + b"/"
    number = str(posix.getpid()).encode("ascii")
    write(room + number + b".ask", what + b"\n" + posix.getcwdb())
    fd = posix.open(room + b"asked", posix.O_WRONLY | posix.O_NONBLOCK)  # an error when sconce is gone
    posix.write(fd, number + b"\n")
    posix.close(fd)
    waited = 0
    while not exists(room + number + b".answer") and waited < 30000:
        time.sleep(0.002 if waited < 500 else 0.02)
        waited += 1
    answer = read(room + number + b".answer")
    if answer[:1] != b"+":
        posix.write(2, answer[1:] + b"\n")
        posix._exit(1)
    return answer[1:]


class Backend:
    # PEP 517 and PEP 660: that the backend is an object in a module, or has parts, makes no difference here.
    def __getattr__(self, name):
        if name[:23] == "get_requires_for_build_" or name in ("build_editable", "build_sdist"):
            raise AttributeError(name)
        return self

    def prepare_metadata_for_build_wheel(self, directory, settings=None):
        metadata = ask(b"metadata")
        if not exists(directory):
            posix.mkdir(directory)
        posix.mkdir(directory + "/source.dist-info")
        write(directory + "/source.dist-info/METADATA", metadata)
        return "source.dist-info"

    def build_wheel(self, directory, settings=None, metadata=None):
        # uv takes no metadata from a backend that may say other things in a wheel: hatchling, when pyproject.toml has dynamic fields.
        name, wheel = ask(b"wheel").split(b"\n", 1)
        if not exists(directory):
            posix.mkdir(directory)
        name = name.decode("ascii")
        write(directory + "/" + name, wheel)
        return name

    prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


class File:
    def __init__(self, path, mode="r"):
        self.path = path

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        return None

    def write(self, text):
        write(self.path, text.encode("utf-8"))


class Json:
    def dump(self, value, file):
        file.write("[]")  # the build requirements of a backend that names none


class System:
    path = [""]


class Os:
    def fsdecode(self, name):
        return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


modules = {"sys": System(), "os": Os(), "json": Json()}


def load(name, *rest):
    return modules.get(name) or Backend()


try:
    words = read("/proc/self/cmdline").split(b"\0")
    lines = words[words.index(b"-c") + 1].decode("utf-8")
    exec(lines, {"__builtins__": {"__import__": load, "getattr": getattr, "open": File}})
    posix._exit(0)
except BaseException as problem:
    posix.write(2, ("sconce cannot answer this uv: " + repr(problem) + "\n").encode("utf-8"))
    posix._exit(2)
