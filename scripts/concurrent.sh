#!/usr/bin/env bash
# concurrent.sh [quick | slow | rest]: prints the packages in which goroutines run, or may: those that start them or guard something
# against them, and those whose tests start them. cmd/sconce starts none, and runs all together.
#
#	quick  those of them whose tests leave nothing out with -short: the race detector costs these little
#	slow   the others of them
#	rest   all packages but the quick ones; those that wait most, for mirrors and other programs, first, so that others compute beside them
set -euo pipefail
cd "$(dirname "$0")/.."

concurrent() {
	echo ./cmd/sconce
	{
		grep -rlE '^\s*go |\.Go\(|"sync(/atomic)?"' --include='*.go' --exclude='*_test.go' internal
		grep -rlE '^\s*go |\.Go\(|\.Parallel\(' --include='*_test.go' internal
	} | xargs -n 1 dirname | sort -u | sed 's|^|./|'
}

# short prints the packages whose tests leave something out, by themselves or as all that start Slurm do.
short() { grep -rlE 'testing\.Short\(\)|internal/slurmtest"' --include='*_test.go' cmd internal | xargs -n 1 dirname | sort -u | sed 's|^|./|'; }

quick() { concurrent | grep -vxFf <(short); }

case ${1:-} in
'') concurrent ;;
quick) quick ;;
slow) concurrent | grep -xFf <(short) ;;
rest)
	printf '%s\n' ./test ./internal/wheelbuild
	"${GO:-go}" list ./... | sed 's|^sconce.dev/sconce|.|' | grep -vxFf <(quick; printf '%s\n' ./test ./internal/wheelbuild)
	;;
*) echo "concurrent.sh: no packages are called $1" >&2 && exit 2 ;;
esac
