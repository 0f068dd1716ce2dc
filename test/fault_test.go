package test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/tooltest"
)

// A store on a disk that is full: the error says so, what is there stays sound, and with more space the build goes on.
func TestDiskFull(t *testing.T) {
	needRoot(t)
	begin(t)
	for name, locked := range map[string]func(t *testing.T) string{
		"wheels": func(t *testing.T) string {
			return lockedRecipe(t, newIndex(t), recipe(base(t).ref, append([]string{"numpy"}, few...)))
		},
		"conda packages": lockedConda,
	} {
		t.Run(name, func(t *testing.T) { wantBuiltOnFullDisk(t, locked(t)) })
	}
}

// wantBuiltOnFullDisk builds on a disk that grows step by step, so that it is full at different points.
func wantBuiltOnFullDisk(t *testing.T, app string) {
	t.Helper()
	roomy := newPlace(t, nil)
	roomy.take(app, "app")
	want := roomy.build("--locked", "app")
	all := diskUsage(t, roomy.store)

	p := newPlace(t, nil)
	p.take(app, "app")
	if err := os.Mkdir(p.store, 0o755); err != nil {
		t.Fatal(err)
	}
	tooltest.SmallDiskAt(t, p.store, size(all/20))
	for _, percent := range []int64{5, 20, 40, 60, 80, 90} {
		if err := unix.Mount("tmpfs", p.store, "tmpfs", unix.MS_REMOUNT, size(all*percent/100)); err != nil {
			t.Fatal(err)
		}
		r := p.fails(1, nil, "build", "--locked", "app")
		if !strings.Contains(r.stderr, "no space left") && !strings.Contains(r.stderr, "has room for") {
			t.Errorf("with %d%% of the space: %v", percent, r)
		}
		if strings.Count(r.stderr, "error: ") != 1 {
			t.Errorf("with %d%% of the space there is more than one error: %v", percent, r)
		}
		t.Logf("with %d%% of the space: %s", percent, errorOf(r))
		p.wantSound()
		p.wantTidy()
	}
	if err := unix.Mount("tmpfs", p.store, "tmpfs", unix.MS_REMOUNT, size(2*all)); err != nil {
		t.Fatal(err)
	}
	if got := p.build("--locked", "app"); got != want {
		t.Errorf("the image is %s, want %s", got, want)
	}
}

// errorOf is the error of a command without the progress before it.
func errorOf(r result) string {
	_, text, _ := strings.Cut(r.stderr, "error: ")
	return strings.TrimSpace(text)
}

func size(n int64) string { return fmt.Sprintf("size=%d", n) }

// diskUsage is the sum of the blocks of all files below dir, in bytes.
func diskUsage(t *testing.T, dir string) int64 {
	t.Helper()
	var sum int64
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		err = unix.Lstat(path, &st)
		sum += st.Blocks * 512
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// Wheels that are not what the lock says are refused by name, and nothing of them stays.
func TestWrongWheels(t *testing.T) {
	begin(t)
	ix := newIndex(t)
	app := lockedRecipe(t, ix, recipe("tar:"+smallRoot(t), few, "bytecode = false"))
	const victim = "idna-3.20-py3-none-any.whl"
	p := newPlace(t, ordinary(t))
	p.take(app, "app")
	for _, c := range []struct {
		name  string
		words []string
		serve func(w http.ResponseWriter, data []byte)
	}{
		{"other bytes", []string{"idna 3.20", "wrong hash"}, func(w http.ResponseWriter, data []byte) {
			data[len(data)/2] ^= 1
			_, _ = w.Write(data)
		}},
		{"too short", []string{"idna 3.20", "wrong size"}, func(w http.ResponseWriter, data []byte) {
			w.Header().Set("Content-Length", fmt.Sprint(len(data)/2))
			_, _ = w.Write(data[:len(data)/2])
		}},
		{"too long", []string{"idna 3.20", "wrong size"}, func(w http.ResponseWriter, data []byte) {
			w.Header().Set("Content-Length", fmt.Sprint(2*len(data)))
			_, _ = w.Write(append(data, data...))
		}},
		{"cut off", []string{"idna 3.20", "the connection was cut off", "gave up after"}, func(w http.ResponseWriter, data []byte) {
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			_, _ = w.Write(data[:1000])
			panic(http.ErrAbortHandler)
		}},
		{"missing", []string{"idna 3.20", "404"}, func(w http.ResponseWriter, _ []byte) {
			w.WriteHeader(http.StatusNotFound)
		}},
	} {
		ix.spoil(func(w http.ResponseWriter, r *http.Request, file string) bool {
			if file != victim || r.Method != http.MethodGet {
				return false
			}
			data, err := os.ReadFile(filepath.Join(ix.dir, file))
			if err != nil {
				t.Error(err)
			}
			r.Header.Del("Range")
			c.serve(w, data)
			return true
		})
		code := 1
		if c.name == "cut off" { // which may go better later
			code = 75
		}
		r := p.fails(code, c.words, "--patience", "5s", "build", "--locked", "app")
		t.Logf("%s: %s", c.name, errorOf(r))
		p.wantSound()
	}
	ix.spoil(nil)
	p.build("--locked", "app")
	p.wantTidy()
}

// A base whose layer was damaged on the way is refused, whether a bit is wrong or the end is missing.
func TestDamagedBase(t *testing.T) {
	begin(t)
	b := base(t)
	_, rest, _ := strings.Cut(b.ref, ":")
	layout, tag, _ := strings.Cut(rest, ":")
	for name, damage := range map[string]func(data []byte) []byte{
		"bit":  func(data []byte) []byte { data[len(data)/2] ^= 4; return data },
		"end":  func(data []byte) []byte { return data[:len(data)-4096] },
		"more": func(data []byte) []byte { return append(data, 0) },
	} {
		p := newPlace(t, nil)
		p.take(layout, "layout")
		p.write("app/sconce.toml", fmt.Sprintf("name = \"app\"\n\n[base]\nimage = \"oci:../layout:%s\"\n", tag))
		p.must("lock", "app")
		blob := largest(t, p.path("layout/blobs/sha256"))
		data, err := os.ReadFile(blob)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Remove(blob), os.WriteFile(blob, damage(data), 0o644)); err != nil {
			t.Fatal(err)
		}
		r := p.fails(1, []string{filepath.Base(blob)[:12]}, "--store", p.path("empty"), "build", "--locked", "app")
		t.Logf("%s: %s", name, errorOf(r))
		p.wantSound()
	}
}

func largest(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var path string
	var most int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > most {
			path, most = filepath.Join(dir, e.Name()), info.Size()
		}
	}
	return path
}

// What was damaged in the store is found, and made again by the next build.
func TestDamagedStoreHeals(t *testing.T) {
	begin(t)
	p := newPlace(t, nil)
	p.take(lockedRecipe(t, newIndex(t), recipe("tar:"+smallRoot(t), few, "bytecode = false")), "app")
	digest := p.build("--locked", "app")
	layers := p.layers("app:1")
	for _, l := range []imageLayer{layers[0], layers[1], layers[len(layers)-1]} {
		hexed := strings.TrimPrefix(l.Digest, "sha256:")
		blob := filepath.Join(p.store, "blobs-v1", "sha256", hexed[:2], hexed)
		data, err := os.ReadFile(blob)
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)/2] ^= 1
		if err := errors.Join(os.Remove(blob), os.WriteFile(blob, data, 0o444)); err != nil {
			t.Fatal(err)
		}
		p.fails(3, []string{"damaged", "hint: "}, "cache", "verify")
		p.fails(3, []string{"damaged"}, "cache", "verify", "--remove")
		if got := p.build("--locked", "app"); got != digest {
			t.Errorf("after %s was damaged the image is %s, want %s", l.CreatedBy, got, digest)
		}
		p.wantSound()
	}
}

// A registry in trouble is asked again and resumed; one that refuses is named.
func TestTroubledRegistry(t *testing.T) {
	begin(t)
	b := base(t)
	real := registrytest.Start(t, false)
	var trouble atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
	proxy := registrytest.NewProxy(t, real, func(w http.ResponseWriter, r *http.Request) bool {
		f := trouble.Load()
		return f != nil && (*f)(w, r)
	})
	first := newPlace(t, nil)
	first.must("copy", b.ref, "docker://"+proxy.Host+"/base:1")
	first.write("app/sconce.toml", fmt.Sprintf("name = \"app\"\n\n[base]\nimage = \"docker://%s/base:1\"\n", proxy.Host))
	want := first.build("app")

	var failures atomic.Int64
	passing := func(w http.ResponseWriter, r *http.Request) bool {
		switch n := failures.Add(1); {
		case n == 1:
			w.WriteHeader(http.StatusInternalServerError)
			return true
		case n == 3:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		case n <= 8 && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/"):
			registrytest.Forward(real, registrytest.CutWriter(w, 5<<20), r)
			return true
		}
		return false
	}
	trouble.Store(&passing)
	second := newPlace(t, nil)
	second.take(first.path("app"), "app")
	if got := second.build("--locked", "app"); got != want {
		t.Errorf("through the trouble came %s, want %s", got, want)
	}
	if failures.Load() < 5 {
		t.Errorf("there was no trouble: %d requests", failures.Load())
	}
	second.wantSound()

	for _, code := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		refusing := func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(code)
			return true
		}
		trouble.Store(&refusing)
		third := newPlace(t, nil)
		third.take(first.path("app"), "app")
		third.fails(1, []string{proxy.Host, fmt.Sprint(code)}, "build", "--locked", "app")
	}
}
