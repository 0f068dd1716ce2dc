#!/bin/sh
# Measures sconce and its peers on the same packages in one run. See README.md beside this file.
set -eu
export SCONCE_ALLOW_PATHS=/ # recipes of the measurements name what these have made
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)

need() {
	command -v "$1" >/dev/null 2>&1 && return
	echo "bench: $1 is not installed; $2" >&2
	exit 1
}

need python3 "apt-get install python3"
need mmdebstrap "apt-get install mmdebstrap"
need buildah "apt-get install buildah"
need skopeo "apt-get install skopeo"
need zstd "apt-get install zstd"
need uv "pip install uv"
if [ "$(id -u)" != 0 ]; then
	echo "bench: run as root: the peers are measured at their fastest, which is buildah with native overlay and chroot isolation" >&2
	exit 1
fi
python3 -B "$here/bench.py" "$@"
exec python3 -B "$here/bootstrap.py"
