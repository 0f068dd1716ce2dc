package sandbox

import (
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Nothing that runs in an image can make the calls that reach what is in no name space, and that no right is needed for: the keys of the
// user, with tickets of Kerberos among them (keyrings(7)); and the terminal, to which TIOCSTI adds what nobody has typed. A build's
// commands have no use either for the parts of the kernel that are there for measuring and changing it (perf_event_open(2), bpf(2),
// userfaultfd(2)), which profilers and debuggers want that a user runs. Docker's default profile forbids all of them.
//
// Nothing can make a name space of control groups, where it could mount those that it is in, and change them. Nor can what the host's root
// runs make a user name space: root there is the host's, and may mount.

// callsOf are the numbers of these calls in one of the ABIs of a machine.
type callsOf struct {
	arch      uint32
	keys      []uint32 // add_key, request_key, keyctl
	measuring []uint32 // perf_event_open, bpf, userfaultfd
	ioctl     uint32
	spaces    []uint32 // unshare, clone: with flags as the first argument
	setns     uint32
}

// callABIs are the ABIs of 64 and 32 bits of both machines. A filter may name an ABI that a kernel does not have.
var callABIs = []callsOf{
	{unix.AUDIT_ARCH_X86_64, []uint32{248, 249, 250}, []uint32{298, 321, 323}, 16, []uint32{272, 56}, 308},
	{unix.AUDIT_ARCH_I386, []uint32{286, 287, 288}, []uint32{336, 357, 374}, 54, []uint32{310, 120}, 346},
	{unix.AUDIT_ARCH_AARCH64, []uint32{217, 218, 219}, []uint32{241, 280, 282}, 29, []uint32{97, 220}, 268},
	{unix.AUDIT_ARCH_ARM, []uint32{309, 310, 311}, []uint32{364, 386, 388}, 54, []uint32{337, 120}, 375},
}

// x32 is the bit of the numbers of a third ABI of x86-64, which no distribution uses (syscall(2)).
const x32 = 0x40000000

// Offsets in struct seccomp_data (seccomp(2)): the call's number, its ABI and the low halves of the first two arguments.
const (
	callNumber  = 0
	callArch    = 4
	callFlags   = 16 // the first argument
	callRequest = 24
)

// clone3 is the same in all ABIs. Its flags are in memory, where a filter cannot look: without it C libraries take clone.
const clone3 = 435

// forbiddenRequests of ioctl(2) act on a terminal as if its user did (TIOCLINUX: paste, on a console).
var forbiddenRequests = []uint32{unix.TIOCSTI, unix.TIOCLINUX}

// forbidCalls makes the calls fail in what this thread starts. It takes no_new_privs, or the right to do without.
func forbidCalls(ofBuild, ofHostRoot bool) error {
	prog, err := callFilter(ofBuild, ofHostRoot)
	if err != nil {
		return err
	}
	for _, flags := range filterFlags {
		_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(prog)))
		if errno == 0 {
			return nil
		}
		err = errno
	}
	return failed("install the filter of system calls", err)
}

// filterFlags are tried one after the other. Without the first, kernels before 5.16 slow down what is behind a filter, as processors
// speculate (spec_store_bypass_disable=seccomp). That is for programs that run foreign code beside secrets of their own, and costs
// compilers and interpreters most. gVisor has no flags.
var filterFlags = [...]uintptr{unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, 0}

// callFilter makes the filter, in the kernel's form.
func callFilter(ofBuild, ofHostRoot bool) (*unix.SockFprog, error) {
	raw, err := bpf.Assemble(callProgram(ofBuild, ofHostRoot))
	if err != nil {
		return nil, fmt.Errorf("assemble the filter of system calls: %w", err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}, nil
}

func callProgram(ofBuild, ofHostRoot bool) []bpf.Instruction {
	refuse := bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	missing := bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
	allow := bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	spaces := uint32(unix.CLONE_NEWCGROUP)
	if ofHostRoot {
		spaces |= unix.CLONE_NEWUSER
	}
	code := []bpf.Instruction{bpf.LoadAbsolute{Off: callArch, Size: 4}}
	for _, abi := range callABIs {
		block := []bpf.Instruction{bpf.LoadAbsolute{Off: callNumber, Size: 4}}
		if abi.arch == unix.AUDIT_ARCH_X86_64 {
			block = append(block, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: x32, SkipFalse: 1}, refuse)
		}
		forbidden := abi.keys
		if ofBuild {
			forbidden = slices.Concat(abi.keys, abi.measuring)
		}
		for _, number := range forbidden {
			block = append(block, bpf.JumpIf{Cond: bpf.JumpEqual, Val: number, SkipFalse: 1}, refuse)
		}
		if ofHostRoot {
			block = append(block, bpf.JumpIf{Cond: bpf.JumpEqual, Val: abi.setns, SkipFalse: 1}, refuse)
		}
		block = append(block, bpf.JumpIf{Cond: bpf.JumpEqual, Val: clone3, SkipFalse: 1}, missing)
		for _, number := range abi.spaces {
			block = append(block, bpf.JumpIf{Cond: bpf.JumpEqual, Val: number, SkipFalse: 4}, bpf.LoadAbsolute{Off: callFlags, Size: 4},
				bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: spaces, SkipFalse: 1}, refuse, allow)
		}
		block = append(block, bpf.JumpIf{Cond: bpf.JumpEqual, Val: abi.ioctl, SkipTrue: 1}, allow, bpf.LoadAbsolute{Off: callRequest, Size: 4})
		for _, request := range forbiddenRequests {
			block = append(block, bpf.JumpIf{Cond: bpf.JumpEqual, Val: request, SkipFalse: 1}, refuse)
		}
		block = append(block, allow)
		code = append(code, bpf.JumpIf{Cond: bpf.JumpEqual, Val: abi.arch, SkipTrue: 1}, bpf.Jump{Skip: uint32(len(block))})
		code = append(code, block...)
	}
	return append(code, allow)
}
