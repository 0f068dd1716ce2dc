package sandbox

import (
	"errors"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/rootemu"
)

// emulate has root emulated and its records go to owners, unless this process can do what root does.
func (s *session) emulate(owners *rootemu.Owners) {
	if owners != nil && !ownsFiles() {
		s.owners, s.spec.Emulate = owners, true
	}
}

// keepUpper keeps the directory open that is the upper layer of the overlay that was mounted last: the root's.
func (b *builder) keepUpper(upper int) error {
	kept, err := unix.FcntlInt(uintptr(upper), unix.F_DUPFD_CLOEXEC, 0) //nolint:gosec // a file descriptor
	if err != nil {
		return err
	}
	if b.upper >= 0 {
		unix.Close(b.upper)
	}
	b.upper = kept
	return nil
}

// supervise answers the calls of processes under root emulation.
func (in *initProcess) supervise(listener int) error {
	o := rootemu.Options{Upper: in.upper, Owners: &in.owners, Original: original, Waiting: in.waiting, Period: in.spec.Period}
	if err := rootemu.Supervise(listener, o); err != nil {
		return cannotEmulate(err)
	}
	return nil
}

// cannotEmulate says why root cannot be emulated.
func cannotEmulate(err error) *Error {
	e := failed("emulate root", err)
	if errors.Is(err, unix.EBUSY) {
		e.Fix = "somebody watches this process's system calls already, as within another sandbox or an LXC container; the kernel allows that once"
	}
	return e
}

// original tells the emulation what a file of the image is that [Layers] unpacked without owners.
func original(name string, st *unix.Stat_t) (rootemu.Attributes, bool) {
	o, ok, err := layer.Original(name, st)
	if err != nil || !ok {
		return rootemu.Attributes{}, false
	}
	return rootemu.Attributes{IDs: rootemu.IDs{UID: o.UID, GID: o.GID}, Mode: o.Mode}, true
}

// entriesPerMessage keeps lines short.
const entriesPerMessage = 1000

// tellOwners tells the caller what was asked for.
func (in *initProcess) tellOwners() error {
	entries := in.owners.Entries()
	for len(entries) > 0 {
		n := min(len(entries), entriesPerMessage)
		if err := in.tell(message{Owners: entries[:n]}); err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}
