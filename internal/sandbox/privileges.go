package sandbox

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
)

// mayMount reports whether this process can mount without a user namespace of its own.
func mayMount() bool { return hasCapability(unix.CAP_SYS_ADMIN) }

// ownsFiles reports whether this process can give files to any user: it is root, and not only within a user namespace.
func ownsFiles() bool {
	ids, err := os.ReadFile("/proc/self/uid_map")
	whole := err == nil && slices.Equal(strings.Fields(string(ids)), []string{"0", "0", "4294967295"})
	return whole && hasCapability(unix.CAP_CHOWN) && hasCapability(unix.CAP_SYS_ADMIN)
}

func hasCapability(c int) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	return data[c/32].Effective&(1<<(c%32)) != 0
}

// rootCapabilities are what a command gets that is run by the host's root: Docker's default set, enough to install
// packages and not enough to change the host.
var rootCapabilities = []int{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FSETID, unix.CAP_FOWNER, unix.CAP_MKNOD, unix.CAP_NET_RAW,
	unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SETFCAP, unix.CAP_SETPCAP, unix.CAP_NET_BIND_SERVICE,
	unix.CAP_SYS_CHROOT, unix.CAP_KILL, unix.CAP_AUDIT_WRITE,
}

// dropRights takes from this thread, and what it starts, what the command is not to have.
func (s *spec) dropRights() error {
	if err := dropPrivileges(s); err != nil {
		return err
	}
	if err := scopeSockets(); err != nil {
		return err
	}
	return forbidCalls(s.ofBuild(), s.ofHostRoot())
}

// ofBuild reports whether the command is a build's, and not one that a user runs in an image.
func (s *spec) ofBuild() bool { return s.Keep || s.NoMounts }

// dropPrivileges makes sure that what this thread starts can neither gain privileges nor reach this program's file.
//
// In a user namespace two capabilities are taken. Without CAP_SYS_ADMIN what is read-only stays so, /sys with the control groups of the
// user among it; who makes a user namespace of his own gets it back there, where the kernel lets it undo nothing (mount_namespaces(7),
// "Restrictions on mount namespaces"). Without CAP_SYS_PTRACE, and with this process not dumpable, /proc/1/exe, which
// is the caller's own program on the host, cannot be opened from inside; see trampoline.go. The other capabilities reach no
// further than the namespaces that were made for the command.
func dropPrivileges(s *spec) error {
	for c := range unix.CAP_LAST_CAP + 1 {
		if !droppedCapability(c, !s.ofHostRoot()) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL { // EINVAL: older kernel
			return failed("drop capabilities", err)
		}
	}
	if err := hide(); err != nil {
		return err
	}
	if s.Self != nil {
		if err := keepForInit(); err != nil {
			return err
		}
	}
	if !s.setsID() {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return failed("forbid new privileges", err)
		}
	}
	unix.Umask(0o022)
	return nil
}

// hide keeps what this process has open from others that have not CAP_SYS_PTRACE where it was started.
func hide() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return failed("hide this program from the command", err)
	}
	return nil
}

// droppedCapability reports whether a command is not to have capability c.
func droppedCapability(c int, userNS bool) bool {
	if userNS {
		return c == unix.CAP_SYS_PTRACE || c == unix.CAP_SYS_ADMIN
	}
	return !slices.Contains(rootCapabilities, c)
}

// setsID reports whether programs with the setuid bit run as their owner, so that sudo works in a step of the host's root. They
// become no more than what root is there, who has [rootCapabilities]. For an ordinary user's step root emulation does it.
func (s *spec) setsID() bool { return s.Keep && s.ofHostRoot() }

// ofHostRoot reports whether the users in the sandbox are the host's, root among them.
func (s *spec) ofHostRoot() bool { return !s.UserNS || s.AllIDs }

// rootFlags are the flags of the mount that is the image's root.
func (s *spec) rootFlags() uintptr {
	if s.setsID() {
		return unix.MS_NODEV
	}
	return unix.MS_NOSUID | unix.MS_NODEV
}

// checkUser checks whether the command can start as who it is to start as.
func (s *session) checkUser() error {
	for _, id := range append([]int{s.spec.UID, s.spec.GID}, s.spec.Groups...) {
		if id < 0 || id >= math.MaxUint32 {
			return fault.Usage(fmt.Errorf("%d is no id of a user or group: they go from 0 to %d", id, uint32(math.MaxUint32-1)))
		}
	}
	if s.spec.user() != nil && !s.spec.Emulate && !ownsFiles() {
		return &Error{
			What: fmt.Sprintf("the command cannot run as user %d and group %d: in an ordinary user's sandbox there is nobody but root",
				s.spec.UID, s.spec.GID), Code: codeNotMade,
		}
	}
	return nil
}

// user returns how the command becomes who it is to run as, nil for root. Under root emulation the calls by which it does
// so are answered like those of the command itself.
func (s *spec) user() *syscall.SysProcAttr {
	if s.UID == 0 && s.GID == 0 && len(s.Groups) == 0 {
		return nil
	}
	c := &syscall.Credential{Uid: uint32(s.UID), Gid: uint32(s.GID)}
	for _, g := range s.Groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	return &syscall.SysProcAttr{Credential: c}
}
