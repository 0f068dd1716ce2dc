# Compiles Python sources to byte code for sconce, one after the other, as asked on stdin.
#
# A request is two fields, the path that the code shall claim to come from and the source; a field is its length in four
# bytes, little endian, and its bytes. The answer is one byte (0: byte code, 1: the source does not compile, 2: a message
# about what went wrong here) and one field.
import sys

# With -c the first entry is the working directory; nothing may be imported from there.
sys.path[:] = [p for p in sys.path if p]

import gc
import importlib.util
import marshal
import struct
import warnings
from importlib._bootstrap_external import _code_to_hash_pyc

code_type = type(compile("", "", "exec"))

# Of each string of one character there is only one, and whether it is interned, which marshal writes down, would depend
# on all sources before. So all of them are.
characters = [sys.intern(chr(i)) for i in range(256)] + [sys.intern("")]


def hold(code, held):
    # marshal marks an object as one that may be referred to again when something else refers to it at that moment,
    # which for interned strings depends on all that this process did before. Referring to every object makes all of
    # them alike, so that the byte code depends on the source alone.
    held += (code.co_consts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_filename,
             code.co_name, getattr(code, "co_qualname", None))
    held += code.co_names
    held += code.co_varnames
    held += code.co_freevars
    held += code.co_cellvars
    hold_parts(code.co_consts, held)


def hold_parts(parts, held):
    held += parts
    for part in parts:
        kind = type(part)
        if kind is code_type:
            hold(part, held)
        elif kind is tuple or kind is frozenset:
            hold_parts(part, held)
        elif kind is slice:
            hold_parts((part.start, part.stop, part.step), held)


def has_frozenset(value):
    if isinstance(value, code_type):
        return any(has_frozenset(part) for part in value.co_consts)
    if isinstance(value, tuple):
        return any(has_frozenset(part) for part in value)
    return isinstance(value, frozenset)


def dump_long(value):
    digits, rest = [], abs(value)
    while rest:
        digits.append(rest & 0x7fff)
        rest >>= 15
    count = -len(digits) if value < 0 else len(digits)
    return b"l" + struct.pack("<i%dH" % len(digits), count, *digits)


def dump_code(value, strings):
    # The layout from Python 3.8 to 3.10.
    out = [b"c", struct.pack("<6I", value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount,
                             value.co_nlocals, value.co_stacksize, value.co_flags)]
    for part in (value.co_code, value.co_consts, value.co_names, value.co_varnames, value.co_freevars,
                 value.co_cellvars, value.co_filename, value.co_name):
        out.append(dump(part, strings))
    out.append(struct.pack("<i", value.co_firstlineno))
    out.append(dump(getattr(value, "co_linetable", None) or value.co_lnotab, strings))
    return b"".join(out)


def dump(value, strings):
    # What marshal.dumps does, but for the order of sets: before Python 3.11 it is the order of iteration, which
    # depends on where objects lie in memory. strings numbers the strings written so far; None: do not refer to them.
    kind = type(value)
    if value is None:
        return b"N"
    if value is Ellipsis:
        return b"."
    if kind is bool:
        return b"T" if value else b"F"
    if kind is int:
        return b"i" + struct.pack("<i", value) if -2**31 <= value < 2**31 else dump_long(value)
    if kind is float:
        return b"g" + struct.pack("<d", value)
    if kind is complex:
        return b"y" + struct.pack("<dd", value.real, value.imag)
    if kind is bytes:
        return b"s" + struct.pack("<I", len(value)) + value
    if kind is str:
        if strings is not None and value in strings:
            return b"r" + struct.pack("<I", strings[value])
        data = value.encode("utf-8", "surrogatepass")
        mark = ord("u")
        if strings is not None:
            strings[value] = len(strings)
            mark |= 0x80
        return struct.pack("<BI", mark, len(data)) + data
    if kind is tuple:
        return b"(" + struct.pack("<I", len(value)) + b"".join([dump(part, strings) for part in value])
    if kind is frozenset:
        return b">" + struct.pack("<I", len(value)) + b"".join(sorted(dump(part, None) for part in value))
    if kind is code_type:
        return dump_code(value, strings)
    raise TypeError("a constant of " + repr(kind))


def compile_source(path, source):
    code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    held = [code]
    hold(code, held)
    # PEP 552: found valid by the hash of its source, which is not checked at import.
    pyc = bytes(_code_to_hash_pyc(code, importlib.util.source_hash(source), False))
    if (3, 8) <= sys.version_info < (3, 11) and has_frozenset(code):
        return pyc[:16] + dump(code, {})
    return pyc


def read_field(stream):
    head = stream.read(4)
    if len(head) < 4:
        return None
    size, = struct.unpack("<I", head)
    data = stream.read(size)
    return data if len(data) == size else None


def answer(path, source):
    try:
        return 0, compile_source(path.decode("utf-8"), source)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        return 1, str(error).encode("utf-8", "replace")
    except Exception as error:
        return 2, repr(error).encode("utf-8", "replace")


def main():
    warnings.simplefilter("ignore")
    gc.set_threshold(100000, 50, 100)  # compiling makes much and leaves little behind
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        path = read_field(stdin)
        source = read_field(stdin) if path is not None else None
        if source is None:
            return
        status, data = answer(path, source)
        stdout.write(struct.pack("<BI", status, len(data)))
        stdout.write(data)
        stdout.flush()


main()
