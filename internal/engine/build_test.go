package engine_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/slim"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

func TestMain(m *testing.M) {
	sandbox.Init() // the sandbox starts this very binary again
	if os.Args[0] == "sconce" {
		os.Exit(unpack(os.Args[1], os.Args[2]))
	}
	os.Exit(m.Run())
}

// unpack is what runs behind a command: this binary stands for the program, and understands this much of it.
func unpack(dir, digest string) (code int) {
	s, err := engine.New(context.Background(), engine.Options{Dir: dir})
	if err == nil {
		defer s.Close()
		err = s.UnpackUntil(context.Background(), store.Digest(digest), os.Stdin)
	}
	if err != nil {
		return 1
	}
	return 0
}

// python is the [python] of the recipes here: the base has no Python that could run.
const python = "[python]\nlock = \"pylock.toml\"\nbytecode = false\n"

func newSession(t testing.TB) *engine.Session {
	t.Helper()
	s, err := engine.New(t.Context(), engine.Options{Dir: filepath.Join(t.TempDir(), "store")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// recipeOf makes a directory with a recipe of packages from an index.
func recipeOf(t testing.TB, text string, wheels ...locktest.Wheel) string {
	t.Helper()
	x := locktest.NewIndex(t, wheels...)
	return locktest.Dir(t, locktest.Base{}, map[string]string{
		recipe.FileName: locktest.Head + text + python, "pylock.toml": x.Pylock(t, wheels...),
	})
}

// build takes the recipe in dir the whole way.
func build(ctx context.Context, s *engine.Session, dir string, p engine.PlanOptions, o engine.BuildOptions) (*engine.Built, error) {
	r, err := engine.LoadRecipe(dir, engine.Changes{})
	if err != nil {
		return nil, err
	}
	planned, err := s.Plan(ctx, r, p)
	if err != nil {
		return nil, err
	}
	defer planned.Close()
	return s.Build(ctx, planned, o)
}

// From a recipe without a lock to files: what is there the second time is not made again.
func TestBuild(t *testing.T) {
	locktest.Isolate(t)
	dir := recipeOf(t, "", locktest.Wheel{Name: "alpha", Version: "1.0"})
	s, out := newSession(t), filepath.Join(t.TempDir(), "out.tar")
	if _, err := build(t.Context(), s, dir, engine.PlanOptions{Locked: true}, engine.BuildOptions{}); err == nil || !strings.Contains(err.Error(), "--locked: ") {
		t.Errorf("without a lock: %v", err)
	}
	first, err := build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{Outputs: []string{out}})
	if err != nil {
		t.Fatal(err)
	}
	if first.Fresh || first.Name != "test:latest" || first.Check != nil || !slices.Equal(first.Outputs, []string{out}) {
		t.Errorf("the first build: %+v", first)
	}
	second, err := build(t.Context(), s, dir, engine.PlanOptions{Locked: true}, engine.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !second.Fresh || second.Image.Digest != first.Image.Digest {
		t.Errorf("the second build: %+v", second)
	}

	// An image is as large where it was pulled as where it was built.
	there := newSession(t)
	subject, err := there.Open(out, engine.Wanted{})
	if err != nil {
		t.Fatal(err)
	}
	defer subject.Close()
	pulled, err := there.Pull(t.Context(), subject, "")
	if err != nil {
		t.Fatal(err)
	}
	named, err := s.Store.FindImage("test:latest")
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, d := range first.Image.Refs() {
		n, err := s.Store.BlobSize(d)
		if err != nil {
			t.Fatal(err)
		}
		size += n
	}
	if first.Size != size || second.Size != size {
		t.Errorf("built with %d bytes and %d, of %d", first.Size, second.Size, size)
	}
	if pulled.Digest != named.Digest || pulled.Size != size || named.Size != size || pulled.FullName() != "out:latest" {
		t.Errorf("pulled %+v, built %+v, of %d bytes", pulled, named, size)
	}
}

// An image that will not run on its recipe's target is kept, and goes nowhere.
func TestBuildOfWhatWillNotRun(t *testing.T) {
	locktest.Isolate(t)
	const target = "fabric = \"slingshot\"\n[image]\nenv = { NCCL_NET = \"IB\" }\n" // Head ends in [target]
	dir := recipeOf(t, target, locktest.Wheel{Name: "alpha", Version: "1.0"})
	s, out := newSession(t), filepath.Join(t.TempDir(), "out.tar")
	o := engine.BuildOptions{Outputs: []string{out}}
	b, err := build(t.Context(), s, dir, engine.PlanOptions{}, o)
	if fault.CodeOf(err) != fault.CodeProblem || !strings.Contains(err.Error(), "NCCL_NET=IB") {
		t.Fatalf("%v, %+v", err, b)
	}
	if b == nil || b.Check == nil || b.Check.Errors == 0 || b.Outputs != nil {
		t.Errorf("%+v", b)
	}
	if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was written: %v", err)
	}
	if _, err := s.Store.FindImage("test:latest"); err != nil {
		t.Error(err)
	}

	// The record of a check says the same as the check.
	subject, err := s.Open("test:latest", engine.Wanted{})
	if err != nil {
		t.Fatal(err)
	}
	defer subject.Close()
	r, err := engine.LoadRecipe(dir, engine.Changes{})
	if err != nil {
		t.Fatal(err)
	}
	found, err := s.Check(t.Context(), subject, r.Target)
	if err != nil || found.Count != *b.Check {
		t.Errorf("checked again: %+v, %v; the build said %+v", found, err, b.Check)
	}
	again, err := build(t.Context(), s, dir, engine.PlanOptions{}, o)
	if err == nil || again == nil || *again.Check != *b.Check {
		t.Errorf("built again: %+v, %v", again, err)
	}

	if b, err = build(t.Context(), s, dir, engine.PlanOptions{NoCheck: true}, o); err != nil || b.Check != nil || len(b.Outputs) != 1 {
		t.Errorf("unchecked: %+v, %v", b, err)
	}
}

// The uv that a configuration asks for is the one that locks, also without a network once it has come.
func TestLockWithAnotherUV(t *testing.T) {
	real, said := tooltest.Path(t, "uv"), filepath.Join(t.TempDir(), "said")
	locktest.Isolate(t)
	wheel := locktest.File(t, map[string]string{"uv-9.9.9.data/scripts/uv": "#!/bin/sh\necho \"$@\" >>'" + said + "'\nexec '" + real + "' \"$@\"\n"})
	x := locktest.NewIndex(t, locktest.Wheel{Name: "alpha", Version: "1.0"})
	for _, machine := range []string{"x86_64", "aarch64"} {
		x.AddFile("uv-9.9.9-py3-none-musllinux_1_1_"+machine+".whl", wheel)
	}
	t.Setenv("UV_DEFAULT_INDEX", x.URL)
	hash := fmt.Sprintf("%x", sha256.Sum256(wheel))
	o := engine.Options{
		Dir: filepath.Join(t.TempDir(), "store"),
		UV:  &config.UV{Version: "9.9.9", SHA256: map[string]string{"amd64": hash, "arm64": hash}, File: "config.toml"},
	}
	for _, o.Offline = range []bool{false, true} {
		if err := os.RemoveAll(said); err != nil {
			t.Fatal(err)
		}
		s, err := engine.New(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		r, err := engine.LoadRecipe(locktest.Dir(t, locktest.Base{}, map[string]string{recipe.FileName: locktest.Head + "[python]\npackages = [\"alpha\"]\n"}), engine.Changes{})
		if err != nil {
			t.Fatal(err)
		}
		if l, err := s.Lock(t.Context(), r, engine.LockOptions{}); !o.Offline && (err != nil || len(l.Wheels) != 1) { // the sizes of packages that are not in the store are asked for
			t.Fatalf("%+v, %v", l, err)
		}
		if _, err := os.Stat(said); err != nil {
			t.Errorf("offline %t: another uv has locked: %v", o.Offline, err)
		}
		if path, version, ok := s.StoredUV(); !ok || version != "9.9.9" {
			t.Errorf("offline %t: the store has uv %s, %q, %t", o.Offline, version, path, ok)
		}
		s.Close()
	}
}

// What an earlier lock says counts until the recipe asks for something else.
func TestLock(t *testing.T) {
	locktest.Isolate(t)
	dir := recipeOf(t, "", locktest.Wheel{Name: "alpha", Version: "1.0"})
	s := newSession(t)
	lock := func() *engine.Locked {
		t.Helper()
		r, err := engine.LoadRecipe(dir, engine.Changes{})
		if err != nil {
			t.Fatal(err)
		}
		l, err := s.Lock(t.Context(), r, engine.LockOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.CheckLock(); err != nil {
			t.Error(err)
		}
		return l
	}
	if l := lock(); l.Fresh || len(l.Wheels) != 1 {
		t.Errorf("the first lock: %+v", l)
	}
	if l := lock(); !l.Fresh || len(l.Wheels) != 1 {
		t.Errorf("the second lock: %+v", l)
	}
	// One that cannot be read is written anew when somebody locks, and stops a build.
	locktest.Write(t, dir, map[string]string{"sconce.lock": "version = 99\n"})
	if _, err := build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{}); err == nil || !strings.Contains(err.Error(), "version is 99") {
		t.Errorf("a build with a lock of another version: %v", err)
	}
	if l := lock(); l.Fresh {
		t.Error("a lock of another version counts")
	}
}

func TestContainerfile(t *testing.T) {
	locktest.Isolate(t)
	dir := locktest.Dir(t, locktest.Base{}, map[string]string{"file": "hello", "kept-out": "x", "Containerfile.dockerignore": "kept-out\n"})
	s := newSession(t)
	var events locktest.Events
	p, err := s.PlanContainerfile(progress.With(t.Context(), &events), engine.Containerfile{
		File: filepath.Join(dir, "Containerfile"), Text: []byte("ARG V\nFROM tar:" + dir + "/base.tar\nARG V\nLABEL v=$V\nCOPY . /files/\n"),
		Context: dir, Name: "made:1", Platform: v1.Platform{OS: "linux", Architecture: "amd64"}, Args: map[string]string{"V": "7"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b, err := s.Build(t.Context(), p, engine.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := b.Image.Config.Config.Labels["v"]; got != "7" {
		t.Errorf("the label is %q", got)
	}
	tree, err := b.Image.Tree(t.Context(), s.Store)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := tree.ReadFile("files/file", 100); err != nil || string(data) != "hello" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := tree.Lookup("files/kept-out"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what the ignore file names: %v", err)
	}
}

// The layers of a base count where a command would stand on more than can be stacked: 500 commands are one too many on a base of
// one layer.
func TestContainerfileDepth(t *testing.T) {
	locktest.Isolate(t)
	dir := locktest.Dir(t, locktest.Base{}, nil)
	s := newSession(t)
	for commands, fails := range map[int]bool{499: false, 500: true} {
		p, err := s.PlanContainerfile(t.Context(), engine.Containerfile{
			File: "Containerfile", Text: []byte("FROM tar:" + dir + "/base.tar\n" + strings.Repeat("RUN x\n", commands)),
			Context: dir, Platform: v1.Platform{OS: "linux", Architecture: "amd64"},
		})
		if (err != nil) != fails || fails && !strings.Contains(err.Error(), "Containerfile:501: RUN x: it is based on 500 layers") {
			t.Errorf("%d commands: %v", commands, err)
		}
		if err == nil {
			p.Close()
		}
	}
}

// A copy to a squashfs and on to a SIF is the same image, and needs the store for neither.
func TestCopy(t *testing.T) {
	locktest.Isolate(t)
	dir := locktest.Dir(t, locktest.Base{}, nil)
	s := newSession(t)
	from := "tar:" + filepath.Join(dir, "base.tar")
	for _, name := range []string{"a.sqsh", "b.sif", "c.tar"} {
		to := filepath.Join(dir, name)
		subject, err := s.Open(from, engine.Wanted{})
		if err != nil {
			t.Fatal(err)
		}
		if pushed, err := s.Copy(t.Context(), subject, to, engine.Writing{}); err != nil || pushed != "" {
			t.Fatalf("copy %s to %s: %q, %v", from, to, pushed, err)
		}
		subject.Close()
		if _, err := os.Stat(to); err != nil {
			t.Fatal(err)
		}
		from = to
	}
	if images, err := s.Store.Images(); err != nil || len(images) != 0 {
		t.Errorf("images have names: %v, %v", images, err)
	}
}

// A page and an explanation need no layer of which the store knows what they ask.
func TestQuestionsWithoutLayers(t *testing.T) {
	locktest.Isolate(t)
	dir := recipeOf(t, "", locktest.Wheel{Name: "alpha", Version: "1.0"})
	layout := "oci:" + filepath.Join(t.TempDir(), "layout")
	b, err := build(t.Context(), newSession(t), dir, engine.PlanOptions{}, engine.BuildOptions{Outputs: []string{layout}})
	if err != nil {
		t.Fatal(err)
	}
	s, page := newSession(t), filepath.Join(t.TempDir(), "page.html")
	ask := func() (string, *slim.Report) {
		t.Helper()
		subject, err := s.Open(layout, engine.Wanted{})
		if err != nil {
			t.Fatal(err)
		}
		defer subject.Close()
		if _, err := s.Page(t.Context(), subject, engine.Target{}, page, false); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.ExplainSlim(t.Context(), subject, slim.Options{GPUs: []int{90}, Remove: []string{"__init__.py"}})
		if err != nil {
			t.Fatal(err)
		}
		return string(text), r
	}
	before, explained := ask()
	if !strings.Contains(before, "alpha") || len(explained.Removed) == 0 {
		t.Fatalf("the page has %d bytes; %+v", len(before), explained)
	}
	for _, l := range b.Image.Layers {
		path, err := s.Store.BlobPath(l.Digest)
		if err != nil {
			t.Fatal(err)
		}
		os.Remove(path)
		os.Remove(filepath.Join(strings.TrimPrefix(layout, "oci:"), "blobs", "sha256", l.Digest.Hex()))
	}
	if after, again := ask(); after != before || !reflect.DeepEqual(again, explained) {
		t.Errorf("without the layers the page has %d bytes, with them %d; %+v, %+v", len(after), len(before), again, explained)
	}
}
