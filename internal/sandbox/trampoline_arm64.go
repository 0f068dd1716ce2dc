package sandbox

import (
	"debug/elf"

	"golang.org/x/sys/unix"
)

const trampolineMachine = elf.EM_AARCH64

const sysNewfstatat = unix.SYS_FSTATAT
