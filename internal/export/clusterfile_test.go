package export

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"sconce.dev/sconce/internal/clusterfile"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

func clusterOptions(st *store.Store) Options {
	return Options{Store: st, Squashfs: squashfs.DefaultOptions()}
}

// contentOf reads a file in a cluster file.
func contentOf(t *testing.T, file, name string) string {
	t.Helper()
	c, err := source.OpenClusterFile(file)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	data, err := c.FS.FS().(interface{ ReadFile(string) ([]byte, error) }).ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// wantAlone fails when anything else is in the directory of a file.
func wantAlone(t *testing.T, files ...string) {
	t.Helper()
	var got []string
	entries, err := os.ReadDir(filepath.Dir(files[0]))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		got = append(got, filepath.Join(filepath.Dir(files[0]), e.Name()))
	}
	if slices.Sort(files); !slices.Equal(got, files) {
		t.Errorf("there are %q, want %q", got, files)
	}
}

// verbs counts the tasks of each kind.
type verbs struct {
	mu    sync.Mutex
	begun map[string]int
}

func (v *verbs) Emit(e progress.Event) {
	if e.Kind == progress.Start {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.begun[e.Verb]++
	}
}

func TestClusterFiles(t *testing.T) {
	st := storetest.New(t)
	im := sample(t, st)
	dir := filepath.Join(t.TempDir(), "deep", "er")
	sqsh, sif := filepath.Join(dir, "x.sqsh"), filepath.Join(dir, "x.sif")
	for _, dest := range []string{sqsh, sif} {
		seen := &verbs{begun: map[string]int{}}
		ctx := progress.With(t.Context(), seen)
		if err := writeTo(ctx, im, dest, clusterOptions(st)); err != nil {
			t.Fatal(err)
		}
		if seen.begun["squash"] != 2 {
			t.Errorf("tasks: %v", seen.begun)
		}
		if got := contentOf(t, dest, "etc/changed"); got != "new" {
			t.Errorf("%s holds %q", dest, got)
		}
		before, err := os.Stat(dest)
		if err != nil {
			t.Fatal(err)
		}
		if err := writeTo(ctx, im, dest, clusterOptions(st)); err != nil {
			t.Fatal(err)
		}
		if after, err := os.Stat(dest); err != nil || !os.SameFile(before, after) || seen.begun["squash"] != 2 {
			t.Errorf("written again: %v, tasks: %v", err, seen.begun)
		}
	}
	wantAlone(t, sqsh, sif)
}

// What is there and is something else is refused, and stays.
func TestClusterFileRefuses(t *testing.T) {
	st := storetest.New(t)
	im, other := sample(t, st), assemble(t, st, makeLayer(t, st, layer.Zstd, regular("only", "this")))
	dir := t.TempDir()
	for _, name := range []string{"x.sqsh", "x.sif"} {
		path := filepath.Join(dir, name)
		put := map[string]func(){
			"a text":        func() { mustPut(t, path, "precious") },
			"nothing":       func() { mustPut(t, path, "") },
			"another image": func() { os.Remove(path); mustWriteCluster(t, st, other, path) },
			"another kind": func() { // a SIF under the name of a squashfs, and the other way round
				os.Remove(path)
				mustWriteCluster(t, st, im, map[string]string{"x.sqsh": "sif:", "x.sif": "sqsh:"}[name]+path)
			},
			"a symlink to nothing": func() {
				os.Remove(path)
				if err := os.Symlink("nowhere", path); err != nil {
					t.Fatal(err)
				}
			},
		}
		for what, there := range put {
			there()
			before, _ := os.ReadFile(path) // of the symlink there is nothing to read
			err := writeTo(t.Context(), im, path, clusterOptions(st))
			if err == nil || !strings.Contains(fault.HintOf(err), "--force") {
				t.Errorf("%s over %s: %v", name, what, err)
			}
			if after, _ := os.ReadFile(path); string(after) != string(before) {
				t.Errorf("%s over %s has changed it", name, what)
			}
			o := clusterOptions(st)
			o.Force = true
			if err := writeTo(t.Context(), im, path, o); err != nil {
				t.Errorf("%s over %s, by force: %v", name, what, err)
			}
			if got := contentOf(t, path, "etc/changed"); got != "new" {
				t.Errorf("%s holds %q", name, got)
			}
			wantAlone(t, path)
		}
		os.Remove(path)
	}
	if err := writeTo(t.Context(), im, "sqsh:"+dir, clusterOptions(st)); err == nil || !strings.Contains(err.Error(), "directory") {
		t.Errorf("over a directory: %v", err)
	}
}

func mustPut(t *testing.T, path, text string) {
	t.Helper()
	os.Remove(path)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func mustWriteCluster(t *testing.T, st *store.Store, im *image.Image, dest string) {
	t.Helper()
	if err := writeTo(t.Context(), im, dest, clusterOptions(st)); err != nil {
		t.Fatal(err)
	}
}

// What a process that was killed has left beside the file is removed by the next.
func TestClusterFileAfterKill(t *testing.T) {
	st := storetest.New(t)
	path := filepath.Join(t.TempDir(), "x.sqsh")
	for _, name := range []string{unfinishedName(path), filepath.Join(filepath.Dir(path), ".x.sqsh.lock")} {
		if err := os.WriteFile(name, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mustWriteCluster(t, st, sample(t, st), path)
	wantAlone(t, path)
}

// What goes wrong on the way leaves nothing, and what was there stays.
func TestClusterFileFails(t *testing.T) {
	st := storetest.New(t)
	path := filepath.Join(t.TempDir(), "x.sqsh")
	mustPut(t, path, "old")
	o := clusterOptions(st)
	o.Force = true
	target := Target{Transport: source.Squashfs, Path: path}
	broken := errors.New("broken")
	in := clusterfile.FromImage(st, sample(t, st))
	in.Layers[0].Source = brokenLayer{in.Layers[0].Source, broken}
	if err := WriteClusterFile(t.Context(), in, target, o); !errors.Is(err, broken) || !strings.Contains(err.Error(), path) {
		t.Errorf("the error is %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := WriteClusterFile(ctx, clusterfile.FromImage(st, sample(t, st)), target, o); !errors.Is(err, context.Canceled) {
		t.Errorf("called off: %v", err)
	}
	// What was written is looked at before it gets the name.
	c := &clusterWriter{ctx: t.Context(), target: target, o: o}
	err := c.write(func(f *os.File) error {
		_, err := f.WriteString("hsqs and nothing more")
		return err
	})
	if !errors.Is(err, squashfs.ErrFormat) {
		t.Errorf("a broken file: %v", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "old" {
		t.Errorf("what was there is %q: %v", data, err)
	}
	wantAlone(t, path)
}

// A file system that knows no files without a name, such as NFS and Lustre.
func TestClusterFileWithoutUnnamedFiles(t *testing.T) {
	st := storetest.New(t)
	path := filepath.Join(t.TempDir(), "x.sqsh")
	broken := errors.New("broken")
	c := &clusterWriter{
		ctx: t.Context(), in: clusterfile.FromImage(st, sample(t, st)), target: Target{Transport: source.Squashfs, Path: path},
		o: clusterOptions(st), named: true,
	}
	err := c.write(func(f *os.File) error {
		if f.Name() != unfinishedName(path) {
			t.Errorf("the unfinished file is called %s", f.Name())
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("the error is %v", err)
	}
	if _, err := os.Stat(unfinishedName(path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the unfinished file is left: %v", err)
	}
	mustPut(t, unfinishedName(path), strings.Repeat("of a process that was killed", 100_000))
	if err := c.write(c.fill); err != nil {
		t.Fatal(err)
	}
	wantAlone(t, path)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o644 || contentOf(t, path, "etc/changed") != "new" {
		t.Errorf("the file is %v: %v", st.Mode(), err)
	}
	usual := filepath.Join(t.TempDir(), "x.sqsh")
	mustWriteCluster(t, st, sample(t, st), usual)
	want, err := os.ReadFile(usual)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != string(want) {
		t.Errorf("the file differs: %v", err)
	}
}

type brokenLayer struct {
	layer.Source
	err error
}

func (b brokenLayer) Index(context.Context) (*layer.Index, error) { return nil, b.err }

// Of several writers in one process one writes, and all are content.
func TestClusterFileAtOnce(t *testing.T) {
	st := storetest.New(t)
	im := sample(t, st)
	path := filepath.Join(t.TempDir(), "x.sif")
	seen := &verbs{begun: map[string]int{}}
	ctx := progress.With(t.Context(), seen)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if err := writeTo(ctx, im, path, clusterOptions(st)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if seen.begun["squash"] != 2 {
		t.Errorf("tasks: %v", seen.begun)
	}
	wantAlone(t, path)
}

// From .sqsh to .sif and back.
func TestCopyClusterFile(t *testing.T) {
	st := storetest.New(t)
	im := sample(t, st)
	dir := t.TempDir()
	first, middle, last := filepath.Join(dir, "a.sqsh"), filepath.Join(dir, "b.sif"), filepath.Join(dir, "c.sqsh")
	mustWriteCluster(t, st, im, first)
	for _, c := range []struct {
		from string
		to   Target
	}{{first, Target{Transport: source.SIF, Path: middle}}, {middle, Target{Transport: source.Squashfs, Path: last}}} {
		for range 2 { // the second time there is nothing to do
			from, err := source.OpenClusterFile(c.from)
			if err != nil {
				t.Fatal(err)
			}
			if err := CopyClusterFile(t.Context(), from, c.to, Options{}); err != nil {
				t.Error(err)
			}
			from.Close()
		}
	}
	a, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := os.ReadFile(last); err != nil || string(c) != string(a) {
		t.Errorf("the copy of the copy differs: %v", err)
	}
	direct := filepath.Join(dir, "d.sif")
	mustWriteCluster(t, st, im, direct)
	b, err := os.ReadFile(middle)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := os.ReadFile(direct); err != nil || string(d) != string(b) {
		t.Errorf("a SIF of the image and one of its squashfs differ: %v", err)
	}
	wantAlone(t, first, middle, last, direct)
	from, err := source.OpenClusterFile(middle)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := CopyClusterFile(ctx, from, Target{Transport: source.Squashfs, Path: filepath.Join(dir, "e.sqsh")}, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("called off: %v", err)
	}
	wantAlone(t, first, middle, last, direct)
}
