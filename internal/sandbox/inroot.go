package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// inRoot resolves and makes paths inside a root whose content is not trusted. Symbolic links are followed as the image's
// programs would follow them, within the root: openat2(2) with RESOLVE_IN_ROOT.
type inRoot struct{ fd int }

// openRoot opens the directory at name as a root.
func openRoot(name string) (inRoot, error) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return inRoot{fd}, err
}

func (r inRoot) close() { unix.Close(r.fd) }

// open returns a file descriptor that only names what is at name.
func (r inRoot) open(name string, flags uint64) (int, error) {
	how := &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err := unix.Openat2(r.fd, path.Join("/", name), how)
		if err != unix.EAGAIN && err != unix.EINTR { // EAGAIN: something was renamed meanwhile
			return fd, err
		}
	}
}

// dir opens the directory called name and makes it, and the directories above it, when missing. A symbolic link that
// leads nowhere gives way to the directory.
func (r inRoot) dir(name string) (int, error) {
	name = path.Join("/", name)
	fd, err := r.open(name, unix.O_DIRECTORY)
	if err == nil {
		return fd, nil
	}
	if errors.Is(err, unix.ENOTDIR) {
		return 0, &Error{What: fmt.Sprintf("%s must be a directory in the image and is not one", name), Code: codeNotMade}
	}
	if !leadsNowhere(err) || name == "/" {
		return 0, failed("open "+name+" in the image", err)
	}
	return r.make(name, func(parent int, base string) (int, error) {
		if err := unix.Mkdirat(parent, base, 0o755); err != nil {
			return 0, err
		}
		return unix.Openat(parent, base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
}

// chdir changes to the directory called name. A magic link of /proc leads a process out of its root that has the rights of init.
func (r inRoot) chdir(name string) error {
	fd, err := r.open(name, unix.O_DIRECTORY)
	if err == nil {
		err = unix.Fchdir(fd)
		unix.Close(fd)
	}
	if err != nil {
		return failed("change to the working directory "+name, err)
	}
	return nil
}

// file opens the file called name, whatever it is but a directory, and makes an empty one when there is none.
func (r inRoot) file(name string) (int, error) {
	name = path.Join("/", name)
	fd, err := r.open(name, 0)
	if err == nil {
		if isDir(fd) {
			unix.Close(fd)
			return 0, &Error{What: fmt.Sprintf("%s must be a file in the image and is a directory", name), Code: codeNotMade}
		}
		return fd, nil
	}
	if !leadsNowhere(err) {
		return 0, failed("open "+name+" in the image", err)
	}
	return r.make(name, func(parent int, base string) (int, error) {
		f, err := unix.Openat(parent, base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return 0, err
		}
		unix.Close(f)
		return unix.Openat(parent, base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
}

// leadsNowhere reports whether there is nothing at the end of a path: no such name, links in a circle, or a magic link of
// /proc, none of which is followed.
func leadsNowhere(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP)
}

// make makes name in its parent with create. What is there already can only be a link that leads nowhere: it is removed,
// but only from the root's own file system and never from a directory of the host that is mounted in it.
func (r inRoot) make(name string, create func(parent int, base string) (int, error)) (int, error) {
	parent, err := r.dir(path.Dir(name))
	if err != nil {
		return 0, err
	}
	defer unix.Close(parent)
	defer r.sameTime(parent)()
	fd, err := create(parent, path.Base(name))
	if errors.Is(err, unix.EEXIST) && r.owns(parent) {
		if err := unix.Unlinkat(parent, path.Base(name), 0); err != nil {
			return 0, failed("replace the dangling link "+name+" in the image", err)
		}
		fd, err = create(parent, path.Base(name))
	}
	if err != nil {
		return 0, failed("make the mount point "+name, err)
	}
	return fd, nil
}

// sameTime returns a function that gives a directory of the root the time that it has now: that something is made in it for the
// sandbox's sake must not look as if the command had done it.
func (r inRoot) sameTime(dir int) func() {
	var st unix.Stat_t
	if !r.owns(dir) || unix.Fstat(dir, &st) != nil {
		return func() {}
	}
	return func() {
		_ = unix.UtimesNanoAt(unix.AT_FDCWD, fdPath(dir), []unix.Timespec{{Nsec: unix.UTIME_OMIT}, st.Mtim}, 0)
	}
}

// owns reports whether fd is on the file system of the root itself.
func (r inRoot) owns(fd int) bool {
	var root, st unix.Stat_t
	return unix.Fstat(r.fd, &root) == nil && unix.Fstat(fd, &st) == nil && root.Dev == st.Dev
}

func isDir(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// fdPath is a name for an open file that mount(2) takes, and that no symbolic link can change.
func fdPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// openIfThere is openPath that returns -1 for what cannot be opened.
func openIfThere(name string) int {
	fd, err := openPath(name)
	if err != nil {
		return -1
	}
	return fd
}

// openPath opens a path of the host, only to name it.
func openPath(name string) (int, error) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return fd, nil
}
