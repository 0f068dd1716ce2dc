package pipeline_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/pipeline"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
)

func TestMain(m *testing.M) {
	sandbox.Init() // the sandbox starts this very binary again
	os.Exit(m.Run())
}

// outsideCI has no variable of a CI system that runs these tests decide anything.
func outsideCI(t testing.TB) {
	t.Helper()
	for _, name := range pipeline.SystemVariables() {
		t.Setenv(name, "")
	}
}

func newSession(t testing.TB) *engine.Session {
	t.Helper()
	s, err := engine.New(t.Context(), engine.Options{Dir: filepath.Join(t.TempDir(), "store")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// family is a small pipeline: a base, a stack on it, and an app on that in two variants. REGISTRY stands for that of the staging
// repository.
var family = map[string]string{
	"pipeline.toml":             "recipes = [\"images/*\", \"apps/*\"]\nstaging = \"REGISTRY/ci\"\nstable = [\"REGISTRY/images\", \"REGISTRY/mirror\"]\nuntested = \"allow\"\nmutable = [\"*-dev\"]\n",
	".git/HEAD":                 "ref: refs/heads/main\n",
	"images/base/sconce.toml":   "name = \"base\"\nversion = \"1\"\nbase.image = \"tar:../../base.tar\"\ntarget.platform = \"linux/amd64\"\n[[step]]\ncopy = [\"file:/opt/base/file\"]\n[image.env]\nKEEP = \"1\"\nDROP = \"1\"\n",
	"images/base/file":          "first\n",
	"images/base/README.md":     "nothing that a step uses\n",
	"images/stack/sconce.toml":  "name = \"stack\"\nversion = \"2\"\nbase.recipe = \"../base\"\nbase.remove = [\"/etc/os-release\"]\ntarget.platform = \"linux/amd64\"\n[[step]]\ncopy = [\"tree:/opt/stack\"]\n[image]\nunset = [\"DROP\"]\n",
	"images/stack/tree/program": "#!/bin/sh\n",
	"apps/app/sconce.toml":      "name = \"app\"\nbase.recipe = \"../../images/stack\"\ntarget.platform = \"linux/amd64\"\n[variant]\nsmall = {}\nlarge-dev = { image.env = { SIZE = \"large\" } }\n",
}

// write makes a directory with the family, locked.
func write(t *testing.T, s *engine.Session, registry string) string {
	t.Helper()
	files := make(map[string]string)
	for name, text := range family {
		files[name] = strings.ReplaceAll(text, "REGISTRY", registry)
	}
	dir := locktest.Dir(t, locktest.Base{Files: map[string]string{"etc/os-release": "ID=x\n", "etc/passwd": "root:x:0:0::/:/bin/sh\n"}}, files)
	lock(t, s, dir)
	return dir
}

func lock(t *testing.T, s *engine.Session, dir string) {
	t.Helper()
	for _, ref := range []string{"images/base", "images/stack", "apps/app:small", "apps/app:large-dev"} {
		r, err := engine.LoadRecipe(filepath.Join(dir, ref), engine.Changes{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Lock(t.Context(), r, engine.LockOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func open(t *testing.T, dir string) *pipeline.Pipeline {
	t.Helper()
	p, err := pipeline.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// keys are the keys of all images, by their references.
func keys(t *testing.T, s *engine.Session, dir string) map[string]string {
	t.Helper()
	all, err := open(t, dir).Images(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]string)
	for _, i := range all {
		if i.Problem != nil {
			t.Fatalf("%s: %v", i.Ref, i.Problem)
		}
		found[i.Ref] = string(i.Key)
	}
	return found
}

func TestImages(t *testing.T) {
	locktest.Isolate(t)
	s := newSession(t)
	dir := write(t, s, "localhost:5000")
	p := open(t, filepath.Join(dir, "images", "stack")) // from below
	if want := []string{"images/base", "images/stack", "apps/app:small", "apps/app:large-dev"}; !slices.Equal(p.Refs(), want) {
		t.Fatalf("%q", p.Refs())
	}
	i, err := p.Image(t.Context(), s, "app:large-dev")
	if err != nil || i.Problem != nil {
		t.Fatal(err, i)
	}
	if i.Ref != "apps/app:large-dev" || i.Variant != "large-dev" || i.Version != "large-dev" || i.Base.Ref != "images/stack" || i.Base.Base.Ref != "images/base" || !i.Mutable {
		t.Errorf("%+v", i)
	}
	if want := "localhost:5000/ci/app:large-dev-" + string(i.Key)[:24]; i.Canonical != want {
		t.Errorf("%s, want %s", i.Canonical, want)
	}
	if want := []string{"localhost:5000/images/app:large-dev", "localhost:5000/mirror/app:large-dev"}; !slices.Equal(i.Stable, want) {
		t.Errorf("%q", i.Stable)
	}
	for _, name := range []string{"apps/app:large-dev", filepath.Join(dir, "apps/app") + ":large-dev"} {
		if again, err := p.Image(t.Context(), s, name); err != nil || again.Key != i.Key {
			t.Errorf("%s: %+v, %v", name, again, err)
		}
	}
	for name, want := range map[string]string{"app": "several images", "apps/ap:small": "has no image"} {
		if _, err := p.Image(t.Context(), s, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := pipeline.Open(t.TempDir()); !errors.Is(err, fs.ErrNotExist) || fault.CodeOf(err) != fault.CodeUsage {
		t.Errorf("no pipeline: %v", err)
	}
}

// change writes a file of the family anew.
func change(t *testing.T, dir, name, old, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	data, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(data), old) {
		t.Fatalf("%s: %v, %q", name, err, data)
	}
	locktest.Write(t, dir, map[string]string{name: strings.Replace(string(data), old, text, 1)})
}

// What changes which key, and what changes none.
func TestKeys(t *testing.T) {
	locktest.Isolate(t)
	s := newSession(t)
	all := []string{"images/base", "images/stack", "apps/app:small", "apps/app:large-dev"}
	for _, c := range []struct {
		name   string
		change func(dir string)
		moved  []string
	}{
		{"a README", func(dir string) { change(t, dir, "images/base/README.md", "nothing", "something") }, nil},
		{"a file that no step uses", func(dir string) { locktest.Write(t, dir, map[string]string{"images/stack/unused": "x"}) }, nil},
		{"a comment", func(dir string) { change(t, dir, "images/base/sconce.toml", "name", "# base\nname") }, nil},
		{"where it is published", func(dir string) {
			change(t, dir, "images/base/sconce.toml", "[[step]]", "publish.repository = \"example.org/x\"\n[[step]]")
			change(t, dir, "pipeline.toml", "/mirror", "/elsewhere")
		}, nil},
		{"the environment", func(string) {
			for _, name := range []string{"LIBFABRIC_COMMIT", "LANG", "USER", "TZ", "CI_COMMIT_SHA"} {
				t.Setenv(name, "de_CH")
			}
		}, nil},
		{"the umask's part of modes", func(dir string) { chmod(t, dir, "images/base/sconce.toml", 0o600) }, nil},
		{"a variant", func(dir string) { change(t, dir, "apps/app/sconce.toml", "\"large\"", "\"huge\"") }, all[3:]},
		{"a mode bit", func(dir string) { chmod(t, dir, "images/stack/tree/program", 0o755) }, all[1:]},
		{"a file that became a link", func(dir string) {
			locktest.Write(t, dir, map[string]string{"images/stack/tree/target": "#!/bin/sh\n"})
			link(t, dir, "target", "images/stack/tree/program")
		}, all[1:]},
		{"a file", func(dir string) { change(t, dir, "images/base/file", "first", "second") }, all},
		{"what is taken out of the base", func(dir string) {
			change(t, dir, "images/stack/sconce.toml", "/etc/os-release", "/etc/*")
			lock(t, s, dir)
		}, all[1:]},
		{"what is unset", func(dir string) { change(t, dir, "images/stack/sconce.toml", "unset = [\"DROP\"]\n", "") }, all[1:]},
		{"the base image", func(dir string) {
			file := filepath.Join(dir, "base.tar")
			if err := os.WriteFile(file, locktest.Base{Files: map[string]string{"etc/other": "x"}}.Tar(t), 0o644); err != nil {
				t.Fatal(err)
			}
			upgrade(t, s, filepath.Join(dir, "images/base"))
		}, all},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := write(t, s, "localhost:5000")
			before := keys(t, s, dir)
			c.change(dir)
			after := keys(t, s, dir)
			for _, ref := range all {
				if moved := before[ref] != after[ref]; moved != slices.Contains(c.moved, ref) {
					t.Errorf("%s: its key changed: %v", ref, moved)
				}
			}
		})
	}
}

func chmod(t *testing.T, dir, name string, mode fs.FileMode) {
	t.Helper()
	if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, dir, to, name string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := errors.Join(os.Remove(path), os.Symlink(to, path)); err != nil {
		t.Fatal(err)
	}
}

func upgrade(t *testing.T, s *engine.Session, ref string) {
	t.Helper()
	r, err := engine.LoadRecipe(ref, engine.Changes{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lock(t.Context(), r, engine.LockOptions{Upgrade: true}); err != nil {
		t.Fatal(err)
	}
}

// An image whose lock does not fit has a problem, and those on it have it, too; the others are planned.
func TestProblem(t *testing.T) {
	locktest.Isolate(t)
	s := newSession(t)
	dir := write(t, s, "localhost:5000")
	if err := os.Remove(filepath.Join(dir, "images/stack/sconce.lock")); err != nil {
		t.Fatal(err)
	}
	all, err := open(t, dir).Images(t.Context(), s)
	if err != nil || len(all) != 4 {
		t.Fatal(err, all)
	}
	if all[0].Problem != nil || all[0].Key == "" {
		t.Errorf("%+v", all[0])
	}
	if all[1].Problem == nil || !strings.Contains(all[1].Problem.Error(), "sconce.lock does not exist") || all[2].Problem == nil || all[3].Key != "" {
		t.Errorf("%v, %v", all[1].Problem, all[2].Problem)
	}
}

// Recipes that stand on each other in a circle are an error that names the way.
func TestCircle(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(reach.Variable, dir)
	locktest.Write(t, dir, map[string]string{
		"a/sconce.toml": "name = \"a\"\nbase.recipe = \"../b:x\"\n",
		"b/sconce.toml": "name = \"b\"\n[variant]\nx = { base.recipe = \"../c\" }\ny = { base.image = \"z\" }\n",
		"c/sconce.toml": "name = \"c\"\nbase.recipe = \"../b:x\"\n",
	})
	_, err := engine.LoadRecipe(filepath.Join(dir, "a"), engine.Changes{})
	want := filepath.Join(dir, "b/sconce.toml:x") + " → " + filepath.Join(dir, "c/sconce.toml") + " → " + filepath.Join(dir, "b/sconce.toml:x")
	if err == nil || !strings.HasSuffix(err.Error(), want) || fault.CodeOf(err) != fault.CodeUsage {
		t.Errorf("%v, want ... %s", err, want)
	}
}

// An image on a recipe is made of the other's image, which is built when it is not there; what is taken out of that is in no layer.
func TestBaseRecipe(t *testing.T) {
	locktest.Isolate(t)
	s := newSession(t)
	dir := write(t, s, "localhost:5000")
	b := build(t, s, dir, "apps/app:large-dev")
	if b.Fresh || b.Name != "app:large-dev" {
		t.Errorf("%+v", b)
	}
	for _, name := range []string{"base:1", "stack:2", "app:large-dev"} {
		if _, err := s.Store.FindImage(name); err != nil {
			t.Error(err)
		}
	}
	tree, err := b.Image.Tree(t.Context(), s.Store)
	if err != nil {
		t.Fatal(err)
	}
	for name, there := range map[string]bool{"opt/base/file": true, "opt/stack/program": true, "etc/os-release": false} {
		if _, err := tree.Lookup(name); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
	whole, err := s.Store.FindImage("base:1")
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(b.Image.Refs(), func(d store.Digest) bool { return d == whole.Digest }) {
		t.Error("the whole base is part of the image")
	}
	env := b.Image.Config.Config.Env
	if !slices.Contains(env, "KEEP=1") || !slices.Contains(env, "SIZE=large") || slices.Contains(env, "DROP=1") {
		t.Errorf("%q", env)
	}
	labels := b.Image.Config.Config.Labels
	if labels["org.opencontainers.image.base.name"] != "stack:2" || labels["org.opencontainers.image.base.digest"] != "" {
		t.Errorf("%q", labels)
	}
	if again := build(t, s, dir, "apps/app:large-dev"); !again.Fresh || again.Image.Digest != b.Image.Digest {
		t.Errorf("%+v", again)
	}
	change(t, dir, "images/base/sconce.toml", "name", "# only words\nname")
	if again := build(t, s, dir, "apps/app:large-dev"); !again.Fresh {
		t.Error("a comment in the base builds the app anew")
	}
	change(t, dir, "images/base/file", "first", "second")
	if again := build(t, s, dir, "apps/app:large-dev"); again.Fresh {
		t.Error("a file of the base changes nothing")
	}
}

func build(t *testing.T, s *engine.Session, dir, ref string) *engine.Built {
	t.Helper()
	r, err := engine.LoadRecipe(filepath.Join(dir, ref), engine.Changes{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Plan(t.Context(), r, engine.PlanOptions{Locked: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b, err := s.Build(t.Context(), p, engine.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func look(t *testing.T, s *engine.Session, dir string) []*pipeline.Status {
	t.Helper()
	p := open(t, dir)
	images, err := p.Images(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	all, err := p.Look(t.Context(), s, images)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func actions(all []*pipeline.Status) string {
	var words []string
	for _, st := range all {
		words = append(words, string(st.Action))
	}
	return strings.Join(words, " ")
}

// publish copies canonical images to their stable tags, as promotion does.
func publish(t *testing.T, all []*pipeline.Status) {
	t.Helper()
	for _, st := range all {
		for _, ref := range st.Stable {
			registrytest.Skopeo(t, "copy", "--src-tls-verify=false", "--dest-tls-verify=false", "docker://"+st.Canonical, "docker://"+ref)
		}
	}
}

// The whole way in a real registry: plan, run, run again, publish, a change of what is published, a change of one file.
func TestRun(t *testing.T) {
	registrytest.Isolate(t)
	s := newSession(t)
	dir := write(t, s, registrytest.Start(t, false))
	all := look(t, s, dir)
	if got := actions(all); got != "build build build build" {
		t.Fatal(got)
	}
	if all[0].Reasons[0] != "it has not been built yet" || all[1].Reasons[0] != "what it is based on, images/base, is to be built" {
		t.Errorf("%q, %q", all[0].Reasons, all[1].Reasons)
	}
	p := open(t, dir)
	done, err := p.Run(t.Context(), s, all, pipeline.RunOptions{Jobs: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range done {
		if !d.Built || d.Digest == "" {
			t.Errorf("%s: %+v", d.Image.Ref, d)
		}
	}

	// Another machine sees the same, and has nothing to build.
	there := newSession(t)
	all = look(t, there, dir)
	if got := actions(all); got != "publish publish publish publish" {
		t.Fatal(got)
	}
	for n, st := range all {
		if st.Digest != done[n].Digest {
			t.Errorf("%s: %s in the registry, %s was built", st.Ref, st.Digest, done[n].Digest)
		}
	}
	again, err := p.Run(t.Context(), there, all, pipeline.RunOptions{})
	if err != nil || slices.ContainsFunc(again, func(d pipeline.Done) bool { return d.Built }) {
		t.Errorf("built again: %+v, %v", again, err)
	}
	publish(t, all)
	if got := actions(look(t, there, dir)); got != "fine fine fine fine" {
		t.Error(got)
	}
	if text := pipeline.Markdown(look(t, there, dir)); strings.Count(text, "\n") != 6 || !strings.Contains(text, "| app | large-dev | `"+all[3].Stable[0]+"` ") {
		t.Error(text)
	}

	// Where it is published decides nothing about what is built.
	change(t, dir, "pipeline.toml", "/mirror", "/elsewhere")
	if all = look(t, there, dir); actions(all) != "publish publish publish publish" {
		t.Errorf("another place: %s", actions(all))
	}
	publish(t, all)

	// A file of the variants' base: what is based on it is built, on what the registry has; a version that is written once is stuck.
	change(t, dir, "images/stack/tree/program", "sh", "bash")
	all = look(t, there, dir)
	if actions(all) != "fine build build build" || all[1].Reasons[0] != "copy tree:/opt/stack: file tree/program: changed" {
		t.Fatalf("%s: %q", actions(all), all[1].Reasons)
	}
	if _, err := p.Run(t.Context(), there, all, pipeline.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := there.Store.FindImage("base:1"); err != nil {
		t.Errorf("the base was not taken from the registry: %v", err)
	}
	all = look(t, there, dir)
	if got := actions(all); got != "fine stuck stuck publish" {
		t.Error(got)
	}
}

// A registry in trouble is an error, and never "missing".
func TestTrouble(t *testing.T) {
	registrytest.Isolate(t)
	s := newSession(t)
	host := registrytest.Start(t, false)
	for _, code := range []int{http.StatusInternalServerError, http.StatusForbidden, http.StatusTooManyRequests} {
		front := registrytest.NewProxy(t, host, func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/ci/app/manifests/") {
				w.WriteHeader(code)
				return true
			}
			return false
		})
		dir := write(t, s, front.Host)
		impatient := impatientSession(t)
		p := open(t, dir)
		images, err := p.Images(t.Context(), impatient)
		if err != nil {
			t.Fatal(err)
		}
		if all, err := p.Look(t.Context(), impatient, images); err == nil || !strings.Contains(err.Error(), "apps/app:") {
			t.Errorf("%d: %v, %+v", code, err, all)
		}
	}
}

// impatientSession is one that asks servers in trouble only for a moment.
func impatientSession(t *testing.T) *engine.Session {
	t.Helper()
	s, err := engine.New(t.Context(), engine.Options{Dir: filepath.Join(t.TempDir(), "store"), Patience: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// What fails stops what is based on it, and nothing else.
func TestRunFails(t *testing.T) {
	registrytest.Isolate(t)
	s := newSession(t)
	dir := write(t, s, registrytest.Start(t, false))
	locktest.Write(t, dir, map[string]string{"images/other/sconce.toml": "name = \"other\"\nbase.image = \"tar:../../base.tar\"\ntarget.platform = \"linux/amd64\"\n"})
	upgrade(t, s, filepath.Join(dir, "images/other"))
	all := look(t, s, dir)
	change(t, dir, "images/stack/tree/program", "sh", "bash") // between the look and the run
	var told []string
	done, err := open(t, dir).Run(t.Context(), s, all, pipeline.RunOptions{Tell: func(d pipeline.Done) { told = append(told, d.Image.Ref) }})
	if err == nil || !strings.Contains(err.Error(), "images/stack: its files changed") {
		t.Fatal(err)
	}
	for _, d := range done {
		built := d.Image.Ref == "images/base" || d.Image.Ref == "images/other"
		if d.Built != built || d.Waited != strings.HasPrefix(d.Image.Ref, "apps/") {
			t.Errorf("%+v", d)
		}
	}
	if len(told) != len(all) {
		t.Errorf("%q", told)
	}
}

// Twenty images that are built, tested and published at two places, each in repositories of its own that want a password or a token, seen from a
// machine with nothing but their locks: how often the registry is asked, with its token server: four times for each image, and twice for each verdict, whose signature is read. How long that takes is told, and is not judged: under 2 s on a machine with nothing else to do.
func TestRequests(t *testing.T) {
	home := registrytest.Isolate(t)
	s := newSession(t)
	host := registrytest.Start(t, true)
	front := registrytest.NewProxy(t, host, nil)
	tokens := registrytest.Tokens{User: registrytest.User, Password: registrytest.Password}
	login := base64.StdEncoding.EncodeToString([]byte(registrytest.User + ":" + registrytest.Password))
	_, private, _ := evidencetest.Key(t)
	t.Setenv("SCONCE_TEST_KEY", readFile(t, filepath.Dir(private), filepath.Base(private)))
	locktest.Write(t, home, map[string]string{".docker/config.json": fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, front.Host, login)})
	const images = 20
	text := "recipes = [\"images/*\"]\nstaging = \"HOST/ci\"\nstable = [\"HOST/images\", \"HOST/mirror\"]\nclusters = [\"bristen\"]\nsign = \"env:SCONCE_TEST_KEY\"\n"
	files := map[string]string{"pipeline.toml": strings.ReplaceAll(text, "HOST", front.Host)}
	for n := range images {
		files[fmt.Sprintf("images/i%d/sconce.toml", n)] = fmt.Sprintf("name = \"i%[1]d\"\nversion = \"1\"\nbase.image = \"tar:../../base.tar\"\ntarget.platform = \"linux/amd64\"\n"+
			"image.env.N = \"%[1]d\"\n[[test]]\nname = \"fine\"\nrun = \"echo fine\"\nlog = [\"fine\"]\n", n)
	}
	dir := locktest.Dir(t, locktest.Base{}, files)
	for n := range images {
		upgrade(t, s, fmt.Sprintf("%s/images/i%d", dir, n))
	}
	p := open(t, dir)
	if _, err := p.Run(t.Context(), s, look(t, s, dir), pipeline.RunOptions{Jobs: 4}); err != nil {
		t.Fatal(err)
	}
	v := &validated{dir: dir, session: s, digests: map[string]store.Digest{}}
	for _, st := range look(t, s, dir) {
		v.digests[st.Ref] = st.Digest
		v.test(t, st.Ref, imagetest.Passed)
		for _, ref := range st.Stable {
			if _, err := s.Push(t.Context(), imageOf(t, s, st), ref); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, at := range map[string]*registrytest.Proxy{"password": front, "tokens": registrytest.NewProxy(t, host, tokens.Trouble)} {
		t.Run(name, func(t *testing.T) {
			locktest.Write(t, dir, map[string]string{"pipeline.toml": strings.ReplaceAll(text, "HOST", at.Host)})
			before, there, start := at.Requests.Load(), newSession(t), time.Now()
			all := look(t, there, dir)
			asked := at.Requests.Load() - before
			t.Logf("%d requests in %v", asked, time.Since(start))
			if asked >= 26*images { // image, two stable tags and notes beside them, tags, key, verdict, what refers to the image; and what the server wants to know who asks
				t.Errorf("%d requests", asked)
			}
			if got := actions(all); got != strings.TrimSpace(strings.Repeat("fine ", images)) {
				t.Error(got)
			}
		})
	}
}

func imageOf(t *testing.T, s *engine.Session, st *pipeline.Status) *image.Image {
	t.Helper()
	im, err := image.Load(t.Context(), s.Store, st.Digest)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

func readFile(t *testing.T, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
