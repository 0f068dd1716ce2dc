#!/bin/sh
# Builds one Containerfile with sconce and with buildah. See README.md beside this file.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)

need() {
	command -v "$1" >/dev/null 2>&1 && return
	echo "bench: $1 is not installed; apt-get install $2" >&2
	exit 1
}

need python3 python3
need mmdebstrap mmdebstrap
need buildah buildah
need newuidmap uidmap
need setpriv util-linux
if [ "$(id -u)" != 0 ]; then
	echo "bench: run as root: it makes the two ordinary users that build, and removes them" >&2
	exit 1
fi
exec python3 -B "$here/bench.py" "$@"
