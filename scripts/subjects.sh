#!/usr/bin/env bash
# subjects.sh: fails when a commit has a subject that is not "area: imperative" within 72 columns, see docs/style.md. Commits up to the one
# below are older than the rule.
set -euo pipefail
cd "$(dirname "$0")/.."

older=32d7f02d6cee
git cat-file -e "$older^{commit}" 2> /dev/null || exit 0 # a shallow clone

wrong=$(git log --no-merges --format='%h %s' "$older..HEAD" \
	| awk '{ subject = substr($0, index($0, " ") + 1) } length(subject) > 72 || subject !~ /^[a-z0-9_\/.,* -]+: [a-z]/')
if [ -n "$wrong" ]; then
	printf 'These subjects are not "area: imperative" within 72 columns (docs/style.md):\n%s\n' "$wrong" >&2
	exit 1
fi
