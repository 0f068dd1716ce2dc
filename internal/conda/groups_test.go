package conda_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

func TestSortPackages(t *testing.T) {
	p := func(name string, depends ...string) conda.Package { return conda.Package{Name: name, Depends: depends} }
	pure := func(name string, depends ...string) conda.Package {
		return conda.Package{Name: name, Depends: depends, Noarch: "python"}
	}
	for name, c := range map[string]struct {
		packages []conda.Package
		want     string
	}{
		"after what they depend on":      {[]conda.Package{p("a", "b >=1", "c"), p("b", "d"), p("c"), p("d", "c")}, "c d b a"},
		"by name":                        {[]conda.Package{p("b"), p("c"), p("a")}, "a b c"},
		"any Python after python":        {[]conda.Package{pure("a"), p("python", "z"), p("z")}, "z python a"},
		"python and pip want each other": {[]conda.Package{p("python", "pip"), pure("pip", "python", "setuptools"), pure("setuptools", "python")}, "python setuptools pip"},
		"a loop":                         {[]conda.Package{p("a", "b"), p("b", "c"), p("c", "a"), p("d", "a")}, "c b a d"},
		"itself":                         {[]conda.Package{p("a", "a"), p("b", "nowhere")}, "a b"},
	} {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				var got []string
				for _, p := range conda.SortPackages(c.packages) {
					got = append(got, p.Name)
				}
				if strings.Join(got, " ") != c.want {
					t.Errorf("got %v, want %s", got, c.want)
				}
				c.packages = append(c.packages[1:], c.packages[0])
			}
		})
	}
}

func TestDependency(t *testing.T) {
	for spec, want := range map[string]string{
		"numpy": "numpy", "numpy >=1.26,<3": "numpy", "numpy>=1": "numpy", "NumPy 1.*": "numpy", "conda-forge::numpy[version='>=1']": "numpy",
		"libgcc-ng=12": "libgcc-ng", " python_abi 3.11.* *_cp311 ": "python_abi", "a!=1": "a", "a~=1": "a",
	} {
		if got := conda.DependencyName(spec); got != want {
			t.Errorf("%q: got %q, want %q", spec, got, want)
		}
	}
}

func TestGroupPackages(t *testing.T) {
	packages := []conda.Package{{Name: "python", Size: 1}, {Name: "big", Size: 50 << 20}, {Name: "large", Size: 4 << 20}, {Name: "huge", Size: 1 << 30}}
	for i := range 100 {
		packages = append(packages, conda.Package{Name: fmt.Sprint("small-", i), Size: int64(i) << 10})
	}
	groups := conda.GroupPackages(packages, 60)
	var large []string
	place := map[string]string{}
	for _, g := range groups {
		if len(g.Packages) == 1 && !strings.HasPrefix(g.Name, "small") {
			large = append(large, g.Name)
		}
		for _, p := range g.Packages {
			place[p.Name] = g.Name
		}
		if g.HasPython() != (g.Name == "python") {
			t.Errorf("%s has Python", g.Name)
		}
	}
	if want := []string{"big", "huge", "large", "python"}; !slices.Equal(large, want) || len(place) != len(packages) {
		t.Errorf("got %q, want %q, and %d packages of %d", large, want, len(place), len(packages))
	}
	changed := 0
	more := conda.GroupPackages(append(slices.Clone(packages), conda.Package{Name: "one-more"}), 60)
	for _, g := range more {
		if !slices.ContainsFunc(groups, func(o conda.Group) bool {
			return conda.LayerKey(o, conda.Target{}, false, layer.Options{}) == conda.LayerKey(g, conda.Target{}, false, layer.Options{})
		}) {
			changed++
		}
	}
	if changed != 1 {
		t.Errorf("one package more changes %d layers", changed)
	}
	if few := conda.GroupPackages(packages, 2); len(few) != 2 || few[0].Name != "python" {
		t.Errorf("a small budget: got %d groups, the first %s", len(few), few[0].Name)
	}
}

// Small packages with Python code and those without, on which Python may run, share no layer; where there is room for one, all do.
func TestGroupsWaitForPythonOrDoNot(t *testing.T) {
	packages := []conda.Package{{Name: "python", Size: 1}}
	for i := range 40 {
		packages = append(packages,
			conda.Package{Name: fmt.Sprint("lib-", i)}, conda.Package{Name: fmt.Sprint("pure-", i), Noarch: "python"},
			conda.Package{Name: fmt.Sprint("module-", i), Depends: []string{"python >=3.11"}})
	}
	for budget, shared := range map[int]int{60: 12, 12: 3, 2: 1} {
		groups := conda.GroupPackages(packages, budget)
		if len(groups) != 1+shared {
			t.Errorf("of %d layers are used %d, want %d", budget, len(groups), 1+shared)
		}
		for _, g := range groups[1:] {
			for _, p := range g.Packages {
				if lib := strings.HasPrefix(p.Name, "lib-"); shared > 1 && lib == g.UsesPython() {
					t.Errorf("of %d layers, %s is among %s", budget, p.Name, g.Name)
				}
			}
		}
	}
}

func TestNeeded(t *testing.T) {
	packages := []conda.Package{
		{Name: "python", Depends: []string{"openssl >=3", "pip", "libgcc", "tzdata", "__glibc >=2.17"}},
		{Name: "openssl", Depends: []string{"ca-certificates", "libgcc >=13", "openssl-legacy"}},
		{Name: "openssl-legacy", Depends: []string{"openssl"}},
		{Name: "ca-certificates"},
		{Name: "libgcc"},
		{Name: "libcurl"},
		{Name: "pip", Noarch: "python", Depends: []string{"libcurl"}},
		{Name: "tzdata", Subdir: "noarch", Noarch: "generic"},
	}
	got := slices.Sorted(maps.Keys(conda.Needed(packages, "python")))
	if want := []string{"ca-certificates", "libgcc", "openssl", "openssl-legacy", "tzdata"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := conda.Needed(packages, "ruby"); len(got) != 0 {
		t.Errorf("what nobody has needs %v", got)
	}
}

// The key of a layer has in it what decides its bytes, and nothing that does not.
func TestLayerKey(t *testing.T) {
	native := conda.Package{Name: "native", Version: "1", SHA256: "sha256:1"}
	pure := conda.Package{Name: "pure", Noarch: "python", SHA256: "sha256:2"}
	group := func(p ...conda.Package) conda.Group { return conda.Group{Name: "g", Packages: p} }
	target := conda.Target{Prefix: prefix, Python: conda.Python{Version: "3.11.1", SitePackages: "lib/python3.11/site-packages"}}
	patch, minor, site, other := target, target, target, target
	patch.Python.Version = "3.11.2"
	minor.Python = conda.Python{Version: "3.12.1", SitePackages: "lib/python3.12/site-packages"}
	site.Python.SitePackages = "lib/python3.11t/site-packages"
	other.Prefix = "/opt/other"
	key := conda.LayerKey
	zstd := layer.Options{Compression: layer.Zstd}
	base := key(group(native), target, true, layer.Options{})
	pureBase := key(group(native, pure), target, true, layer.Options{})
	for name, k := range map[string]string{
		"the Python, of a package that has none": key(group(native), minor, true, layer.Options{}),
		"byte code, of a package without Python": key(group(native), target, false, layer.Options{}),
		"the group's name":                       key(conda.Group{Name: "h", Packages: []conda.Package{native}}, target, true, layer.Options{}),
		"how many compress":                      key(group(native), target, true, layer.Options{Workers: 3}),
	} {
		if k != base {
			t.Errorf("%s changes the key", name)
		}
	}
	if key(group(pure, native), target, true, layer.Options{}) != pureBase {
		t.Error("the order of packages changes the key")
	}
	seen := map[string]string{base: "base", pureBase: "pure"}
	for name, k := range map[string]string{
		"the prefix":         key(group(native), other, true, layer.Options{}),
		"the compression":    key(group(native), target, true, zstd),
		"the time":           key(group(native), target, true, layer.Options{ModTime: time.Unix(1, 0)}),
		"the package":        key(group(conda.Package{Name: "native", Version: "1", SHA256: "sha256:3"}), target, true, layer.Options{}),
		"what it depends on": key(group(conda.Package{Name: "native", Version: "1", SHA256: "sha256:1", Depends: []string{"x"}}), target, true, layer.Options{}),
		"the minor version":  key(group(native, pure), minor, true, layer.Options{}),
		"the patch release":  key(group(native, pure), patch, true, layer.Options{}),
		"site-packages":      key(group(native, pure), site, true, layer.Options{}),
		"byte code":          key(group(native, pure), target, false, layer.Options{}),
	} {
		if with, ok := seen[k]; ok {
			t.Errorf("%s has the key of %s", name, with)
		}
		seen[k] = name
	}
	if key(group(native, pure), patch, false, layer.Options{}) != key(group(native, pure), target, false, layer.Options{}) {
		t.Error("without byte code, the patch release of Python changes the key")
	}
}

// The same packages give the same bytes in another store, and a layer that is there is not made again.
func TestSameDigestTwice(t *testing.T) {
	c := condatest.NewChannel(t, byHand()...)
	var digests []store.Digest
	for range 2 {
		st := storetest.New(t)
		packages := put(t, st, c, "https://example.org/c")
		brought := 0
		for range 2 {
			d, m, err := conda.BuildLayer(t.Context(), st, conda.Group{Name: "all", Packages: packages}, conda.Target{Prefix: prefix, Python: conda.PythonOf(packages)}, nil, layer.Options{},
				func(context.Context) (func(), error) { brought++; return func() {}, nil })
			if err != nil || len(m.Packages) != len(packages) {
				t.Fatal(len(m.Packages), err)
			}
			digests = append(digests, d.Digest)
		}
		if brought != 1 {
			t.Errorf("packages were brought %d times", brought)
		}
	}
	if len(slices.Compact(digests)) != 1 {
		t.Errorf("got %q", digests)
	}
}

// A damaged archive leaves nothing behind, and the store is as good as before.
func TestDamagedPackageLeavesNothing(t *testing.T) {
	st := storetest.New(t)
	p := pkg("x", map[string]condatest.File{"a": {Data: "a", SHA256: strings.Repeat("0", 64)}})
	data := p.Bytes(t)
	if _, err := st.PutBlob(data); err != nil {
		t.Fatal(err)
	}
	before := usage(t, st)
	_, _, err := conda.BuildLayer(t.Context(), st, conda.Group{Name: "x", Packages: []conda.Package{p.Record(data)}}, conda.Target{Prefix: prefix}, nil, layer.Options{}, nil)
	if err == nil || usage(t, st) != before {
		t.Errorf("got %v; the store has %s, and had %s", err, usage(t, st), before)
	}
}

func usage(t *testing.T, st *store.Store) string {
	t.Helper()
	u, err := st.Usage()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(u)
}

// Memory does not grow with the files of a package.
func TestMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and the race detector has its own memory")
	}
	const size = 160 << 20
	zeros := string(make([]byte, size))
	p := pkg("x", map[string]condatest.File{"lib/zeros": {Data: zeros, Placeholder: "/placeholder", FileMode: "binary"}})
	data := p.Bytes(t)
	record := p.Record(data)
	p, zeros = condatest.Package{}, ""
	_ = zeros
	st := storetest.New(t)
	if _, err := st.PutBlob(data); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	var peak atomic.Uint64
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak.Store(max(peak.Load(), m.HeapInuse))
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	_, m, err := conda.BuildLayer(t.Context(), st, conda.Group{Name: "x", Packages: []conda.Package{record}}, conda.Target{Prefix: prefix}, nil, layer.Options{Compression: layer.None, Workers: 2}, nil)
	close(stop)
	<-done
	if err != nil || len(m.Packages) != 1 {
		t.Fatal(err)
	}
	if grown := int64(peak.Load()) - int64(before.HeapInuse); grown > size/2 {
		t.Errorf("memory grew by %d bytes for a file of %d", grown, size)
	}
}

func TestScripts(t *testing.T) {
	text := condatest.File{Data: "echo\n"}
	c := condatest.NewChannel(t,
		pkg("b", map[string]condatest.File{"bin/.b-post-link.sh": text, "bin/.other-post-link.sh": text, "etc/conda/activate.d/b.sh": text, "etc/conda/activate.d/b.fish": text}),
		condatest.Package{Name: "a", Version: "2.1", BuildNumber: 3, Build: "h_3", Depends: []string{"b"}, Files: map[string]condatest.File{
			"bin/.a-post-link.sh": text, "bin/.a-pre-link.sh": text, "etc/conda/activate.d/B.sh": text, "etc/conda/activate.d/sub/a.sh": text,
		}})
	l := lay(t, c, conda.Environment{}, nil, []string{"a", "b"})
	var got []string
	scripts := conda.LinkScripts(conda.SortPackages(l.Packages), l.Manifests, prefix, "/root")
	for _, s := range scripts {
		got = append(got, s.Package+" "+s.Kind+" "+s.Path)
	}
	if want := []string{"b post-link /opt/conda/bin/.b-post-link.sh", "a pre-link /opt/conda/bin/.a-pre-link.sh", "a post-link /opt/conda/bin/.a-post-link.sh"}; !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if want := []string{"PKG_BUILDNUM=3", "PKG_NAME=a", "PKG_VERSION=2.1", "PREFIX=/opt/conda", "ROOT_PREFIX=/root", "SOURCE_DIR=/opt/conda"}; !slices.Equal(scripts[2].Env, want) {
		t.Errorf("got %q\nwant %q", scripts[2].Env, want)
	}
	got = nil
	for _, s := range conda.ActivateScripts(l.Manifests, prefix) {
		got = append(got, s.Package+" "+s.Path)
	}
	if want := []string{"a /opt/conda/etc/conda/activate.d/B.sh", "b /opt/conda/etc/conda/activate.d/b.sh"}; !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// uv is told which distributions are there before anything is laid down.
func TestDistributions(t *testing.T) {
	metadata := func(name string) condatest.File {
		return condatest.File{Data: "Metadata-Version: 2.1\r\nName: " + name + "\r\nVersion: 1.5\r\n\r\nName: not this\r\n"}
	}
	site := "lib/python3.11/site-packages/"
	native := pkg("native", map[string]condatest.File{
		site + "One-1.5.dist-info/METADATA": metadata("One"), site + "two.egg-info/PKG-INFO": metadata("two"), site + "three-1.egg-info": metadata("three"),
		site + "one/vendored/x.dist-info/METADATA": metadata("vendored"), site + "broken.dist-info/METADATA": {Data: "no metadata"},
	}, "python")
	pure := condatest.Package{Name: "pure", Version: "1", Noarch: "python", TarBz2: true, Files: map[string]condatest.File{"site-packages/four-1.dist-info/METADATA": metadata("four")}}
	for _, p := range []condatest.Package{native, pure, pkg("none", map[string]condatest.File{"a": {Data: "a"}})} {
		data := p.Bytes(t)
		var got []string
		found, err := conda.ReadDistributions(t.Context(), bytes.NewReader(data), int64(len(data)), p.File())
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range found {
			got = append(got, d.Name+" "+d.Version+fmt.Sprint(len(d.Metadata) > 0))
		}
		want := map[string][]string{"native": {"One 1.5true", "three 1.5true", "two 1.5true"}, "pure": {"four 1.5true"}}[p.Name]
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", p.Name, got, want)
		}
	}
	python := condatest.Package{Name: "python", Version: "3.11.1"}
	l := lay(t, condatest.NewChannel(t, native, pure, python), conda.Environment{}, nil, []string{"native", "pure"})
	var got []string
	for _, d := range conda.Distributions(l.Manifests) {
		got = append(got, d.Name+" "+d.Path)
	}
	if want := []string{"One " + site + "One-1.5.dist-info/METADATA", "four " + site + "four-1.dist-info/METADATA", "three " + site + "three-1.egg-info", "two " + site + "two.egg-info/PKG-INFO"}; !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}
