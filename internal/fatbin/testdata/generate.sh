#!/bin/sh
# Makes the fixtures again. Needs nvcc, fatbinary and ptxas of CUDA 13.5, and gcc; the files differ a little with other versions.
set -eu
cd "$(dirname "$0")"
archs='-gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_100f,code=sm_100f'

make() { # name options...
	name=$1
	shift
	nvcc -fatbin "$@" kernel.cu -o "$name.fatbin"
}
# shellcheck disable=SC2086
{
	make zstd -Xfatbin -compress-all --compress-mode=balance $archs
	make lz4 -Xfatbin -compress-all --compress-mode=speed $archs
	make concatenated -Xfatbin -compress-all -Xfatbin -concat --compress-mode=size $archs
}
make stored --compress-mode=none -gencode 'arch=compute_75,code=[sm_75,compute_75]'
make lto -gencode arch=compute_90,code=lto_90
make relocatable -rdc=true -Xfatbin -compress-all -gencode 'arch=compute_80,code=[sm_80,compute_80]'
nvcc -cubin -gencode arch=compute_90a,code=sm_90a kernel.cu -o kernel.cubin
nvcc -ptx -gencode arch=compute_120f,code=compute_120f kernel.cu -o kernel.ptx
# Not by nvcc -G, which writes the directory into it.
fatbinary -64 -g -ident kernel.cu -cmdline '-O1 -v' --create debug.fatbin \
	--image3 kind=elf,sm=90a,file=kernel.cubin --image3 kind=ptx,sm=120f,file=kernel.ptx

small='-nostdlib -Wl,--build-id=none,-z,noseparate-code,--hash-style=gnu -s'
gcc -c host.s -o host.o
gcc -c hip.s -o hip.o
# shellcheck disable=SC2086
{
	gcc -shared $small -Wl,-z,pack-relative-relocs host.o -o host-relr.so
	gcc -shared $small -Wl,-z,nopack-relative-relocs host.o -o host.so
	gcc -static -no-pie $small -Wl,-e,0 host.o -o host.exe
}
