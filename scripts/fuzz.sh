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

program_of() { echo "$programs/$(tr / - <<< "$1").test"; }

# by_imports sorts directories by how many packages they need, most first.
by_imports() { sed 's|^|./|' | xargs go list -f '{{len .Deps}} {{.ImportPath}}' | sort -rn | sed 's|^[0-9]* sconce.dev/sconce/||'; }

# One program for each package, as go test -fuzz would link it again for each target.
compile() { go test -c -vet=off -ldflags=-w -fuzz=. -o "$(program_of "$1")" "./$1"; }

# fuzz DIR TARGET fuzzes, and says what was found if anything was. With 255, xargs starts nothing more.
fuzz() {
	local program log
	program=$(program_of "$1")
	log=$program.$2.log
	echo "./$1 $2 for ${seconds}s"
	cd "$1"
	"$program" -test.run='^$' -test.fuzz="^$2\$" -test.fuzztime="${seconds}s" -test.fuzzminimizetime=1x \
		-test.fuzzcachedir="$corpus/$(go list .)" -test.parallel=1 > "$log" 2>&1 || ran_out "$log" || {
		cat "$log"
		exit 255
	}
}

[ $# -gt 0 ] || set -- internal cmd
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
corpus=$(go env GOCACHE)/fuzz # where go test keeps what it found interesting
export programs corpus seconds
export -f ran_out program_of compile fuzz

# The one that imports most comes first, and alone: go compiles on all processors by itself, and two that begin at once would each compile
# the same packages.
dirs=$(grep -rl --include='*_test.go' '^func Fuzz' "$@" | xargs -n 1 dirname | sort -u | by_imports)
compile "$(head -n 1 <<< "$dirs")"
tail -n +2 <<< "$dirs" | xargs -r -P "$(nproc)" -n 1 bash -euo pipefail -c 'compile "$1"' -

targets=()
for dir in $dirs; do
	for name in $(cd "$dir" && "$(program_of "$dir")" -test.list='^Fuzz'); do
		targets+=("$dir $name")
	done
done
seconds=$((${FUZZ_SECONDS:-100} * $(nproc) / ${#targets[@]}))
seconds=$((seconds > 5 ? 5 : seconds < 1 ? 1 : seconds))
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -n 2 bash -euo pipefail -c 'fuzz "$1" "$2"' -
echo "${#targets[@]} fuzz targets, ${seconds}s each: nothing found"
