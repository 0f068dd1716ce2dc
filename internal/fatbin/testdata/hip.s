# Two offload bundles as hipcc lays them out, on pages; the code is only text. generate.sh assembles it.
	.section .hip_fatbin,"a",@progbits
	.balign 4096
one:	.ascii "__CLANG_OFFLOAD_BUNDLE__"
	.quad 2
	.quad code - one, 0, 29
	.ascii "host-x86_64-unknown-linux-gnu"
	.quad code - one, 4, 38
	.ascii "hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+"
	.balign 256
code:	.ascii "code"
	.balign 4096
two:	.ascii "__CLANG_OFFLOAD_BUNDLE__"
	.quad 1
	.quad more - two, 4, 31
	.ascii "hipv4-amdgcn-amd-amdhsa--gfx942"
more:	.ascii "more"
