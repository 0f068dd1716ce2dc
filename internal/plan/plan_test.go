package plan

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/bootstrap"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/slim"
	"sconce.dev/sconce/internal/store"
)

// subject is everything a plan is made of.
type subject struct {
	recipe   *recipe.Recipe
	lock     *lock.Lock
	wheels   []lock.Wheel
	runsHere bool

	slim      *slim.Options
	unchecked bool
}

// newSubject returns a recipe with packages, the first of them large.
func newSubject(packages int) *subject {
	s := &subject{runsHere: true}
	s.recipe = &recipe.Recipe{
		Path: "/somewhere/sconce.toml", Dir: "/somewhere", Name: "demo", Version: "1",
		Base: recipe.Base{Image: "tar:base.tar"}, Target: recipe.Target{Profile: cluster.Profile{Platform: "linux/amd64"}},
		Python: recipe.Python{Packages: []string{"alpha"}},
		Image: recipe.ImageConfig{
			Compression: "zstd", MaxLayers: recipe.DefaultMaxLayers,
			Env: map[string]string{"A": "1", "B": "2"}, Labels: map[string]string{"x": "y", "z": "w"},
		},
	}
	s.lock = &lock.Lock{
		Version: 1, Platform: "linux/amd64", Base: base.Pinned{Reference: "tar:base.tar", Digest: digest("base"), Layers: 1},
		Python: &lock.Python{
			Executable: "/usr/bin/python3.11", Version: "3.11.2", Prefix: "/usr", Implementation: "cpython", Platform: "x86_64", Glibc: "2.36", File: "pylock.toml",
		},
	}
	for i := range packages {
		s.wheels = append(s.wheels, wheel(fmt.Sprintf("package-%d", i), 1000))
	}
	s.wheels[0].Size = 100 << 20
	return s
}

func digest(text string) store.Digest { return store.DigestOf([]byte(text)) }

func wheel(name string, size int64) lock.Wheel {
	file := strings.ReplaceAll(name, "-", "_") + "-1.0-py3-none-any.whl"
	return lock.Wheel{
		Item: python.Item{Name: name, Version: "1.0", File: file, Digest: digest(name), Size: size},
		URL:  "https://files.example.org/" + file,
	}
}

func (s *subject) plan(t testing.TB) *Plan {
	t.Helper()
	p, err := New(t.Context(), s.recipe, s.lock, s.wheels, Options{RunsHere: s.runsHere, Slim: s.slim, Unchecked: s.unchecked})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// keys are the keys of a plan's steps: base, environment and image, and those of the wheels as a set.
type keys struct {
	base, environment, image Key
	wheels                   map[Key]bool
}

func (p *Plan) keys() keys {
	k := keys{image: p.Image.Key, wheels: make(map[Key]bool)}
	for _, t := range p.Steps {
		switch t.Op.(type) {
		case *Base:
			k.base = t.Key
		case *Wheels:
			k.wheels[t.Key] = true
		case *Environment:
			k.environment = t.Key
		}
	}
	return k
}

// wheelSteps are the steps that lay down wheels.
func (p *Plan) wheelSteps() []*Step {
	var steps []*Step
	for _, t := range p.Steps {
		if t.Op.Kind() == (*Wheels)(nil).Kind() {
			steps = append(steps, t)
		}
	}
	return steps
}

func (p *Plan) wheels() []*Wheels {
	var all []*Wheels
	for _, t := range p.wheelSteps() {
		all = append(all, t.Op.(*Wheels))
	}
	return all
}

// changes says which keys differ: "base", "wheels N" for N steps that a has not, "environment", "image".
func changes(a, b keys) []string {
	var out []string
	if a.base != b.base {
		out = append(out, "base")
	}
	n := 0
	for k := range b.wheels {
		if !a.wheels[k] {
			n++
		}
	}
	switch {
	case n == len(b.wheels) && n > 1:
		out = append(out, "all wheels")
	case n > 0:
		out = append(out, fmt.Sprintf("wheels %d", n))
	}
	if a.environment != b.environment {
		out = append(out, "environment")
	}
	if a.image != b.image {
		out = append(out, "image")
	}
	return out
}

// TestKeys changes one thing at a time: only the steps that it decides may get other keys.
func TestKeys(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*subject)
		want   []string
	}{
		"nothing":                 {func(*subject) {}, nil},
		"directory":               {func(s *subject) { s.recipe.Dir, s.recipe.Path = "/elsewhere", "/elsewhere/sconce.toml" }, nil},
		"where wheels come from":  {func(s *subject) { s.wheels[1].URL = "https://mirror.example.org/x.whl" }, nil},
		"order of the wheels":     {func(s *subject) { slices.Reverse(s.wheels) }, nil},
		"how the base is called":  {func(s *subject) { s.recipe.Base.Image, s.lock.Base.Reference = "other:1", "other:1" }, nil},
		"inputs of the lock":      {func(s *subject) { s.lock.Inputs.Python = []string{"packages x>0"} }, nil},
		"where the image goes":    {func(s *subject) { s.recipe.Publish.Repository = "registry.example.org/x" }, nil},
		"budget that is not used": {func(s *subject) { s.recipe.Image.MaxLayers = 100 }, nil},
		"base":                    {func(s *subject) { s.lock.Base.Digest = digest("other") }, []string{"base", "image"}},
		"base's place":            {func(s *subject) { s.lock.Base.Name = "example.org/base:1" }, []string{"image"}},
		"small package changed":   {func(s *subject) { s.wheels[5].Digest = digest("changed") }, []string{"wheels 1", "environment", "image"}},
		"small package added":     {func(s *subject) { s.wheels = append(s.wheels, wheel("added", 5000)) }, []string{"wheels 1", "environment", "image"}},
		"large package added":     {func(s *subject) { s.wheels = append(s.wheels, wheel("added", 50<<20)) }, []string{"wheels 1", "environment", "image"}},
		"large package removed":   {func(s *subject) { s.wheels = s.wheels[1:] }, []string{"environment", "image"}},
		"package asked for":       {func(s *subject) { s.wheels[3].Requested = true }, []string{"environment", "image"}},
		"package's origin":        {func(s *subject) { s.wheels[3].DirectURL = &python.DirectURL{URL: "file:///x.whl"} }, []string{"environment", "image"}},
		"base's packages seen":    {func(s *subject) { s.lock.Python.SystemSitePackages = true }, []string{"environment", "image"}},
		"patch release of Python": {func(s *subject) { s.lock.Python.Version = "3.11.9" }, []string{"all wheels", "environment", "image"}},
		"patch release without byte code": {func(s *subject) {
			s.runsHere = false
			s.lock.Python.Version = "3.11.9"
		}, []string{"environment", "image"}},
		"minor release of Python": {func(s *subject) { s.lock.Python.Version = "3.12.0" }, []string{"all wheels", "environment", "image"}},
		"place of Python":         {func(s *subject) { s.lock.Python.Executable = "/opt/python/bin/python3.11" }, []string{"environment", "image"}},
		"byte code":               {func(s *subject) { s.recipe.Python.Bytecode = new(bool) }, []string{"all wheels", "environment", "image"}},
		"compression":             {func(s *subject) { s.recipe.Image.Compression = "gzip" }, []string{"all wheels", "environment", "image"}},
		"name":                    {func(s *subject) { s.recipe.Name = "other" }, []string{"environment", "image"}},
		"version":                 {func(s *subject) { s.recipe.Version = "2" }, []string{"image"}},
		"this machine's settings": {func(s *subject) { s.recipe.HostConfig = []string{"pip", "ca"} }, nil},
		"variable":                {func(s *subject) { s.recipe.Image.Env["A"] = "2" }, []string{"image"}},
		"label":                   {func(s *subject) { s.recipe.Image.Labels["x"] = "2" }, []string{"image"}},
		"entrypoint":              {func(s *subject) { s.recipe.Image.Entrypoint = []string{"x"} }, []string{"image"}},
		"no entrypoint":           {func(s *subject) { s.recipe.Image.Entrypoint = []string{} }, []string{"image"}},
		"command":                 {func(s *subject) { s.recipe.Image.Cmd = []string{"x"} }, []string{"image"}},
		"user":                    {func(s *subject) { s.recipe.Image.User = "1000" }, []string{"image"}},
		"volume":                  {func(s *subject) { s.recipe.Image.Volumes = []string{"/data"} }, []string{"image"}},
		"working directory":       {func(s *subject) { s.recipe.Image.Workdir = "/work" }, []string{"image"}},
		"no check":                {func(s *subject) { s.unchecked = true }, []string{"image"}},
		"slimmed":                 {func(s *subject) { s.slim = &slim.Options{GPUs: []int{90}} }, []string{"image"}},
		"target of the recipe":    {func(s *subject) { s.recipe.Target.GPU = []string{"9.0"} }, nil},
		"platform":                {func(s *subject) { s.lock.Platform = "linux/arm64" }, []string{"image"}},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := newSubject(40), newSubject(40)
			if strings.Contains(name, "without byte code") {
				before.runsHere = false
			}
			test.change(after)
			if diff := cmp.Diff(test.want, changes(before.plan(t).keys(), after.plan(t).keys())); diff != "" {
				t.Errorf("keys that changed (-want +got)\n%s", diff)
			}
		})
	}
}

// TestKeysOfOtherMachines: time, user, host, directory and environment are nothing to a plan.
func TestKeysOfOtherMachines(t *testing.T) {
	want := newSubject(40).plan(t).keys()
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if name != "SOURCE_DATE_EPOCH" {
			t.Setenv(name, "something else")
		}
	}
	t.Setenv("HOSTNAME", "another")
	t.Setenv("TZ", "Asia/Tokyo")
	time.Local = time.FixedZone("here", 3600)
	t.Cleanup(func() { time.Local = time.UTC })
	dir := "/"
	t.Chdir(dir)
	if diff := changes(want, newSubject(40).plan(t).keys()); diff != nil {
		t.Errorf("keys that changed: %q", diff)
	}
}

// TestKeysStandStill: keys that moved would make every store and every remote cache worthless. When what is made
// changes, so must the version of the step's code, and these with it.
func TestKeysStandStill(t *testing.T) {
	p := newSubject(2).plan(t)
	got, err := json.MarshalIndent(map[string]Key{"base": p.Steps[0].Key, "wheels": p.wheelSteps()[0].Key, "environment": p.keys().environment, "image": p.Image.Key}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/keys.json"
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(want)), string(got)); diff != "" {
		t.Errorf("keys have moved: right if a step makes something else now and its version was raised for that; then set UPDATE_GOLDEN=1 (-want +got)\n%s", diff)
	}
}

// TestAddOne adds one small package after the other: each changes at most one layer of wheels.
func TestAddOne(t *testing.T) {
	s := newSubject(1)
	before := s.plan(t).keys()
	for i := range 300 {
		s.wheels = append(s.wheels, wheel(fmt.Sprintf("more-%d", i), int64(1000*i)))
		after := s.plan(t).keys()
		if got := changes(before, after); !slices.Equal(got, []string{"wheels 1", "environment", "image"}) && !slices.Equal(got, []string{"all wheels", "environment", "image"}) {
			t.Fatalf("package %d: %q", i, got)
		}
		new := 0
		for k := range after.wheels {
			if !before.wheels[k] {
				new++
			}
		}
		if new != 1 {
			t.Fatalf("package %d changes %d layers", i, new)
		}
		before = after
	}
}

func TestSourceDateEpoch(t *testing.T) {
	without := newSubject(3).plan(t)
	if got := without.Image.Config.Created; !got.Equal(time.Date(1980, 1, 2, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("created %v", got)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	with := newSubject(3).plan(t)
	if got := with.Image.Config.Created; got.Unix() != 1700000000 || !with.wheels()[0].Options.ModTime.Equal(got) || !with.Environment().Options.ModTime.Equal(got) {
		t.Errorf("created %v, wheels %v, environment %v", got, with.wheels()[0].Options.ModTime, with.Environment().Options.ModTime)
	}
	if got := changes(without.keys(), with.keys()); !slices.Equal(got, []string{"all wheels", "environment", "image"}) {
		t.Errorf("keys that changed: %q", got)
	}
	for _, bad := range []string{"yesterday", "-1", "99999999999999999999"} {
		t.Setenv("SOURCE_DATE_EPOCH", bad)
		s := newSubject(1)
		_, err := New(t.Context(), s.recipe, s.lock, s.wheels, Options{RunsHere: true})
		if err == nil || !strings.Contains(err.Error(), bad) || fault.CodeOf(err) != fault.CodeUsage {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestTimeOfCompiled: the layer of a wheel that was built has the time of the others.
func TestTimeOfCompiled(t *testing.T) {
	s := newStage("s", nil, layer.Options{})
	var c Compile
	c.Options.ModTime = layer.DefaultModTime
	before, _ := c.key(s, c.inputs())
	c.Options.ModTime = time.Unix(1700000000, 0)
	if after, _ := c.key(s, c.inputs()); after == before {
		t.Error("another time gave the same key")
	}
}

func TestLayerBudget(t *testing.T) {
	for _, test := range []struct {
		name         string
		base, limit  int
		large, small int
		fails        string
	}{
		{name: "default", base: 1, limit: recipe.DefaultMaxLayers, large: 200, small: 200},
		{name: "few large", base: 10, limit: 30, large: 5, small: 200},
		{name: "tight", base: 10, limit: 12, large: 50, small: 50},
		{name: "a vendor's base", base: 70, limit: recipe.DefaultMaxLayers, large: 50, small: 50},
		{name: "a vendor's base near the end", base: 124, limit: recipe.DefaultMaxLayers, large: 50, small: 50},
		{name: "no room for wheels", base: 10, limit: 11, large: 1, fails: "the base has 10 layers and the recipe needs 2 more, and the image may have 11"},
		{name: "no room at all", base: 10, limit: 5, large: 1, fails: "the base has 10 layers and the recipe needs 2 more, and the image may have 5"},
		{name: "too many for any machine", base: 130, limit: recipe.DefaultMaxLayers, large: 1, fails: "may have 127"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSubject(1)
			s.wheels, s.lock.Base.Layers, s.recipe.Image.MaxLayers = nil, test.base, test.limit
			for i := range test.large {
				s.wheels = append(s.wheels, wheel(fmt.Sprintf("large-%d", i), 20<<20))
			}
			for i := range test.small {
				s.wheels = append(s.wheels, wheel(fmt.Sprintf("small-%d", i), 1<<10))
			}
			p, err := New(t.Context(), s.recipe, s.lock, s.wheels, Options{RunsHere: true})
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) || !strings.Contains(fault.HintOf(err), "max-layers") {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			limit := test.limit
			if limit == recipe.DefaultMaxLayers && test.base > 40 {
				limit = stackable
			}
			if total := test.base + len(p.wheels()) + 1; total > limit {
				t.Errorf("%d layers, and there may be %d", total, limit)
			}
			if n := count(p); n != test.large+test.small {
				t.Errorf("%d wheels are planned", n)
			}
		})
	}
}

func count(p *Plan) int {
	n := 0
	for _, w := range p.wheels() {
		n += len(w.Group.Items)
	}
	return n
}

func TestWithoutPython(t *testing.T) {
	s := newSubject(1)
	s.lock.Python, s.wheels = nil, nil
	p := s.plan(t)
	if p.Environment() != nil || len(p.wheels()) != 0 || p.Image.Config.VirtualEnv != "" {
		t.Errorf("plan %+v", p)
	}
	s.lock.Base.Layers, s.recipe.Image.MaxLayers = 50, 50
	s.plan(t) // nothing is added
	s.recipe.Image.MaxLayers = 49
	if _, err := New(t.Context(), s.recipe, s.lock, nil, Options{RunsHere: true}); err == nil {
		t.Error("no error for a base of more layers than there may be")
	}
}

// TestBootstrapKeys: which mirror a package came from is nothing to the base, its bytes are everything.
func TestBootstrapKeys(t *testing.T) {
	pinned := func() base.Pinned {
		return base.Pinned{Layers: 1, Bootstrap: &bootstrap.Pinned{
			Suite: "bookworm", Architecture: "amd64", Sources: "deb http://a bookworm main\n", Epoch: time.Unix(1e9, 0).UTC(),
			Packages: []bootstrap.Package{{Name: "a", Version: "1", Architecture: "all", URL: "http://a/a.deb", Size: 1, SHA256: digest("a")}},
		}}
	}
	want := pinned()
	for name, test := range map[string]struct {
		change func(*base.Pinned)
		same   bool
	}{
		"mirror":  {func(p *base.Pinned) { p.Bootstrap.Packages[0].URL = "http://b/a.deb" }, true},
		"layers":  {func(p *base.Pinned) { p.Layers = 0 }, true},
		"hash":    {func(p *base.Pinned) { p.Bootstrap.Packages[0].SHA256 = digest("b") }, false},
		"sources": {func(p *base.Pinned) { p.Bootstrap.Sources = "deb http://b bookworm main\n" }, false},
		"epoch":   {func(p *base.Pinned) { p.Bootstrap.Epoch = time.Unix(1e9+1, 0).UTC() }, false},
		"time zone": {func(p *base.Pinned) {
			p.Bootstrap.Epoch = p.Bootstrap.Epoch.In(time.FixedZone("x", 3600))
		}, true},
		"suite": {func(p *base.Pinned) { p.Bootstrap.Suite = "trixie" }, false},
	} {
		p := pinned()
		test.change(&p)
		if (p.Key() == want.Key()) != test.same {
			t.Errorf("%s: same key: %t", name, !test.same)
		}
	}
}
