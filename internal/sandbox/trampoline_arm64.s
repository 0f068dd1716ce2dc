#include "textflag.h"

// See trampoline.go. At the start of a program the stack has the number of arguments, their addresses, a zero, and those of the
// environment.
TEXT ·trampolineEntry(SB), NOSPLIT|NOFRAME, $0
	MOVD RSP, R19
	MOVD 8(R19), R20
	MOVBU (R20), R21
	SUB $1, R21
	ADD $1, R20

	MOVD $25, R8 // fcntl(status, F_SETFD, FD_CLOEXEC)
	MOVD R21, R0
	MOVD $2, R1
	MOVD $1, R2
	SVC

	MOVD $63, R8 // read(status, the stack below, 1)
	MOVD R21, R0
	SUB $8, R19, R1
	MOVD $1, R2
	SVC

	MOVD $221, R8 // execve(file, arguments after the first, environment)
	MOVD R20, R0
	ADD $16, R19, R1
	MOVD (R19), R2
	ADD R2<<3, R1, R2
	SVC

	MOVD R0, (R19)
	MOVD $64, R8 // write(status, error, 4)
	MOVD R21, R0
	MOVD R19, R1
	MOVD $4, R2
	SVC

	MOVD $94, R8 // exit_group(codeNotExecutable)
	MOVD $126, R0
	SVC
	UNDEF

DATA ·trampolineCode(SB)/8, $·trampolineEntry(SB)
GLOBL ·trampolineCode(SB), RODATA, $8
