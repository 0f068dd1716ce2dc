# Installs the packages that /run/sconce-plan lists and /run/sconce-packages holds, and leaves nothing behind that would
# differ from machine to machine or from run to run.
set -eu
umask 022
plan=/run/sconce-plan
packages=/run/sconce-packages
scratch=/run/sconce-scratch

fail() { echo "$*" >&2; exit 1; }

# What scripts of packages write to, whatever they are told. A file that the base has stays as it is.
keep='/var/log/alternatives.log /var/log/fontconfig.log /etc/machine-id /var/lib/dbus/machine-id'
for file in $keep; do
	if [ -f "$file" ] && [ ! -L "$file" ]; then cat "$file" >"$scratch/$(echo "$file" | tr / _)"; fi
done

# Keys made by a package's script would be the same in every container, and others in every build.
made() {
	for file in /etc/ssh/ssh_host_* /etc/ssl/private/ssl-cert-snakeoil.key /etc/ssl/certs/ssl-cert-snakeoil.pem; do
		if [ -e "$file" ]; then echo "$file"; fi
	done
}
made >"$scratch/keys"

native=$(dpkg --print-architecture)
known=" $native all $(dpkg --print-foreign-architectures | tr '\n' ' ') "
set --
while read -r what first name architecture version state; do
	if [ "$what" = remove ]; then
		set -- "$@" "$first-"
		continue
	fi
	set -- "$@" "$packages/$first"
	case "$known" in
	*" $architecture "*) ;;
	*)
		dpkg --add-architecture "$architecture"
		known="$known$architecture "
		;;
	esac
done <"$plan"

mkdir -p "$scratch/lists/partial" "$scratch/archives/partial" "$scratch/log"
apt() {
	command=$1
	shift
	"$command" -oAPT::Sandbox::User=root \
		-oDir::State::Lists="$scratch/lists/" -oDir::Cache="$scratch/" -oDir::Cache::Archives="$scratch/archives/" \
		-oDir::Cache::pkgcache= -oDir::Cache::srcpkgcache= -oDir::Log="$scratch/log/" \
		-oDir::Etc::SourceList=/dev/null -oDir::Etc::SourceParts=/dev/null \
		-oDir::Etc::Preferences=/dev/null -oDir::Etc::PreferencesParts=/dev/null "$@"
}
dpkg-query -W -f '${Package}:${Architecture} ${db:Status-Status}\n' | sed -n 's/ installed$//p' >"$scratch/before"
apt apt-mark showauto >"$scratch/auto"
apt apt-get -q --yes --no-install-recommends --allow-downgrades --allow-change-held-packages \
	-oDpkg::Use-Pty=0 -oDpkg::Options::=--log=/dev/null -oDpkg::Options::=--force-unsafe-io \
	-oDpkg::Options::=--force-confdef -oDpkg::Options::=--force-confold \
	install "$@"

# Exactly what was pinned is there now.
dpkg-query -W -f '${Package} ${Architecture} ${Version} ${Status}\n' >"$scratch/installed"
set --
while read -r what first name architecture version state; do
	[ "$what" = install ] || continue
	grep -qxF -e "$name $architecture $version install ok installed" -e "$name $architecture $version hold ok installed" "$scratch/installed" ||
		fail "$name $version ($architecture) is not installed as it should be: $(grep "^$name $architecture" "$scratch/installed" || echo missing)"
	# What came for the sake of another package goes with it (apt-get autoremove); what the base had stays as it was marked.
	if [ "$state" = auto ] && { ! grep -qxF "$name:$architecture" "$scratch/before" || grep -qxF -e "$name" -e "$name:$architecture" "$scratch/auto"; }; then
		if [ "$architecture" = all ]; then architecture=$native; fi
		set -- "$@" "$name:$architecture"
	fi
done <"$plan"
if [ $# -gt 0 ]; then apt apt-mark -q auto "$@" >/dev/null; fi

# Caches and backups that hold times, inode numbers or nothing of use.
rm -f /var/lib/dpkg/*-old /var/cache/debconf/*-old /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- /etc/subuid- /etc/subgid- \
	/var/cache/ldconfig/aux-cache /var/cache/apt/*.bin /var/lib/apt/extended_states.bak
for dir in /var/cache/fontconfig /var/cache/man; do
	if [ -d "$dir" ]; then find "$dir" -type f -delete; fi
done

made | while read -r file; do
	grep -qxF "$file" "$scratch/keys" || rm -f "$file"
done
for link in /etc/ssl/certs/*; do # by the certificate's hash
	if [ -L "$link" ] && [ "$(readlink "$link")" = ssl-cert-snakeoil.pem ] && [ ! -e "$link" ]; then rm -f "$link"; fi
done

for file in $keep; do
	saved="$scratch/$(echo "$file" | tr / _)"
	if [ -f "$saved" ]; then
		cmp -s "$saved" "$file" || cat "$saved" >"$file"
	elif [ "$file" = /etc/machine-id ]; then
		if [ -s "$file" ]; then : >"$file"; fi # machine-id(5): an image has an empty one
	elif [ -f "$file" ] && [ ! -L "$file" ]; then
		rm -f "$file"
	fi
done
