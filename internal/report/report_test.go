package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/tooltest"
)

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"plain/naïve-名前": "plain/naïve-名前",
		"a\nb\x1b[1m":    `a\u{a}b\u{1b}[1m`,
		"x\u202egnp.exe": `x\u{202e}gnp.exe`,
		"\xffa\xc3":      `\xffa\xc3`,
		"a\u2028\u200bb": `a\u{2028}\u{200b}b`,
		"\ufffd":         "\ufffd",
		"</script><!--":  "</script><!--",
		"מה":             "מה",
	} {
		if got := visible(in); got != want {
			t.Errorf("visible(%q) is %q, want %q", in, got, want)
		}
	}
	if got := shown(strings.Repeat("é", maxText)); len(got) > maxText+8 || !strings.HasSuffix(got, "é …") {
		t.Errorf("cut to %d bytes, ending in %q", len(got), got[len(got)-8:])
	}
}

// example is a report in which every text is hostile.
func example(files int) *Report {
	const evil = "</script><img src=x onerror=alert(1)>\u202e\x00\xff{{.}}"
	r := &Report{
		Facts: &facts.Facts{
			Image: evil, Digest: "sha256:" + evil, Platform: "linux/amd64", Warnings: []string{evil},
			Config: v1.Config{Env: []string{"A=" + evil, "CUDA_VERSION=13.0.1"}, Labels: map[string]string{evil: evil}, User: evil, Entrypoint: []string{evil}},
			GPU: &facts.GPUReport{
				Size: 1000,
				Libraries: []facts.Library{{
					Path: "opt/" + evil, Group: evil, Size: 1000, Linked: true, ROCm: []string{evil},
					SASS: []facts.Code{{Arch: "90", Size: 600}}, PTX: []facts.Code{{Arch: "90", Size: 300}},
				}},
				Architectures: []facts.ArchTotal{{Kind: "sass", Arch: "90", Size: 600}, {Kind: "ptx", Arch: "90", Size: 300}},
				Capabilities:  []facts.Capability{{Capability: "8.0", Without: []string{evil}}, {Capability: "9.0", Native: 1, Driver: evil}},
			},
			Pythons: []facts.Python{{Dir: "site-packages", Version: evil, Distributions: []facts.Distribution{{Name: "torch", Version: evil, Dir: "site-packages/torch-1.dist-info"}}}},
		},
		Findings: []audit.Finding{{Rule: "r", Severity: audit.Error, Message: evil, Seen: []string{evil}, Why: evil, Remedy: evil, Path: evil}},
		Target:   cluster.Profile{Name: evil, Description: evil, GPU: []string{"9.0"}, MPI: evil}, NotJudged: []string{"driver"},
		Layers: []Layer{{Digest: "sha256:0123456789abcdef", CreatedBy: evil, Stored: 10, Unpacked: 1 << 40}, {CreatedBy: evil}},
	}
	for i := range files {
		r.Files = append(r.Files, File{Path: fmt.Sprintf("dir%d/sub%d/%s%d", i%97, i%11, evil, i), Size: int64(i*i) % 99991, Layer: i % 2})
	}
	return r
}

func write(t *testing.T, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Nothing of an image is markup, in HTML or in JSON, and the page is the same each time.
func TestHostileText(t *testing.T) {
	page := write(t, example(100))
	if again := write(t, example(100)); again != page {
		t.Error("the same report gives another page")
	}
	if n := strings.Count(page, "</script"); n != 2 {
		t.Errorf("%d scripts end, want 2", n)
	}
	for _, bad := range []string{"<img", "\x00", "\u202e", "\xff", "ZgotmplZ"} {
		if strings.Contains(strings.ReplaceAll(page, pageJS, ""), bad) {
			at := strings.Index(page, bad)
			t.Errorf("the page has %q: %.200q", bad, page[max(at-100, 0):])
		}
	}
	if strings.Contains(pageJS, "</") || strings.Contains(pageJS, "<!--") || strings.Contains(pageCSS, "</") {
		t.Error("the script or the style would end too early")
	}
	for _, part := range []string{"<style>" + pageCSS + "</style>", "<script>" + pageJS + "</script>"} {
		if !strings.Contains(page, part) {
			t.Error("a part is not on the page as its hash in the policy has it")
		}
	}
	if regexp.MustCompile(`(src|href)="?(https?:|//)|url\(["']?(https?:|//|data:)|@import`).MatchString(page) {
		t.Error("the page refers to something outside")
	}
}

// encoded is the tree of a page.
func encoded(t *testing.T, page string) (d jsonDir) {
	t.Helper()
	_, rest, _ := strings.Cut(page, `<script type="application/json" id="data">`)
	text, _, _ := strings.Cut(rest, "</script>")
	var data struct{ Tree jsonDir }
	if err := json.Unmarshal([]byte(text), &data); err != nil {
		t.Fatal(err)
	}
	return data.Tree
}

func (j *jsonDir) sums() (size, files, named int) {
	for i := 0; i < len(j.Files); i += 5 {
		size += int(j.Files[i+1].(float64))
		if n, many := j.Files[i].(float64); many {
			files += int(n)
		} else {
			files, named = files+1, named+1
		}
	}
	for _, d := range j.Dirs {
		s, f, n := d.sums()
		size, files, named = size+s, files+f, named+n
	}
	return size, files, named
}

// However many files there are, the page stays small, and no byte and no file is lost.
func TestManyFiles(t *testing.T) {
	for _, n := range []int{0, 1, 5000, 120_000} {
		if n > 5000 && tooltest.Less(t) {
			continue
		}
		r := example(n)
		page := write(t, r)
		if len(page) > 3_000_000 {
			t.Errorf("%d files make a page of %d bytes", n, len(page))
		}
		want := 0
		for _, f := range r.Files {
			want += int(f.Size)
		}
		tree := encoded(t, page)
		size, files, named := tree.sums()
		if size != want || files != n {
			t.Errorf("the page has %d bytes in %d files, want %d in %d", size, files, want, n)
		}
		if n <= 5000 && named != n || n > 5000 && (named < 3000 || !strings.Contains(page, "are put together")) {
			t.Errorf("of %d files %d have their names", n, named)
		}
	}
}

// Packages and layers without end make no page without end.
func TestManyOfAll(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	r := example(0)
	for i := range 20_000 {
		r.Layers = append(r.Layers, Layer{CreatedBy: strings.Repeat("x", 10_000)})
		r.Files = append(r.Files, File{Path: fmt.Sprintf("site-packages/p%d/f", i), Size: 1, Layer: i})
		r.Findings = append(r.Findings, audit.Finding{Rule: fmt.Sprint(i), Message: strings.Repeat("y", 1000)})
		r.Facts.Config.Env = append(r.Facts.Config.Env, strings.Repeat("z", 1000))
	}
	page := write(t, r)
	if len(page) > 12_000_000 {
		t.Errorf("the page has %d bytes", len(page))
	}
	for _, told := range []string{"more; <code>sconce check --json</code>", "; the largest 1000", "; the first 300 of 20002", "which is left out here"} {
		if !strings.Contains(page, told) {
			t.Errorf("the page does not say %q", told)
		}
	}
}

func TestGroupFindings(t *testing.T) {
	var findings []audit.Finding
	for i := range 50 {
		findings = append(findings, audit.Finding{Rule: "a", Severity: audit.Error, Message: fmt.Sprint(i), Seen: make([]string, 100)})
	}
	findings = append(findings, audit.Finding{Rule: "a", Severity: audit.Warning}, audit.Finding{Rule: "b", Severity: audit.Error, Allowed: "fine"}, audit.Finding{Rule: "c", Severity: audit.Note})
	groups := groupFindings(findings)
	var got []string
	for _, g := range groups {
		got = append(got, fmt.Sprint(g.Rule, " ", g.Kind(), " ", g.Total(), " ", len(g.All())))
	}
	if want := "[a error 50 30 a warning 1 1 c note 1 1 b allowed 1 1]"; fmt.Sprint(got) != want {
		t.Errorf("groups are %v, want %s", got, want)
	}
	if n := len(groups[0].Seen); n != maxLines+1 {
		t.Errorf("%d lines are shown of 100", n)
	}
}

func TestOwnersByName(t *testing.T) {
	o := newOwners(&facts.Facts{Pythons: []facts.Python{{Dir: "v/site-packages", Distributions: []facts.Distribution{
		{Name: "torch", Dir: "v/site-packages/torch-2.9.0+cu128.dist-info"},
		{Name: "ruamel-yaml", Dir: "v/site-packages/ruamel.yaml-1.dist-info"},
		{Name: "numpy", Dir: "v/site-packages/numpy-2.dist-info"},
		{Name: "six", Dir: "v/site-packages/six-1.dist-info"},
	}}}})
	for file, want := range map[string]string{
		"v/site-packages/torch/lib/libtorch.so":                 "torch",
		"v/site-packages/torch-2.9.0+cu128.dist-info/RECORD":    "torch",
		"v/site-packages/numpy.libs/libopenblas.so":             "numpy",
		"v/site-packages/six.py":                                "six",
		"v/site-packages/__pycache__/six.cpython-311.pyc":       "six",
		"v/site-packages/_yaml.cpython-311-x86_64-linux-gnu.so": "_yaml",
		"v/site-packages/nobody/x":                              "nobody",
		"v/bin/torchrun":                                        "",
		"usr/lib/python3.11/os.py":                              "",
		"site-packages/x":                                       "",
	} {
		if got := o.packages[o.of(file)].Name; got != want {
			t.Errorf("%s belongs to %q, want %q", file, got, want)
		}
	}
}

// memory is a root file system of a few files.
type memory map[string]string

type memoryFile struct{ *strings.Reader }

func (memoryFile) Close() error { return nil }

func (m memory) Resolve(name string) (string, error) { return name, nil }
func (m memory) ReadDir(string) ([]string, error)    { return nil, nil }
func (m memory) All(func(facts.Info) error) error    { return nil }
func (m memory) Open(name string) (elfx.Handle, error) {
	return memoryFile{strings.NewReader(m[name])}, nil
}

func (m memory) Stat(name string) (facts.Info, error) {
	text, ok := m[name]
	if !ok {
		return facts.Info{}, os.ErrNotExist
	}
	return facts.Info{Size: int64(len(text))}, nil
}

// A package's own list goes before names: of packages that share a directory, and of files outside.
func TestOwnersByRecord(t *testing.T) {
	const site = "opt/venv/lib/python3.11/site-packages"
	o := newOwners(&facts.Facts{
		Root: memory{
			"/" + site + "/nvidia_cublas-13.dist-info/RECORD": "nvidia/cu13/lib/libcublas.so.13,sha256=x,1\nnvidia/cu13/include/cublas.h,,\n",
			"/" + site + "/nvidia_cufft-12.dist-info/RECORD":  "nvidia/cu13/lib/libcufft.so.12,,\n../../../bin/fft,,\n\"with,comma.py\",,\n/usr/share/fft.txt,,\n",
			"/" + site + "/pillow-1.dist-info/RECORD":         "PIL/Image.py,,\n../../../../../../../../etc/passwd,,\n\x00\"\"\"broken",
		},
		Pythons: []facts.Python{{Dir: site, Distributions: []facts.Distribution{
			{Name: "nvidia-cublas", Dir: site + "/nvidia_cublas-13.dist-info"},
			{Name: "nvidia-cufft", Dir: site + "/nvidia_cufft-12.dist-info"},
			{Name: "pillow", Dir: site + "/pillow-1.dist-info"},
			{Name: "unlisted", Dir: site + "/unlisted-1.dist-info"},
		}}},
	})
	for file, want := range map[string]string{
		site + "/nvidia/cu13/lib/libcublas.so.13":       "nvidia-cublas",
		site + "/nvidia/cu13/lib/libcufft.so.12":        "nvidia-cufft",
		site + "/nvidia/cu13/include/unlisted.h":        "nvidia-cublas", // beside one of its files
		site + "/with,comma.py":                         "nvidia-cufft",
		site + "/PIL/__pycache__/Image.cpython-311.pyc": "pillow",
		site + "/unlisted/x.py":                         "unlisted",
		"opt/venv/bin/fft":                              "nvidia-cufft",
		"opt/venv/bin/python":                           "",
		"usr/share/fft.txt":                             "nvidia-cufft",
		site + "/nvidia_cufft-12.dist-info/METADATA":    "nvidia-cufft",
	} {
		if got := o.packages[o.of(file)].Name; got != want {
			t.Errorf("%s belongs to %q, want %q", file, got, want)
		}
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "r.html")
	r := example(3)
	for range 2 {
		if err := r.WriteFile(name, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(name, []byte("<!DOCTYPE html>\nmine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteFile(name, false); err == nil || !strings.Contains(fault.HintOf(err), "--force") {
		t.Errorf("a file of the user's is replaced: %v", err)
	}
	if err := r.WriteFile(name, true); err != nil {
		t.Error(err)
	}
	if err := r.WriteFile(dir, true); err == nil {
		t.Error("a directory is replaced")
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}
	if err := Free(link, false); err == nil {
		t.Error("a symlink is replaced")
	}
	if err := r.WriteFile(filepath.Join(dir, "none", "r.html"), false); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("into no directory: %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("something was left: %v", entries)
	}
}
