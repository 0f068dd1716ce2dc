# Installs the packages that /run/sconce-plan lists and /run/sconce-packages holds, and leaves no caches behind.
set -eu
umask 022
plan=/run/sconce-plan
packages=/run/sconce-packages
scratch=/run/sconce-scratch

had=
if [ -s /etc/machine-id ]; then had=yes; fi
set --
while read -r what file name architecture version state; do
	set -- "$@" "$packages/$file"
done <"$plan"

# The lock's hashes say more than signatures, which were checked when it was made. Plugins talk to a running system, and the one that
# gives scripts a network and a /tmp of their own (RPM 4.20) would, where it may not, run none of them and say nothing.
rpm -Uv --noplugins --oldpackage --nosignature "$@"

# Exactly what was pinned is there now.
rpm -qa --qf '%{NAME} %{ARCH} %{EVR}\n' >"$scratch/installed"
while read -r what file name architecture version state; do
	if ! grep -qxF "$name $architecture $version" "$scratch/installed"; then
		echo "$name $version ($architecture) is not installed as it should be: $(grep "^$name $architecture" "$scratch/installed" || echo missing)" >&2
		exit 1
	fi
done <"$plan"

rm -f /var/lib/rpm/__db.* /var/cache/ldconfig/aux-cache /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- /etc/subuid- /etc/subgid-
if [ -z "$had" ] && [ -s /etc/machine-id ]; then : >/etc/machine-id; fi # machine-id(5): an image has an empty one
