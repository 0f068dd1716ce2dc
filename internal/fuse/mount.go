package fuse

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Device is through what the kernel and a server talk. On most machines everybody may open it; without a mount it can do
// nothing.
const Device = "/dev/fuse"

// Open opens the device for one mount. It must be opened in the user namespace in which [Mount] is called: the kernel
// refuses another's (fuse_fill_super). The server may well be a process outside, which gets the file descriptor sent.
func Open() (int, error) {
	fd, err := unix.Open(Device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: Device, Err: err}
	}
	return fd, nil
}

// Check reports whether this process may open the device. Whether the kernel lets it mount is seen only when it does.
func Check() error {
	fd, err := Open()
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// Mount mounts what fd's server will serve on the directory target, read-only. It does not wait for the server, but
// whatever looks into the mount does; so does everything that happens to hold a path below it. The kernel checks
// permissions by the files' owners and modes.
func Mount(fd int, target string) error {
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other,default_permissions,max_read=%d", fd, os.Geteuid(), os.Getegid(), maxRead)
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
	if err := unix.Mount("image", target, "fuse", flags, options); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return nil
}
