#!/usr/bin/env bash
# fuzz.sh [DIR...]: runs every fuzz target of the packages (default: all) for a few seconds: FUZZ_SECONDS on each processor (default 100),
# 5 at most for each target. As many run side by side as there are processors, each with one worker: what a target does before its
# workers begin takes as long as the fuzzing.
set -euo pipefail
cd "$(dirname "$0")/.."

# On a busy machine a test may report the end of its own time as a failure (golang/go#75804). A real one names its input, or
# says how the process died.
ran_out() {
	grep -q '^ *context deadline exceeded$' "$1" && ! grep -qE 'Failing input|panic|hung or terminated|_test\.go:' "$1"
}

program_of() { echo "$programs/$(basename "$1").test"; }

# fuzz DIR TARGET fuzzes, and says what was found if anything was. With 255, xargs starts nothing more.
fuzz() {
	local program log
	program=$(program_of "$1")
	log=$program.$2.log
	echo "./$1 $2 for ${seconds}s"
	cd "$1"
	"$program" -test.run='^$' -test.fuzz="^$2\$" -test.fuzztime="${seconds}s" -test.fuzzminimizetime=1x \
		-test.fuzzcachedir="$corpus/sconce.dev/sconce/$1" -test.parallel=1 > "$log" 2>&1 || ran_out "$log" || {
		cat "$log"
		exit 255
	}
}

[ $# -gt 0 ] || set -- internal cmd
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
corpus=$(go env GOCACHE)/fuzz # where go test keeps what it found interesting
export programs corpus seconds
export -f ran_out program_of fuzz

# Only the packages here are instrumented: go test -fuzz has the standard library and all that is imported compiled anew as well, one package
# at a time, and the fuzzer look into them.
mapfile -t dirs < <(grep -rl --include='*_test.go' '^func Fuzz' "$@" | xargs -n 1 dirname | sort -u)
go test -c -vet=off -ldflags=-w -gcflags=sconce.dev/sconce/...=-d=libfuzzer -o "$programs/" "${dirs[@]/#/./}"

targets=()
for dir in "${dirs[@]}"; do
	for name in $(cd "$dir" && "$(program_of "$dir")" -test.list='^Fuzz'); do
		targets+=("$dir $name")
	done
done
seconds=$((${FUZZ_SECONDS:-100} * $(nproc) / ${#targets[@]}))
seconds=$((seconds > 5 ? 5 : seconds < 1 ? 1 : seconds))
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -n 2 bash -euo pipefail -c 'fuzz "$1" "$2"' -
echo "${#targets[@]} fuzz targets, ${seconds}s each: nothing found"
