#!/usr/bin/env bash
# test.sh NAME ARG...: go test ARG... with its usual output. How long each test took is kept in .cache/times/NAME; .ci/run prints
# the slowest.
set -euo pipefail
cd "$(dirname "$0")/.."

name=$1
shift

# What chooses a Python anew at each start, as pyenv does, starts tens of programs for it, and uv, which asks once of any other, asks it whenever
# it runs. The Python that is chosen stands in the place of all that the same directory has.
if chosen=$(python3 -c 'import sys; print(sys.executable)'); then
	path=:$PATH:
	path=${path//":$(dirname "$(command -v python3)"):"/":$(dirname "$chosen"):"}
	path=${path#:} PATH=${path%:}
fi

mkdir -p .cache/times
"${GO:-go}" test -json "$@" | python3 scripts/testlog.py ".cache/times/$name" "$@"
