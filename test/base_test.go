package test

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// baseRecipe is the base of most tests: the smallest Debian with a complete Python.
const baseRecipe = `name = "base"
version = "1"

[base]
bootstrap = { suite = "bookworm", variant = "apt", packages = ["python3"] }
`

// madeBase is a bootstrapped base.
type madeBase struct {
	ref    string // oci:DIR:TAG, which every user may read
	recipe string // directory of the recipe of the whole of it, with its lock
	digest string // of the whole of it
}

// notInBase are files that no test reads, as in the small images of Debian: documentation and translations. They are two fifths of all files,
// and most tests have a store of their own that the base is copied to and unpacked in.
var notInBase = regexp.MustCompile(`^usr/share/((doc|locale)/|man/.*/)`)

var sharedBase once[madeBase]

// base makes the base, once, as who runs the tests.
func base(t *testing.T) madeBase {
	t.Helper()
	return sharedBase.get(t, func(t *testing.T) madeBase {
		p := placeIn(t, filepath.Join(workshop, "base"), nil)
		p.write("recipe/sconce.toml", baseRecipe)
		full, small := p.path("full.tar"), p.path("small.tar")
		b := madeBase{ref: "oci:" + p.path("layout") + ":base", recipe: p.path("recipe"), digest: p.build("recipe", "-o", "tar:"+full)}
		if err := filterTar(full, small, func(name string) bool { return !notInBase.MatchString(name) }); err != nil {
			t.Fatal(err)
		}
		p.must("copy", "tar:"+small, b.ref)
		return b
	})
}

var sharedTools once[string]

// toolsImage is the base with a compiler and with what compares the times of files, which every user may read.
func toolsImage(t *testing.T) string {
	t.Helper()
	b := base(t)
	return sharedTools.get(t, func(t *testing.T) string {
		p := placeIn(t, filepath.Join(workshop, "tools"), nil)
		p.write("recipe/sconce.toml", fmt.Sprintf("name = \"tools\"\nversion = \"1\"\n[base]\nimage = %q\n[system]\npackages = [%s]\n",
			b.ref, quoted([]string{"gcc", "libc6-dev", "python3-dev", "make", "ninja-build"})))
		out := "oci:" + p.path("layout") + ":tools"
		p.build("recipe", "-o", out)
		return out
	})
}

// recipe returns a recipe for packages on a base. more are further lines, first of [python], then whole tables.
func recipe(base string, packages []string, more ...string) string {
	return fmt.Sprintf("name = \"app\"\nversion = \"1\"\n\n[base]\nimage = %q\n\n[python]\npackages = [%s]\n%s\n",
		base, quoted(packages), strings.Join(more, "\n"))
}

func quoted(list []string) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = fmt.Sprintf("%q", s)
	}
	return strings.Join(out, ", ")
}

// everything is what the larger builds ask for: compiled and pure packages, scripts, and numpy.
var everything = []string{"six", "idna", "certifi", "click", "requests", "rich", "markupsafe", "numpy", "pip"}

// few are enough where what matters is that something is built.
var few = []string{"six", "idna", "certifi", "click", "requests", "markupsafe"}

// lockedRecipe writes a recipe into a place of its own and locks it. Its directory is returned.
func lockedRecipe(t *testing.T, ix *index, text string) string {
	t.Helper()
	tooltest.Path(t, "uv")
	p := newPlace(t, nil)
	ix.use(p)
	p.write("app/sconce.toml", text)
	p.must("lock", "app")
	return p.path("app")
}

var sharedRoot once[string]

// smallRoot is a root file system tar with no more than what is read of a Python to lock and lay down packages for it.
func smallRoot(t *testing.T) string {
	t.Helper()
	b := base(t)
	return sharedRoot.get(t, func(t *testing.T) string {
		p := placeIn(t, filepath.Join(workshop, "root"), nil)
		full, small := p.path("full.tar"), p.path("small.tar")
		p.must("copy", b.ref, "tar:"+full)
		if err := errors.Join(filterTar(full, small, neededOfPython), os.Remove(full)); err != nil {
			t.Fatal(err)
		}
		return small
	})
}

func neededOfPython(name string) bool {
	switch name {
	case "bin", "lib", "lib64", "etc/os-release", "usr/lib/os-release", "usr/lib64", "usr/lib/python3.11/os.py":
		return true
	}
	return strings.HasPrefix(name, "usr/bin/python3") || strings.Contains(name, "-linux-gnu/libc.so.") || strings.Contains(name, "/ld-linux-")
}

// filterTar copies the entries of a tar whose names keep says.
func filterTar(from, to string, keep func(name string) bool) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	r, w := tar.NewReader(in), tar.NewWriter(out)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return errors.Join(w.Close(), out.Close())
		}
		if err != nil {
			return err
		}
		if !keep(strings.Trim(strings.TrimPrefix(h.Name, "./"), "/")) {
			continue
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(w, r); err != nil {
			return err
		}
	}
}

// blobFile is where a store keeps a blob, relative to its directory.
func blobFile(data []byte) string {
	sum := fmt.Sprintf("%x", sha256.Sum256(data))
	return filepath.Join("blobs-v1", "sha256", sum[:2], sum)
}
