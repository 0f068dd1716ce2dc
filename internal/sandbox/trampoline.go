package sandbox

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// A process that is forked has its parent's program until it executes another, and its rights until then. If init executed the command
// itself, a command called /proc/self/exe, or a script whose first line says so, would be this program: the file of the host, which
// somebody inside could then open and change the mode of (CVE-2019-5736). And /proc/1/exe would be found with the rights of init.
//
// So what is executed first is a program of a few instructions that is nowhere but in memory, the trampoline. It has the command's
// rights, holds no file of the host, and executes the command. A copy of this program in its place would take as long as all the rest
// of a sandbox.
//
// Its first argument is a byte and the path of the command's file; the others are the command's. The byte is one more than the number
// of a file descriptor. From there it reads a byte before it goes on, so that its limits can be set; to there it writes, as 32 bits, the
// negative number of the error when the file cannot be executed.

// trampolineCode is where the instructions begin, in trampoline_*.s.
var trampolineCode *[trampolineSize]byte

// trampolineSize is more than they take. What follows them is other code, and is never reached.
const trampolineSize = 256

// trampolineArgument is the first argument of a trampoline.
func trampolineArgument(status int, file string) string {
	return string([]byte{byte(status + 1)}) + file
}

// maxStatus is the greatest number of a file descriptor that fits into it.
const maxStatus = 254

// openTrampoline returns a file descriptor of at least that number by which the trampoline can be executed. It is closed in what is started.
func openTrampoline(least int) (int, error) {
	fd, err := trampolineInMemory()
	if err != nil {
		fd, err = trampolineInFile("/dev/shm") // where vm.memfd_noexec is 2
	}
	if err != nil {
		e := failed("make the program that executes the command", err)
		e.Fix = "the kernel must let programs be executed from memory: vm.memfd_noexec below 2, or a /dev/shm without the mount option noexec"
		return -1, e
	}
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, least)
	unix.Close(fd)
	if err != nil {
		return -1, failed("open the program that executes the command", err)
	}
	return high, nil
}

func trampolineInMemory() (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("sconce", flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("sconce", flags) // before Linux 6.3
	}
	if err != nil {
		return -1, err
	}
	_, err = unix.Write(fd, trampoline())
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// trampolineInFile makes it a file without a name in a directory.
func trampolineInFile(dir string) (int, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_EXCL|unix.O_CLOEXEC, 0o555)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd) // what is open to be written to is not executed
	if _, err := unix.Write(fd, trampoline()); err != nil {
		return -1, err
	}
	return unix.Open(fdPath(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// trampoline makes the program: headers of ELF and the instructions.
func trampoline() []byte {
	const (
		address = 0x400000
		headers = 64 + 2*56
	)
	var b bytes.Buffer
	for _, part := range []any{
		elf.Header64{
			Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type:  uint16(elf.ET_EXEC), Machine: uint16(trampolineMachine), Version: uint32(elf.EV_CURRENT),
			Entry: address + headers, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 2,
		},
		elf.Prog64{
			Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: address, Paddr: address,
			Filesz: headers + trampolineSize, Memsz: headers + trampolineSize, Align: 1 << 16, // the largest pages
		},
		elf.Prog64{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(elf.PF_R | elf.PF_W)},
		trampolineCode[:],
	} {
		_ = binary.Write(&b, binary.LittleEndian, part) // which a buffer cannot refuse
	}
	return b.Bytes()
}

// heard returns why a trampoline could not execute the command, read from the other end of its status; nil when it could.
func heard(status *os.File) error {
	var errno int32
	if err := binary.Read(status, binary.NativeEndian, &errno); err != nil {
		return nil //nolint:nilerr // nothing was said: executing closed it
	}
	return unix.Errno(-errno)
}
