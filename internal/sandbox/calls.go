package sandbox

import (
	"fmt"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// A step cannot make the calls that reach what is in no name space, and that no right is needed for: the keys of whoever builds, with
// tickets of Kerberos among them (keyrings(7)); its terminal, to which TIOCSTI adds what nobody has typed; and parts of the kernel that
// are there for measuring and changing it (bpf(2), perf_event_open(2), userfaultfd(2)). Docker's default profile forbids the same.

// callsOf are the numbers of these calls in one of the ABIs of a machine.
type callsOf struct {
	arch      uint32
	forbidden []uint32
	ioctl     uint32
}

// callABIs are the ABIs of 64 and 32 bits of both machines. A filter may name an ABI that a kernel does not have.
var callABIs = []callsOf{
	{unix.AUDIT_ARCH_X86_64, []uint32{248, 249, 250, 298, 321, 323}, 16},
	{unix.AUDIT_ARCH_I386, []uint32{286, 287, 288, 336, 357, 374}, 54},
	{unix.AUDIT_ARCH_AARCH64, []uint32{217, 218, 219, 241, 280, 282}, 29},
	{unix.AUDIT_ARCH_ARM, []uint32{309, 310, 311, 364, 386, 388}, 54},
}

// x32 is the bit of the numbers of a third ABI of x86-64, which no distribution uses (syscall(2)).
const x32 = 0x40000000

// Offsets in struct seccomp_data (seccomp(2)): the call's number, its ABI and the low half of the second argument.
const (
	callNumber  = 0
	callArch    = 4
	callRequest = 24
)

// forbiddenRequests of ioctl(2) act on a terminal as if its user did (TIOCLINUX: paste, on a console).
var forbiddenRequests = []uint32{unix.TIOCSTI, unix.TIOCLINUX}

// forbidCalls makes the calls fail in what this thread starts. It takes no_new_privs, or the right to do without.
func forbidCalls() error {
	raw, err := bpf.Assemble(callFilter())
	if err != nil {
		return fmt.Errorf("assemble the filter of system calls: %w", err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]} //nolint:gosec // some dozens
	// Without the flag, kernels before 5.16 slow down what is behind a filter, as processors speculate (spec_store_bypass_disable=seccomp).
	// That is for programs that run foreign code beside secrets of their own, and costs compilers and interpreters most. gVisor has no flags.
	for _, flags := range []uintptr{unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, 0} {
		_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
		if errno == 0 {
			return nil
		}
		err = errno
	}
	return failed("install the filter of system calls", err)
}

func callFilter() []bpf.Instruction {
	refuse := bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	allow := bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	code := []bpf.Instruction{bpf.LoadAbsolute{Off: callArch, Size: 4}}
	for _, abi := range callABIs {
		block := []bpf.Instruction{bpf.LoadAbsolute{Off: callNumber, Size: 4}}
		if abi.arch == unix.AUDIT_ARCH_X86_64 {
			block = append(block, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: x32, SkipFalse: 1}, refuse)
		}
		for _, number := range abi.forbidden {
			block = append(block, bpf.JumpIf{Cond: bpf.JumpEqual, Val: number, SkipFalse: 1}, refuse)
		}
		block = append(block, bpf.JumpIf{Cond: bpf.JumpEqual, Val: abi.ioctl, SkipTrue: 1}, allow, bpf.LoadAbsolute{Off: callRequest, Size: 4})
		for _, request := range forbiddenRequests {
			block = append(block, bpf.JumpIf{Cond: bpf.JumpEqual, Val: request, SkipFalse: 1}, refuse)
		}
		block = append(block, allow)
		code = append(code, bpf.JumpIf{Cond: bpf.JumpEqual, Val: abi.arch, SkipTrue: 1}, bpf.Jump{Skip: uint32(len(block))}) //nolint:gosec // some dozens
		code = append(code, block...)
	}
	return append(code, allow)
}
