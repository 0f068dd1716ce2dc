package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/rootemu"
)

// Mount makes something visible that is not part of the image. What it is says the first of Tree, Layers, Dir and Content
// that is set; without any of them it is an empty file system in memory.
type Mount struct {
	Target   string // absolute path in the image; made when missing
	ReadOnly bool

	Layers []string // unpacked layers, lowest first: files of another image, and what is written over them is forgotten
	Dir    string   // absolute path of a file or directory of the host

	// Tree, before Layers and Dir, is served by this process, and read-only; see [Squashfs] and [ErrNoFUSE].
	Tree fuse.Node `json:"-"`

	Source string // what to take of Layers or Dir; links in it are followed as if they were the root. "" takes all

	Content []byte // a read-only file that is nowhere but in memory

	Mode     uint32 // permissions of Content, or of a file system in memory
	UID, GID int    // their owner
	Size     int64  // of a file system in memory, in bytes; 0 for no limit

	// Owners, unless nil, is what earlier commands asked for files of Dir with root emulated (see Options.Owners), and takes what
	// this one does. It is complete when the sandbox is gone.
	Owners *rootemu.Owners `json:"-"`
}

func checkMounts(mounts []Mount) error {
	for _, m := range mounts {
		if !path.IsAbs(m.Target) || path.Clean(m.Target) == "/" {
			return fault.Usage(fmt.Errorf("mount at %q: it must be an absolute path, and not /", m.Target))
		}
		if m.Tree != nil && (len(m.Layers) > 0 || m.Dir != "" || m.Source != "") {
			return fmt.Errorf("mount at %s: it is given twice", m.Target)
		}
		if m.Dir != "" && !filepath.IsAbs(m.Dir) {
			return fault.Usage(fmt.Errorf("mount %s at %s: both must be absolute paths", m.Dir, m.Target))
		}
	}
	return nil
}

// attached is what a [Mount] needs of the host, as open file descriptors.
type attached struct {
	layers []int
	source int // what will be seen, -1 for a file system in memory
}

// imagesName is the directory in the writable side of the root that holds what is written over the files of other images.
const imagesName = "images"

// openMounts opens what the mounts take from the host.
func (b *builder) openMounts() error {
	for _, m := range b.spec.Mounts {
		a := attached{source: -1}
		var err error
		switch {
		case len(m.Layers) > 0:
			for _, l := range withoutRepeats(m.Layers) {
				fd, openErr := openPath(l)
				if openErr != nil {
					err = openErr
					break
				}
				a.layers = append(a.layers, fd)
			}
		case m.Dir != "":
			a.source, err = openWithin(m.Dir, m.Source)
		}
		b.host.mounts = append(b.host.mounts, a)
		if err != nil {
			return cannotMount(m, err)
		}
	}
	return nil
}

// openWithin opens what is called name in the file or directory dir of the host.
func openWithin(dir, name string) (int, error) {
	fd, err := openPath(dir)
	if err != nil || path.Join("/", name) == "/" {
		return fd, err
	}
	defer unix.Close(fd)
	return inRoot{fd}.open(name, 0)
}

func cannotMount(m Mount, err error) *Error {
	from := path.Join("/", m.Source)
	if m.Dir != "" {
		from = filepath.Join(m.Dir, m.Source)
	}
	if leadsNowhere(err) && len(m.Content) == 0 {
		return &Error{What: fmt.Sprintf("mount at %s: there is no %s", m.Target, from), Code: codeNotMade}
	}
	return failed(fmt.Sprintf("mount %s at %s", from, m.Target), err)
}

// prepareMounts puts together, where nobody sees it, what is going to be mounted.
func (b *builder) prepareMounts() error {
	for i, m := range b.spec.Mounts {
		var err error
		a := &b.host.mounts[i]
		if number := slices.Index(b.spec.Trees, i+1); number >= 0 {
			if a.source, err = openPath(b.treePath(number)); err != nil {
				return noFUSE("open the files mounted at "+m.Target, err)
			}
			continue
		}
		switch {
		case len(m.Layers) > 0:
			a.source, err = b.mountImage(i, m, a.layers)
		case m.Dir == "" && m.Content != nil:
			a.source, err = b.fileInMemory(i, m)
		}
		if err != nil {
			return cannotMount(m, err)
		}
	}
	return nil
}

// mountImage mounts layers over each other, and opens what is asked for in them.
func (b *builder) mountImage(number int, m Mount, layers []int) (int, error) {
	name := "image" + strconv.Itoa(number)
	target := filepath.Join(b.base, name)
	if err := os.Mkdir(target, 0o755); err != nil {
		return -1, err
	}
	// overlayfs wants two layers where there is no writable one.
	empty, err := openPath(filepath.Join(b.base, lowerName))
	if err != nil {
		return -1, err
	}
	defer unix.Close(empty)
	layers = append(append([]int{}, layers...), empty)
	var upper, work int
	if !m.ReadOnly {
		if upper, work, err = b.writableSide(name); err != nil {
			return -1, err
		}
		defer unix.Close(upper)
		defer unix.Close(work)
	}
	if err := overlay(target, layers, upper, work, "", unix.MS_NOSUID|unix.MS_NODEV); err != nil {
		return -1, err
	}
	return openWithin(target, m.Source)
}

// writableSide makes and opens the directories for what is written over another image's files.
func (b *builder) writableSide(name string) (upper, work int, err error) {
	dir := filepath.Join(b.base, imagesName)
	if b.host.scratch >= 0 {
		dir = filepath.Join(fdPath(b.host.scratch), imagesName)
	}
	upperDir, workDir := filepath.Join(dir, name, upperName), filepath.Join(dir, name, workName)
	if err := errors.Join(os.MkdirAll(upperDir, 0o755), os.MkdirAll(workDir, 0o755)); err != nil {
		return -1, -1, err
	}
	if upper, err = openPath(upperDir); err != nil {
		return -1, -1, err
	}
	if work, err = openPath(workDir); err != nil {
		unix.Close(upper)
		return -1, -1, err
	}
	return upper, work, nil
}

// fileInMemory writes a file on the base's own file system.
func (b *builder) fileInMemory(number int, m Mount) (int, error) {
	name := filepath.Join(b.base, "files", "mount"+strconv.Itoa(number))
	if err := os.WriteFile(name, m.Content, 0o600); err != nil {
		return -1, err
	}
	if ownsFiles() {
		if err := os.Chown(name, m.UID, m.GID); err != nil {
			return -1, err
		}
	}
	if err := unix.Chmod(name, m.Mode); err != nil {
		return -1, err
	}
	return openPath(name)
}

// mountMounts makes them visible.
func (b *builder) mountMounts() error {
	for i, m := range b.spec.Mounts {
		source := b.host.mounts[i].source
		var err error
		if source < 0 {
			err = b.mount("tmpfs", m.Target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, memoryOptions(m))
			if err == nil && m.ReadOnly {
				err = b.restrict(m.Target, unix.MOUNT_ATTR_RDONLY)
			}
		} else {
			served := slices.Contains(b.spec.Trees, i+1)
			err = b.bind(source, m.Target, m.ReadOnly || served || m.Content != nil && m.Dir == "" && len(m.Layers) == 0)
		}
		if err != nil {
			return failed("mount at "+m.Target, err)
		}
	}
	return nil
}

func memoryOptions(m Mount) string {
	options := fmt.Sprintf("mode=%o", m.Mode)
	if m.Size > 0 {
		options += fmt.Sprintf(",size=%d", m.Size)
	}
	if ownsFiles() && (m.UID != 0 || m.GID != 0) {
		options += fmt.Sprintf(",uid=%d,gid=%d", m.UID, m.GID)
	}
	return options
}

// mountPoint makes the place for mount i.
func (b *builder) mountPoint(root inRoot, i int) {
	source, target := b.host.mounts[i].source, b.spec.Mounts[i].Target
	if source < 0 || isDir(source) {
		closePoint(root.dir(target))
	} else {
		closePoint(root.file(target))
	}
}
