#!/bin/sh
# Measures how a conda environment becomes a SIF file, by sconce and by its peers, in one run. See README.md beside this file.
set -eu
export SCONCE_ALLOW_PATHS=/ # recipes of the measurements name what these have made
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)

need() {
	command -v "$1" >/dev/null 2>&1 && return
	echo "bench: $1 is not installed; $2" >&2
	exit 1
}

need python3 "apt-get install python3"
need busybox "apt-get install busybox-static"
need mksquashfs "apt-get install squashfs-tools"
need zstd "apt-get install zstd"
need uv "pip install uv"
work=${BENCH_WORK:-$here/../out/conda}
mkdir -p "$work"
[ -x "$work/venv/bin/python" ] || {
	uv venv --quiet --python /usr/bin/python3 "$work/venv"
	uv pip install --quiet --python "$work/venv" py-rattler==0.28.0
}
exec "$work/venv/bin/python" -B "$here/bench.py" "$work" "$@"
