package wheelbuild

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

func take(t *testing.T, j *Jobs, p Package) (grant, func()) {
	t.Helper()
	g, done, err := j.take(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return g, done
}

const gib = 1 << 30

func TestJobs(t *testing.T) {
	for _, c := range []struct {
		name   string
		cores  int
		memory int64
		pkg    Package
		want   grant
	}{
		{"cores are short", 4, 64 * gib, Package{MemoryPerJob: gib}, grant{4, 1, 4 * gib}},
		{"memory is short", 16, 20 * gib, Package{MemoryPerJob: 5 * gib}, grant{4, 1, 20 * gib}},
		{"nothing fits, and it is tried", 16, gib, Package{MemoryPerJob: 5 * gib}, grant{1, 1, 5 * gib}},
		{"nobody knows the memory", 3, 0, Package{}, grant{3, 1, 6 * gib}},
		{"the user's word", 4, 8 * gib, Package{Jobs: 9, MemoryPerJob: gib}, grant{9, 1, 9 * gib}},
		{"threads where cores are left", 16, 40 * gib, Package{MemoryPerJob: 5 * gib, Archs: []string{"8.0", "9.0"}}, grant{8, 1, 40 * gib}},
		{"threads where both are left", 16, 80 * gib, Package{Jobs: 4, MemoryPerJob: 5 * gib, Archs: []string{"8.0", "9.0", "10.0"}}, grant{4, 3, 60 * gib}},
	} {
		j := NewJobs(c.cores, c.memory)
		g, done := take(t, j, c.pkg)
		if g != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, g, c.want)
		}
		done()
		if j.used != (grant{}) || j.running != 0 || j.wanting != 0 {
			t.Errorf("%s: not given back: %+v", c.name, j)
		}
	}
}

// TestJobsShared: what runs at once stays within cores and memory, and a build that is given up leaves nothing behind.
func TestJobsShared(t *testing.T) {
	j := NewJobs(4, 8*gib)
	p := Package{MemoryPerJob: 4 * gib}
	first, doneFirst := take(t, j, p)
	if first.jobs != 2 {
		t.Fatalf("%+v", first)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, _, err := j.take(ctx, p); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("there was no memory for a second: %v", err)
	}
	got := make(chan grant)
	go func() {
		g, done, err := j.take(context.Background(), p)
		if err == nil {
			done()
		}
		got <- g
	}()
	doneFirst()
	if g := <-got; g.jobs < 1 {
		t.Errorf("%+v", g)
	}
	if j.wanting != 0 || j.used.memory != 0 {
		t.Errorf("%+v", j)
	}
}

func zipOf(t *testing.T, at time.Time, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, name := range names {
		h := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: at}
		h.SetMode(0o600)
		if strings.HasSuffix(name, ".sh") {
			h.SetMode(0o777)
		}
		f, err := w.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, "/") {
			if _, err := f.Write([]byte(strings.Repeat(name, 99))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestNormalize: order, times and modes of a wheel's members do not matter, and what comes out is a good zip.
func TestNormalize(t *testing.T) {
	st := storetest.New(t)
	at := time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC)
	names := []string{"a-1.dist-info/RECORD", "z/b.py", "a-1.dist-info/METADATA", "z/", "z/é.py", "z/a.sh"}
	reversed := slices.Clone(names)
	slices.Reverse(reversed)
	one, two := zipOf(t, time.Now(), names...), zipOf(t, at, reversed...)
	a, size, err := normalize(st, bytes.NewReader(one), int64(len(one)), at)
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := normalize(st, bytes.NewReader(two), int64(len(two)), at)
	if err != nil || a != b {
		t.Errorf("%s and %s, %v", a, b, err)
	}
	data, err := st.ReadBlob(a, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	r, err := zip.NewReader(bytes.NewReader(data), size)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range r.File {
		got = append(got, f.Name)
		if !f.Modified.Equal(at) {
			t.Errorf("%s: %s", f.Name, f.Modified)
		}
		if want := strings.HasSuffix(f.Name, ".sh"); (f.Mode()&0o111 != 0) != want {
			t.Errorf("%s: %s", f.Name, f.Mode())
		}
	}
	if err := fstest.TestFS(r, got...); err != nil {
		t.Error(err)
	}
	if want := []string{"z/a.sh", "z/b.py", "z/é.py", "a-1.dist-info/METADATA", "a-1.dist-info/RECORD"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	twice := zipOf(t, at, "a", "a")
	if _, _, err := normalize(st, bytes.NewReader(twice), int64(len(twice)), at); err == nil {
		t.Error("a member that is there twice was taken")
	}
}

func testSite(p Package) *site {
	return &site{
		builder: &Builder{Runner: &execop.Runner{Layer: layer.Options{ModTime: time.Unix(1e9, 0)}}, Jobs: NewJobs(8, 16*gib)},
		pkg:     p,
		ground: Ground{
			Python: python.Interpreter{Version: "3.11.2", Implementation: "cpython", Platform: "x86_64", Glibc: "2.36"},
			Items:  []python.Item{{Name: "torch", File: "torch-2.0-x.whl", Digest: "sha256:1"}, {Name: "other", File: "other-1-x.whl", Digest: "sha256:2"}},
		},
		source: sourceBlob{id: "sha256:3"}, libstdcxx: "libstdc++.so.6.0.30",
	}
}

// TestEpoch: no wheel, and no build of one, gets a time that a zip cannot hold.
func TestEpoch(t *testing.T) {
	s := testSite(Package{})
	if got := s.epoch(); got != 1e9 {
		t.Errorf("epoch %d, want that of the layers", got)
	}
	for _, early := range []time.Time{{}, time.Unix(0, 0), time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)} {
		s.builder.Runner.Layer.ModTime = early
		if got := time.Unix(s.epoch(), 0).In(time.FixedZone("UTC-12", -12*60*60)); got.Year() < 1980 {
			t.Errorf("layers of %s: epoch %s", early, got)
		}
	}
}

// TestKey: what decides a wheel is in its key, and nothing else.
func TestKey(t *testing.T) {
	p := Package{Name: "a", Version: "1", Against: []string{"torch"}, Archs: []string{"9.0"}, Env: map[string]string{"X": "1"}}
	want := testSite(p).key()
	for name, test := range map[string]struct {
		change func(s *site)
		same   bool
	}{
		"source":             {func(s *site) { s.source.id = "sha256:4" }, false},
		"torch":              {func(s *site) { s.ground.Items[0].Digest = "sha256:5" }, false},
		"torch of the base":  {func(s *site) { s.ground.Items, s.pkg.BaseVersions = nil, map[string]string{"torch": "2"} }, false},
		"another package":    {func(s *site) { s.ground.Items[1].Digest = "sha256:5" }, true},
		"one package more":   {func(s *site) { s.ground.Items = append(s.ground.Items, python.Item{Name: "x"}) }, true},
		"layers":             {func(s *site) { s.ground.Layers = []layer.Descriptor{{}} }, true},
		"toolkit":            {func(s *site) { s.toolkit = toolkit{home: "/usr/local/cuda", version: "12.8"} }, false},
		"place of a toolkit": {func(s *site) { s.toolkit.home = "/opt/cuda" }, true},
		"python's patch":     {func(s *site) { s.ground.Python.Version = "3.11.9" }, true},
		"python":             {func(s *site) { s.ground.Python.Version = "3.12.0" }, false},
		"machine":            {func(s *site) { s.ground.Python.Platform = "aarch64" }, false},
		"libc":               {func(s *site) { s.ground.Python.Glibc = "2.39" }, false},
		"libstdc++":          {func(s *site) { s.libstdcxx = "libstdc++.so.6.0.33" }, false},
		"archs":              {func(s *site) { s.pkg.Archs = []string{"8.0"} }, false},
		"environment":        {func(s *site) { s.pkg.Env = map[string]string{"X": "2"} }, false},
		"the image's own":    {func(s *site) { s.ground.Env = []string{"A=B"} }, true},
		"requirement":        {func(s *site) { s.pkg.Requires = []Wheel{{Item: python.Item{File: "ninja-1.whl"}}} }, false},
		"isolation":          {func(s *site) { s.pkg.Isolated = true }, false},
		"jobs":               {func(s *site) { s.pkg.Jobs, s.pkg.MemoryPerJob = 3, gib }, true},
	} {
		s := testSite(p)
		test.change(s)
		if (s.key() == want) != test.same {
			t.Errorf("%s: same key: %t", name, !test.same)
		}
	}
}

// TestExplain: a failed build says what to do.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		name     string
		failure  execop.Failure
		grant    grant
		isolated bool
		want     string
	}{
		{"killed", execop.Failure{OutOfMemory: true}, grant{jobs: 8, threads: 1}, false, "4 compilers would fit: jobs = 4 under [python.compile.a], or memory-per-job = \"4GiB\""},
		{"killed, and it is known how large it was", execop.Failure{OutOfMemory: true, Peak: 7 * gib}, grant{jobs: 8, threads: 1}, false, "2 compilers would fit"},
		{"the compiler says it", execop.Failure{Tail: []string{"g++: fatal error: Killed signal terminated program cc1plus"}}, grant{jobs: 2, threads: 1}, false, "1 compiler would fit: jobs = 1"},
		{"alone", execop.Failure{Tail: []string{"nvcc error : 'cicc' died due to signal 9 (Kill signal)"}}, grant{jobs: 1, threads: 1}, false, "a single compiler did not fit"},
		{"module", execop.Failure{Tail: []string{"ModuleNotFoundError: No module named 'setuptools_scm'"}}, grant{}, false, "requires = [\"setuptools-scm\"] under [python.compile.a]"},
		{"torch", execop.Failure{Tail: []string{"ModuleNotFoundError: No module named 'torch.utils'"}}, grant{}, true, "isolation = false under [python.compile.a]"},
		{"network", execop.Failure{Tail: []string{"fatal: Could not resolve host: github.com"}}, grant{}, false, "without network"},
		{"anything", execop.Failure{Tail: []string{"error: no"}}, grant{}, false, ""},
	} {
		s := testSite(Package{Name: "a", Version: "1", Isolated: c.isolated})
		c.failure.Title = "compile a 1"
		err := s.explain(&c.failure, c.grant)
		var f *execop.Failure
		if !errors.As(err, &f) {
			t.Errorf("%s: the failure is lost: %v", c.name, err)
		}
		if c.want != "" && !strings.Contains(fault.HintOf(err), c.want) {
			t.Errorf("%s: hint %q lacks %q", c.name, fault.HintOf(err), c.want)
		}
	}
}

func TestWanted(t *testing.T) {
	s := testSite(Package{Name: "a", Version: "1"})
	have := map[string]string{"Setup_Tools": "70.1", "wheel": "0.4"}
	if err := s.checkWanted(wanted{[]string{"wheel", "setup-tools>=60", `six; python_version < "3"`}, have}); err != nil {
		t.Error(err)
	}
	err := s.checkWanted(wanted{[]string{"wheel>=1", "ninja"}, have})
	if err == nil || !strings.Contains(fault.HintOf(err), `[python.compile.a]: requires = ["wheel>=1", "ninja"]`) {
		t.Errorf("%v, %q", err, fault.HintOf(err))
	}
}

func TestCUDA(t *testing.T) {
	for _, c := range []struct {
		kit   toolkit
		torch string
		want  string
	}{
		{toolkit{home: "/c", version: "12.8"}, "12.6", ""},
		{toolkit{home: "/c", version: "13.0"}, "12.8", "compiled with CUDA 13.0 (/c), and the image's torch was built with CUDA 12.8"},
		{toolkit{}, "12.8", "there is no nvcc"},
		{toolkit{}, "", ""},
	} {
		s := testSite(Package{Name: "a", CUDA: true, Archs: []string{"9.0"}})
		s.toolkit, s.torchCUDA = c.kit, c.torch
		err := s.checkCUDA()
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || fault.HintOf(err) == "") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestOrder: what is built against another package that is built waits for it, and a circle is an error.
func TestOrder(t *testing.T) {
	all := []Package{{Name: "a", Against: []string{"b", "torch"}}, {Name: "b"}, {Name: "c", Isolated: true, Against: []string{"b"}}}
	if got := all[0].Needs(all); !slices.Equal(got, []int{1}) {
		t.Errorf("%v", got)
	}
	if got := all[2].Needs(all); len(got) > 0 {
		t.Errorf("%v", got)
	}
	if order, err := Order(all); err != nil || !slices.Equal(order, []int{1, 0, 2}) {
		t.Error(err)
	}
	all[1].Against = []string{"a"}
	if _, err := Order(all); err == nil || !strings.Contains(err.Error(), "a needs b") {
		t.Errorf("%v", err)
	}
}

// TestPack: a directory's archive depends on what is in it, and not on what version control and caches leave there.
func TestPack(t *testing.T) {
	st := storetest.New(t)
	make := func(files map[string]string) store.Digest {
		dir := t.TempDir()
		for name, text := range files {
			if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		b, err := Sources{Store: st}.Bring(t.Context(), "a", python.Source{Kind: python.SourceDirectory, Path: dir})
		if err != nil {
			t.Fatal(err)
		}
		return b.Digest
	}
	one := make(map[string]string{"setup.py": "1", "a/b.c": "2"})
	if two := make(map[string]string{"setup.py": "1", "a/b.c": "2", ".git/HEAD": "x", "a/__pycache__/x.pyc": "y", "env/pyvenv.cfg": ""}); one != two {
		t.Error("what is no source counts")
	}
	if three := make(map[string]string{"setup.py": "1", "a/b.c": "3"}); one == three {
		t.Error("what is in a file does not count")
	}
}
