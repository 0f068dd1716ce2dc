package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/progress"
)

// A tree that is not unpacked is served by the caller's process. Only a process in the sandbox's user namespace may open
// the device and mount, so init does both and sends the device back over a socket. From there on init is like every other
// process of the sandbox: it waits while the caller answers, and gets an error when the caller is gone.

// ErrNoFUSE is what errors are (errors.Is) when this host cannot serve an image's files without unpacking them. The
// command was not started; it can be, from [Layers].
var ErrNoFUSE = errors.New("image files cannot be served on this host")

// Is makes errors.Is work for ErrNoFUSE and ErrNoUpper, also after the error came from another process.
func (e *Error) Is(target error) bool {
	return target == ErrNoFUSE && e.NoFUSE || target == ErrNoUpper && e.NoUpper
}

// server is the caller's side of a tree that is served.
type server struct {
	tree   fuse.Node
	conn   *net.UnixConn
	cancel context.CancelFunc
	done   chan struct{} // closed when nothing uses the tree any more
}

// newServer makes a server, and the socket for init.
func newServer(tree fuse.Node) (*server, *os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket") //nolint:gosec // file descriptors
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return &server{tree: tree, conn: conn.(*net.UnixConn), done: make(chan struct{})}, theirs, nil
}

// start serves the tree from when init has mounted it until stop.
func (v *server) start(ctx context.Context) {
	var life context.Context
	life, v.cancel = context.WithCancel(context.WithoutCancel(ctx)) // the sandbox may outlive ctx, for its last seconds
	go func() {
		defer close(v.done)
		context.AfterFunc(life, func() { v.conn.Close() })
		dev, err := fuse.Receive(v.conn)
		if err != nil {
			return // init has failed, and says so itself
		}
		context.AfterFunc(life, func() { dev.Close() })
		var once sync.Once
		report := func(err error) {
			once.Do(func() { progress.Warn(ctx, fmt.Sprintf("a file of the image could not be read: %v", err), "") })
		}
		if err := fuse.Serve(dev, v.tree, fuse.Options{Report: report}); err != nil {
			progress.Warn(ctx, err.Error(), "")
		}
	}()
}

// stop ends the serving once the sandbox is gone. The kernel takes the mount down with its mount namespace, but somewhat
// later, and not as long as somebody on the host looks into it. To wait for the last answer may be in vain when the sandbox was
// given up.
func (v *server) stop(wait bool) {
	v.cancel()
	if wait {
		<-v.done
	}
}

// openFUSE opens the device that the tree will be served through.
func openFUSE() (int, error) {
	fd, err := fuse.Open()
	if err != nil {
		return -1, noFUSE("serve the image's files", err)
	}
	return fd, nil
}

// noFUSE makes the error of a host that serves no files.
func noFUSE(what string, err error) *Error {
	e := failed(what, err)
	e.NoFUSE = true
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		e.Fix = "this host has no FUSE: an administrator can load it (modprobe fuse); a container needs --device /dev/fuse"
	case errors.Is(err, fs.ErrPermission):
		e.Fix = "FUSE is not open to everybody on this host: an administrator can allow it (chmod 0666 " + fuse.Device + "); a container needs --device /dev/fuse"
	default:
		e.Fix = "files are served by FUSE in user namespaces, which came with Linux 4.18"
	}
	return e
}

// mountTree mounts the tree that the caller serves, as the only layer.
func (b *builder) mountTree() error {
	if !b.spec.Served {
		return nil
	}
	target := filepath.Join(b.base, lowerName)
	if err := fuse.Mount(b.host.fuse, target); err != nil {
		return noFUSE("mount the image's files", err)
	}
	sock := b.spec.socketFD()
	err := fuse.Send(sock, b.host.fuse)
	unix.Close(sock)
	unix.Close(b.host.fuse) // before the first look into the mount, so that a caller who dies is noticed
	b.host.fuse = -1
	if err != nil {
		return failed("serve the image's files", err)
	}
	fd, err := openPath(target)
	if err != nil {
		return noFUSE("open the image's files", err)
	}
	b.host.layers = []int{fd}
	return nil
}
