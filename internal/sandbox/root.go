package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/host"
)

// The directories of an overlay's writable side.
const (
	upperName = "upper"
	workName  = "work"
)

// lowerName is an empty directory, below the base.
const lowerName = "lower"

// basePoints are directories that every machine has one of. The sandbox's base, a small file system in memory that
// nobody else sees, covers it while the sandbox is set up.
var basePoints = []string{"/tmp", "/var/tmp", "/run", "/mnt"}

// builder puts the root of a sandbox together.
type builder struct {
	spec  *spec
	warn  func(string)
	host  hostFiles
	base  string // directory in memory
	upper int    // the upper layer of the root, if root is emulated
	root  inRoot
}

// hostFiles are open file descriptors of what the sandbox takes from the host. They are opened before anything is
// mounted over it, and in this process's own mount namespace: the kernel binds nothing from another's.
type hostFiles struct {
	layers  []int // lowest first
	fuse    int   // -1 when no tree is served
	scratch int   // -1 for none
	binds   []int
	mounts  []attached
	devices map[string]int // by name below /dev
	proc    int
	sys     int // -1 when the host has none
	shm     int // of a shared sandbox: /dev/shm and /dev/mqueue, -1 when the host has none
	mqueue  int
}

// setup makes the sandbox's file systems and moves this process into them.
//
// It returns a file descriptor of the directory that takes what is written, -1 unless root is emulated.
func setup(s *spec, warn func(string)) (upper int, err error) {
	b := &builder{spec: s, warn: warn, upper: -1}
	err = b.build()
	return b.upper, err
}

func (b *builder) build() error {
	// Nothing mounted here may reach the host. What the host mounts later may still reach us: home directories are often
	// mounted on first use.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return failed("make mounts private", err)
	}
	if err := b.openHost(); err != nil {
		return err
	}
	defer b.host.close()
	steps := []func() error{b.connectNetwork, b.mountBase, b.mountTrees, b.prepareMounts, b.mountRoot}
	if !b.spec.Probe {
		steps = append(steps, b.fillRoot, b.nameHost, b.enterRoot)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) openHost() (err error) {
	h := &b.host
	h.scratch, h.sys, h.fuse, h.shm, h.mqueue = -1, -1, -1, -1, -1
	if len(b.spec.Trees) > 0 {
		if h.fuse, err = openFUSE(); err != nil {
			return err
		}
	}
	if h.proc, err = openPath("/proc"); err != nil {
		return failed("find the host's /proc", err)
	}
	for _, l := range b.spec.Layers {
		if l == ServedLayer {
			h.layers = append(h.layers, -1) // once it is mounted
			continue
		}
		fd, err := openPath(l)
		if err != nil {
			return failed("open a layer of the image", err)
		}
		h.layers = append(h.layers, fd)
	}
	for _, bind := range b.spec.Binds {
		fd, err := openPath(bind.Source)
		if err != nil {
			return failed("bind to "+bind.Target, err)
		}
		h.binds = append(h.binds, fd)
	}
	if err := b.openMounts(); err != nil {
		return err
	}
	if b.spec.Scratch != "" {
		if h.scratch, err = openPath(b.spec.Scratch); err != nil {
			return failed("open the directory for what the command writes", err)
		}
	}
	if fd, err := openPath("/sys"); err == nil {
		h.sys = fd
	}
	if b.spec.Shared {
		h.shm, h.mqueue = openIfThere("/dev/shm"), openIfThere("/dev/mqueue")
	}
	h.devices = openDevices()
	return nil
}

func (h *hostFiles) close() {
	fds := slices.Concat(h.layers, h.binds, []int{h.scratch, h.proc, h.sys, h.fuse, h.shm, h.mqueue})
	for _, fd := range h.devices {
		fds = append(fds, fd)
	}
	for _, m := range h.mounts {
		fds = append(append(fds, m.layers...), m.source)
	}
	for _, fd := range fds {
		if fd > 0 {
			unix.Close(fd)
		}
	}
}

func (b *builder) mountBase() error {
	var err error
	for _, dir := range basePoints {
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			continue
		}
		if err = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err == nil {
			b.base = dir
			break
		}
	}
	if err != nil {
		return failed("mount a file system in memory", err)
	}
	for _, name := range []string{"root", "files", lowerName, upperName, workName} {
		if err := os.Mkdir(filepath.Join(b.base, name), 0o755); err != nil {
			return failed("make a directory in memory", err)
		}
	}
	return nil
}

// mountRoot mounts the image: its layers, below an upper layer for what the command writes, which is in memory when
// there is no scratch directory, or its file system cannot hold one (a network file system, another overlay).
func (b *builder) mountRoot() error {
	target := filepath.Join(b.base, "root")
	if b.spec.Keep {
		if err := b.layPoints(); err != nil {
			return err
		}
	}
	err := errors.ErrUnsupported
	if b.host.scratch >= 0 {
		err = b.mountOverlay(target, fdPath(b.host.scratch))
	}
	if err != nil && b.spec.Keep {
		return noUpper(b.spec.Scratch, err)
	}
	if err != nil {
		if memErr := b.mountOverlay(target, b.base); memErr != nil {
			return b.overlayRefused(memErr)
		}
		if b.host.scratch >= 0 {
			b.warn(fmt.Sprintf("what the command writes is kept in memory: %s (%s) cannot hold the upper layer of an overlay (%v)",
				filepath.Dir(b.spec.Scratch), host.FileSystemOf(fdPath(b.host.scratch)).Type, err))
		}
	}
	b.root, err = openRoot(target)
	if err != nil {
		return failed("open the root of the image", err)
	}
	return nil
}

// mountOverlay mounts the layers with upper and work below writable.
func (b *builder) mountOverlay(target, writable string) error {
	upper, err := openPath(filepath.Join(writable, upperName))
	if err != nil {
		return err
	}
	defer unix.Close(upper)
	work, err := openPath(filepath.Join(writable, workName))
	if err != nil {
		return err
	}
	defer unix.Close(work)
	layers := b.host.layers
	if len(layers) == 0 { // nothing but a try
		empty, err := openPath(filepath.Join(b.base, lowerName))
		if err != nil {
			return err
		}
		defer unix.Close(empty)
		layers = []int{empty}
	}
	options := ""
	if b.spec.Keep {
		// With an index, a change to a file that layers below give several names would be seen under all of them, and stand
		// under one in the upper directory.
		options = ",index=off"
	}
	err = overlay(target, layers, upper, work, options, b.spec.rootFlags())
	if err == nil && b.spec.Emulate {
		err = b.keepUpper(upper)
	}
	return err
}

// overlay mounts layers, lowest first, over each other, and upper with its work directory over them unless they are 0. Mount
// options are limited to one page, so directories are named by number, relative to /proc/self/fd: 500 layers take 2 KB, and
// no character of a path needs quoting.
func overlay(target string, layers []int, upper, work int, more string, flags uintptr) error {
	names := make([]string, len(layers)) // highest first
	for i, fd := range layers {
		names[len(names)-1-i] = strconv.Itoa(fd)
	}
	options := "userxattr,lowerdir=" + strings.Join(names, ":") + more
	if upper > 0 {
		// volatile: what is written is thrown away or soon read, so nothing needs to be synced for it.
		options += fmt.Sprintf(",upperdir=%d,workdir=%d,volatile", upper, work)
	}
	if err := os.Chdir("/proc/self/fd"); err != nil {
		return err
	}
	err := unix.Mount("overlay", target, "overlay", flags, options)
	if errors.Is(err, unix.EINVAL) && upper > 0 {
		err = unix.Mount("overlay", target, "overlay", flags, strings.TrimSuffix(options, ",volatile"))
	}
	return errors.Join(err, os.Chdir("/"))
}

func (b *builder) overlayRefused(err error) error {
	if slices.Contains(b.spec.Trees, ofImage) {
		return noFUSE("mount the image's files below a writable layer (overlay)", err)
	}
	e := failed("mount the image's layers over each other (overlay)", err)
	if len(b.spec.Layers) > 0 && e.Errno == unix.EINVAL {
		e.Fix = fmt.Sprintf("the layers are on %s, which may not be able to carry an overlay: set SCONCE_STORE to a directory on a local disk or in /dev/shm",
			host.FileSystemOf(fdPath(b.host.layers[0])).Type)
	}
	return e
}

func (b *builder) nameHost() error {
	if b.spec.Loopback {
		if err := loopbackUp(); err != nil {
			return failed("bring up the loopback device", err)
		}
	}
	if b.spec.Hostname == "" {
		return nil
	}
	if err := unix.Sethostname([]byte(b.spec.Hostname)); err != nil {
		return failed("set the host name to "+b.spec.Hostname, err)
	}
	return nil
}

// enterRoot makes the image's root the root of this mount namespace and lets go of the host's.
func (b *builder) enterRoot() error {
	defer b.root.close()
	if err := unix.Fchdir(b.root.fd); err != nil {
		return failed("enter the image", err)
	}
	if err := unix.PivotRoot(".", "."); err == nil {
		// The old root now lies over the new one: pivot_root(2), "pivot_root(".", ".")".
		if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
			return failed("let go of the host's file systems", err)
		}
	} else if err := b.moveRoot(err); err != nil {
		return err
	}
	if b.spec.ReadOnly {
		const flags = unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
		if err := unix.Mount("", "/", "", flags, ""); err != nil {
			return failed("make the root read-only", err)
		}
	}
	return b.root.chdir(b.spec.WorkDir)
}

// moveRoot takes the place of pivot_root on a diskless node, whose root is the initial RAM disk: that one cannot be
// moved away, only covered.
func (b *builder) moveRoot(pivotErr error) error {
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return failed("make the image the root", pivotErr)
	}
	if err := unix.Chroot("."); err != nil {
		return failed("make the image the root", err)
	}
	return os.Chdir("/")
}
