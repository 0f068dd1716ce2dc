package test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/child/childtest"
	"sconce.dev/sconce/internal/tooltest"
)

const sitePackages = "usr/lib/python3/site-packages"

// torchRoot makes a root file system with a Python package that has device code for several GPUs, as pip installs it.
func torchRoot(t *testing.T, p *place, name string) {
	t.Helper()
	lib, err := os.ReadFile("../internal/fatbin/testdata/host.so")
	if err != nil {
		t.Fatal(err)
	}
	filler := make([]byte, 24<<20) // so that there is some work to be stopped at
	r := rand.New(rand.NewPCG(1, 2))
	for i := range filler {
		filler[i] = byte(r.IntN(32))
	}
	var record strings.Builder
	for _, f := range []struct {
		path string
		data []byte
	}{
		{"torch/__init__.py", []byte("version = 1\n")},
		{"torch/lib/libtorch_cuda.so", lib},
		{"torch/lib/filler.bin", filler},
		{"torch-2.7.0.dist-info/METADATA", []byte("Metadata-Version: 2.1\nName: torch\nVersion: 2.7.0\n")},
	} {
		p.write(filepath.Join(name, sitePackages, f.path), string(f.data))
		sum := sha256.Sum256(f.data)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", f.path, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.data))
	}
	record.WriteString("torch-2.7.0.dist-info/RECORD,,\n")
	p.write(filepath.Join(name, sitePackages, "torch-2.7.0.dist-info/RECORD"), record.String())
	if err := os.Link(p.path(name, sitePackages, "torch/lib/libtorch_cuda.so"), p.path(name, "usr/lib/libtorch_cuda.so")); err != nil {
		t.Fatal(err)
	}
	// The times are part of the image.
	err = filepath.WalkDir(p.path(name), func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chtimes(path, time.Unix(1e9, 0), time.Unix(1e9, 0))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkInstalled has Python look whether all files of an installed package are what its RECORD says.
func checkInstalled(t *testing.T, root string) {
	t.Helper()
	const program = `
import base64, hashlib, importlib.metadata, sys
files = importlib.metadata.Distribution.at(sys.argv[1]).files
hashed = [f for f in files if f.hash]
for f in hashed:
    data = f.locate().read_bytes()
    got = base64.urlsafe_b64encode(hashlib.new(f.hash.mode, data).digest()).rstrip(b"=").decode()
    assert (got, len(data)) == (f.hash.value, f.size), f
print(len(hashed))
`
	if out := do(t, "python3", "-c", program, filepath.Join(root, sitePackages, "torch-2.7.0.dist-info")); out != "4\n" {
		t.Errorf("Python checked %q", out)
	}
}

// slimReport is what `sconce slim --json` prints, as far as it matters here.
type slimReport struct {
	Digest string
	Name   string
	Before int64
	After  int64
	Files  []struct {
		Path          string
		Kept, Dropped []struct{ Kind, Arch string }
	}
	Layers []struct{ Digest, Slimmed string }
}

func slimJSON(t *testing.T, r result) slimReport {
	t.Helper()
	var report slimReport
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("%v: %v", err, r)
	}
	return report
}

// kept lists what stays in the one library.
func (r slimReport) kept() string {
	if len(r.Files) != 1 {
		return fmt.Sprintf("%d files", len(r.Files))
	}
	var names []string
	for _, c := range r.Files[0].Kept {
		names = append(names, c.Kind+c.Arch)
	}
	return strings.Join(names, " ")
}

// An image is slimmed from the store and from a file, into the store and into files, and Python finds its package whole.
func TestSlim(t *testing.T) {
	begin(t)
	tooltest.Path(t, "python3")
	tooltest.Path(t, "unsquashfs")
	p := newPlace(t, nil)
	torchRoot(t, p, "root")
	p.must("pull", "dir:root", "--platform", "linux/amd64", "--name", "torch:1")

	explained := slimJSON(t, p.must("slim", "torch:1", "--gpu", "9.0", "--explain", "--json"))
	if explained.Digest != "" || explained.Before <= explained.After || len(explained.Files) != 1 {
		t.Errorf("explained: %+v", explained)
	}
	if names := p.must("images", "--names").stdout; names != "torch:1\n" {
		t.Errorf("after explaining there is %q", names)
	}
	done := slimJSON(t, p.must("slim", "torch:1", "--gpu", "9.0", "--json"))
	if done.Name != "torch:1-sm90" || done.Before != explained.Before || done.After != explained.After || len(done.Layers) != 1 {
		t.Errorf("done: %+v, explained: %+v", done, explained)
	}
	if got := done.kept(); got != "sass90a ptx75 ptx80" {
		t.Errorf("what stays is %s", got)
	}
	if got := slimJSON(t, p.must("slim", "torch:1-sm90", "--gpu", "9.0", "--explain", "--json")); got.kept() != done.kept() || len(got.Files[0].Dropped) > 0 {
		t.Errorf("in the new image there is %+v", got)
	}
	if r := p.must("inspect", "torch:1-sm90"); !strings.Contains(r.stdout, "dev.sconce.slim") {
		t.Errorf("there is no label: %v", r)
	}
	p.must("copy", "torch:1-sm90", "dir:out")
	checkInstalled(t, p.path("out"))

	r := p.must("slim", "torch:1", "--gpu", "sm_90", "-o", "slim.sqsh")
	if !strings.Contains(r.stdout, "libtorch_cuda.so") {
		t.Errorf("no table: %v", r)
	}
	do(t, "unsquashfs", "-no-progress", "-d", p.path("unsquashed"), p.path("slim.sqsh"))
	checkInstalled(t, p.path("unsquashed"))

	p.must("copy", "torch:1", "full.sqsh")
	small := slimJSON(t, p.must("slim", "full.sqsh", "--gpu", "9.0", "--ptx", "drop-where-native", "-o", "small.sqsh", "--json"))
	if small.After >= done.After || small.Before != done.Before || small.Name != "" {
		t.Errorf("with less PTX: %+v", small)
	}
	do(t, "unsquashfs", "-no-progress", "-d", p.path("small"), p.path("small.sqsh"))
	checkInstalled(t, p.path("small"))

	if r := p.must("slim", "torch:1-sm90", "--gpu", "9.0", "-o", "oci:again"); !strings.HasSuffix(r.stderr, "wrote oci:again\nthere is nothing in torch:1-sm90 to remove: it is the same image\n") {
		t.Errorf("slim twice: %v", r)
	}
	p.fails(1, []string{"slimmed for compute capability 9.0 before", "hint: start from the image"}, "slim", "torch:1-sm90", "--gpu", "8.0;9.0")
	p.fails(2, []string{"--gpu is missing"}, "slim", "torch:1")
	p.fails(2, []string{"the nearest is 9.0"}, "slim", "torch:1", "--gpu", "9.1")
	p.fails(2, []string{"--name NAME:TAG"}, "slim", "full.sqsh", "--gpu", "9.0")
	p.wantSound()
	p.wantTidy()
}

// Slimming is killed again and again, each time a little later: what is left in the store is sound, and in the end the image is what
// one undisturbed run makes.
func TestSlimKilled(t *testing.T) {
	begin(t)
	calm := newPlace(t, nil)
	torchRoot(t, calm, "root")
	calm.must("pull", "dir:root", "--platform", "linux/amd64", "--name", "torch:1")
	want := slimJSON(t, calm.must("slim", "torch:1", "--gpu", "9.0", "--json")).Digest

	p := newPlace(t, nil)
	torchRoot(t, p, "root")
	p.must("pull", "dir:root", "--platform", "linux/amd64", "--name", "torch:1")
	killed := 0
	for step := 1; step < 20; step++ {
		if !killSlim(t, p, step) {
			break
		}
		killed++
		p.wantSound()
	}
	if killed < 3 { // slimming and rewriting begin and end
		t.Errorf("only %d runs were killed", killed)
	}
	if got := slimJSON(t, p.must("slim", "torch:1", "--gpu", "9.0", "--json")).Digest; got != want {
		t.Errorf("after all the kills the image is %s, want %s", got, want)
	}
	p.must("cache", "prune", "--all")
	p.wantSound()
	p.wantTidy()
}

// killSlim kills a run between its step-th event and the next; false when it came to its end before.
func killSlim(t *testing.T, p *place, step int) bool {
	t.Helper()
	cmd := p.command("--progress", "json", "slim", "torch:1", "--gpu", "9.0")
	lines := childtest.Start(t, cmd, &cmd.Stderr)
	for lines.Scan() {
		if step--; step == 0 {
			time.Sleep(rand.N(10 * time.Millisecond))     // anywhere on the way to the next
			_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // it may just have ended
		}
	}
	return cmd.Wait() != nil
}
