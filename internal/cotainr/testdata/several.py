"""Runs several command lines of cotainr, each in a process of its own that has loaded it already: several.py SYSTEMS < CASES

CASES is a JSON list of objects: args, dir (to run in), path (PATH), systems (what the file SYSTEMS holds, "" for no file), and the files
stdin, stdout, stderr. The exit codes are printed as a JSON list.
"""
import json, os, sys, traceback

from cotainr.cli import main


def child(case):
    os.chdir(case["dir"])
    os.environ["PATH"] = case["path"]
    for fd, name, flags in (0, "stdin", os.O_RDONLY), (1, "stdout", os.O_WRONLY), (2, "stderr", os.O_WRONLY):
        os.dup2(os.open(case[name], flags), fd)
    sys.argv = ["cotainr"] + case["args"]
    code = 0
    try:
        main()
    except SystemExit as e:
        code = e.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


codes = []
for case in json.load(sys.stdin):
    if case["systems"]:
        with open(sys.argv[1], "w") as f:
            f.write(case["systems"])
    elif os.path.exists(sys.argv[1]):
        os.remove(sys.argv[1])
    pid = os.fork()
    if pid == 0:
        child(case)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(json.dumps(codes))
