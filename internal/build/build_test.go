package build_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/build"
	"sconce.dev/sconce/internal/export"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

func TestMain(m *testing.M) {
	sandbox.Init() // the sandbox starts this very binary again
	if dir := os.Getenv(buildEnv); dir != "" {
		os.Exit(buildHere(dir))
	}
	os.Exit(m.Run())
}

// python is the [python] of most recipes here: a base of the tests' own has no Python that could run.
const python = "[python]\nlock = \"pylock.toml\"\nbytecode = false\n"

// run locks and builds the recipe in dir, as sconce build does.
func run(ctx context.Context, st *store.Store, dir string) (*build.Result, error) {
	return runWith(ctx, st, dir, build.Options{})
}

// runWith is run with more options.
func runWith(ctx context.Context, st *store.Store, dir string, o build.Options) (*build.Result, error) {
	p, closeAll, err := planned(ctx, st, dir, &o)
	if err != nil {
		return nil, err
	}
	defer closeAll()
	return build.Run(ctx, p, o)
}

// planned locks and plans the recipe in dir, and fills in what a build needs besides. What it opened is the caller's to close.
func planned(ctx context.Context, st *store.Store, dir string, o *build.Options) (*plan.Plan, func(), error) {
	r, err := recipe.Load(dir)
	if err != nil {
		return nil, nil, err
	}
	client := fetch.New(st, fetch.Options{Attempts: 2, Backoff: time.Millisecond})
	f, err := lock.Update(ctx, r, lock.Options{Store: st, Fetch: client})
	if err != nil {
		return nil, nil, err
	}
	l, err := f.Locked(r)
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	var opened []*fileop.Context
	closeAll := func() {
		for _, c := range opened {
			c.Close()
		}
	}
	open := func(dir string) (*fileop.Context, error) {
		c, err := fileop.OpenContext(dir, "")
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			opened = append(opened, c)
		}
		return c, err
	}
	how := plan.Options{RunsHere: o.Python == "", Open: open}
	if !how.RunsHere {
		how.Compiler = l.Python.Version
	}
	p, err := plan.New(context.Background(), r, l.Lock, l.Wheels, how)
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	o.Store, o.Fetch, o.Cores, o.Wheels, o.Authorize, o.Open = st, client, 2, l.Wheels, lock.Authorizer(r), open
	if l.Python != nil {
		o.Protect = l.Python.Protected
	}
	return p, closeAll, nil
}

func mustRun(ctx context.Context, t testing.TB, st *store.Store, dir string) *build.Result {
	t.Helper()
	result, err := run(ctx, st, dir)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// recipeDir makes a directory with a recipe of packages from an index.
func recipeDir(t testing.TB, b locktest.Base, x *locktest.Index, text string, wheels ...locktest.Wheel) string {
	t.Helper()
	return locktest.Dir(t, b, map[string]string{recipe.FileName: locktest.Head + python + text, "pylock.toml": x.Pylock(t, wheels...)})
}

func w(name, version string, requires ...string) locktest.Wheel {
	return locktest.Wheel{Name: name, Version: version, Requires: requires}
}

// large returns a wheel that gets a layer of its own.
func large(name string) locktest.Wheel {
	return locktest.Wheel{Name: name, Version: "1.0", Pad: 9 << 20}
}

func content(t testing.TB, st *store.Store, im *image.Image, path string) string {
	t.Helper()
	tree, err := im.Tree(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	data, err := tree.ReadFile(path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func layers(im *image.Image) []store.Digest {
	var all []store.Digest
	for _, l := range im.Layers {
		all = append(all, l.Digest)
	}
	return all
}

func verify(t testing.TB, st *store.Store) {
	t.Helper()
	report, err := st.Verify(context.Background(), false)
	if err != nil || !report.OK() {
		t.Errorf("the store: %+v, %v", report, err)
	}
}

func TestBuild(t *testing.T) {
	locktest.Isolate(t)
	wheels := []locktest.Wheel{large("heavy"), w("alpha", "1.0"), w("beta", "2.0", "alpha")}
	x := locktest.NewIndex(t, wheels...)
	st := storetest.New(t)
	dir := recipeDir(t, locktest.Base{}, x, "", wheels...)
	first := mustRun(t.Context(), t, st, dir)
	if first.Fresh {
		t.Error("the first build says that nothing had to be made")
	}
	if got := x.Downloads(); len(got) != 3 {
		t.Errorf("downloaded %q", got)
	}
	for path, want := range map[string]string{
		"opt/venv/lib/python3.11/site-packages/alpha/__init__.py": "__version__ = \"1.0\"\n",
		"opt/venv/lib/python3.11/site-packages/beta/__init__.py":  "__version__ = \"2.0\"\n",
		"opt/venv/bin/python3": "",
		"opt/venv/pyvenv.cfg":  "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.2\nexecutable = /usr/bin/python3.11\nprompt = test\n",
	} {
		if got := content(t, st, first.Image, path); want != "" && got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	var steps []string
	for _, h := range first.Image.Config.History {
		if !h.EmptyLayer {
			steps = append(steps, h.CreatedBy)
		}
	}
	want := []string{"python packages: heavy==1.0", "python packages: alpha==1.0", "python packages: beta==2.0", "python environment in /opt/venv"}
	slices.Sort(steps[2:4])
	if diff := cmp.Diff(want, steps[1:]); diff != "" {
		t.Errorf("history (-want +got)\n%s", diff)
	}
	second := mustRun(t.Context(), t, st, dir)
	if !second.Fresh || second.Image.Digest != first.Image.Digest || len(x.Downloads()) != 0 {
		t.Errorf("the second build: fresh %t, %s, first was %s", second.Fresh, second.Image.Digest, first.Image.Digest)
	}
	verify(t, st)
}

// TestSharedLayers: the same wheels are the same layers in another image, and are not downloaded or made again.
func TestSharedLayers(t *testing.T) {
	locktest.Isolate(t)
	heavy, alpha := large("heavy"), w("alpha", "1.0")
	more := w("more", "1.0")
	x := locktest.NewIndex(t, heavy, alpha, more)
	st := storetest.New(t)
	one := mustRun(t.Context(), t, st, recipeDir(t, locktest.Base{}, x, "", heavy, alpha))
	x.Downloads()
	other := locktest.Base{Files: map[string]string{"etc/other": "base\n"}}
	two := mustRun(t.Context(), t, st, recipeDir(t, other, x, "[image]\nenv = { A = \"b\" }\n", heavy, alpha))
	if got := x.Downloads(); len(got) != 0 {
		t.Errorf("downloaded again: %q", got)
	}
	if a, b := layers(one.Image), layers(two.Image); a[0] == b[0] || !slices.Equal(a[1:], b[1:]) {
		t.Errorf("layers\n%q\n%q", a, b)
	}
	three := mustRun(t.Context(), t, st, recipeDir(t, locktest.Base{}, x, "", heavy, alpha, more))
	if got := x.Downloads(); !slices.Equal(got, []string{more.File()}) {
		t.Errorf("downloaded %q", got)
	}
	added := slices.DeleteFunc(layers(three.Image), func(d store.Digest) bool { return slices.Contains(layers(one.Image), d) })
	if len(added) > 2 { // that of the package, that of the environment
		t.Errorf("%d layers are new", len(added))
	}
}

// TestReproducible builds in different stores and directories, as different users might, for both platforms.
func TestReproducible(t *testing.T) {
	locktest.Isolate(t)
	heavy := large("heavy")
	tool := locktest.Wheel{Name: "tool", Version: "1.0", Files: map[string]string{"tool-1.0.dist-info/entry_points.txt": "[console_scripts]\ntool = tool:main\n"}}
	x, mirror := locktest.NewIndex(t, heavy, tool), locktest.NewIndex(t, heavy, tool)
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			b := locktest.Base{}
			if arch == "arm64" {
				b.Machine = locktest.ARM64
			}
			platform := func(dir string) string {
				r := strings.Replace(locktest.Head, "amd64", arch, 1) + python + "[image]\nenv = { A = \"1\", B = \"2\", C = \"3\" }\nlabels = { x = \"1\", y = \"2\" }\n"
				locktest.Write(t, dir, map[string]string{recipe.FileName: r})
				return dir
			}
			one := mustRun(t.Context(), t, storetest.New(t), platform(recipeDir(t, b, x, "", heavy, tool)))
			old := syscall.Umask(0o077)
			defer syscall.Umask(old)
			t.Setenv("TZ", "Asia/Tokyo")
			t.Setenv("LANG", "tr_TR.UTF-8")
			two := mustRun(t.Context(), t, storetest.New(t), platform(recipeDir(t, b, mirror, "", heavy, tool)))
			if one.Image.Digest != two.Image.Digest {
				t.Errorf("%s and %s", one.Image.Digest, two.Image.Digest)
			}
			if one.Image.Config.Architecture != arch {
				t.Errorf("architecture %s", one.Image.Config.Architecture)
			}
			t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
			three := mustRun(t.Context(), t, storetest.New(t), platform(recipeDir(t, b, x, "", heavy, tool)))
			if three.Image.Digest == one.Image.Digest || three.Image.Config.Created.Unix() != 1700000000 {
				t.Errorf("SOURCE_DATE_EPOCH does not count: %v", three.Image.Config.Created)
			}
		})
	}
}

func TestConfig(t *testing.T) {
	locktest.Isolate(t)
	cuda := locktest.Wheel{Name: "nvidia_cuda_runtime", Version: "12.8", Files: map[string]string{"nvidia/cuda_runtime/lib/libcudart.so.12": "x"}}
	alpha := w("alpha", "1.0")
	x := locktest.NewIndex(t, cuda, alpha)
	st := storetest.New(t)
	path := "PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for name, test := range map[string]struct {
		base    locktest.Base
		text    string
		wheels  []locktest.Wheel
		env     []string
		command [2][]string // entrypoint, cmd
	}{
		"plain":                   {wheels: []locktest.Wheel{alpha}, env: []string{path, "VIRTUAL_ENV=/opt/venv"}},
		"CUDA in a wheel":         {wheels: []locktest.Wheel{cuda}, env: []string{path, "VIRTUAL_ENV=/opt/venv", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"}},
		"CUDA in the base":        {base: locktest.Base{Files: map[string]string{"usr/local/cuda/lib64/libcublas.so.12": ""}}, wheels: []locktest.Wheel{alpha}, env: []string{path, "VIRTUAL_ENV=/opt/venv", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"}},
		"the recipe's own choice": {text: "[image]\nenv = { NVIDIA_DRIVER_CAPABILITIES = \"all\", A = \"b=c\" }\n", wheels: []locktest.Wheel{cuda}, env: []string{path, "VIRTUAL_ENV=/opt/venv", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all", "A=b=c"}},
		"entrypoint":              {text: "[image]\nentrypoint = [\"/x\"]\ncmd = [\"y\"]\n", wheels: []locktest.Wheel{alpha}, env: []string{path, "VIRTUAL_ENV=/opt/venv"}, command: [2][]string{{"/x"}, {"y"}}},
	} {
		t.Run(name, func(t *testing.T) {
			config := mustRun(t.Context(), t, st, recipeDir(t, test.base, x, test.text, test.wheels...)).Image.Config.Config
			if diff := cmp.Diff(test.env, config.Env); diff != "" {
				t.Errorf("environment (-want +got)\n%s", diff)
			}
			if test.command[1] == nil {
				test.command[1] = []string{"/bin/sh"} // that of a base that says nothing
			}
			if !slices.Equal(config.Entrypoint, test.command[0]) || !slices.Equal(config.Cmd, test.command[1]) {
				t.Errorf("entrypoint %q, command %q", config.Entrypoint, config.Cmd)
			}
		})
	}
}

// TestOnAnImage builds on an image that was built before: its layers, variables and commands stay.
func TestOnAnImage(t *testing.T) {
	locktest.Isolate(t)
	alpha, beta := w("alpha", "1.0"), w("beta", "1.0")
	x := locktest.NewIndex(t, alpha, beta)
	st := storetest.New(t)
	below := mustRun(t.Context(), t, st, recipeDir(t, locktest.Base{}, x, `[image]
entrypoint = ["/entry"]
cmd = ["command"]
user = "1000"
workdir = "/work"
volumes = ["/a"]
env = { LOWER = "1", NVIDIA_VISIBLE_DEVICES = "none" }
labels = { lower = "1", "org.opencontainers.image.title" = "lower" }
`, alpha))
	layout := filepath.Join(t.TempDir(), "layout")
	t.Setenv(reach.Variable, layout)
	if err := export.Write(t.Context(), below.Image, export.Target{Transport: source.OCI, Path: layout}, export.Options{Store: st}); err != nil {
		t.Fatal(err)
	}
	build := func(text string) *image.Image {
		t.Helper()
		dir := recipeDir(t, locktest.Base{}, x, "", beta)
		head := strings.Replace(locktest.Head, "tar:base.tar", "oci:"+layout, 1)
		locktest.Write(t, dir, map[string]string{recipe.FileName: head + python + text})
		return mustRun(t.Context(), t, st, dir).Image
	}
	im := build("[image]\nuser = \"0\"\nvolumes = [\"/b\"]\nlabels = { upper = \"2\" }\n")
	c := im.Config.Config
	if got := slices.Sorted(maps.Keys(c.Volumes)); !slices.Equal(c.Entrypoint, []string{"/entry"}) || !slices.Equal(c.Cmd, []string{"command"}) ||
		c.User != "0" || c.WorkingDir != "/work" || !slices.Equal(got, []string{"/a", "/b"}) {
		t.Errorf("config %+v", c)
	}
	if !slices.Contains(c.Env, "LOWER=1") || !slices.Contains(c.Env, "NVIDIA_VISIBLE_DEVICES=none") {
		t.Errorf("environment %q", c.Env)
	}
	if c.Labels["lower"] != "1" || c.Labels["upper"] != "2" || c.Labels["org.opencontainers.image.title"] != "test" || c.Labels["org.opencontainers.image.base.digest"] != string(below.Image.Digest) {
		t.Errorf("labels %q", c.Labels)
	}
	if !slices.Equal(layers(im)[:len(below.Image.Layers)], layers(below.Image)) {
		t.Error("the base's layers are not the first")
	}
	if c = build("[image]\nentrypoint = [\"/new\"]\n").Config.Config; !slices.Equal(c.Entrypoint, []string{"/new"}) || c.Cmd != nil {
		t.Errorf("entrypoint %q with the base's command %q", c.Entrypoint, c.Cmd)
	}
	dir := recipeDir(t, locktest.Base{}, x, "", beta)
	locktest.Write(t, dir, map[string]string{recipe.FileName: strings.Replace(locktest.Head, "tar:base.tar", "oci:"+layout, 1) + python + fmt.Sprintf("[image]\nmax-layers = %d\n", len(below.Image.Layers)+1)})
	_, err := run(t.Context(), st, dir)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the base has %d layers", len(below.Image.Layers))) {
		t.Errorf("got %v", err)
	}
}

// TestProtectedVersions: a wheel that wants another torch than the base's is reported, whether its layer is new or not.
func TestProtectedVersions(t *testing.T) {
	locktest.Isolate(t)
	vendor := locktest.Base{Installed: []locktest.Wheel{w("torch", "2.6.0"), w("triton", "3.2.0")}}
	model := w("model", "1.0", "torch>=2.8", "triton<4", "triton>9; python_version < '3'", "torch>99; extra == 'new'", "not a requirement!")
	x := locktest.NewIndex(t, model)
	st := storetest.New(t)
	for i, text := range []string{"", "[image]\nenv = { A = \"b\" }\n"} {
		events := &locktest.Events{}
		result := mustRun(progress.With(t.Context(), events), t, st, recipeDir(t, vendor, x, text, model))
		warned := events.Texts(progress.Warning)
		if len(warned) != 1 || !strings.Contains(warned[0], "model 1.0 requires torch>=2.8, and the base has torch 2.6.0") || !strings.Contains(warned[0], "protect = []") {
			t.Errorf("build %d warns %q", i+1, warned)
		}
		if got := content(t, st, result.Image, "opt/venv/pyvenv.cfg"); !strings.Contains(got, "include-system-site-packages = true\n") {
			t.Errorf("pyvenv.cfg\n%s", got)
		}
		if i > 0 {
			continue
		}
		blob, err := st.BlobPath(store.DigestOf(model.Bytes(t)))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(blob); err != nil { // as prune may
			t.Fatal(err)
		}
	}
}

// TestBadWheel: a wheel that is refused for what it holds is so when it is there, before a layer of it is begun.
func TestBadWheel(t *testing.T) {
	locktest.Isolate(t)
	bad := locktest.Wheel{Name: "bad", Version: "1.0", Files: map[string]string{"bad-1.0.data/etc/passwd": "x"}}
	var events locktest.Events
	dir := recipeDir(t, locktest.Base{}, locktest.NewIndex(t, bad), "", bad)
	_, err := run(progress.With(t.Context(), &events), storetest.New(t), dir)
	if err == nil || !strings.Contains(err.Error(), bad.File()) || !strings.Contains(err.Error(), "no known place") {
		t.Errorf("got %v", err)
	}
	for _, text := range events.Texts(progress.Start) {
		if strings.HasPrefix(text, "layer ") {
			t.Errorf("%q was begun", text)
		}
	}
}

func TestConflict(t *testing.T) {
	locktest.Isolate(t)
	one := locktest.Wheel{Name: "one", Version: "1.0", Pad: 9 << 20, Files: map[string]string{"shared/x.py": "1"}}
	two := locktest.Wheel{Name: "two", Version: "2.0", Pad: 9 << 20, Files: map[string]string{"shared/x.py": "2"}}
	x := locktest.NewIndex(t, one, two)
	st := storetest.New(t)
	_, err := run(t.Context(), st, recipeDir(t, locktest.Base{}, x, "", one, two))
	if err == nil || !strings.Contains(err.Error(), "one 1.0 and two 2.0 both install") || fault.HintOf(err) == "" {
		t.Errorf("got %v", err)
	}
	if keys, err := st.Keys("image-step"); err != nil || len(keys) != 0 {
		t.Errorf("an image was remembered: %q, %v", keys, err)
	}
	if keys, err := st.Keys("wheel-layer"); err != nil || len(keys) > 1 {
		t.Errorf("%d layers were made before the conflict was seen, %v", len(keys), err)
	}
	verify(t, st)
}

// TestPrefer: the recipe says whose file stays, whatever the order of names and sizes, and the layers of wheels are the same.
func TestPrefer(t *testing.T) {
	locktest.Isolate(t)
	one := locktest.Wheel{Name: "one", Version: "1.0", Files: map[string]string{"shared/x.py": "1", "LICENSE": "MIT"}}
	two := locktest.Wheel{Name: "two", Version: "2.0", Pad: 9 << 20, Files: map[string]string{"shared/x.py": "2", "LICENSE": "BSD"}}
	x := locktest.NewIndex(t, one, two)
	st := storetest.New(t)
	images := make(map[string]*image.Image)
	for name, want := range map[string]string{"one": "1", "Two": "2"} {
		im := mustRun(t.Context(), t, st, recipeDir(t, locktest.Base{}, x, "prefer = [\""+name+"\"]\n", one, two)).Image
		if got := content(t, st, im, "opt/venv/lib/python3.11/site-packages/shared/x.py"); got != want {
			t.Errorf("with %s preferred: %q", name, got)
		}
		images[name] = im
	}
	a, b := layers(images["one"]), layers(images["Two"])
	slices.Sort(a)
	slices.Sort(b)
	if images["one"].Digest == images["Two"].Digest || !slices.Equal(a, b) {
		t.Errorf("the layers should be the same in another order:\n%q\n%q", a, b)
	}
	if _, err := run(t.Context(), st, recipeDir(t, locktest.Base{}, x, "prefer = [\"three\"]\n", one, two)); err == nil || !strings.Contains(err.Error(), "python.prefer names three") {
		t.Errorf("got %v", err)
	}
}

// TestBrokenServer: what a server gets wrong is an error that names it; when it is well again, the build goes on.
func TestBrokenServer(t *testing.T) {
	locktest.Isolate(t)
	alpha, beta := large("alpha"), w("beta", "1.0")
	want := mustRun(t.Context(), t, storetest.New(t), recipeDir(t, locktest.Base{}, locktest.NewIndex(t, alpha, beta), "", alpha, beta)).Image.Digest
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"other bytes": {append(alpha.Bytes(t)[:9<<20], make([]byte, len(alpha.Bytes(t))-9<<20)...), "alpha 1.0"},
		"cut off":     {alpha.Bytes(t)[:5<<20], "alpha 1.0"},
		"a web page":  {[]byte("<html>Please log in</html>"), "alpha 1.0"},
	} {
		t.Run(name, func(t *testing.T) {
			x := locktest.NewIndex(t, alpha, beta)
			st := storetest.New(t)
			dir := recipeDir(t, locktest.Base{}, x, "", alpha, beta)
			x.AddFile(alpha.File(), test.data)
			if _, err := run(t.Context(), st, dir); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v", err)
			}
			verify(t, st)
			x.AddFile(alpha.File(), alpha.Bytes(t))
			if got := mustRun(t.Context(), t, st, dir); got.Image.Digest != want {
				t.Errorf("got %s, want %s", got.Image.Digest, want)
			}
		})
	}
}

// TestTwoBuildsAtOnce share what they download and make.
func TestTwoBuildsAtOnce(t *testing.T) {
	locktest.Isolate(t)
	wheels := []locktest.Wheel{large("heavy"), w("alpha", "1.0"), w("beta", "1.0")}
	x := locktest.NewIndex(t, wheels...)
	dir := recipeDir(t, locktest.Base{}, x, "", wheels...)
	stores := filepath.Join(t.TempDir(), "store")
	digests := make([]store.Digest, 4)
	var group sync.WaitGroup
	for i := range digests {
		group.Go(func() {
			st, err := store.Open(t.Context(), stores) // each as another process would
			if err != nil {
				t.Error(err)
				return
			}
			defer st.Close()
			result, err := run(t.Context(), st, dir)
			if err != nil {
				t.Error(err)
				return
			}
			digests[i] = result.Image.Digest
		})
	}
	group.Wait()
	if len(slices.Compact(digests)) != 1 {
		t.Errorf("digests %q", digests)
	}
	if got := x.Downloads(); len(got) != 3 {
		t.Errorf("downloaded %q", got)
	}
}

// TestLayerGone: a layer that vanished from the store is made again.
func TestLayerGone(t *testing.T) {
	locktest.Isolate(t)
	alpha := w("alpha", "1.0")
	x := locktest.NewIndex(t, alpha)
	st := storetest.New(t)
	dir := recipeDir(t, locktest.Base{}, x, "", alpha)
	first := mustRun(t.Context(), t, st, dir)
	for _, l := range first.Image.Layers {
		path, err := st.BlobPath(l.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if again := mustRun(t.Context(), t, st, dir); again.Fresh || again.Image.Digest != first.Image.Digest {
			t.Errorf("without layer %s: fresh %t, %s", l.Digest.Short(), again.Fresh, again.Image.Digest)
		}
	}
}

func TestCancelled(t *testing.T) {
	locktest.Isolate(t)
	alpha := w("alpha", "1.0")
	x := locktest.NewIndex(t, alpha)
	st := storetest.New(t)
	dir := recipeDir(t, locktest.Base{}, x, "", alpha)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := recipe.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	f, err := lock.Update(ctx, r, lock.Options{Store: st, Fetch: fetch.New(st, fetch.Options{})})
	if err != nil {
		t.Fatal(err)
	}
	l, err := f.Locked(r)
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.New(t.Context(), r, l.Lock, l.Wheels, plan.Options{RunsHere: true})
	if err != nil {
		t.Fatal(err)
	}
	hangs := fetch.New(st, fetch.Options{Transport: transport(func(req *http.Request) (*http.Response, error) {
		cancel()
		<-req.Context().Done()
		return nil, req.Context().Err()
	})})
	if _, err := build.Run(ctx, p, build.Options{Store: st, Fetch: hangs, Wheels: l.Wheels}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	verify(t, st)
	mustRun(t.Context(), t, st, dir)
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

const (
	buildEnv = "SCONCE_TEST_BUILD"       // the recipe's directory
	storeEnv = "SCONCE_TEST_BUILD_STORE" //
)

// buildHere is the whole of a process that a test starts, and kills.
func buildHere(dir string) int {
	st, err := store.Open(context.Background(), os.Getenv(storeEnv))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	result, err := run(context.Background(), st, dir)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Print(result.Image.Digest)
	return 0
}

// TestKilled kills builds at many points; each goes on where the one before was, and the last one ends well.
func TestKilled(t *testing.T) {
	locktest.Isolate(t)
	wheels := []locktest.Wheel{large("heavy"), large("heavier"), w("alpha", "1.0"), w("beta", "1.0")}
	x := locktest.NewIndex(t, wheels...)
	dir := recipeDir(t, locktest.Base{}, x, "", wheels...)
	began := time.Now()
	want := mustRun(t.Context(), t, storetest.New(t), dir).Image.Digest
	took := time.Since(began)
	os.Remove(filepath.Join(dir, "sconce.lock"))

	where := filepath.Join(t.TempDir(), "store")
	start := func() (*exec.Cmd, io.Reader) {
		t.Helper()
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), buildEnv+"="+dir, storeEnv+"="+where)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		return cmd, out
	}
	const kills = 12
	for i := range kills {
		cmd, _ := start()
		time.Sleep(took * time.Duration(i+1) / (kills / 2))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	st, err := store.Open(t.Context(), where)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	verify(t, st)
	cmd, out := start()
	data, err := io.ReadAll(out)
	if err := errors.Join(err, cmd.Wait()); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	if string(data) != string(want) {
		t.Errorf("got %s, want %s", data, want)
	}
	verify(t, st)
}
