#!/bin/bash
# daemons.sh: the first process of the machine; starts munge, the controller and both nodes. $AS is what a daemon is started with.
set -e # half a machine makes tests fail now and then, and nobody knows why
umount -l /mnt
ip link set lo up
# An address besides 127.0.0.1, without which getaddrinfo(3) finds none to listen on; of an interface besides loopback, where the kernel has any,
# as nodes have: to libfabric, addresses of loopback reach no other node.
net=lo
if ip link add d0 type veth peer name d1; then
	ip link set d0 up
	ip link set d1 up
	net=d0
fi
ip address add 192.0.2.1/24 dev $net
export SLURM_CONF=/etc/slurm/slurm.conf PATH=/shared/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
as=
if [ "$(cat /etc/slurm/user)" = alice ]; then as="unshare --user --map-user=1000 --map-group=1000"; fi
printf '127.0.0.1 localhost ctl n1 n2\n' > /run/hosts
mount --bind /run/hosts /etc/hosts
if mknod -m 666 /run/fuse c 10 229 2> /dev/null; then mount --bind /run/fuse /dev/fuse; fi
hostname ctl
mkdir -p /run/slurm /run/lock /var/slurm/ctld /var/slurm/n1 /var/slurm/n2 /home/alice
chmod 1777 /run/lock
if [ -z "$as" ]; then chown 1000:1000 /home/alice; fi
dd if=/dev/urandom of=/run/slurm/munge.key bs=128 count=1 status=none
chmod 600 /run/slurm/munge.key
$as munged --force --key-file=/run/slurm/munge.key --socket=/run/slurm/munge.sock --pid-file=/run/slurm/munge.pid \
	--log-file=/run/slurm/munge.log --seed-file=/run/slurm/munge.seed
$as slurmctld -c
# A name, a /tmp and a /dev/shm of its own make a node.
for n in n1 n2; do
	unshare --uts --mount sh -c "hostname $n; mount -t tmpfs -o mode=1777 t /tmp; mount -t tmpfs -o mode=1777 s /dev/shm; exec $as slurmd -N $n"
done
while sleep 3600; do :; done # a shell as first process reaps whatever ends; it ends with the test
