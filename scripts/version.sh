#!/bin/sh
# Prints the version: that of the file VERSION, with the commit behind it unless it is the one that carries the tag of the version.
set -eu
cd "$(dirname "$0")/.."
number=$(cat VERSION)
described=$(git describe --tags --always --dirty --abbrev=12 --match "v$number" 2> /dev/null || true)
case $described in
'' | "v$number") echo "$number" ;;
*) echo "$number+$(echo "${described##*-g}" | sed "s/^v$number-//; s/-/./g")" ;;
esac
