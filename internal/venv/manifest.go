// Package venv describes virtual environments on top of an image: the directory that one is kept in while it grows, and the squashfs file
// that it is packed to.
//
// The directory holds venv.toml, which says what was asked for, and a directory with the lock of it. No package is unpacked there. The new
// venv.toml is what makes a change true: it is renamed into place when all that it names is there.
//
// The packed file is a squashfs whose root is the environment, with the file sconce-venv.json, by which it is known what it is based on.
package venv

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tomltext"
)

// FileName is the name of the file that makes a directory one of an environment.
const FileName = "venv.toml"

// DefaultMount is where an environment is seen in a container, when nothing else is said.
const DefaultMount = "/venv"

const (
	manifestVersion = 1
	maxManifest     = 1 << 20 // bytes
)

// Manifest is what venv.toml says.
type Manifest struct {
	Version int `toml:"version"`
	Base
	Packages     []string `toml:"packages,multiline"`         // that were asked for (PEP 508)
	Requirements []string `toml:"requirements,omitempty"`     // files, relative to the directory
	Project      string   `toml:"project,omitempty"`          // a directory with a pyproject.toml, likewise
	Shadow       []string `toml:"shadow,omitempty,multiline"` // packages of the base that the environment may have in a version of its own
	Lock         string   `toml:"lock,omitempty"`             // the directory of the lock; "": there are no packages yet
}

// Base is what an environment is based on.
type Base struct {
	Image      string         `toml:"image" json:"image"`                   // as it is found again
	Digest     store.Digest   `toml:"digest" json:"digest"`                 // of its manifest
	Also       []store.Digest `toml:"also,omitempty" json:"also,omitempty"` // others that the same image goes by, see [Matches]
	Platform   string         `toml:"platform" json:"platform"`             // linux/amd64
	Executable string         `toml:"executable" json:"executable"`         // of its Python, links followed
	Python     string         `toml:"python" json:"python"`                 // its full version
	Mount      string         `toml:"mount" json:"mount"`                   // where the environment is seen
}

func (b Base) check() error {
	switch {
	case b.Image == "" || b.Python == "" || !path.IsAbs(b.Executable):
		return errors.New("it does not say which image and Python it is based on")
	case slices.ContainsFunc(append(slices.Clone(b.Also), b.Digest), func(d store.Digest) bool { _, err := store.ParseDigest(string(d)); return err != nil }):
		return errors.New("what it says of the image's digest is no digest")
	}
	return CheckMount(b.Mount)
}

// CheckMount says why an environment cannot be seen at a path of an image.
func CheckMount(at string) error {
	if !path.IsAbs(at) || path.Clean(at) != at || at == "/" || strings.ContainsAny(at, "'\"\\$`:!") || strings.ContainsFunc(at, quote.Harmful) {
		return fmt.Errorf("%q cannot be the place of an environment: it is an absolute path of plain characters, like %s", at, DefaultMount)
	}
	for _, system := range []string{"/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/lib", "/lib64", "/sbin"} {
		if at == system || strings.HasPrefix(at, system+"/") && system != "/usr" {
			return fmt.Errorf("%q cannot be the place of an environment: it would cover what the image needs", at)
		}
	}
	return nil
}

// Matches reports whether an image that goes by any of these digests is the one that the environment is based on.
func (b Base) Matches(digests []store.Digest) bool {
	return slices.ContainsFunc(digests, func(d store.Digest) bool { return d == b.Digest || slices.Contains(b.Also, d) })
}

// Title is the image's name for people.
func (b Base) Title() string {
	name, _, _ := strings.Cut(strings.TrimPrefix(b.Image, "store:"), "@sha256:")
	return name + " (" + b.Digest.Short() + ")"
}

// CheckBase says why an environment cannot be used with an image, which goes by these digests; none are known of a file that sconce has
// not written.
func (b Base) CheckBase(name, image string, digests []store.Digest) error {
	if b.Matches(digests) {
		return nil
	}
	err := fmt.Errorf("%s was made for %s, and %s is another image", name, b.Title(), image)
	if len(digests) == 0 {
		err = fmt.Errorf("%s was made for %s, and nothing tells whether %s is that image", name, b.Title(), image)
	}
	return fault.Problem(fault.Hint(err, "its packages may not fit what is there: make it again with `sconce venv new "+quote.Word(image)+"`, or use it all the same with --any-base"))
}

// Load reads the venv.toml of a directory. The error wraps fs.ErrNotExist when the directory is not an environment's.
func Load(dir string) (*Manifest, error) {
	file := filepath.Join(dir, FileName)
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Hint(fmt.Errorf("%s is no environment: %w", dir, err), "`sconce venv new IMAGE DIR` makes one")
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := ctxio.ReadAtMost(f, maxManifest)
	m := &Manifest{}
	if err == nil {
		keys := []string{"image", "packages", "requirements", "project", "shadow", "mount"}
		err = tomltext.Decode(data, m, keys, func(key string) string { return spelling.Nearest(key, keys) })
	}
	if err == nil {
		err = m.check()
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return m, nil
}

func (m *Manifest) check() error {
	switch {
	case m.Version != manifestVersion:
		return fmt.Errorf("its version is %d, and this sconce knows %d", m.Version, manifestVersion)
	case m.Lock != "" && m.Lock != filepath.Base(m.Lock) || m.Lock == "." || m.Lock == "..":
		return fmt.Errorf("lock %q is no name of a directory beside it", m.Lock)
	}
	return m.Base.check()
}

const manifestHead = "# An environment on top of an image. `sconce venv add` changes it; what is locked is in the directory that lock names.\n"

// Save writes the venv.toml of a directory, whole or not at all.
func (m *Manifest) Save(dir string) error {
	m.Version = manifestVersion
	if err := m.check(); err != nil {
		return err
	}
	var b bytes.Buffer
	b.WriteString(manifestHead)
	if err := toml.NewEncoder(&b).Encode(m); err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(dir, FileName), b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", FileName, err)
	}
	return nil
}

// lockPrefix begins the names of directories with locks.
const lockPrefix = "lock-"

// NextLock makes a directory for the lock of a change, with what the present lock has, which decides as long as it fits.
func (m *Manifest) NextLock(dir string) (name string, err error) {
	made, err := os.MkdirTemp(dir, lockPrefix+"*")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(made, 0o755); err != nil {
		return "", err
	}
	if m.Lock == "" {
		return filepath.Base(made), nil
	}
	return filepath.Base(made), os.CopyFS(made, os.DirFS(filepath.Join(dir, m.Lock)))
}

// Clean removes the locks that no longer count, and what a change has left that did not come to its end. Nobody else may change the
// environment meanwhile.
func (m *Manifest) Clean(dir string) error {
	found, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range found {
		old := e.IsDir() && strings.HasPrefix(e.Name(), lockPrefix) && e.Name() != m.Lock
		if old || strings.HasPrefix(e.Name(), "."+FileName+"-") {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}
