#!/usr/bin/env bash
# Prints the packages in which goroutines run, or may: those that start them, or guard something against them, in the package or
# in its tests. cmd/sconce starts none, and runs all together.
set -euo pipefail
cd "$(dirname "$0")/.."

echo ./cmd/sconce
grep -rlE '^\s*go |\.Go\(|\.Parallel\(|"sync(/atomic)?"|"net/http/httptest"' --include='*.go' internal | xargs -n 1 dirname | sort -u | sed 's|^|./|'
