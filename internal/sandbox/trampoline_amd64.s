#include "textflag.h"

// See trampoline.go. At the start of a program the stack has the number of arguments, their addresses, a zero, and those of the
// environment.
TEXT ·trampolineEntry(SB), NOSPLIT|NOFRAME, $0
	MOVQ SP, R13
	MOVQ 8(R13), R14
	MOVBLZX (R14), R12
	DECL R12
	INCQ R14

	MOVL $72, AX // fcntl(status, F_SETFD, FD_CLOEXEC)
	MOVL R12, DI
	MOVL $2, SI
	MOVL $1, DX
	SYSCALL

	XORL AX, AX // read(status, the stack below, 1)
	MOVL R12, DI
	LEAQ -8(R13), SI
	MOVL $1, DX
	SYSCALL

	MOVL $59, AX // execve(file, arguments after the first, environment)
	MOVQ R14, DI
	LEAQ 16(R13), SI
	MOVQ (R13), DX
	LEAQ (SI)(DX*8), DX
	SYSCALL

	MOVQ AX, (R13)
	MOVL $1, AX // write(status, error, 4)
	MOVL R12, DI
	MOVQ R13, SI
	MOVL $4, DX
	SYSCALL

	MOVL $231, AX // exit_group(codeNotExecutable)
	MOVL $126, DI
	SYSCALL
	UNDEF

DATA ·trampolineCode(SB)/8, $·trampolineEntry(SB)
GLOBL ·trampolineCode(SB), RODATA, $8
