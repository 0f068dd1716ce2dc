#!/bin/sh
# Builds examples/pytorch and runs it. Called by `make demo`, which has built bin/sconce: that brings all it needs itself.
# A second run finds nothing to do.
set -eu
cd "$(dirname "$0")/.."
recipe=examples/pytorch
result=.cache/demo.txt

now() { date +%s.%N; }
took() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f s", b - a }'; }

mkdir -p .cache
before=$(cat .cache/demo.digest 2>/dev/null || :)
begin=$(now)
digest=$(bin/sconce build "$recipe")
built=$(now)

if [ "$digest" = "$before" ] && [ -f "$result" ]; then
	echo "Nothing to do: the image is up to date ($(took "$begin" "$built"))."
	cat "$result"
	exit 0
fi

bin/sconce run pytorch:1 -- python -c '
import torch, numpy
x = torch.arange(6.0).reshape(2, 3)
print("torch", torch.__version__, "with CUDA", torch.version.cuda, "and numpy", numpy.__version__)
print("x @ x.T =", (x @ x.T).tolist())
assert (x @ x.T).tolist() == [[5.0, 14.0], [14.0, 50.0]]
'
ran=$(now)

{
	echo
	bin/sconce images
	echo
	echo "built in $(took "$begin" "$built"), first run in $(took "$built" "$ran") (it unpacks the layers once)"
	echo "Try: bin/sconce run pytorch:1 -- python    bin/sconce inspect pytorch:1    bin/sconce copy pytorch:1 oci:pytorch"
} | tee "$result"
echo "$digest" > .cache/demo.digest
