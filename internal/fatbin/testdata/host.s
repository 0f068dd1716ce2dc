# Host objects as nvcc makes them, around kernels of our own: two regions that a program registers, a relocatable one, one in
# plain data and a bare cubin there. generate.sh assembles it.
	.section .nv_fatbin,"a",@progbits
	.balign 8
first:	.incbin "zstd.fatbin"
	.balign 8
second:	.incbin "stored.fatbin"

	.section __nv_relfatbin,"a",@progbits
	.balign 8
third:	.incbin "relocatable.fatbin"

	.section .rodata,"a",@progbits
	.ascii "data"
	.balign 8
	.incbin "lz4.fatbin"
	.ascii "more"
	.incbin "kernel.cubin"
	.ascii "\120\355\125\272\001\000\020\000 is how a region begins, but this is none"

	.section .nvFatBinSegment,"aw",@progbits
	.balign 8
	.long 0x466243B1, 1
	.quad first, 0
	.long 0x466243B1, 2
	.quad second, 0
	.long 0x466243B1, 1
	.quad third, 0
