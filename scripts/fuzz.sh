#!/usr/bin/env bash
# fuzz.sh [DIR...]: runs every fuzz target of the packages (default: all) for a few seconds: FUZZ_SECONDS in all (default 150),
# 5 at most for each.
set -euo pipefail
cd "$(dirname "$0")/.."

# On a busy machine a test may report the end of its own time as a failure (golang/go#75804). A real one names its input, or
# says how the process died.
ran_out() {
	grep -q '^ *context deadline exceeded$' "$1" && ! grep -qE 'Failing input|panic|hung or terminated|_test\.go:' "$1"
}

[ $# -gt 0 ] || set -- internal cmd
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
log=$programs/log
corpus=$(go env GOCACHE)/fuzz # where go test keeps what it found interesting

# One program for each package, as go test -fuzz would link it again for each target.
targets=()
while read -r dir; do
	program=$programs/$(tr / - <<< "$dir").test
	go test -c -vet=off -ldflags=-w -fuzz=. -o "$program" "./$dir"
	while read -r name; do
		targets+=("$dir $program $name")
	done < <(cd "$dir" && "$program" -test.list='^Fuzz')
done < <(grep -rl --include='*_test.go' '^func Fuzz' "$@" | xargs -n 1 dirname | sort -u)

seconds=$((${FUZZ_SECONDS:-150} / ${#targets[@]}))
seconds=$((seconds > 5 ? 5 : seconds < 1 ? 1 : seconds))
for t in "${targets[@]}"; do
	read -r dir program name <<< "$t"
	echo "./$dir $name for ${seconds}s"
	(cd "$dir" && "$program" -test.run='^$' -test.fuzz="^$name\$" -test.fuzztime="${seconds}s" -test.fuzzminimizetime=1x \
		-test.fuzzcachedir="$corpus/$(go list .)" -test.parallel="$(nproc)") > "$log" 2>&1 || ran_out "$log" || {
		cat "$log"
		exit 1
	}
done
echo "${#targets[@]} fuzz targets, ${seconds}s each: nothing found"
