#!/bin/sh
# machine.sh ROOT CONFIG SHARED: makes the machine that both nodes are on and becomes its first process. Started in name spaces
# of its own, as root or as the root of a user name space.
set -e
root=$1 config=$2 shared=$3
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
cd "$root"
# Not chroot(2), in which the kernel allows no user name spaces.
pivot_root . mnt
cd /
exec /etc/slurm/daemons.sh
