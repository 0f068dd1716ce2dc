package lock

import (
	"os"
	"path/filepath"
	"testing"

	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/recipe"
)

// What uv is handed means the same in another directory, in the same lines.
func TestHandedRequirements(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	locktest.Write(t, dir, map[string]string{
		"sub/r.txt":    "# x\nalpha==1 \\\n  --hash=sha256:00\n\n./w/a.whl[x] ; python_version > '3'\nb @ ./w/b.whl\n-e src\n--editable=../c[dev]\n-f ../w\n--index-url https://h/simple\n-r more.txt\n-c /abs.txt\nw/d.tar.gz\nbeta==1.0 \u00a0x\n",
		"sub/more.txt": "gamma\n",
	})
	r := &recipe.Recipe{Dir: dir}
	h := newHanding(r, out)
	h.copies["/abs.txt"] = "/copy-of-abs.txt"
	made, err := h.file(requirementsPlace{path: filepath.Join(dir, "sub/r.txt"), name: "sub/r.txt"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(made)
	if err != nil {
		t.Fatal(err)
	}
	at := "file://" + dir
	want := "\nalpha==1 --hash=sha256:00\n\n\n" + at + "/w/a.whl[x] ; python_version > '3'\nb @ " + at + "/w/b.whl\n-e " + at + "/src\n--editable file://" + filepath.Dir(dir) +
		"/c[dev]\n-f " + at + "/w\n--index-url https://h/simple\n-r " + filepath.Join(out, "requirements-1.txt") + "\n-c /copy-of-abs.txt\n" + at + "/w/d.tar.gz\nbeta==1.0 \u00a0x\n"
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if said := h.called("error in `" + made + "`"); said != "error in `sub/r.txt`" {
		t.Errorf("%q", said)
	}
}
