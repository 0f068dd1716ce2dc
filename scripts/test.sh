#!/usr/bin/env bash
# test.sh NAME ARG...: go test ARG... with its usual output. How long each test took is kept in .cache/times/NAME; .ci/run prints
# the slowest.
set -euo pipefail
cd "$(dirname "$0")/.."

name=$1
shift

# The shims of pyenv and its kin choose a Python anew at each start, by tens of programs, and uv, which asks once of any other Python, asks them
# whenever it runs. The Python that they choose stands in their place.
shims=$(dirname "$(command -v python3)")
if [[ $shims == */shims ]] && chosen=$(python3 -c 'import os, sys; print(os.path.dirname(sys.executable))'); then
	path=:$PATH:
	path=${path//":$shims:"/":$chosen:"}
	path=${path#:} PATH=${path%:}
fi

mkdir -p .cache/times
"${GO:-go}" test -json "$@" | python3 scripts/testlog.py ".cache/times/$name" "$@"
