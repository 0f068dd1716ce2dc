#!/usr/bin/env bash
# Prints the packages in which goroutines run, or may: those that start them or guard something against them, and those whose tests
# start them. cmd/sconce starts none, and runs all together.
set -euo pipefail
cd "$(dirname "$0")/.."

echo ./cmd/sconce
{
	grep -rlE '^\s*go |\.Go\(|"sync(/atomic)?"' --include='*.go' --exclude='*_test.go' internal
	grep -rlE '^\s*go |\.Go\(|\.Parallel\(' --include='*_test.go' internal
} | xargs -n 1 dirname | sort -u | sed 's|^|./|'
