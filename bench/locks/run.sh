#!/bin/sh
# Locks the stacks of stacks.txt with sconce and with uv alone, against the configured package index, and prints a table of
# where they differ. uv alone runs the code of source distributions on this machine. run.sh [NAME...] takes those alone.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
: "${SCONCE:=sconce}" "${WORK:=$(mktemp -d)}"
echo "locks are kept in $WORK" >&2
exec python3 -B "$here/locks.py" "$(command -v "$SCONCE")" "$WORK" "$@"
