package venv_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/venv"
)

var base = venv.Base{
	Image: "store:llm:1", Digest: store.DigestOf([]byte("llm")), Also: []store.Digest{store.DigestOf([]byte("file"))}, Platform: "linux/amd64",
	Executable: "/usr/bin/python3.11", Python: "3.11.2", Mount: "/venv",
}

// What is written is read again; what somebody spoiled is an error that names the file.
func TestManifest(t *testing.T) {
	dir := t.TempDir()
	if _, err := venv.Load(dir); !errors.Is(err, fs.ErrNotExist) || fault.HintOf(err) == "" {
		t.Errorf("in an empty directory: %v", err)
	}
	m := venv.Manifest{Base: base, Packages: []string{"einops", `x; python_version < "3"`}, Shadow: []string{"numpy"}, Lock: "lock-1"}
	if err := m.Save(dir); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, venv.FileName)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, err := venv.Load(dir)
	if err != nil || strings.Join(got.Packages, "|") != strings.Join(m.Packages, "|") || got.Digest != base.Digest || got.Also[0] != base.Also[0] || got.Lock != "lock-1" {
		t.Fatalf("%+v %v\n%s", got, err, text)
	}
	for from, to := range map[string]string{
		"version = 1":        "version = 2",
		"lock = 'lock-1'":    "lock = '../lock-1'",
		"mount = '/venv'":    "mount = '/venv/../usr'",
		"image = ":           "imgae = ",
		"'sha256:":           "'sha256:x",
		"executable = '/usr": "executable = 'usr",
	} {
		if !strings.Contains(string(text), from) {
			t.Errorf("%q is not in\n%s", from, text)
		}
		if err := os.WriteFile(file, []byte(strings.Replace(string(text), from, to, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := venv.Load(dir); err == nil || !strings.Contains(err.Error(), venv.FileName) {
			t.Errorf("%s: %v", to, err)
		}
	}
}

func TestCheckBase(t *testing.T) {
	for name, digests := range map[string][]store.Digest{"itself": {base.Digest}, "its file": base.Also} {
		if err := base.CheckBase("v.sqsh", "llm", digests); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, digests := range map[string][]store.Digest{"another": {store.DigestOf(nil)}, "unknown": nil} {
		if err := base.CheckBase("v.sqsh", "llm", digests); fault.CodeOf(err) != fault.CodeProblem {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// file is an entry of a hostile file system.
type file struct {
	name string
	kind squashfs.Type
	data string
}

// packed writes files into the root of a squashfs.
func packed(t *testing.T, files ...file) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "v.sqsh"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := squashfs.NewWriter(f, 0, squashfs.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.StartSegment(); err != nil {
		t.Fatal(err)
	}
	root := &squashfs.Inode{Type: squashfs.Dir, Mode: 0o755}
	for i, x := range files {
		n := &squashfs.Inode{Type: x.kind, Mode: 0o755}
		switch x.kind {
		case squashfs.Symlink:
			n.Target = x.data
		case squashfs.Regular:
			n.Data, err = w.Add(t.Context(), squashfs.Key{Nth: i}, int64(len(x.data)), func() (io.ReadCloser, error) {
				return io.NopCloser(strings.NewReader(x.data)), nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		root.Entries = append(root.Entries, squashfs.DirEntry{Name: x.name, Inode: n})
	}
	if _, err := w.EndSegment(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Finish(root); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func readRecord(t *testing.T, files ...file) (*venv.Record, error) {
	t.Helper()
	f, err := os.Open(packed(t, files...))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	r, err := squashfs.New(f, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	return venv.ReadRecord(r)
}

// A file that somebody gives away may say anything of itself.
func TestHostileRecord(t *testing.T) {
	good, err := venv.Record{Base: base, Packages: []venv.Package{{Name: "einops", Version: "1"}}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	cfg, bin := file{"pyvenv.cfg", squashfs.Regular, "home = /usr/bin\n"}, file{"bin", squashfs.Dir, ""}
	if r, err := readRecord(t, cfg, bin, file{venv.RecordFile, squashfs.Regular, string(good)}); err != nil || r.Packages[0].Name != "einops" {
		t.Fatalf("%+v %v", r, err)
	}
	change := func(from, to string) file {
		if !bytes.Contains(good, []byte(from)) {
			t.Errorf("%q is not in %s", from, good)
		}
		return file{venv.RecordFile, squashfs.Regular, strings.Replace(string(good), from, to, 1)}
	}
	for name, f := range map[string]file{
		"no record":            {"other", squashfs.Regular, ""},
		"a link":               {venv.RecordFile, squashfs.Symlink, "/etc/passwd"},
		"a directory":          {venv.RecordFile, squashfs.Dir, ""},
		"no JSON":              {venv.RecordFile, squashfs.Regular, "{"},
		"larger than any":      {venv.RecordFile, squashfs.Regular, strings.Repeat(" ", 9<<20)},
		"of a later version":   change(`"version": 1`, `"version": 9`),
		"over the root":        change(`"mount": "/venv"`, `"mount": "/"`),
		"over the libraries":   change(`"mount": "/venv"`, `"mount": "/lib/x"`),
		"out of the image":     change(`"mount": "/venv"`, `"mount": "/../venv"`),
		"with a shell's words": change(`"mount": "/venv"`, `"mount": "/venv$(id)"`),
		"of no digest":         change(`"digest": "sha256:`, `"digest": "md5:`),
	} {
		if r, err := readRecord(t, cfg, bin, f); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if _, err := readRecord(t, bin, file{venv.RecordFile, squashfs.Regular, string(good)}); err == nil {
		t.Error("without pyvenv.cfg")
	}
}
