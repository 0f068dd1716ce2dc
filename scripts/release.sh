#!/usr/bin/env bash
# Makes a release below dist/: for both architectures a static binary, an archive with manual pages, completions and a module file,
# a Debian and an RPM package; beside them licences, a bill of materials and checksums. The same commit gives the same bytes.
#   scripts/release.sh VERSION [DIR [BINARY [quick]]]
# With DIR they lie there, and what was there is removed. With BINARY, a sconce for this machine, that is packaged and nothing is compiled.
# With quick, little is compressed.
set -euo pipefail
dist=$(realpath -m "${2:-$(dirname "$0")/../dist}")
given=${3:+$(realpath "$3")}
xz=6 gzip=9 # how hard they compress
[ "${4:-}" != quick ] || xz=0 gzip=1
cd "$(dirname "$0")/.."
. scripts/tools.sh
need_debian dpkg-deb dpkg
need_debian rpmbuild rpm

version=$1
number=${version#v} # of packages: 1.2.0, or 1.2.0+COMMIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C
umask 022
summary='Container images with PyTorch for GPU clusters, without root'
maintainer=${SCONCE_MAINTAINER:-sconce <sconce@localhost>}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$dist"
mkdir -p "$dist"

# archive FILE DIR NAME: a tar of DIR/NAME in which nothing is of this machine.
archive() {
	tar -C "$2" --sort=name --format=posix --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime \
		--mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf - "$3" | gzip "-$gzip" -n > "$1"
}

# tree DIR BINARY: what is installed below a prefix.
tree() {
	install -D -m 755 "$2" "$1/bin/sconce"
	mkdir -p "$1/share/man/man1"
	"$work/native" man "$1/share/man/man1"
	gzip -9n "$1"/share/man/man1/*
	install -d "$1/share/bash-completion/completions" "$1/share/zsh/site-functions" "$1/share/fish/vendor_completions.d" "$1/share/doc/sconce"
	"$work/native" completion bash > "$1/share/bash-completion/completions/sconce"
	"$work/native" completion zsh > "$1/share/zsh/site-functions/_sconce"
	"$work/native" completion fish > "$1/share/fish/vendor_completions.d/sconce.fish"
	cp README.md "$dist/THIRD-PARTY.txt" "$1/share/doc/sconce/"
}

# modulefile FILE: for Environment Modules and Lmod, beside the tree.
modulefile() {
	cat > "$1" <<-END
		#%Module1.0
		module-whatis "$summary"
		set root [file dirname [file normalize \$ModulesCurrentModulefile]]
		prepend-path PATH \$root/bin
		prepend-path MANPATH \$root/share/man
	END
}

debian_package() { # ARCH
	local root=$work/deb-$1
	mkdir -p "$root/DEBIAN"
	tree "$root/usr" "$dist/sconce-linux-$1"
	cat > "$root/DEBIAN/control" <<-END
		Package: sconce
		Version: $number
		Architecture: $1
		Maintainer: $maintainer
		Section: utils
		Priority: optional
		Description: $summary
		 A recipe goes in, an image that is known to run on your cluster comes out.
	END
	find "$root" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
	dpkg-deb --root-owner-group -Zxz "-z$xz" --build "$root" "$dist/sconce_${number}_$1.deb" > /dev/null
}

rpm_package() { # ARCH RPM'S-NAME
	local top=$work/rpm-$1 root=$work/rpmroot-$1
	mkdir -p "$top" "$root"
	tree "$root/usr" "$dist/sconce-linux-$1"
	cat > "$top/sconce.spec" <<-END
		Name: sconce
		Version: ${number//+/_}
		Release: 1
		Summary: $summary
		License: see THIRD-PARTY.txt
		%description
		A recipe goes in, an image that is known to run on your cluster comes out.
		%install
		mkdir -p %{buildroot}
		cp -a $root/. %{buildroot}/
		%files
		/usr/bin/sconce
		/usr/share/man/man1/*
		/usr/share/bash-completion/completions/sconce
		/usr/share/zsh/site-functions/_sconce
		/usr/share/fish/vendor_completions.d/sconce.fish
		/usr/share/doc/sconce
	END
	rpmbuild -bb --quiet --target "$2-linux" --define "_topdir $top" --define "_rpmdir $top/out" --define '_buildhost reproducible' \
		--define 'use_source_date_epoch_as_buildtime 1' --define 'clamp_mtime_to_source_date_epoch 1' \
		--define "_binary_payload w$xz.xzdio" --define '__os_install_post %{nil}' --define 'debug_package %{nil}' \
		--define '_build_id_links none' "$top/sconce.spec"
	cp "$top/out/$2/"*.rpm "$dist/"
}

own=$(go env GOHOSTARCH)
architectures=(amd64 arm64)
if [ -n "$given" ]; then
	architectures=("$own")
	install -m 755 "$given" "$dist/sconce-linux-$own"
else
	for arch in "${architectures[@]}"; do
		GOOS=linux GOARCH=$arch CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X sconce.dev/sconce/internal/cli.version=$version" \
			-o "$dist/sconce-linux-$arch" ./cmd/sconce
	done
fi
cp "$dist/sconce-linux-$own" "$work/native"
go run ./scripts/release "$version" "$dist/sconce-linux-${architectures[0]}" "$dist"
for arch in "${architectures[@]}"; do
	name=sconce-$number-linux-$arch
	tree "$work/$name" "$dist/sconce-linux-$arch"
	modulefile "$work/$name/modulefile"
	archive "$dist/$name.tar.gz" "$work" "$name"
	debian_package "$arch"
	case $arch in
		amd64) rpm_package amd64 x86_64 ;;
		arm64) rpm_package arm64 aarch64 ;;
	esac
done
(cd "$dist" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%f\n' | sort | xargs sha256sum > SHA256SUMS)
echo "$dist:"
cat "$dist/SHA256SUMS"
