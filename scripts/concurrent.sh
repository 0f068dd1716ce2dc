#!/usr/bin/env bash
# concurrent.sh [rest]: prints the packages in which goroutines run, or may: those that start them or guard something against them, and
# those whose tests start them. cmd/sconce starts none, and runs all together. What takes longest comes first, so that nothing waits for it
# at the end.
#
#	rest   all others; ./test, which waits most, for mirrors and other programs, first, so that others compute beside it
set -euo pipefail
cd "$(dirname "$0")/.."

concurrent() {
	printf '%s\n' ./internal/sandbox ./internal/build ./cmd/sconce
	{
		grep -rlE '^\s*go |\.Go\(|"sync(/atomic)?"' --include='*.go' --exclude='*_test.go' internal
		grep -rlE '^\s*go |\.Go\(|\.Parallel\(' --include='*_test.go' internal
	} | xargs -n 1 dirname | sort -u | sed 's|^|./|' | grep -vxF -e ./internal/sandbox -e ./internal/build
}

case ${1:-} in
'') concurrent ;;
rest)
	echo ./test
	"${GO:-go}" list ./... | sed 's|^sconce.dev/sconce|.|' | grep -vxFf <(concurrent; echo ./test)
	;;
*) echo "concurrent.sh: no packages are called $1" >&2 && exit 2 ;;
esac
