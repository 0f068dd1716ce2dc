#!/usr/bin/env bash
# Two tasks of a job step, a GPU each, started as srun starts them, in an image that is run by sconce: NCCL must reach the other task's
# GPU directly (P2P), as it does without a container; and not at all so when each task is alone, which is the control.
#
#     bench/gpu/job.sh SCONCE [RESULTS]
#
# Needs two NVIDIA GPUs that reach each other, with their driver, and Python with PyTorch; no network. The image has nothing in it: the
# machine's directories with Python and PyTorch are bound into it.
set -euo pipefail

sconce=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
results=${2:-$here/results}
mkdir -p "$results"
work=$(mktemp -d "${TMPDIR:-/tmp}/sconce-job.XXXXXX")
chmod 755 "$work"
trap 'rm -rf "$work"' EXIT
export SCONCE_STORE=$work/store

python=$(python3 -c 'import sys; print(sys.executable)')
mkdir -p "$work/root/etc" "$work/root/usr"
for dir in bin lib lib64 sbin; do ln -s "usr/$dir" "$work/root/$dir"; done
"$sconce" -q pull "dir:$work/root" --platform "linux/$(uname -m | sed "s/x86_64/amd64/;s/aarch64/arm64/")" --name empty:1
"$sconce" -q copy empty:1 "$work/empty.sqsh"

# Directories that Python's files are in, as far as they are not below /usr.
mapfile -t dirs < <("$python" - << 'END'
import os, sys, torch
found = {"/" + os.path.realpath(p).split("/")[1] for p in (sys.executable, sys.prefix, sys.base_prefix, torch.__file__)}
found |= {"/" + os.path.abspath(p).split("/")[1] for p in (sys.executable, torch.__file__)}
print(*sorted(found - {"/usr", "/bin", "/lib"}), sep="\n")
END
)
binds=(-B /usr:/usr:ro -B "$here/job.py:/job.py:ro" -B "$results:/results")
for dir in "${dirs[@]}"; do [ -z "$dir" ] || binds+=(-B "$dir:$dir:ro"); done

# step NAME COMMAND...: both tasks, with the variables that srun sets.
step() {
	local name=$1 rank pids=() code=0
	shift
	for rank in 0 1; do
		env SLURM_JOB_ID=$$ SLURM_STEP_ID="$name" SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 \
			NCCL_DEBUG=INFO NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}" RESULT="$name" "$@" > "$results/$name.$rank.log" 2>&1 &
		pids+=($!)
	done
	for rank in 0 1; do wait "${pids[$rank]}" || code=$?; done
	[ "$code" = 0 ] || { tail -25 "$results/$name".?.log; return "$code"; }
}

# How NCCL reaches a neighbour, by the words of its log: "via P2P/CUMEM", "via SHM/direct/direct", "via NET/Socket/0".
ways() { grep -oh 'via [A-Z0-9]*' "$results/$1".?.log | sort | uniq -c | tr '\n' ';'; }

# What is said of NVLink's multicast is for the command as well.
flags=(--gpu "${binds[@]}" -e RESULT -e RESULTS=/results -e ROUNDS -e TORCH_SYMM_MEM_DISABLE_MULTICAST -e NVSHMEM_DISABLE_NVLS)
alone=()
for name in SLURM_PROCID SLURM_LOCALID SLURM_NTASKS MASTER_ADDR MASTER_PORT NCCL_DEBUG NCCL_NVLS_ENABLE; do alone+=(-e "$name"); done
export ROUNDS=20 RESULTS=$results
step without "$python" "$here/job.py"
step layers "$sconce" run "${flags[@]}" empty:1 "$python" /job.py
step file "$sconce" run "${flags[@]}" "$work/empty.sqsh" "$python" /job.py
ROUNDS=1 step apart timeout 60 "$sconce" run --in-job=no "${flags[@]}" "${alone[@]}" empty:1 "$python" /job.py || echo "apart: it did not come to an end"
for name in without layers file apart; do
	[ ! -e "$results/$name.json" ] || printf '%-8s %s %s\n' "$name" "$(cat "$results/$name.json")" "$(ways "$name")"
done
for name in layers file; do
	ways "$name" | grep -q 'via P2P' && ! ways "$name" | grep -q 'via \(NET\|SHM\)' || { echo "$name: NCCL does not go by P2P alone"; exit 1; }
done
echo "NCCL goes by P2P in an image as it does without"
