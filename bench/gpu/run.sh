#!/usr/bin/env bash
# What sconce does for GPUs, proved on one: device code read as cuobjdump reads it; an image of this machine's PyTorch, built,
# audited, slimmed and run by sconce; operations whose results stay the same bit for bit; and a control that must fail.
#
#     bench/gpu/run.sh SCONCE [RESULTS]
#
# Needs an NVIDIA GPU with its driver, Python with PyTorch and pip's packaging, cuobjdump for the comparison, and 40 GB of
# disk; no network, no root. SCONCE is the program; RESULTS (default: bench/gpu/results) takes what was printed.
set -euo pipefail

sconce=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
results=${2:-$here/results}
mkdir -p "$results"
work=$(mktemp -d "${TMPDIR:-/tmp}/sconce-gpu.XXXXXX")
trap 'rm -rf "$work"' EXIT
export SCONCE_STORE=$work/store
exec > >(tee "$results/log.txt") 2>&1

section() { printf '\n== %s (%d s so far)\n' "$1" "$SECONDS"; }
timed() { local t=$EPOCHREALTIME; "$@"; printf '   took %.1f s: %s\n' "$(bc <<< "$EPOCHREALTIME - $t")" "${*:2:3}"; }
command -v bc > /dev/null || bc() { python3 -c 'print(eval(input()))'; }

python=$(command -v python3)
site=$("$python" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')

capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1)
control=8.0 # a GPU that this machine's is not
[ "${capability%.*}" != 8 ] || control=9.0

section "this machine"
uname -srm
nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv
"$python" -c 'import torch; print("torch", torch.__version__, "cuDNN", torch.backends.cudnn.version(), "NCCL", torch.cuda.nccl.version())'
"$sconce" version

section "device code: sconce and cuobjdump"
if command -v cuobjdump > /dev/null; then
	cuobjdump --version | tail -2
	"$python" "$here/compare.py" "$sconce" "$site/torch" "$site"/nvidia*
fi

section "an image of this machine's PyTorch"
mkdir "$work/image"
timed "$python" "$here/wheels.py" "$work/image" torch numpy | tail -40
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
# The root: Python, the C compiler that torch.compile wants, and the C library; not the driver, nor any CUDA.
tar -C / --create --file="$work/image/root.tar" --exclude=usr/local --exclude=usr/share --exclude='usr/src' --exclude='usr/lib/jvm' \
	--exclude='*/__pycache__' --exclude='*libcuda*' --exclude='*libnvidia*' --exclude='usr/lib/firmware' --exclude='usr/lib/modules' \
	--ignore-failed-read bin sbin lib lib64 usr etc/ld.so.conf etc/ld.so.conf.d etc/ld.so.cache etc/passwd etc/group etc/alternatives etc/os-release \
	etc/nsswitch.conf 2> "$work/tar.log" || tail -3 "$work/tar.log"
tar --list --file="$work/image/root.tar" "usr/bin/python$version" > /dev/null
cat > "$work/image/sconce.toml" << END
name = "gpu-proof"
[base]
image = "tar:root.tar"
[target]
gpu = ["$capability"]
[python]
lock = "pylock.toml"
END
timed "$sconce" -q build "$work/image" --no-check -o "$work/whole.sqsh"
du -h --apparent-size "$work/image/root.tar" "$work/whole.sqsh"

section "what is in it"
timed "$sconce" inspect --gpu "$work/whole.sqsh"
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1)

section "will it run here"
timed "$sconce" check "$work/whole.sqsh" --gpu "$capability" --driver "$driver" || echo "   exit code $?"

section "slimmed to $capability"
timed "$sconce" -q slim gpu-proof --gpu "$capability" --name gpu-proof:slim -o "$work/slim.sqsh"
timed "$sconce" -q slim gpu-proof --gpu "$capability" --ptx drop-where-native --relfatbin drop --name gpu-proof:slimmest -o "$work/slimmest.sqsh"
timed "$sconce" -q slim gpu-proof --gpu "$control" --ptx drop-where-native --relfatbin drop --name gpu-proof:control -o "$work/control.sqsh" > /dev/null
du -h --apparent-size "$work"/*.sqsh
for name in whole slim slimmest; do
	"$sconce" run -B "$here/sizes.py:/sizes.py:ro" "$work/$name.sqsh" -- sh -c 'python /sizes.py /opt/venv/lib/python*/site-packages' > "$work/$name.sizes"
done
for name in slim slimmest; do
	printf '\n%s:\n' "$name"
	"$python" "$here/smaller.py" "$work/whole.sizes" "$work/$name.sizes"
done

# operate runs the operations in an image: operate IMAGE NAME [VARIABLE=VALUE...]
operate() {
	local image=$1 name=$2 flags=()
	shift 2
	for v in CUDA_MODULE_LOADING NCCL_NVLS_ENABLE TORCH_SYMM_MEM_DISABLE_MULTICAST NVSHMEM_DISABLE_NVLS; do
		[ -z "${!v:-}" ] || flags+=(-e "$v")
	done
	"$sconce" run --gpu "${flags[@]}" "${@/#/-e}" -B "$here/operations.py:/operations.py:ro" "$image" -- python /operations.py > "$results/$name.json" 2> "$results/$name.err" || { tail -5 "$results/$name.err"; return 1; }
}

section "a GPU in an image"
timed "$sconce" run --gpu "$work/whole.sqsh" -- nvidia-smi -L
timed "$sconce" run --gpu "$work/whole.sqsh" -- python -c 'import torch
print(torch.cuda.get_device_name(), torch.cuda.get_device_capability(), torch.cuda.device_count(), torch.zeros(3, device="cuda") + 1)'

section "operations, in the image as it was built"
timed operate "$work/whole.sqsh" whole
timed operate "$work/whole.sqsh" whole-again
for mode in LAZY EAGER; do
	section "operations, slimmed, modules loaded ${mode,,}"
	timed operate "$work/slim.sqsh" "slim-${mode,,}" "CUDA_MODULE_LOADING=$mode"
	timed operate "$work/slimmest.sqsh" "slimmest-${mode,,}" "CUDA_MODULE_LOADING=$mode"
done

section "the control, slimmed to $control"
if operate "$work/control.sqsh" control; then
	echo "it ran: the proof proves nothing"
	exit 1
fi

section "bit for bit"
"$python" "$here/identical.py" "$results" whole whole-again slim-lazy slim-eager slimmest-lazy slimmest-eager
