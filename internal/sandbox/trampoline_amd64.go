package sandbox

import (
	"debug/elf"

	"golang.org/x/sys/unix"
)

const trampolineMachine = elf.EM_X86_64

const sysNewfstatat = unix.SYS_NEWFSTATAT
