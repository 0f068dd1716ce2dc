package python

import (
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// watched notes which modules a compiler is asked for.
type watched struct {
	Compiler

	mu    sync.Mutex
	asked []string
}

func (w *watched) Compile(ctx context.Context, at string, source []byte) ([]byte, bool, error) {
	w.mu.Lock()
	w.asked = append(w.asked, path.Base(at))
	w.mu.Unlock()
	return w.Compiler.Compile(ctx, at, source)
}

// modulesWheel is a package of three modules, the last one of which is text.
func modulesWheel(t *testing.T, last string) []byte {
	var entries []wheelEntry
	for _, name := range []string{"demo/__init__.py", "demo/same.py"} {
		entries = append(entries, wheelEntry{name: name, data: "def f():\n    return {1, 2, 3}, '" + name + "'\n"})
	}
	return craft(t, append(entries, wheelEntry{name: "demo/torn.py", data: "def f(:\n"}, wheelEntry{name: "demo/changes.py", data: last})...)
}

// A new version of a package has compiled what changed in it, and the layer that it has where everything is compiled.
func TestUnchangedModulesAreNotCompiled(t *testing.T) {
	start, version := localPython(t)
	pool := newPool(t, 1, start)
	build := func(t *testing.T, st *store.Store, target Target, o LayerOptions, last string) (layer.Descriptor, string) {
		t.Helper()
		item := putWheelBytes(t, st, testWheelFile, modulesWheel(t, last))
		c := &watched{Compiler: pool}
		d, _, err := BuildLayer(t.Context(), st, Group{"demo", []Item{item}}, target, c, o)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(c.asked)
		return d, strings.Join(c.asked, " ")
	}
	const all = "__init__.py changes.py same.py torn.py"
	elsewhere := testTarget(version)
	elsewhere.Root = "opt/other"
	for name, test := range map[string]struct {
		target  Target
		options LayerOptions
		between func(t *testing.T, st *store.Store, first layer.Descriptor)
		want    string
	}{
		"the next version": {want: "changes.py torn.py"},
		"another place":    {target: elsewhere, want: all},
		"another Python":   {options: LayerOptions{Compiler: version + ".other"}, want: all},
		"the layer is gone": {want: all, between: func(t *testing.T, st *store.Store, first layer.Descriptor) {
			if err := os.Remove(layerFile(t, st, first)); err != nil {
				t.Fatal(err)
			}
		}},
		"the layer is damaged": {want: all, between: func(t *testing.T, st *store.Store, first layer.Descriptor) {
			file := layerFile(t, st, first)
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for i := len(data) / 3; i < len(data)*2/3; i++ {
				data[i] ^= 0x55
			}
			if err := errors.Join(os.Remove(file), os.WriteFile(file, data, 0o444)); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			st := storetest.New(t)
			if test.target.Root == "" {
				test.target = testTarget(version)
			}
			first, asked := build(t, st, testTarget(version), LayerOptions{}, "x = 1\n")
			if asked != all {
				t.Fatalf("at first compiled: %s", asked)
			}
			if test.between != nil {
				test.between(t, st, first)
			}
			next, asked := build(t, st, test.target, test.options, "x = 2\n")
			if asked != test.want {
				t.Errorf("then compiled: %s; want %s", asked, test.want)
			}
			if fresh, _ := build(t, storetest.New(t), test.target, test.options, "x = 2\n"); next != fresh {
				t.Errorf("the layer is %+v, and where everything is compiled %+v", next, fresh)
			}
		})
	}
}

// Tests of a package have no byte code, and all else has, also what lies beside them.
func TestTestsAreNotCompiled(t *testing.T) {
	start, version := localPython(t)
	c := &watched{Compiler: newPool(t, 1, start)}
	st, target := storetest.New(t), testTarget(version)
	site := target.Root + "/" + target.sitePackages() + "/"
	compiled := []string{
		"demo/__init__.py", "demo/test_kit.py", "demo/testing/test_data.py", "demo/tests.py", "demo/tests/__init__.py", "demo/tests/runner.py", "demo_tests/test_all.py",
	}
	tests := []string{"demo/tests/test_demo.py", "demo/tests/unit/deep/test_demo.py", "tests/test_all.py"}
	var entries []wheelEntry
	for _, name := range slices.Concat(compiled, tests) {
		entries = append(entries, wheelEntry{name: name, data: "x = 1\n"})
	}
	item := putWheelBytes(t, st, testWheelFile, craft(t, entries...))
	d, m, err := BuildLayer(t.Context(), st, Group{"demo", []Item{item}}, target, c, LayerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	index, err := layer.OpenIndex(t.Context(), st, d)
	if err != nil {
		t.Fatal(err)
	}
	var code []string
	for _, e := range index.Entries {
		if strings.HasSuffix(e.Path, ".pyc") {
			code = append(code, strings.TrimPrefix(e.Path, site))
		}
	}
	var want []string
	for _, name := range compiled {
		dir, module := path.Split(strings.TrimSuffix(name, ".py"))
		want = append(want, dir+"__pycache__/"+module+"."+target.Python.CacheTag()+".pyc")
	}
	slices.Sort(code)
	slices.Sort(want)
	if !slices.Equal(code, want) || len(c.asked) != len(want) {
		t.Errorf("byte code: got %q\nwant %q; compiled: %q", code, want, c.asked)
	}
	if len(m.Packages[0].Files) < len(compiled)+len(tests) {
		t.Errorf("the layer lacks files of the wheel: %v", m.Packages[0].Files)
	}
}

func layerFile(t *testing.T, st *store.Store, d layer.Descriptor) string {
	t.Helper()
	at, err := st.BlobPath(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	return at
}
