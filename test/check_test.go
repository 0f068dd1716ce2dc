package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/tooltest"
)

// finding is what a test looks at in `sconce check --json`.
type finding struct {
	Rule, Severity, Message, Path, Remedy, Allowed string
	Seen                                           []string
}

type verdict struct {
	Platform string
	Findings []finding
	Errors   int
	Warnings int
}

// check runs sconce check, which has to end with a code, and returns what it found.
func (p *place) check(code int, args ...string) verdict {
	p.t.Helper()
	r := p.sconce(append([]string{"check", "--json"}, args...)...)
	if r.code != code {
		p.t.Fatalf("exit code %d, want %d: %v", r.code, code, r)
	}
	var v verdict
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil {
		p.t.Fatalf("%v: %v", err, r)
	}
	return v
}

// find returns the finding of a rule.
func (v verdict) find(t *testing.T, rule string) finding {
	t.Helper()
	for _, f := range v.Findings {
		if f.Rule == rule {
			return f
		}
	}
	t.Errorf("%s found nothing: %+v", rule, v.Findings)
	return finding{}
}

// stubbed writes an image of PyTorch's kind in which the loader finds the toolkit's stub of libcuda before any driver.
func stubbed(t *testing.T, dir string) string {
	t.Helper()
	libraries, err := filepath.Glob("/lib/*/libdl.so.2") // as small as a stub, and for this machine
	if err != nil || len(libraries) == 0 {
		tooltest.Missing(t, "no libdl.so.2 of the C library here to make a stub from")
	}
	data, err := os.ReadFile(libraries[0])
	if err != nil {
		t.Fatal(err)
	}
	l := newTarLayer(t)
	l.dir("usr", "usr/bin", "usr/local", "usr/local/cuda", "usr/local/cuda/lib64", "usr/local/cuda/lib64/stubs")
	l.file("usr/local/cuda/lib64/stubs/libcuda.so.1", string(data))
	return writeLayout(t, dir, v1.Config{Env: []string{
		"PATH=/usr/bin", "LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs",
		"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
	}}, l.gzipped())
}

// The same image gives the same verdict wherever it is.
func TestCheckFromAnywhere(t *testing.T) {
	begin(t)
	p := newPlace(t, nil)
	ref := stubbed(t, p.path("layout"))
	p.own()
	p.must("pull", ref, "--name", "stubbed:1")
	p.must("copy", "stubbed:1", "stubbed.sqsh")
	p.must("copy", "stubbed:1", "stubbed.sif")
	otherPlatform := map[string]string{"amd64": "linux/arm64", "arm64": "linux/amd64"}[goArch()]
	refs := []string{ref, "stubbed:1", "stubbed.sqsh", "stubbed.sif"}
	host := registrytest.Start(t, false)
	var sent struct{ Pushed []string }
	pushed := p.must("push", "stubbed:1", host+"/stubbed:1", "--json")
	if err := json.Unmarshal([]byte(pushed.stdout), &sent); err != nil || len(sent.Pushed) != 1 || !strings.HasPrefix(sent.Pushed[0], host+"/stubbed:1@sha256:") {
		t.Errorf("push --json: %v, %s", err, pushed.stdout)
	}
	refs = append(refs, "docker://"+host+"/stubbed:1")
	for _, ref := range refs {
		v := p.check(3, ref, "--gpu", "9.0", "--driver", "550.54")
		f := v.find(t, "driver-stubs-on-path")
		if f.Severity != "error" || !strings.Contains(f.Message, "/usr/local/cuda/lib64/stubs") || f.Remedy == "" || v.Errors != 1 || v.Platform != "linux/"+goArch() {
			t.Errorf("%s: %+v", ref, v)
		}
		v = p.check(0, ref, "--gpu", "9.0", "--allow", "driver-stubs-on-path=the job unsets LD_LIBRARY_PATH")
		if f := v.find(t, "driver-stubs-on-path"); f.Allowed != "the job unsets LD_LIBRARY_PATH" {
			t.Errorf("%s: %+v", ref, f)
		}
		// An image for the wrong processor is no mistake in the command, but what the check is for.
		if f := p.check(3, ref, "--platform", otherPlatform).find(t, "link-cpu-architecture"); !strings.Contains(f.Message, otherPlatform) {
			t.Errorf("%s: %+v", ref, f)
		}
	}
}

// An environment's image is judged wherever it is: a file, one of the store, and by its configuration one in a registry, which is
// asked when that is wanted.
func TestLintOfImages(t *testing.T) {
	begin(t)
	p := newPlace(t, nil)
	ref := stubbed(t, p.path("layout"))
	p.own()
	p.must("pull", ref, "--name", "stubbed:1")
	p.must("copy", "stubbed:1", "stubbed.sqsh")
	host := registrytest.Start(t, false)
	p.must("push", "stubbed:1", host+"/stubbed:1")
	other := map[string]string{"amd64": "linux/arm64", "arm64": "linux/amd64"}[goArch()]
	p.write("other.toml", fmt.Sprintf("platform = %q\n", other))
	for image, options := range map[string][]string{
		"stubbed:1": nil, "./stubbed.sqsh": nil, host + "/stubbed:1": {"--remote"}, host + "#stubbed:1": {"--remote"},
	} {
		p.write("env.toml", fmt.Sprintf("image = %q\n", image))
		r := p.sconce(append([]string{"lint", "env.toml", "--cluster", "./other.toml"}, options...)...)
		if r.code != 3 || !strings.Contains(r.stdout, "[edf-image-arch]") {
			t.Errorf("%s: %v", image, r)
		}
	}
	p.write("env.toml", fmt.Sprintf("image = %q\n", host+"/stubbed:1"))
	if r := p.must("lint", "env.toml", "--cluster", "./other.toml"); !strings.Contains(r.stdout, "not judged: ") {
		t.Errorf("a registry was asked: %v", r)
	}
}

// A build of what will not run on its target makes no files and sends nothing; without the check it does, and says so.
func TestBuildOfWhatWillNotRun(t *testing.T) {
	begin(t)
	host, seen := watch(t, registrytest.Start(t, false))
	p := newPlace(t, ordinary(t))
	ref := stubbed(t, p.path("layout"))
	p.write("app/sconce.toml", "name = \"app\"\nversion = \"1\"\nbase.image = \""+ref+"\"\ntarget.gpu = [\"9.0\"]\n")
	output, pushed := p.path("app.tar"), host+"/team/app:1"
	for range 2 { // remembered, it is no better
		p.fails(3, []string{"driver-stubs-on-path", "will not run", "app:1"}, "build", "app", "-o", output, "--push", pushed)
		if _, err := os.Lstat(output); err == nil {
			t.Fatal("the image was written")
		}
		if n := seen.take(); n["upload"]+n["data"]+n["manifest"] != 0 {
			t.Fatalf("the image was pushed: %v", n)
		}
	}
	if r := p.must("images"); !strings.Contains(r.stdout, "app") {
		t.Errorf("the image is not in the store: %v", r)
	}
	p.check(3, "--recipe", "app")
	unchecked := p.build("app", "--no-check", "-o", output, "--push", pushed)
	if n := seen.take(); n["manifest"] != 1 {
		t.Errorf("requests of the push: %v", n)
	}
	if r := p.must("inspect", output); !strings.Contains(r.stdout, "dev.sconce.unchecked=true") {
		t.Errorf("no label says that nobody looked: %v", r)
	}
	p.write("app/sconce.toml", "name = \"app\"\nversion = \"1\"\nbase.image = \""+ref+"\"\ntarget.gpu = [\"9.0\"]\n"+
		"[check]\nallow = { driver-stubs-on-path = \"the job unsets LD_LIBRARY_PATH\" }\n")
	if checked := p.build("app", "--force", "-o", output); checked == unchecked {
		t.Error("the image says of itself that it was not checked")
	}
	again := p.must("build", "app")
	if !strings.Contains(again.stderr, "up to date") || strings.Contains(again.stderr, "scan ") {
		t.Errorf("a build with nothing to do did something: %v", again)
	}
	p.wantSound()
	p.wantTidy()
}

// A recipe for one GPU makes an image without the code for others, which says so and is made once.
func TestBuildSlims(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	data, err := os.ReadFile("../internal/fatbin/testdata/host.so")
	if err != nil {
		t.Fatal(err)
	}
	p.write("root/usr/bin/empty", "")
	p.write("root/usr/lib/libkernels.so", string(data))
	text := "name = \"app\"\nversion = \"1\"\nbase.image = \"dir:../root\"\ntarget = { platform = \"linux/amd64\", gpu = [\"9.0\"] }\n"
	p.write("app/sconce.toml", text)
	whole := p.build("app")
	p.write("app/sconce.toml", text+"[slim]\ngpu = true\nptx = \"drop-where-native\"\n")
	r := p.must("build", "app")
	slimmed := digestOf(t, r)
	if slimmed == whole || !strings.Contains(r.stderr, "slimmed to GPU 9.0: ") {
		t.Errorf("nothing was slimmed: %v", r)
	}
	if r := p.must("inspect", "app:1"); !strings.Contains(r.stdout, "dev.sconce.slim=9.0") {
		t.Errorf("the label is missing: %v", r)
	}
	if r := p.must("inspect", "--gpu", "app:1"); strings.Contains(r.stdout, "sm_75") || !strings.Contains(r.stdout, "sm_90a") {
		t.Errorf("the wrong code stays: %v", r)
	}
	if again := p.must("build", "app"); digestOf(t, again) != slimmed || !strings.Contains(again.stderr, "up to date") {
		t.Errorf("built again: %v", again)
	}
	p.check(3, "app:1", "--gpu", "8.0").find(t, "gpu-slimmed-for-other")
	p.write("app/sconce.toml", text)
	if again := p.build("app"); again != whole {
		t.Errorf("without slimming the image is %s, want %s", again, whole)
	}
	p.wantSound()
	p.wantTidy()
}
