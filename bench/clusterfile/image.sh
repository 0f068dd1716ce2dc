#!/bin/sh
# Makes the image that is measured, as an OCI layout with three gzip layers in DIR/oci (tag v1), the same with one changed
# line on top (tag v2), and its flattened root file system in DIR/flat.tar. Debian's own packages, so that everybody can
# make it: python3-torch, scipy, matplotlib, gcc. Needs root.
set -eu
dir=$1
suite=${SUITE:-bookworm}
mkdir -p "$dir"
cd "$dir"
if [ -e flat.tar ]; then
	exit 0
fi
rm -rf oci bundle
umoci init --layout oci
umoci new --image oci:v1
umoci unpack --image oci:v1 bundle

note() { echo "image: $*" >&2; }

note "layer 1: Debian with Python"
mmdebstrap --variant=minbase --include=python3,ca-certificates "$suite" base.tar
tar -xpf base.tar -C bundle/rootfs --exclude='./dev/*'
umoci repack --refresh-bundle --image oci:v1 bundle

note "layer 2: torch, scipy, matplotlib, gcc"
cp /etc/resolv.conf bundle/rootfs/etc/resolv.conf
if [ -d /etc/apt/apt.conf.d ]; then # a proxy or mirror of this machine's
	cp /etc/apt/apt.conf.d/* bundle/rootfs/etc/apt/apt.conf.d/ 2>/dev/null || true
fi
mount --bind /dev bundle/rootfs/dev
trap 'umount bundle/rootfs/dev 2>/dev/null || true' EXIT
chroot bundle/rootfs apt-get update -qq
DEBIAN_FRONTEND=noninteractive chroot bundle/rootfs apt-get install -y -qq --no-install-recommends \
	python3-torch python3-scipy python3-matplotlib gcc g++ python3-pandas git >/dev/null
chroot bundle/rootfs apt-get clean
umount bundle/rootfs/dev
umoci repack --refresh-bundle --image oci:v1 bundle

note "layer 3: deletes and replaces"
rm -rf bundle/rootfs/usr/share/doc bundle/rootfs/usr/share/man bundle/rootfs/var/lib/apt/lists
for f in bundle/rootfs/usr/lib/python3/dist-packages/scipy/*/*.py; do
	printf '\n# changed\n' >>"$f"
done
cp bundle/rootfs/usr/bin/git bundle/rootfs/usr/bin/git.new && mv bundle/rootfs/usr/bin/git.new bundle/rootfs/usr/bin/git
umoci repack --refresh-bundle --image oci:v1 bundle

note "a line changed"
umoci tag --image oci:v1 v2
printf 'debug = True\n' >>bundle/rootfs/usr/lib/python3/dist-packages/torch/version.py
umoci repack --refresh-bundle --image oci:v2 bundle
umoci gc --layout oci

note "flat"
# The state of v1: the change is taken out again.
sed -i '$d' bundle/rootfs/usr/lib/python3/dist-packages/torch/version.py
tar -C bundle/rootfs --numeric-owner --xattrs -cf flat.tar.part .
mv flat.tar.part flat.tar
rm -rf bundle base.tar
note "$(du -sh oci | cut -f1) of layers, $(du -h flat.tar | cut -f1) flat"
