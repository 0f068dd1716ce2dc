package sandbox

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// scopeSockets keeps what this thread starts from sockets of the abstract name space that others have bound. Those belong to a
// network name space, have no owner and no mode, and desktop sessions, debuggers and daemons of every user of the machine listen
// there. Sockets among the sandbox's own processes stay usable.
//
// It takes Landlock of Linux 6.12 (landlock(7), LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET); an older kernel has nothing for it besides a
// network name space, which is how [Options].NoNetwork does it.
func scopeSockets() error {
	rules := unix.LandlockRulesetAttr{Scoped: unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules)), unsafe.Sizeof(rules), 0)
	switch {
	case errors.Is(errno, unix.ENOSYS), errors.Is(errno, unix.EOPNOTSUPP), errors.Is(errno, unix.E2BIG), errors.Is(errno, unix.EINVAL):
		return nil // too old, or switched off
	case errno != 0:
		return failed("keep the command from others' sockets", errno)
	}
	defer unix.Close(int(fd))
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return failed("keep the command from others' sockets", errno)
	}
	return nil
}
