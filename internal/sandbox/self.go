package sandbox

import (
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// A command may run as who the caller is, with the caller's own ids, instead of as root. The user name space then maps these to
// themselves. Init has to mount all the same, so it is started with ambient capabilities, which, unlike root's, have to be given over
// an execve(2); the command gets none. Whoever compares users sees the same from both sides: PMIx does, and munge, and ssh.

// knownCapabilities lists the capabilities that this kernel has.
func knownCapabilities() []uintptr {
	var all []uintptr
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		if unix.Prctl(unix.PR_CAPBSET_READ, c, 0, 0, 0) != unix.EINVAL {
			all = append(all, c)
		}
	}
	return all
}

// keepForInit has the kernel give what this thread starts no capability any more: none is ambient that is not inheritable.
func keepForInit() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	if err == nil {
		data[0].Inheritable, data[1].Inheritable = 0, 0
		err = unix.Capset(&header, &data[0])
	}
	if err != nil {
		return failed("drop capabilities", err)
	}
	return nil
}

// mountUser makes the image know the caller: programs ask the C library for their own name and home. The caller's entry comes before
// those of the image, one of which may have the same number or name.
func (b *builder) mountUser() error {
	u := b.spec.Self
	if u == nil {
		return nil
	}
	closePoint(b.root.dir(u.Home)) // one that cannot be made is missed by few commands
	for name, entry := range map[string]string{
		"passwd": fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh\n", u.Name, u.UID, u.GID, u.Home),
		"group":  fmt.Sprintf("%s:x:%d:\n", u.Group, u.GID),
	} {
		known, err := b.root.read(path.Join("/etc", name))
		if err != nil {
			return failed("read /etc/"+name+" of the image", err)
		}
		if err := b.mountFile(name, append([]byte(entry), known...)); err != nil {
			return err
		}
	}
	return nil
}

// read returns the content of a regular file, of at most [maxHostFile] bytes; of what is none, or is not there, nothing.
func (r inRoot) read(name string) ([]byte, error) {
	fd, err := r.open(name, 0)
	if err != nil {
		return nil, nil // it is not there, or leads nowhere
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, err
	}
	f, err := os.Open(fdPath(fd))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxHostFile))
}
