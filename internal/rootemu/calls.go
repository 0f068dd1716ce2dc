package rootemu

import "golang.org/x/sys/unix"

// call is a system call that is answered here, whatever its number.
type call int

const (
	callChown call = iota
	callLchown
	callFchown
	callFchownat
	callMknod
	callMknodat
	callSetuid
	callSetgid
	callSetreuid
	callSetregid
	callSetresuid
	callSetresgid
	callSetfsuid
	callSetfsgid
	callSetgroups
	callGetuid
	callGeteuid
	callGetgid
	callGetegid
	callGetresuid
	callGetresgid
	callGetgroups
	callCapset
	callSetrlimit
	callPrlimit
	callPrctl
	callOpen
	callOpenat
	callCreat
	callMkdir
	callMkdirat
	callSymlink
	callSymlinkat
	callAccess
	callFaccessat
	callFaccessat2
	callStat
	callLstat
	callFstat
	callFstatat
	callStatx
)

var callNames = [...]string{
	callChown: "chown", callLchown: "lchown", callFchown: "fchown", callFchownat: "fchownat", callMknod: "mknod",
	callMknodat: "mknodat", callSetuid: "setuid", callSetgid: "setgid", callSetreuid: "setreuid", callSetregid: "setregid",
	callSetresuid: "setresuid", callSetresgid: "setresgid", callSetfsuid: "setfsuid", callSetfsgid: "setfsgid", callSetgroups: "setgroups",
	callGetuid: "getuid", callGeteuid: "geteuid", callGetgid: "getgid", callGetegid: "getegid", callGetresuid: "getresuid",
	callGetresgid: "getresgid", callGetgroups: "getgroups", callCapset: "capset", callSetrlimit: "setrlimit", callPrlimit: "prlimit",
	callPrctl: "prctl", callOpen: "open", callOpenat: "openat", callCreat: "creat", callMkdir: "mkdir",
	callMkdirat: "mkdirat", callSymlink: "symlink", callSymlinkat: "symlinkat", callAccess: "access", callFaccessat: "faccessat",
	callFaccessat2: "faccessat2", callStat: "stat", callLstat: "lstat", callFstat: "fstat", callFstatat: "fstatat",
	callStatx: "statx",
}

func (c call) String() string { return callNames[c] }

// sysno is a call under one of its numbers.
type sysno struct {
	call   call
	number uint32
	short  bool // its user and group ids have 16 bits
}

// abi is one way into the kernel: the architecture that seccomp(2) reports, and its numbers.
type abi struct {
	arch  uint32
	calls []sysno
}

// amd64ABI has the numbers of arch/x86/entry/syscalls/syscall_64.tbl. Calls of the x32 ABI come with the same architecture
// and bit 30 set in the number, so none of these matches.
var amd64ABI = abi{unix.AUDIT_ARCH_X86_64, []sysno{
	{callChown, 92, false},
	{callLchown, 94, false},
	{callFchown, 93, false},
	{callFchownat, 260, false},
	{callMknod, 133, false},
	{callMknodat, 259, false},
	{callSetuid, 105, false},
	{callSetgid, 106, false},
	{callSetreuid, 113, false},
	{callSetregid, 114, false},
	{callSetresuid, 117, false},
	{callSetresgid, 119, false},
	{callSetfsuid, 122, false},
	{callSetfsgid, 123, false},
	{callSetgroups, 116, false},
	{callGetuid, 102, false},
	{callGeteuid, 107, false},
	{callGetgid, 104, false},
	{callGetegid, 108, false},
	{callGetresuid, 118, false},
	{callGetresgid, 120, false},
	{callGetgroups, 115, false},
	{callCapset, 126, false},
	{callSetrlimit, 160, false},
	{callPrlimit, 302, false},
	{callPrctl, 157, false},
	{callOpen, 2, false},
	{callOpenat, 257, false},
	{callCreat, 85, false},
	{callMkdir, 83, false},
	{callMkdirat, 258, false},
	{callSymlink, 88, false},
	{callSymlinkat, 266, false},
	{callAccess, 21, false},
	{callFaccessat, 269, false},
	{callFaccessat2, 439, false},
	{callStat, 4, false},
	{callLstat, 6, false},
	{callFstat, 5, false},
	{callFstatat, 262, false},
	{callStatx, 332, false},
}}

// i386ABI has the numbers of arch/x86/entry/syscalls/syscall_32.tbl, of the time of 16-bit ids and of today. The
// calls of stat before those of 64 bits are left out.
var i386ABI = abi{unix.AUDIT_ARCH_I386, []sysno{
	{callChown, 182, true},
	{callLchown, 16, true},
	{callFchown, 95, true},
	{callSetuid, 23, true},
	{callSetgid, 46, true},
	{callSetreuid, 70, true},
	{callSetregid, 71, true},
	{callSetresuid, 164, true},
	{callSetresgid, 170, true},
	{callSetfsuid, 138, true},
	{callSetfsgid, 139, true},
	{callSetgroups, 81, true},
	{callGetuid, 24, true},
	{callGeteuid, 49, true},
	{callGetgid, 47, true},
	{callGetegid, 50, true},
	{callGetresuid, 165, true},
	{callGetresgid, 171, true},
	{callGetgroups, 80, true},
	{callChown, 212, false},
	{callLchown, 198, false},
	{callFchown, 207, false},
	{callFchownat, 298, false},
	{callMknod, 14, false},
	{callMknodat, 297, false},
	{callSetuid, 213, false},
	{callSetgid, 214, false},
	{callSetreuid, 203, false},
	{callSetregid, 204, false},
	{callSetresuid, 208, false},
	{callSetresgid, 210, false},
	{callSetfsuid, 215, false},
	{callSetfsgid, 216, false},
	{callSetgroups, 206, false},
	{callGetuid, 199, false},
	{callGeteuid, 201, false},
	{callGetgid, 200, false},
	{callGetegid, 202, false},
	{callGetresuid, 209, false},
	{callGetresgid, 211, false},
	{callGetgroups, 205, false},
	{callCapset, 185, false},
	{callSetrlimit, 75, false},
	{callPrlimit, 340, false},
	{callPrctl, 172, false},
	{callOpen, 5, false},
	{callOpenat, 295, false},
	{callCreat, 8, false},
	{callMkdir, 39, false},
	{callMkdirat, 296, false},
	{callSymlink, 83, false},
	{callSymlinkat, 304, false},
	{callAccess, 33, false},
	{callFaccessat, 307, false},
	{callFaccessat2, 439, false},
	{callStat, 195, false},
	{callLstat, 196, false},
	{callFstat, 197, false},
	{callFstatat, 300, false},
	{callStatx, 383, false},
}}

// arm64ABI has the numbers of include/uapi/asm-generic/unistd.h.
var arm64ABI = abi{unix.AUDIT_ARCH_AARCH64, []sysno{
	{callFchown, 55, false},
	{callFchownat, 54, false},
	{callMknodat, 33, false},
	{callSetuid, 146, false},
	{callSetgid, 144, false},
	{callSetreuid, 145, false},
	{callSetregid, 143, false},
	{callSetresuid, 147, false},
	{callSetresgid, 149, false},
	{callSetfsuid, 151, false},
	{callSetfsgid, 152, false},
	{callSetgroups, 159, false},
	{callGetuid, 174, false},
	{callGeteuid, 175, false},
	{callGetgid, 176, false},
	{callGetegid, 177, false},
	{callGetresuid, 148, false},
	{callGetresgid, 150, false},
	{callGetgroups, 158, false},
	{callCapset, 91, false},
	{callSetrlimit, 164, false},
	{callPrlimit, 261, false},
	{callPrctl, 167, false},
	{callOpenat, 56, false},
	{callMkdirat, 34, false},
	{callSymlinkat, 36, false},
	{callFaccessat, 48, false},
	{callFaccessat2, 439, false},
	{callFstat, 80, false},
	{callFstatat, 79, false},
	{callStatx, 291, false},
}}

// find returns the call that a program of architecture arch means by number.
func find(arch, number uint32) (sysno, bool) {
	for _, abi := range machineABIs {
		if abi.arch != arch {
			continue
		}
		for _, c := range abi.calls {
			if c.number == number {
				return c, true
			}
		}
	}
	return sysno{}, false
}
