package imagetest

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
)

// hashVersion is raised when a hash means something else.
const hashVersion = 1

// Hash is the validation hash of a test on a cluster, 64 hexadecimal digits: over its table, the content of its files, the kit where it
// uses that, the cluster's name and the references that it is compared with. Which clusters it runs on besides is not in it, and neither
// are where the recipe lies and all other tests. dir is the recipe's directory.
func Hash(dir string, t Test, p cluster.Profile) (string, error) {
	files, err := listFiles(dir, t.Files)
	if err != nil {
		return "", err
	}
	t.Clusters = nil
	kit := ""
	if t.Use != "" {
		kit = KitVersion()
	}
	data, err := json.Marshal([]any{hashVersion, t, files, kit, p.Name, references(p, t)})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

//go:embed kit.py
var kitPy []byte

// KitVersion tells one version of the kit from another.
func KitVersion() string {
	sum := sha256.Sum256(kitPy)
	return hex.EncodeToString(sum[:8])
}

// Limits of what a test brings along.
const (
	maxFiles    = 10_000
	maxFileSize = 1 << 30 // bytes of all
)

// file is a file that a test brings along.
type file struct {
	Path   string `json:"path"` // with slashes, below the recipe's directory
	Mode   string `json:"mode"` // "dir", "link", "exec" or "file"
	Link   string `json:"link,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
}

// listFiles lists what lies below the given paths, by name.
func listFiles(dir string, paths []string) ([]file, error) {
	var all []file
	var size int64
	for _, p := range paths {
		if !filepath.IsLocal(p) || !staysIn(dir, p) {
			return nil, fault.Usage(fmt.Errorf("files: %q leads out of the recipe's directory", p))
		}
		err := filepath.WalkDir(filepath.Join(dir, p), func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if len(all) >= maxFiles {
				return fmt.Errorf("more than %d files", maxFiles)
			}
			f, n, err := lookAt(dir, path)
			if size += n; size > maxFileSize {
				return errors.New("more than 1 GiB: large data belongs on the cluster")
			}
			all = append(all, f)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("files of the test: %w", err)
		}
	}
	slices.SortFunc(all, func(a, b file) int { return strings.Compare(a.Path, b.Path) })
	return slices.Compact(all), nil
}

// staysIn reports whether no link on the way to a path below dir leads out of that. A path that is not there leads nowhere.
func staysIn(dir, path string) bool {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return true // which the walk tells
	}
	defer root.Close()
	if _, err = root.Lstat(path); err == nil {
		return true
	}
	_, err = os.Lstat(filepath.Join(dir, path))
	return err != nil // else it is there, by a way that leads out
}

// lookAt says what lies at a path below dir.
func lookAt(dir, path string) (file, int64, error) {
	rel, err := filepath.Rel(dir, path)
	if err != nil {
		return file{}, 0, err
	}
	f := file{Path: filepath.ToSlash(rel), Mode: "file"}
	info, err := os.Lstat(path)
	if err != nil {
		return f, 0, err
	}
	switch {
	case info.IsDir():
		f.Mode = "dir"
		return f, 0, nil
	case info.Mode().Type() == fs.ModeSymlink:
		f.Mode = "link"
		if f.Link, err = os.Readlink(path); err != nil {
			return f, 0, err
		}
		if filepath.IsAbs(f.Link) || !filepath.IsLocal(filepath.Join(filepath.Dir(rel), f.Link)) {
			return f, 0, fmt.Errorf("%s is a link that leads out of the recipe's directory", f.Path)
		}
		return f, 0, nil
	case !info.Mode().IsRegular():
		return f, 0, fmt.Errorf("%s is neither a file nor a directory", f.Path)
	case info.Mode()&0o111 != 0:
		f.Mode = "exec"
	}
	f.SHA256, err = hashFile(path)
	return f, info.Size(), err
}

func hashFile(path string) (string, error) {
	r, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer r.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
