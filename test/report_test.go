package test

import (
	"archive/tar"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/tooltest"
)

// A page is looked at in a real browser: test/browser/report.mjs says what is expected of it.
func TestReportInBrowser(t *testing.T) {
	begin(t)
	node, chromium := tooltest.Path(t, "node"), tooltest.Path(t, "chromium")
	playwright, err := filepath.Abs("../.tools/playwright-core")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(playwright, "node_modules")); err != nil {
		tooltest.Missing(t, "playwright-core is not in .tools: scripts/setup.sh puts it there")
	}
	p := newPlace(t, nil)
	ref := hostileLayout(t, p.path("layout"))
	p.own()
	p.write("here.toml", "platform = \"linux/"+goArch()+"\"\ngpu = [\"9.0\"]\ndriver = \"550.54\"\n")
	page := p.path("report.html")
	p.must("inspect", "--html", page, ref, "--cluster", "./here.toml")
	out, err := exec.CommandContext(t.Context(), node, "browser/report.mjs", playwright, chromium, page).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// hostileLayout writes an image of PyTorch's kind whose file names are made to break a page.
func hostileLayout(t *testing.T, dir string) string {
	t.Helper()
	device, err := os.ReadFile("../internal/fatbin/testdata/host.so")
	if err != nil {
		t.Fatal(err)
	}
	libraries, err := filepath.Glob("/lib/*/libdl.so.2") // as small as a stub of the driver, and for this machine
	if err != nil || len(libraries) == 0 {
		tooltest.Missing(t, "no libdl.so.2 of the C library here to make a stub from")
	}
	stub, err := os.ReadFile(libraries[0])
	if err != nil {
		t.Fatal(err)
	}
	bytes := func(n int) string { return strings.Repeat("x", n) }
	base := newTarLayer(t)
	base.dir("data", "data/deep", "data/deep/er", "usr", "usr/bin", "usr/lib", "usr/local", "usr/local/cuda", "usr/local/cuda/lib64", "usr/local/cuda/lib64/stubs")
	base.add(tar.Header{Name: "usr/bin/tool", Mode: 0o4755}, bytes(300_000))
	base.file("usr/local/cuda/lib64/stubs/libcuda.so.1", string(stub))
	base.file("data/four.bin", bytes(400_000))
	base.file("data/replaced.bin", bytes(250_000))
	base.add(tar.Header{Name: "data/\u202e</title><script>alert(3)</script>.so"}, bytes(900_000))
	top := newTarLayer(t)
	top.dir("data", "data/deep", "data/deep/er")
	top.file("data/replaced.bin", bytes(100_000))
	top.file("data/deep/er/one", bytes(1_000_000))
	top.file("data/deep/er/two", bytes(800_000))
	top.file("data/<\u2044script><img src=x onerror=alert(2)>", bytes(500_000))
	top.file("data/right\u202eleft\n\xff.bin", bytes(300_000))
	top.dir("data/<")
	top.file("data/</script><img src=x onerror=alert(1)>", bytes(500_000))
	site := "usr/lib/python3.11/site-packages"
	top.dir("usr", "usr/lib", "usr/lib/python3.11", site, site+"/torch", site+"/torch-2.9.0.dist-info")
	top.file(site+"/torch/libtorch_cuda.so", string(device))
	top.file(site+"/torch/__init__.py", bytes(120_000))
	top.file(site+"/torch-2.9.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n")
	top.file(site+"/torch-2.9.0.dist-info/RECORD", "torch/libtorch_cuda.so,,\ntorch/__init__.py,,\ntorch-2.9.0.dist-info/METADATA,,\n")
	return writeLayout(t, dir, v1.Config{
		Env:    []string{"PATH=/usr/bin", "LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs", "NASTY=</td><script>alert(4)</script>\x1b[31m"},
		Labels: map[string]string{"<b onmouseover=alert(5)>": "\"'><svg onload=alert(6)>"},
	}, base.gzipped(), top.gzipped())
}

// The page of an image is the same wherever the image is and however often it is made; only a page is replaced.
func TestReportFile(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	ref := stubbed(t, p.path("layout"))
	p.must("pull", ref, "--name", "stubbed:1")
	p.must("copy", "stubbed:1", "stubbed.sqsh")
	p.must("copy", "stubbed:1", "stubbed.sif")
	p.must("inspect", "--html", "report.html", "stubbed:1")
	first := p.read("report.html")
	p.must("inspect", "--html", "report.html", "stubbed:1")
	if p.read("report.html") != first {
		t.Error("the second page differs from the first")
	}
	for _, file := range []string{"stubbed.sqsh", "stubbed.sif"} {
		p.must("inspect", "--html", "report.html", file, "--cluster", "h100-infiniband")
		if page := p.read("report.html"); !strings.Contains(page, "driver-stubs-on-path") || !strings.Contains(page, "h100-infiniband") || strings.Contains(page, `id="layers"`) {
			t.Errorf("the page of %s lacks what the check finds, or has layers:\n%.2000s", file, page)
		}
	}
	p.write("notes.html", "<p>mine</p>")
	p.fails(1, []string{"something else is there", "--force"}, "inspect", "--html", "notes.html", "stubbed:1")
	if p.read("notes.html") != "<p>mine</p>" {
		t.Error("a file of the user's was replaced")
	}
	p.must("inspect", "--html", "notes.html", "stubbed:1", "--force")
	p.fails(2, []string{"--html"}, "inspect", "stubbed:1", "--cluster", "h100-infiniband")
	p.fails(1, []string{"no-such-dir"}, "inspect", "--html", "no-such-dir/x.html", "stubbed:1")
	if left, _ := filepath.Glob(p.path(".*.sconce-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
