package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
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
	owner  *fuse.Owner
	conn   *net.UnixConn
	cancel context.CancelFunc
	done   chan struct{} // closed when nothing uses the tree any more
}

// newServer makes a server, and the socket for init.
func newServer(tree fuse.Node, owner *fuse.Owner) (*server, *os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return &server{tree: tree, owner: owner, conn: conn.(*net.UnixConn), done: make(chan struct{})}, theirs, nil
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
			once.Do(func() {
				progress.Warn(ctx, fmt.Sprintf("a file of the image could not be read: %v", err), fault.HintOf(err))
			})
		}
		if err := fuse.Serve(dev, v.tree, fuse.Options{Report: report, Owner: v.owner}); err != nil {
			progress.Warn(ctx, err.Error(), "")
		}
	}()
}

// owner returns who owns the files of all trees, nil for whom the trees say: for an ordinary user that is root.
func (s *spec) owner() *fuse.Owner {
	if s.Self == nil || !s.UserNS {
		return nil
	}
	return &fuse.Owner{UID: uint32(s.Self.UID), GID: uint32(s.Self.GID)}
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

// treesName is where the trees that the caller serves are mounted, below the base: one file system with a directory for each.
const treesName = "trees"

func (b *builder) treePath(number int) string {
	return filepath.Join(b.base, treesName, strconv.Itoa(number))
}

// mountTrees mounts the trees that the caller serves. The first of them are layers of the image.
func (b *builder) mountTrees() error {
	if len(b.spec.Trees) == 0 {
		return nil
	}
	target := filepath.Join(b.base, treesName)
	if err := os.Mkdir(target, 0o755); err != nil {
		return failed("make a directory for the image's files", err)
	}
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
	number := 0
	for i, l := range b.spec.Layers {
		if l != ServedLayer {
			continue
		}
		if b.host.layers[i], err = openPath(b.treePath(number)); err != nil {
			return noFUSE("open the image's files", err)
		}
		number++
	}
	return nil
}

// ServedLayer stands in Options.Layers for a tree that is served.
const ServedLayer = ""

// ofImage stands in spec.Trees for the image; other numbers are those of mounts, from 1.
const ofImage = 0

// imageLayers are the layers of an image, and those of them that are served.
func imageLayers(o Options) (layers []string, served []fuse.Node) {
	if o.Tree != nil {
		return []string{ServedLayer}, []fuse.Node{o.Tree}
	}
	return withoutRepeats(o.Layers), o.Served
}

// treesOf lists the trees that are served, and what they are of. Those of the image come first.
func treesOf(o Options) (trees []fuse.Node, of []int) {
	_, trees = imageLayers(o)
	of = make([]int, len(trees))
	for i := range of {
		of[i] = ofImage
	}
	for i, m := range o.Mounts {
		if m.Tree != nil {
			trees, of = append(trees, m.Tree), append(of, i+1)
		}
	}
	return trees, of
}

// grove is a directory with several trees, by their numbers.
type grove []fuse.Node

// Numbers of files are those of the trees, moved apart.
const (
	groveInode = 1
	maxTrees   = 16
)

func (g grove) Attr() fuse.Attr {
	return fuse.Attr{Ino: groveInode, Mode: unix.S_IFDIR | 0o755, Links: uint32(2 + len(g))}
}

func (g grove) Lookup(name string) (fuse.Node, error) {
	for i, n := range g {
		if name == strconv.Itoa(i) {
			return inGrove{n, uint64(i), g.bare()}, nil
		}
	}
	return nil, fs.ErrNotExist
}

func (g grove) ReadDir() ([]fuse.Entry, error) {
	var all []fuse.Entry
	for i, n := range g {
		tree := inGrove{n, uint64(i), g.bare()}
		a := tree.Attr()
		all = append(all, fuse.Entry{Name: strconv.Itoa(i), Ino: a.Ino, Mode: a.Mode, Node: func() (fuse.Node, error) { return tree, nil }})
	}
	return all, nil
}

func (g grove) Readlink() (string, error) { return "", unix.EINVAL }

func (g grove) Content() (io.ReaderAt, error) { return nil, unix.EISDIR }

func (g grove) Xattrs() (map[string]string, error) {
	if g.bare() {
		return nil, errors.ErrUnsupported
	}
	return nil, nil // a file of a tree may have one
}

// bare reports whether no file of any tree has extended attributes. An overlay asks for some of every file that it sees.
func (g grove) bare() bool {
	for _, n := range g {
		if _, err := n.Xattrs(); !errors.Is(err, errors.ErrUnsupported) {
			return false
		}
	}
	return true
}

// inGrove is a file of one of the trees.
type inGrove struct {
	fuse.Node
	tree uint64
	bare bool // no file of any tree of the grove has extended attributes
}

func (n inGrove) number(ino uint64) uint64 { return ino*maxTrees + n.tree + groveInode + 1 }

func (n inGrove) Attr() fuse.Attr {
	a := n.Node.Attr()
	a.Ino = n.number(a.Ino)
	return a
}

func (n inGrove) Lookup(name string) (fuse.Node, error) {
	found, err := n.Node.Lookup(name)
	if err != nil {
		return nil, err
	}
	return inGrove{found, n.tree, n.bare}, nil
}

func (n inGrove) ReadDir() ([]fuse.Entry, error) {
	all, err := n.Node.ReadDir()
	if err != nil {
		return nil, err
	}
	for i := range all {
		open := all[i].Node
		all[i].Ino = n.number(all[i].Ino)
		all[i].Node = func() (fuse.Node, error) {
			found, err := open()
			if err != nil {
				return nil, err
			}
			return inGrove{found, n.tree, n.bare}, nil
		}
	}
	return all, nil
}

func (n inGrove) Xattrs() (map[string]string, error) {
	x, err := n.Node.Xattrs()
	if errors.Is(err, errors.ErrUnsupported) && !n.bare {
		return nil, nil // of this tree
	}
	return x, err
}
