#!/bin/sh
# Measures how sconce writes squashfs files, and its peers, in one run. See README.md beside this file.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)

need() {
	command -v "$1" >/dev/null 2>&1 && return
	echo "bench: $1 is not installed; apt-get install $2" >&2
	exit 1
}

need python3 python3
need mmdebstrap mmdebstrap
need umoci umoci
need mksquashfs squashfs-tools
need tar2sqfs squashfs-tools-ng
need squashfuse_ll squashfuse
need buildah buildah
if [ "$(id -u)" != 0 ]; then
	echo "bench: run as root: the peers need it, and so does mounting" >&2
	exit 1
fi
work=${BENCH_WORK:-$here/../out/clusterfile}
"$here/image.sh" "$work/image"
exec python3 -B "$here/bench.py" "$work" "$@"
