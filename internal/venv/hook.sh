#!/bin/sh
# A hook of enroot's, which also pyxis runs: mounts the packed environment that the variable SCONCE_VENV names, FILE.sqsh[:DIR], in every
# container that is started with it set, at DIR or else /venv, and makes it the active one. Without the variable it does nothing.
#
# enroot runs the hooks of ENROOT_CONFIG_PATH/hooks.d (~/.config/enroot) before a container begins, in its name spaces, with the
# variables ENROOT_PID, ENROOT_ROOTFS and ENROOT_ENVIRON. Needed on the nodes: squashfuse, and /dev/fuse open to users.
set -eu
[ -n "${SCONCE_VENV-}" ] || exit 0

die() {
	echo "sconce venv hook: $*" >&2
	exit 1
}

case $SCONCE_VENV in
*:/*) file=${SCONCE_VENV%%:/*} dir=/${SCONCE_VENV#*:/} ;;
*) file=$SCONCE_VENV dir=/venv ;;
esac
case $dir/ in
*/../* | */./* | *//*) die "SCONCE_VENV: $dir is no path of a directory in the container" ;;
esac
[ -r "$file" ] || die "SCONCE_VENV: $file cannot be read on $(uname -n); it has to be on a file system that the nodes see"
command -v squashfuse > /dev/null || die "squashfuse is not on this node, $(uname -n)"

# A link of the image's would lead out of the container.
at=$ENROOT_ROOTFS rest=${dir#/}/
while [ -n "$rest" ]; do
	at=$at/${rest%%/*} rest=${rest#*/}
	[ ! -L "$at" ] || die "SCONCE_VENV: $dir leads through a link in the image; name another directory"
	[ -d "$at" ] || mkdir "$at" || die "$at cannot be made"
done

# squashfuse would outlive the container, whose mounts it keeps: it ends with the container's process.
squashfuse -f -o ro "$file" "$at" < /dev/null > /dev/null 2>&1 &
fuse=$!
(
	while kill -0 "$ENROOT_PID" 2> /dev/null && kill -0 "$fuse" 2> /dev/null; do sleep 1; done
	kill "$fuse" 2> /dev/null
) < /dev/null > /dev/null 2>&1 &

tries=0
until [ -e "$at/pyvenv.cfg" ]; do
	kill -0 "$fuse" 2> /dev/null || die "squashfuse does not mount $file, or /dev/fuse is closed to users"
	tries=$((tries + 1))
	[ "$tries" -lt 3000 ] || { kill "$fuse"; die "$file is no packed environment (sconce venv pack)"; }
	sleep 0.02
done

# What the image says of PATH stays behind the environment's programs.
path=$(sed -n 's/^PATH=//p' "$ENROOT_ENVIRON" | tail -n 1)
printf 'VIRTUAL_ENV=%s\nPATH=%s\n' "$dir" "$dir/bin:${path:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}" >> "$ENROOT_ENVIRON"
