package sandbox

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/host"
)

// Programs of another architecture run through an emulator, QEMU's for users, which the kernel starts in their place (binfmt_misc). On the
// machine only an administrator can say so to the kernel. Since Linux 6.7 a user name space has a list of its own, so a sandbox says it for
// itself: init registers the emulator that is on PATH, and with the last process of the sandbox that is gone. The emulator is opened when it
// is registered (flag F), so it is not in the image, and must not need a library from there. See the kernel's
// Documentation/admin-guide/binfmt-misc.rst.

// foreign is what runs the programs of an image for another architecture.
type foreign struct {
	Arch     string `json:"arch"`     // as Go and OCI name it
	Emulator string `json:"emulator"` // absolute path on the host, "" for none
	Fix      string `json:"fix"`      // what to do when they do not run
}

// machines are the architectures that images are made for: QEMU's name, and what an ELF header says.
var machines = map[string]struct {
	qemu string
	elf  elf.Machine
}{
	"amd64": {"x86_64", elf.EM_X86_64},
	"arm64": {"aarch64", elf.EM_AARCH64},
}

// foreignRelease is the first Linux release in which a user name space has its own emulators.
const foreignRelease = "6.7"

// foreignTo returns what runs programs of arch in a sandbox, nil for those that the machine runs by itself.
func foreignTo(arch string) *foreign {
	if arch == "" || arch == runtime.GOARCH || onMachine(arch) {
		return nil
	}
	f := &foreign{Arch: arch, Fix: "this takes a machine of that kind"}
	m, known := machines[arch]
	if !known {
		return f
	}
	program := "qemu-" + m.qemu + "-static"
	if release := host.KernelRelease(); host.ReleaseBefore(release, foreignRelease) {
		f.Fix = fmt.Sprintf("%s (from Linux %s on, %s on PATH is enough; this is %s)", byAdministrator, foreignRelease, program, release)
		return f
	}
	f.Fix = fmt.Sprintf("put %s on PATH, of Debian's package qemu-user-static for example, for which no administrator is needed; or take a machine of that kind", program)
	for _, name := range []string{program, "qemu-" + m.qemu} {
		path, err := exec.LookPath(name)
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err != nil {
			continue
		}
		if isStatic(path) {
			f.Emulator = path
			return f
		}
		f.Fix += "; " + path + " is not linked statically, and its libraries are not in the image"
	}
	return f
}

// byAdministrator is what to do where a sandbox cannot register an emulator for itself.
const byAdministrator = "take a machine of that kind, or have an administrator let this one run its programs: binfmt_misc and qemu-user-static, registered with flag F"

// isStatic reports whether a program needs no other file to be started.
func isStatic(name string) bool {
	f, err := elf.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false
		}
	}
	return true
}

// onMachine reports whether the machine itself runs programs of arch through an emulator that it has open already, which the flag
// F says.
func onMachine(arch string) bool {
	b, err := os.ReadFile("/proc/sys/fs/binfmt_misc/qemu-" + machines[arch].qemu)
	if err != nil || !strings.HasPrefix(string(b), "enabled\n") {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if flags, ok := strings.CutPrefix(line, "flags:"); ok {
			return strings.Contains(flags, "F")
		}
	}
	return false
}

// CheckArchitecture tries whether programs of an architecture, by Go's name, run in sandboxes on this machine.
func CheckArchitecture(arch string) error {
	f := foreignTo(arch)
	if f == nil {
		return nil
	}
	if f.Emulator == "" {
		return f.refused(unix.ENOEXEC)
	}
	s := newSession(&spec{Probe: true})
	s.setForeign(f)
	return try(s)
}

// Emulator returns the program that runs those of an architecture in sandboxes, "" where the machine itself does and where there is none.
func Emulator(arch string) string {
	if f := foreignTo(arch); f != nil {
		return f.Emulator
	}
	return ""
}

// setForeign has init register an emulator. The host's root needs a user name space for that, as its own one is the machine's.
func (s *session) setForeign(f *foreign) {
	s.spec.Foreign = f
	switch {
	case f == nil || f.Emulator == "":
	case !s.spec.UserNS && s.spec.Shared: // who joins it would keep rights that the host's root is not to have where all users are
		f.Emulator, f.Fix = "", byAdministrator
	case !s.spec.UserNS:
		s.spec.UserNS, s.spec.AllIDs = true, ownsFiles()
	case s.spec.Self != nil: // nobody is root there, whose the list is
		f.Emulator, f.Fix = "", fmt.Sprintf("%s; or run it as root, with `--user root`, for which %s is used", byAdministrator, f.Emulator)
	}
}

// register tells the kernel of the emulator, for this user name space, as long as the file descriptor that it returns is open. It is called
// as long as this process sees the host's files.
func (f *foreign) register() (list int, err error) {
	fs, err := unix.Fsopen("binfmt_misc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	list, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	emulator, err := readOnlyMount(f.Emulator)
	if err == nil {
		err = f.tell(list, emulator)
		unix.Close(emulator)
	}
	if err != nil {
		unix.Close(list)
		return -1, err
	}
	return list, nil
}

// tell writes the entry of the emulator, of which there is a file descriptor.
func (f *foreign) tell(list, emulator int) error {
	fd, err := unix.Openat(list, "register", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, f.entry(emulator))
	return errors.Join(err, unix.Close(fd))
}

// readOnlyMount opens a file of the host as a mount of its own, through which it cannot be changed: it is the program (/proc/PID/exe) of
// all that it emulates. When the file descriptor is closed nobody can change the mount any more.
func readOnlyMount(name string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, err
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// entry is the line by which the kernel knows programs of 64 bits, little endian, of the machine, position-independent or not, whatever
// system they say they are for. The flags are those of Debian: P has the emulator told of the program's own first argument, and C,
// which takes O, makes a program with the setuid bit what it is.
func (f *foreign) entry(emulator int) []byte {
	machine := machines[f.Arch].elf
	magic := fmt.Sprintf(`\x7fELF\x02\x01\x01%s\x02\x00\x%02x\x%02x`, strings.Repeat(`\x00`, 9), byte(machine), byte(machine>>8))
	mask := strings.Repeat(`\xff`, 7) + `\x00` + strings.Repeat(`\xff`, 8) + `\xfe\xff\xff\xff`
	return fmt.Appendf(nil, ":qemu-%s:M::%s:%s:%s:POCF", machines[f.Arch].qemu, magic, mask, fdPath(emulator))
}

// refused says that programs of the architecture do not run.
func (f *foreign) refused(err error) *Error {
	e := failed(f.what(), err)
	e.Fix = f.Fix
	return e
}

func (f *foreign) what() string {
	return fmt.Sprintf("programs for linux/%s do not run on this machine, which is linux/%s", f.Arch, runtime.GOARCH)
}

// explain adds to the error of a program that cannot be executed what is to be done about those of another architecture.
func (f *foreign) explain(err *Error) error {
	if f == nil || f.Emulator != "" || err.Errno != unix.ENOEXEC {
		return err
	}
	err.What, err.Fix = f.what()+": "+err.What, f.Fix
	return err
}

// registerForeign registers what runs the programs of another architecture. That it cannot be is told by a program of that architecture, which
// need not be what is started; and by a probe.
func (in *initProcess) registerForeign() error {
	f := in.spec.Foreign
	if f == nil || f.Emulator == "" {
		return nil
	}
	list, err := f.register()
	if err == nil {
		in.foreign = list
		return nil
	}
	f.Fix = fmt.Sprintf("%s; %s cannot be registered for the sandbox alone: %v", byAdministrator, f.Emulator, err)
	f.Emulator = ""
	if in.spec.Probe {
		return f.refused(err)
	}
	return nil
}
