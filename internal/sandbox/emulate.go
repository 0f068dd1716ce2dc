package sandbox

import (
	"errors"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/rootemu"
)

// emulate has root emulated and its records go to owners, unless this process can do what root does.
func (s *session) emulate(owners *rootemu.Owners) {
	if owners == nil || ownsFiles() {
		return
	}
	s.owners, s.spec.Emulate = owners, true
	s.spec.Known = make([][]rootemu.Entry, len(s.spec.Mounts))
	for i, m := range s.spec.Mounts {
		if m.Owners != nil {
			s.spec.Known[i] = m.Owners.Entries()
		}
	}
}

// takeOwners takes over what init tells of owners.
func (s *session) takeOwners(m message) {
	switch {
	case s.owners == nil:
	case m.Mount == 0:
		s.owners.Add(m.Owners)
	case m.Mount > 0 && m.Mount <= len(s.spec.Mounts):
		if o := s.spec.Mounts[m.Mount-1].Owners; o != nil {
			o.Add(m.Owners)
		}
	}
}

// keepUpper keeps the directory open that is the upper layer of the overlay that was mounted last: the root's.
func (b *builder) keepUpper(upper int) error {
	kept, err := unix.FcntlInt(uintptr(upper), unix.F_DUPFD_CLOEXEC, 0)
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
	mounts, err := in.ownersOfMounts()
	if err != nil {
		return failed("prepare for the owners of files in mounts", err)
	}
	o := rootemu.Options{
		Upper: in.upper, Owners: &in.owners, Mounts: mounts, Original: original, Waiting: in.waiting, Period: in.spec.Period,
	}
	if err := rootemu.Supervise(listener, o); err != nil {
		return cannotEmulate(err)
	}
	return nil
}

// ownersOfMounts returns where owners are recorded of files that are not in the image, by the id of the mount that they are on.
func (in *initProcess) ownersOfMounts() (map[uint64]*rootemu.Owners, error) {
	mounts := map[uint64]*rootemu.Owners{}
	for _, dir := range append([]string{"/dev", "/dev/shm"}, in.spec.Tmpfs...) {
		if id, ok := mountOf(dir); ok {
			mounts[id] = &rootemu.Owners{}
		}
	}
	for _, b := range in.spec.Binds {
		if id, ok := mountOf(b.Target); ok {
			mounts[id] = &rootemu.Owners{}
		}
	}
	in.mounted = make([]*rootemu.Owners, len(in.spec.Mounts))
	sameDir := map[string]*rootemu.Owners{}
	for i, m := range in.spec.Mounts {
		owners := &rootemu.Owners{}
		if m.Dir != "" && sameDir[m.Dir] != nil { // a directory at two places
			owners = sameDir[m.Dir]
		}
		sameDir[m.Dir] = owners
		owners.Add(in.spec.Known[i])
		in.mounted[i] = owners
		if id, ok := mountOf(m.Target); ok {
			mounts[id] = owners
		}
		if m.Dir == "" && len(m.Layers) == 0 && (m.UID != 0 || m.GID != 0) {
			target, err := filepath.EvalSymlinks(m.Target)
			if err == nil {
				err = owners.Give(target, rootemu.IDs{UID: m.UID, GID: m.GID})
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return mounts, nil
}

// mountOf returns the id of the mount at name, unless that is the root's.
func mountOf(name string) (uint64, bool) {
	var at, root unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, name, 0, unix.STATX_MNT_ID, &at) != nil || unix.Statx(unix.AT_FDCWD, "/", 0, unix.STATX_MNT_ID, &root) != nil {
		return 0, false
	}
	return at.Mnt_id, at.Mnt_id != root.Mnt_id
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
	if err := in.tellSome(0, &in.owners); err != nil {
		return err
	}
	for i, owners := range in.mounted {
		if err := in.tellSome(i+1, owners); err != nil {
			return err
		}
	}
	return nil
}

func (in *initProcess) tellSome(mount int, owners *rootemu.Owners) error {
	for some := range slices.Chunk(owners.Entries(), entriesPerMessage) {
		if err := in.tell(message{Owners: some, Mount: mount}); err != nil {
			return err
		}
	}
	return nil
}
