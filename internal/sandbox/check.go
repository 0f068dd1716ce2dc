package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/host"
)

// probeTimeout bounds a check: it does no more than a few system calls, which take long only on a machine that is overloaded.
const probeTimeout = 2 * time.Minute

// Check tries whether this user can run sandboxes on this host: it makes one, mounts an overlay in it and leaves it. The
// error names the setting that refuses; its hint says what an administrator can do.
func Check() error { return try(newSession(&spec{Probe: true})) }

// try starts a sandbox that ends as soon as it is made.
func try(s *session) error {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	if err := s.start(ctx); err != nil {
		return err
	}
	<-s.done
	return nil
}

// overlayRelease is the first Linux release whose overlayfs can be mounted in a user namespace.
const overlayRelease = "5.11"

// explain adds to an error of the kernel what is known about this host. Errors of other kinds stay as they are.
func explain(err error) error {
	var e *Error
	if !errors.As(err, &e) || e.Fix != "" || e.Code != codeNotMade || !refusing(e.Errno) {
		return err
	}
	if r := host.Refusals(); len(r) > 0 {
		e.What = fmt.Sprintf("%s (%s = %s): %s", r[0].Reason, r[0].Setting, r[0].Value, e.What)
		e.Fix = r[0].Fix
		return e
	}
	if release := host.KernelRelease(); strings.Contains(e.What, "overlay") && host.ReleaseBefore(release, overlayRelease) {
		e.Fix = fmt.Sprintf("the kernel is %s; overlays in user namespaces came with Linux %s", release, overlayRelease)
		return e
	}
	e.Fix = "this host seems to forbid unprivileged user namespaces by a security module or a container's restrictions; `sconce info` shows what is known"
	return e
}

// refusing reports whether errno is what the kernel says when a setting forbids namespaces or mounts: ENOSPC when a limit
// on namespaces is reached, EINVAL when it was built without them.
func refusing(errno unix.Errno) bool {
	switch errno {
	case unix.EPERM, unix.EACCES, unix.ENOSPC, unix.EUSERS, unix.EINVAL, unix.ENOSYS:
		return true
	}
	return false
}
