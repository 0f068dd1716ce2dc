package rootemu

import (
	"fmt"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data, see seccomp(2). Both architectures are little-endian: the low half of an argument, which
// holds all of a flag or an id, comes first.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
	argSize   = 8
)

// program makes the filter. Whatever it does not know goes to the kernel; the decision for a call that is let through
// whatever its arguments are is cached by the kernel (Linux 5.11), so that it costs nothing.
//
// Files that are opened only to be read are left to the kernel unless reads is set.
func program(abis []abi, reads bool) ([]bpf.RawInstruction, error) {
	code := []bpf.Instruction{bpf.LoadAbsolute{Off: offArch, Size: 4}}
	for _, a := range abis {
		block := a.instructions(reads)
		code = append(code,
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: a.arch, SkipTrue: 1},
			bpf.Jump{Skip: uint32(len(block))},
		)
		code = append(code, block...)
	}
	return bpf.Assemble(append(code, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}))
}

func (a abi) instructions(reads bool) []bpf.Instruction {
	code := []bpf.Instruction{bpf.LoadAbsolute{Off: offNumber, Size: 4}}
	for _, c := range a.calls {
		verdict := c.verdict(reads)
		code = append(code, bpf.JumpIf{Cond: bpf.JumpEqual, Val: c.number, SkipFalse: uint8(len(verdict))})
		code = append(code, verdict...)
	}
	return append(code, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
}

// openingToChange are the flags of open(2) with which a file may be changed or made.
const openingToChange = unix.O_CREAT | unix.O_WRONLY | unix.O_RDWR

// verdict decides about a call once its number is known.
func (c sysno) verdict(reads bool) []bpf.Instruction {
	notify := bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF}
	switch c.call {
	case callCapset:
		// Rights that a program means to give up it keeps: they reach no further than its sandbox, and with them it can go
		// on working on files that only seem to belong to the user it has become.
		return []bpf.Instruction{bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO}}
	case callSetrlimit: // The limit that holds the number of the identity stays as it is: pam_limits sets all there are.
		return []bpf.Instruction{
			bpf.LoadAbsolute{Off: offArgs, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: rlimitLocks, SkipFalse: 1},
			bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO},
			bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
		}
	case callPrlimit:
		return []bpf.Instruction{
			bpf.LoadAbsolute{Off: offArgs + argSize, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: rlimitLocks, SkipFalse: 3},
			bpf.LoadAbsolute{Off: offArgs + 2*argSize, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1}, // only asks for it
			bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO},
			bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
		}
	case callPrctl:
		return []bpf.Instruction{
			bpf.LoadAbsolute{Off: offArgs, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PR_SET_KEEPCAPS, SkipTrue: 1},
			bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
			notify,
		}
	case callOpen, callOpenat:
		if reads {
			break
		}
		flags := uint32(1)
		if c.call == callOpenat {
			flags = 2
		}
		return []bpf.Instruction{ // only those that may change a file or make one
			bpf.LoadAbsolute{Off: offArgs + flags*argSize, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: openingToChange, SkipTrue: 1},
			bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
			notify,
		}
	}
	return []bpf.Instruction{notify}
}

// Filter puts the calling thread, and every process that is forked from it afterwards, under root emulation. The goroutine
// must be locked to its thread, and no_new_privs be set. It returns the file descriptor for [Supervise], over which another
// process must answer: this one waits whenever it makes one of the calls, by way of the os package too.
//
// With reads, files that are opened to be read are watched as well, so that /proc/self/status shows who a process is. That makes
// each open(2) some microseconds longer.
func Filter(reads bool) (listener int, err error) {
	raw, err := program(machineABIs, reads)
	if err != nil {
		return -1, fmt.Errorf("assemble the filter of system calls: %w", err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// A signal, such as those by which Go programs schedule their goroutines, must not make the kernel start a call anew
	// that is being answered; kernels before 5.19 do not have that. Those before 5.16 would slow the processes down without SPEC_ALLOW.
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
	for _, flags := range []uintptr{flags | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, flags} {
		fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
		if errno == 0 {
			// Where supervisor and process run in turns, on one processor: Linux 6.6. It is only faster.
			_, _, _ = unix.Syscall(unix.SYS_IOCTL, fd, unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
			return int(fd), nil
		}
		err = errno
	}
	return -1, fmt.Errorf("install the filter of system calls: %w", err)
}

// sizes are those of the kernel's structures, which may grow.
type sizes struct{ notification, response, data uint16 }

func notificationSizes() (sizes, error) {
	var s sizes
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_NOTIF_SIZES, 0, uintptr(unsafe.Pointer(&s)))
	if errno != 0 {
		return s, errno
	}
	return s, nil
}
