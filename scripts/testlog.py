"""testlog.py TIMES [-v]: shows what `go test -json` prints as go test shows it without -json, and keeps how long each test took.

TIMES becomes a file with a line for each test and each package: seconds, result, package, test ("" is the package), and why it
was left out, or that less was done of it; separated by tabs. Whether all is well, go test says: this stands last in a pipe of a shell with pipefail."""

import collections
import json
import re
import sys

# What go test shows with -v alone.
VERBOSE = re.compile(r"=== (RUN|PAUSE|CONT|NAME) |\s*--- (PASS|SKIP): |PASS$")
# What a test says that does less in a short run: tooltest.Less.
LESS = "less is done in a short run"


def main(times, verbose):
    packages = collections.defaultdict(dict)  # by package and test: lines of output
    failed = False
    with open(times, "w", encoding="utf-8") as out:
        for line in sys.stdin:
            event = json.loads(line) if line.startswith("{") else {"Action": "output", "Output": line}
            failed |= event["Action"] == "fail"
            if verbose or "Package" not in event:
                print(event.get("Output", ""), end="", flush=True)
            if "Package" in event:
                take(packages[event["Package"]], event, out, verbose)
    if failed:
        print("FAIL")


def take(said, event, out, verbose):
    action, test = event["Action"], event.get("Test", "")
    if action == "output":
        said.setdefault(test, []).append(event["Output"])
    if action not in ("pass", "fail", "skip"):
        return
    lines = quiet(said.get(test, []))
    why = " ".join("".join(lines).split()) if action == "skip" else LESS if any(LESS in line for line in lines) else ""
    print(f"{event.get('Elapsed', 0):.2f}\t{action}\t{event['Package']}\t{test}\t{why}", file=out)
    if test and action != "fail":
        said.pop(test, None)  # go test shows what fails
    if not test and not verbose:
        show(said, action)


def show(said, action):
    """Shows a package that is through. Tests that are still there have failed, or did not come to their end."""
    package = said.pop("", [])
    if action == "fail":
        for test, lines in said.items():
            head = [line for line in lines if line.startswith("--- FAIL")]
            rest = [line for line in quiet(lines) if line not in head]
            print("".join("    " * test.count("/") + line for line in head + rest), end="")
    print("".join(quiet(package)), end="", flush=True)


def quiet(lines):
    return [line for line in lines if not VERBOSE.match(line)]


if __name__ == "__main__":
    main(sys.argv[1], "-v" in sys.argv[2:])
