# Runs in the new system, in which the files of some packages lie: dpkg configures them, and apt installs the others.
# Nothing is left behind that would differ from machine to machine or from run to run.
set -eu
umask 022
run=/run/sconce-bootstrap
packages=/run/sconce-packages

# dpkg's database is in memory meanwhile: it is written, and waited for, several times for every package.
cp -a "$run/dpkg/." /var/lib/dpkg/

while read -r owner mode path; do
	chown -h "$owner" "/$path"
	[ "$mode" = - ] || chmod "$mode" "/$path"
done <"$run/owners"

# What runs before a package is unpacked, as dpkg would have run it.
ci=/var/lib/dpkg/tmp.ci
while read -r package architecture; do
	cp -a "$run/control/$package" "$ci"
	DPKG_MAINTSCRIPT_PACKAGE="$package" DPKG_MAINTSCRIPT_ARCH="$architecture" DPKG_MAINTSCRIPT_NAME=preinst \
		DPKG_MAINTSCRIPT_PACKAGE_REFCOUNT=1 DPKG_RUNNING_VERSION="$(cat "$run/dpkg-version")" DPKG_ADMINDIR=/var/lib/dpkg DPKG_ROOT= \
		"$ci/preinst" install
	rm -rf "$ci"
done <"$run/preinst"

dpkg --configure --pending

set -- "$packages"/*.deb
if [ -e "$1" ]; then
	scratch=$run/apt
	mkdir -p "$scratch/lists/partial" "$scratch/archives/partial" "$scratch/log"
	# What is asked for by name is marked as wanted, and nothing as brought by something else: all of it is the base.
	apt-get -q --yes --no-install-recommends -oAPT::Sandbox::User=root \
		-oDir::State::Lists="$scratch/lists/" -oDir::Cache="$scratch/" -oDir::Cache::Archives="$scratch/archives/" \
		-oDir::Cache::pkgcache= -oDir::Cache::srcpkgcache= -oDir::Log="$scratch/log/" \
		-oDir::Etc::SourceList=/dev/null -oDir::Etc::SourceParts=/dev/null install "$@"
fi

# All that was pinned is there, and configured.
dpkg-query -W -f '${Package} ${Architecture} ${Version} ${Status}\n' >"$run/installed"
while read -r line; do
	grep -qxF "$line install ok installed" "$run/installed" || { echo "$line is not installed as it should be" >&2; exit 1; }
done <"$run/expected"

# Logs, caches and backups that hold times, inode numbers or nothing of use. machine-id(5): an image has an empty one.
rm -f /var/log/dpkg.log /var/log/alternatives.log /var/log/apt/* /var/log/bootstrap.log /var/cache/ldconfig/aux-cache \
	/var/lib/dbus/machine-id /var/cache/apt/*.bin /var/lib/apt/extended_states.bak \
	/var/lib/dpkg/*-old /var/cache/debconf/*-old /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- /etc/subuid- /etc/subgid-
if [ -e /etc/machine-id ]; then : >/etc/machine-id; fi
find /tmp /var/tmp -mindepth 1 -xdev -delete

rm -rf "$run/dpkg"
cp -a /var/lib/dpkg "$run/dpkg"
chmod 755 "$run/dpkg"
