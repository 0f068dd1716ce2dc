package nodejob

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
)

// place is a directory as this machine sees it: a network file system gives a directory the same number on all of its clients.
type place struct {
	Path  string `json:"path"`
	Inode uint64 `json:"inode"`
}

// placeOf looks at a directory.
func placeOf(path string) (place, error) {
	info, err := os.Stat(path)
	if err != nil {
		return place{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return place{}, fmt.Errorf("%s: its number is not known", path)
	}
	return place{path, st.Ino}, nil
}

// check reports whether this machine, a node, sees the same directory.
func (p place) check() error {
	here, err := placeOf(p.Path)
	if err == nil && here.Inode == p.Inode {
		return nil
	}
	return fault.Hint(fmt.Errorf("this node does not see %s of the machine that you are on", p.Path), unseenHint)
}

const unseenHint = "use a directory on a file system that all nodes share, and for the store as well: SCONCE_STORE, or store in the configuration"

// seen says whether a directory can be one that nodes see. What it cannot know is found out on the node, see check.
func (c Command) seen(dir string) error {
	own := []string{"/tmp", "/var/tmp", "/dev/shm"}
	if home, err := os.UserHomeDir(); err == nil && c.Cluster.Paths.HomeShared != nil && !*c.Cluster.Paths.HomeShared {
		own = append(own, home)
	}
	for _, o := range own {
		if dir == o || strings.HasPrefix(dir, o+"/") {
			return fault.Usage(fault.Hint(fmt.Errorf("%s is a directory of this machine, which the nodes of %s do not see", dir, c.clusterName()), unseenHint))
		}
	}
	switch fs := host.FileSystemOf(dir).Type; fs {
	case "tmpfs", "ramfs", "overlay":
		return fault.Usage(fault.Hint(fmt.Errorf("%s is on a %s of this machine, which the nodes of %s do not see", dir, fs, c.clusterName()), unseenHint))
	}
	return nil
}

// private makes a directory for this user alone, or sees that it is one.
func private(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return fault.Hint(fmt.Errorf("%s is not a directory of yours that nobody else may read", dir), "remove it, or `chmod 700` it")
	}
	return nil
}

// machines are the processors of ELF files, by Go's names of them.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// program is the path of this program where the nodes read it, copied there under its digest unless it is there.
func (c Command) program(root string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	_, arch, _ := strings.Cut(c.Cluster.Platform, "/")
	if arch == "" || arch == runtime.GOARCH {
		return copyProgram(self, root)
	}
	beside := filepath.Join(filepath.Dir(self), "sconce-linux-"+arch)
	hint := fmt.Sprintf("put sconce for linux/%s, of the same version, at %s", arch, beside)
	f, err := elf.Open(beside)
	if err != nil {
		return "", fault.Hint(fmt.Errorf("the nodes of %s are %s, and this sconce is for linux/%s: there is none for them: %w", c.clusterName(), c.Cluster.Platform, runtime.GOARCH, err), hint)
	}
	defer f.Close()
	if f.Machine != machines[arch] {
		return "", fault.Hint(fmt.Errorf("%s is a program for %s, and the nodes of %s are %s", beside, f.Machine, c.clusterName(), c.Cluster.Platform), hint)
	}
	return copyProgram(beside, root)
}

func copyProgram(from, root string) (string, error) {
	f, err := os.Open(from)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	to := filepath.Join(root, "program-"+hex.EncodeToString(sum.Sum(nil)[:8]), "sconce")
	if _, err := os.Stat(to); err == nil {
		return to, nil
	}
	if err := private(filepath.Dir(to)); err != nil {
		return "", err
	}
	return to, atomicfile.Fill(to, 0o700, func(w *os.File) error {
		_, err := io.Copy(w, io.NewSectionReader(f, 0, 1<<62))
		return err
	})
}
