#!/bin/sh
# machine.sh ROOT CONFIG SHARED [PREFIX...]: makes the machine that both nodes are on and becomes its first process. Started in name spaces
# of its own, as root or as the root of a user name space.
set -e
root=$1 config=$2 shared=$3
shift 3
mount --make-rprivate /
# The root is a mount point, since pivot_root(2) wants one, and read-only: every cluster of a machine stands on the same files.
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
# What is shared between nodes in memory is nobody else's.
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
for dir in run var/slurm home root; do mount -t tmpfs -o mode=755 tmpfs "$root/$dir"; done
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --bind "$config" "$root/etc/slurm"
mount --bind "$shared" "$root/shared"
# Programs of this machine are where they were installed, since that is where they look for their files.
if [ $# -gt 0 ]; then mount -t tmpfs -o mode=755 opt "$root/opt"; fi
for prefix in "$@"; do
	mkdir -p "$root$prefix"
	mount --rbind "$prefix" "$root$prefix"
	conf=$root$prefix/etc/enroot/enroot.conf.d
	if [ -d "$conf" ]; then mount --bind "$config/enroot.conf.d" "$conf"; fi
done
cd "$root"
# Not chroot(2), in which the kernel allows no user name spaces.
pivot_root . mnt
cd /
exec /etc/slurm/daemons.sh
