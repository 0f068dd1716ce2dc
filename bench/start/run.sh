#!/usr/bin/env bash
# run.sh IMAGE COMMAND: what a start of an image costs from a squashfs file on a slow disk, with nothing cached: the file that sconce
# writes, the same with --start, and mksquashfs'. The disk is a FUSE file system that answers each read after WAIT (1 ms, as networks
# do) and counts. Needs root, for mounts and for dropping caches, loop devices and mksquashfs.
set -euo pipefail
cd "$(dirname "$0")/../.."

image=${1:?IMAGE, as sconce names it} command=${2:?COMMAND, for the shell of the image} wait=${WAIT:-1ms} rounds=${ROUNDS:-3}
work=$(mktemp -d)
mkdir "$work/disk" "$work/root"

finish() {
	umount -R "$work/root" 2> /dev/null || true
	[ -z "${loop:-}" ] || losetup -d "$loop" 2> /dev/null || true
	umount "$work/disk" 2> /dev/null || true
	rm -rf --one-file-system "$work"
}
trap finish EXIT

go build -o "$work/slowfs" ./bench/start/slowfs
bin/sconce -q copy "$image" "plain:$work/sconce.sqsh"
bin/sconce -q copy "$image" "plain:$work/start.sqsh" --start "$command"
bin/sconce -q copy "$image" "dir:$work/tree"
mksquashfs "$work/tree" "$work/mksquashfs.sqsh" -comp zstd -Xcompression-level 3 -b 128K -no-progress -quiet > /dev/null
ls -l "$work"/*.sqsh

# start FILE: mounts it from the slow disk, runs the command with cold caches, prints what that took.
start() {
	local counted began ended
	"$work/slowfs" -wait "$wait" "$1" "$work/disk" > "$work/counted" &
	counted=$!
	until [ -e "$work/disk/image" ]; do sleep 0.1; done
	loop=$(losetup --read-only --find --show "$work/disk/image")
	mount -t squashfs -o ro "$loop" "$work/root"
	mount -t tmpfs tmpfs "$work/root/tmp"
	mount --bind /proc "$work/root/proc"
	mount --rbind /dev "$work/root/dev"
	mount --make-rslave "$work/root/dev"
	sync
	echo 3 > /proc/sys/vm/drop_caches
	kill -USR1 "$counted"
	until [ -s "$work/counted" ]; do sleep 0.1; done
	began=$(date +%s%N)
	PYTHONDONTWRITEBYTECODE=1 chroot "$work/root" /bin/sh -c "$command" > /dev/null
	ended=$(date +%s%N)
	kill -USR1 "$counted"
	until [ "$(wc -l < "$work/counted")" = 2 ]; do sleep 0.1; done
	printf '%-16s %6d ms  %s\n' "$(basename "$1" .sqsh)" $(((ended - began) / 1000000)) "$(tail -n 1 "$work/counted")"
	umount -R "$work/root"
	losetup -d "$loop"
	loop=
	umount "$work/disk"
	kill "$counted" 2> /dev/null || true
	wait "$counted" || true
}

for _ in $(seq "$rounds"); do
	for file in sconce start mksquashfs; do
		start "$work/$file.sqsh"
	done
done
