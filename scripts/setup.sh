#!/usr/bin/env bash
# setup.sh [tests] [lint] [format]: installs what the test suite, the linter and make format need, the first two unless some are named: the
# modules of go.mod, Debian packages by apt-get, uv by pip, Go tools by go install. What is there already stays, and when all is, nothing is
# asked of any server. Tools that are no Debian package go to .tools, each in a directory named with its version.
set -euo pipefail
cd "$(dirname "$0")/.."

. scripts/tools.sh

GOLANGCI_LINT_VERSION=v2.15.0
GOFUMPT_VERSION=v0.12.0
ACTIONLINT_VERSION=v1.7.7

# need_go COMMAND MODULE VERSION: builds a Go tool. Without inlining and what debuggers need that takes two thirds of the time, some
# 60 s of processors less for golangci-lint, which then takes 10 more. The standard library is compiled as .ci/run has it anyway.
need_go() {
	local dir=.tools/$1@$3
	if [ ! -x "$dir/$1" ]; then
		GOBIN=$PWD/$dir CGO_ENABLED=0 again go install -gcflags=all='-l -dwarf=false' -gcflags=std=-dwarf=false -ldflags='-s -w' "$2@$3"
	fi
	mkdir -p .tools/bin
	ln -sf "../${dir#.tools/}/$1" ".tools/bin/$1"
}

need_tests() {
	# In one go when anything is missing: apt-get is slow to start, and an administrator is asked once.
	local missing=() command package
	while read -r command package; do
		there "$command" || [ -e "$command" ] || missing+=("$package")
	done < <(tools_of_tests)
	uv_can_come || missing+=(python3-venv)
	have_npms || there npm || missing+=(npm)
	# What needs no administrator comes first: that one of them is missing is no reason to have nothing.
	need_go actionlint github.com/rhysd/actionlint/cmd/actionlint "$ACTIONLINT_VERSION"
	! uv_can_come || need_uv
	! there npm || need_npms
	if [ "${#missing[@]}" -gt 0 ]; then
		need_debian no-such-command "${missing[@]}"
	fi
	need_uv
	need_npms
	need_judges
}

have_npms() {
	have_npm playwright-core "$PLAYWRIGHT_VERSION" && have_npm gitlab-ci-local "$GITLAB_CI_LOCAL_VERSION"
}

need_npms() {
	need_npm playwright-core "$PLAYWRIGHT_VERSION"
	need_npm gitlab-ci-local "$GITLAB_CI_LOCAL_VERSION"
}

# need_judges: brings cosign and oras of Debian 13, which Debian 12 does not have, into .tools, from the mirror that apt uses.
need_judges() {
	local top=$PWD dir=$PWD/.tools/debian13 keys=/usr/share/keyrings/debian-archive-keyring.gpg mirror program
	there cosign && there oras && return
	if [ ! -x "$dir/root/usr/bin/oras" ]; then
		there apt-get || ask_for cosign oras
		mirror=$(apt-cache policy docker-registry | grep -oE 'https?://[^ ]+' | head -n 1)
		[ -n "$mirror" ] || ask_for cosign oras
		mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
		echo "deb [signed-by=$keys] $mirror trixie main" > "$dir/sources.list"
		local apt=(-qq -o "Dir::Etc::SourceList=$dir/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$dir/lists"
			-o "Dir::Cache=$dir/cache" -o "APT::Sandbox::User=" -o Acquire::Languages=none)
		if ! (again timeout 300 apt-get "${apt[@]}" update && cd "$dir" && again timeout 300 apt-get "${apt[@]}" download cosign oras); then
			echo "cosign and oras cannot be had from $mirror" >&2
			ask_for cosign oras
		fi
		for program in "$dir"/*.deb; do
			dpkg-deb -x "$program" "$dir/root"
		done
		rm -rf "$dir/lists" "$dir/cache" "$dir"/*.deb
	fi
	mkdir -p "$top/.tools/bin"
	ln -sf ../debian13/root/usr/bin/{cosign,oras} "$top/.tools/bin/"
}

# tools_of_tests prints what tests start, or look at, and the package that brings it.
tools_of_tests() {
	cat << 'END'
mmdebstrap mmdebstrap
skopeo skopeo
buildah buildah
podman podman
docker-registry docker-registry
htpasswd apache2-utils
busybox busybox-static
newuidmap uidmap
qemu-aarch64 qemu-user
qemu-aarch64-static qemu-user-static
faketime faketime
pip3 python3-pip
/usr/lib/python3/dist-packages/jsonschema python3-jsonschema
script bsdutils
/usr/bin/time time
zstd zstd
xz xz-utils
bzip2 bzip2
pigz pigz
libdeflate-gzip libdeflate-tools
igzip isal
7zz 7zip
zopfli zopfli
openssl openssl
file file
git git
ssh openssh-client
readelf binutils
patchelf patchelf
tmux tmux
python3 python3
gcc gcc
/usr/include/stdio.h libc6-dev
/usr/bin/python3-config python3-dev
useradd passwd
setpriv util-linux
mount mount
mkfs.ext4 e2fsprogs
unsquashfs squashfs-tools
sqfs2tar squashfs-tools-ng
squashfuse squashfuse
bindfs bindfs
strace strace
mkfs.ext4 e2fsprogs
mkfs.xfs xfsprogs
mkfs.btrfs btrfs-progs
umoci umoci
node nodejs
chromium chromium
shellcheck shellcheck
rpmbuild rpm
createrepo_c createrepo-c
gpg gpg
rsync rsync
ip iproute2
zsh zsh
fish fish
tclsh tcl
groff groff-base
dpkg-deb dpkg
tcsh tcsh
END
}

need_lint() {
	need_go golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint "$GOLANGCI_LINT_VERSION"
}

need_format() {
	need_go gofumpt mvdan.cc/gofumpt "$GOFUMPT_VERSION"
}

again go mod download
[ $# -gt 0 ] || set -- lint tests # tests may want an administrator
for part; do
	case $part in
	tests | lint | format) "need_$part" ;;
	*) echo "usage: $0 [tests] [lint] [format]" >&2 && exit 2 ;;
	esac
done
