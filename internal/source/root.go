package source

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/pathwalk"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/searchpath"
)

// importRoot makes an image of one layer from a root file system.
func importRoot(ctx context.Context, ref Ref, o Options) (*image.Image, error) {
	task := progress.Begin(ctx, "import", ref.Value, 0)
	makeImage := makeRoot
	if ref.Transport == Squashfs || ref.Transport == SIF {
		makeImage = makeClusterImage
	}
	im, err := makeImage(ctx, ref, o, task)
	return im, task.End(err)
}

func makeRoot(ctx context.Context, ref Ref, o Options, task *progress.Task) (*image.Image, error) {
	if ref.Transport == Dir { // before all of it is read
		if err := checkDir(ref.Value, o); err != nil {
			return nil, err
		}
	}
	desc, err := rootLayer(ctx, ref, o, task)
	if err != nil {
		return nil, err
	}
	tree, err := image.NewTree(ctx, o.Store, []layer.Descriptor{desc})
	if err != nil {
		return nil, err
	}
	platform, err := treePlatform(tree, o)
	if err != nil {
		return nil, err
	}
	return image.Assemble(ctx, o.Store, image.Spec{
		Platform:  platform,
		Additions: []image.Addition{{Layer: desc, CreatedBy: "root file system " + filepath.Base(ref.Value)}},
		Edit: func(c *v1.Config) {
			c.Env = []string{"PATH=" + searchpath.Default}
			c.Cmd = []string{"/bin/sh"}
		},
	})
}

// checkDir refuses a directory for which no platform can be chosen.
func checkDir(dir string, o Options) error {
	have, err := dirPlatform(dir)
	if err == nil {
		_, err = choosePlatform(have, o)
	}
	return err
}

// dirPlatform is what the programs in a directory run on; nil when there are none.
func dirPlatform(dir string) (*v1.Platform, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return detectPlatform(func(name string) (io.ReadCloser, error) { return openInDir(root, name) })
}

// openInDir opens a regular file below a directory as a process would that has it for its root. Whatever else there is under
// the name is as good as nothing.
func openInDir(root *os.Root, name string) (io.ReadCloser, error) {
	n, err := pathwalk.Find(hostNode{root: root, name: ".", mode: fs.ModeDir}, name, true)
	for _, nothing := range []error{fs.ErrNotExist, syscall.ENOTDIR, syscall.ELOOP} {
		if errors.Is(err, nothing) || err == nil && !n.mode.IsRegular() {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
	}
	if err != nil {
		return nil, err
	}
	return root.Open(n.name)
}

// hostNode is a file below a directory of this machine.
type hostNode struct {
	root   *os.Root
	name   string // below root, without links
	mode   fs.FileMode
	target string
}

func (n hostNode) IsDir() bool             { return n.mode.IsDir() }
func (n hostNode) Symlink() (string, bool) { return n.target, n.mode&fs.ModeSymlink != 0 }
func (n hostNode) Child(name string) (hostNode, error) {
	child := hostNode{root: n.root, name: path.Join(n.name, name)}
	info, err := n.root.Lstat(child.name)
	if err != nil {
		return hostNode{}, err
	}
	if child.mode = info.Mode(); child.mode&fs.ModeSymlink != 0 {
		child.target, err = n.root.Readlink(child.name)
	}
	return child, err
}

func rootLayer(ctx context.Context, ref Ref, o Options, task *progress.Task) (layer.Descriptor, error) {
	if ref.Transport == Dir {
		return layer.FromDir(ctx, o.Store, ref.Value, layer.Options{ModTime: layer.KeepTimes})
	}
	f, err := openRegular(ref.Value)
	if err != nil {
		return layer.Descriptor{}, err
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil {
		task.SetTotal(st.Size())
	}
	return fileLayer(ctx, o.Store, f, "tar", func(ctx context.Context) (layer.Descriptor, error) {
		r, err := layer.Decompress(io.TeeReader(f, task))
		if err != nil {
			return layer.Descriptor{}, err
		}
		defer r.Close()
		return layer.FromTar(ctx, o.Store, r, layer.Options{ModTime: layer.KeepTimes})
	})
}

// choosePlatform is what a root file system is for. What the user says must agree with what is known, and is believed
// where nothing is.
func choosePlatform(have *v1.Platform, o Options) (v1.Platform, error) {
	want := o.Platform
	switch {
	case have == nil && want.Architecture == "" && o.Otherwise.Architecture != "":
		return o.Otherwise, nil
	case have == nil && want.Architecture == "":
		return v1.Platform{}, fault.Hint(errors.New("the root file system has none of "+fmt.Sprint(probed)+" to tell its architecture by"), "name the platform")
	case have == nil:
		want.OS = "linux"
		return want, nil
	case want.Architecture != "" && !matches(*have, want):
		return v1.Platform{}, &PlatformError{Want: want, Have: []v1.Platform{*have}}
	}
	return *have, nil
}

// probed are programs that nearly every root file system has one of.
var probed = []string{"/bin/sh", "/usr/bin/env", "/bin/busybox", "/sbin/ldconfig", "/usr/bin/python3"}

// machines are the architectures that are recognised (ELF e_machine), little endian and 64 bits unless 32 are usual.
var machines = map[elf.Machine]string{
	elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_PPC64: "ppc64le", elf.EM_RISCV: "riscv64",
	elf.EM_386: "386", elf.EM_ARM: "arm", elf.EM_S390: "s390x",
}

// detectPlatform is what a root file system's programs run on; nil when there are none. open gives the content of a
// regular file, or an error that wraps fs.ErrNotExist.
func detectPlatform(open func(name string) (io.ReadCloser, error)) (*v1.Platform, error) {
	for _, name := range probed {
		r, err := open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		machine := elf.EM_NONE
		if err == nil {
			machine, err = elfMachine(r)
			r.Close()
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if arch := machines[machine]; arch != "" {
			return &v1.Platform{OS: "linux", Architecture: arch}, nil
		}
	}
	return nil, nil
}

// openInTree opens a regular file; whatever else there is under the name is as good as nothing.
func openInTree(tree *image.Tree, name string) (io.ReadCloser, error) {
	n, err := tree.Lookup(name)
	if err != nil || n.Type != layer.Regular {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return tree.Open(n)
}

// elfMachine reads e_machine of an ELF file; EM_NONE when it is none.
func elfMachine(r io.Reader) (elf.Machine, error) {
	var head [20]byte // up to and with e_machine
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return elf.EM_NONE, nil
		}
		return elf.EM_NONE, err
	}
	if !bytes.HasPrefix(head[:], []byte(elf.ELFMAG)) {
		return elf.EM_NONE, nil
	}
	var order binary.ByteOrder = binary.LittleEndian
	if elf.Data(head[elf.EI_DATA]) == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	return elf.Machine(order.Uint16(head[18:])), nil
}
