package audit

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/layer"
)

// pyDir is a Root over a directory of this machine.
type pyDir struct{ dir string }

func (r pyDir) host(name string) string { return filepath.Join(r.dir, filepath.FromSlash(name)) }

func (r pyDir) Resolve(name string) (string, error) {
	done, rest := "/", strings.Split(path.Clean(name), "/")
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		st, err := os.Lstat(r.host(next))
		if err != nil {
			return "", err
		}
		if st.Mode()&fs.ModeSymlink == 0 {
			done = next
			continue
		}
		if links++; links > 40 {
			return "", errors.New("too many links")
		}
		target, err := os.Readlink(r.host(next))
		if err != nil {
			return "", err
		}
		if path.IsAbs(target) {
			done = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return done, nil
}

type pyHandle struct {
	*os.File
	size int64
}

func (h pyHandle) Size() int64 { return h.size }

func (r pyDir) Open(name string) (elfx.Handle, error) {
	real, err := r.Resolve(name)
	if err != nil {
		return nil, err
	}
	st, err := os.Lstat(r.host(real))
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fs.ErrInvalid
	}
	f, err := os.Open(r.host(real))
	if err != nil {
		return nil, err
	}
	return pyHandle{f, st.Size()}, nil
}

func (r pyDir) ReadDir(name string) ([]string, error) {
	real, err := r.Resolve(name)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(r.host(real))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (r pyDir) Stat(name string) (Info, error) {
	real, err := r.Resolve(name)
	if err != nil {
		return Info{}, err
	}
	st, err := os.Lstat(r.host(real))
	if err != nil {
		return Info{}, err
	}
	return pyInfo(strings.TrimPrefix(real, "/"), st), nil
}

func (r pyDir) All(visit func(Info) error) error { return r.below("", visit) }

func (r pyDir) below(dir string, visit func(Info) error) error {
	return filepath.WalkDir(r.host(dir), func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == r.dir {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(r.dir, name)
		if err != nil {
			return err
		}
		return visit(pyInfo(filepath.ToSlash(rel), st))
	})
}

func pyInfo(name string, st fs.FileInfo) Info {
	i := Info{Path: name, Type: layer.Regular, Mode: uint32(st.Mode().Perm()), Size: st.Size(), ModTime: st.ModTime()}
	switch {
	case st.IsDir():
		i.Type = layer.Dir
	case st.Mode()&fs.ModeSymlink != 0:
		i.Type = layer.Symlink
	}
	return i
}

// pyFacts gathers what the rules about Python use: of the whole root or of some directories in it.
func pyFacts(t *testing.T, root string, env []string, dirs ...string) *Facts {
	t.Helper()
	r := pyDir{root}
	f := &Facts{Platform: "linux/amd64", Root: r}
	f.Config.Env = env
	if len(dirs) == 0 {
		dirs = []string{""}
	}
	for _, dir := range dirs {
		err := r.below(dir, func(i Info) error {
			f.Paths = append(f.Paths, i)
			if i.Type == layer.Regular && strings.Contains(path.Base(i.Path), ".so") {
				f.Objects = append(f.Objects, pyObjects(r, i)...)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if f.Pythons, err = findPythons(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	return f
}

func pyObjects(r pyDir, i Info) []Object {
	h, err := r.Open("/" + i.Path)
	if err != nil {
		return nil
	}
	defer h.Close()
	e, err := elfx.Open(h, i.Size)
	if err != nil {
		return nil
	}
	return []Object{{Path: i.Path, Size: i.Size, Arch: e.Arch, Soname: e.Soname, Needed: e.Needed, Rpath: e.Rpath, Runpath: e.Runpath}}
}

// pyFindings runs the rules about Python, or those of some IDs.
func pyFindings(t *testing.T, f *Facts, target cluster.Profile, ids ...string) []Finding {
	t.Helper()
	var all []Finding
	s := &Subject{Facts: f, Target: target, Context: context.Background()}
	for _, r := range pythonRules {
		if len(ids) > 0 && !containsString(ids, r.ID) {
			continue
		}
		if err := r.look(s, func(x Finding) { all = append(all, r.complete(x)) }); err != nil {
			t.Fatalf("%s: %v", r.ID, err)
		}
	}
	return all
}

func containsString(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// writePython lays files in a new directory, the content by name; a name that ends in a slash is a directory, a content
// that starts with "-> " a link.
func writePython(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		at := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(at, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		target, link := strings.CutPrefix(content, "-> ")
		var err error
		if link {
			err = os.Symlink(target, at)
		} else {
			err = os.WriteFile(at, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// logFindings shows findings as a person would read them.
func logFindings(t *testing.T, findings []Finding) {
	t.Helper()
	for _, f := range findings {
		seen, _ := json.Marshal(f.Seen)
		t.Logf("%s %s: %s\n  path %s\n  seen %s\n  why %s\n  do %s", f.Severity, f.Rule, f.Message, f.Path, seen, f.Why, f.Remedy)
	}
}
