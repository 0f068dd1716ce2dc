#!/bin/sh
# From recipes to images that users can pull; and again, for what has changed. A team
# has a key, and commits its locks: it needs the last line alone.
set -e
cd "$(dirname "$0")"
[ -e team.key ] || (umask 077 && openssl genpkey -algorithm ed25519 -out team.key)
for recipe in images/base images/stack apps/app; do
	sconce lock "$recipe"
done
sconce pipeline run --test --promote --branch main # from whatever branch this example is tried
