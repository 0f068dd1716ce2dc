#!/usr/bin/env bash
# Runs every fuzz target of the tree for a few seconds: FUZZ_SECONDS in all (default 150), 5 at most for each.
set -euo pipefail
cd "$(dirname "$0")/.."

# On a busy machine go test may report the end of its own time as a failure (golang/go#75804). A real one names its input,
# or says how the process died.
ran_out() {
	grep -q '^ *context deadline exceeded$' "$1" && ! grep -qE 'Failing input|panic|hung or terminated|_test\.go:' "$1"
}

mkdir -p .cache
targets=()
while read -r package; do
	while read -r name; do
		targets+=("$package $name")
	done < <(go test -list '^Fuzz' "$package" | grep '^Fuzz' || :)
done < <(grep -rl --include='*_test.go' '^func Fuzz' internal cmd | xargs -n 1 dirname | sort -u | sed 's|^|./|')

seconds=$((${FUZZ_SECONDS:-150} / ${#targets[@]}))
seconds=$((seconds > 5 ? 5 : seconds < 1 ? 1 : seconds))
for t in "${targets[@]}"; do
	read -r package name <<< "$t"
	echo "$package $name for ${seconds}s"
	go test -run='^$' -fuzz="^$name\$" -fuzztime="${seconds}s" -fuzzminimizetime=1x -parallel="$(nproc)" "$package" > .cache/fuzz.log 2>&1 ||
		ran_out .cache/fuzz.log || {
		cat .cache/fuzz.log
		exit 1
	}
done
echo "${#targets[@]} fuzz targets, ${seconds}s each: nothing found"
