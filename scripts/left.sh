#!/usr/bin/env bash
# left.sh tests | packages: prints what the last make race left out, or did less of, as it is a short run: an expression for the names of the
# tests, or the packages that have them, with the one that waits longest for mirrors first. Of a test that was left out in part, the expression
# has that part: ^TestScripts$/^rpmbase$.
set -euo pipefail
cd "$(dirname "$0")/.."

[ -f .cache/times/race ] || { echo "left.sh: nothing is known of a make race: run it first" >&2 && exit 2; }

# left prints package and test for each test, or part of one, that was left out or did less.
left() { awk -F '\t' '$4 != "" && $5 != "" { print $3 "\t" $4 }' .cache/times/race; }

case ${1:-} in
tests) left | cut -f 2 | sort -u | sed -E 's/[][\.*+?(){}|^$]/\\&/g; s|/|$/^|g; s/.*/^&$/' | paste -sd '|' ;;
packages) left | cut -f 1 | sort -u | sed 's|^sconce.dev/sconce|.|' | awk '/wheelbuild$/ { print } !/wheelbuild$/ { rest = rest $0 "\n" } END { printf "%s", rest }' ;;
*) echo "left.sh: say tests or packages" >&2 && exit 2 ;;
esac
