#!/usr/bin/env bash
# test.sh NAME ARG...: go test ARG... with its usual output. How long each test took is kept in .cache/times/NAME; .ci/run prints
# the slowest.
set -euo pipefail
cd "$(dirname "$0")/.."

name=$1
shift
mkdir -p .cache/times
"${GO:-go}" test -json "$@" | python3 scripts/testlog.py ".cache/times/$name" "$@"
