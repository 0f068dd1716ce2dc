package lint

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/rogpeppe/go-internal/txtar"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/edf"
	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/layer"
)

// unpack writes the files of an archive into a directory of the test's. {DIR} stands for that directory, {x00} and {x01} for bytes.
func unpack(t *testing.T, archive *txtar.Archive) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range archive.Files {
		path := filepath.Join(dir, f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer("{DIR}", dir, "{x00}", "\x00", "{x01}", "\x01").Replace(string(f.Data))
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// options are what an archive is judged by: its first lines say `dialect NAME`, its cluster.toml is the target, and below images are
// images by the name of their file.
func options(t *testing.T, archive *txtar.Archive, dir string) Options {
	t.Helper()
	o := Options{Dir: dir, Lookup: func(name string) (string, bool) {
		v, ok := map[string]string{"HOME": filepath.Join(dir, "home"), "USER": "me", "SCRATCH": "/scratch/me"}[name]
		return v, ok
	}}
	if m := regexp.MustCompile(`(?m)^dialect (\S+)$`).FindSubmatch(archive.Comment); m != nil {
		o.Dialect = edf.Dialect(m[1])
	}
	if _, err := os.Stat(filepath.Join(dir, "cluster.toml")); err == nil {
		found, err := cluster.Find(filepath.Join(dir, "cluster.toml"), "")
		if err != nil {
			t.Fatal(err)
		}
		o.Target = found.Profile
	}
	o.Image = func(_ context.Context, name string) (*facts.Facts, string, error) {
		root := filepath.Join(dir, "images", filepath.Base(name))
		data, err := os.ReadFile(filepath.Join(root, "config.json"))
		if err != nil {
			return nil, "it is elsewhere", nil
		}
		var config struct {
			Platform   string
			Env        []string
			Entrypoint []string
		}
		if err := json.Unmarshal(data, &config); err != nil {
			t.Fatal(err)
		}
		f := &facts.Facts{Image: name, Platform: config.Platform, Config: v1.Config{Env: config.Env, Entrypoint: config.Entrypoint}, Root: dirRoot{root: root}}
		return f, "", f.Root.All(func(i facts.Info) error { f.Paths = append(f.Paths, i); return nil })
	}
	return o
}

func names(findings []Finding) []string {
	var all []string
	for _, f := range findings {
		all = append(all, f.Rule)
	}
	return all
}

// alsoFound are rules that find something in the broken file of another: a home of which a part alone is wrong, and one that the comment
// was to allow.
var alsoFound = map[string]string{"edf-ssh-home": "edf-mount-home", "lint-allow": "edf-mount-home"}

// Each rule finds what is broken, in the place where it is, and nothing in the same file cured; and nobody else finds anything there.
func TestRules(t *testing.T) {
	for _, r := range Rules() {
		t.Run(r.ID, func(t *testing.T) {
			if r.ID == "uenv-foreign-meta" {
				t.Skip("it needs a squashfs: see TestUenvFiles")
			}
			archive, err := txtar.ParseFile(filepath.Join("testdata", "rules", r.ID+".txtar"))
			if err != nil {
				t.Fatal(err)
			}
			dir := unpack(t, archive)
			o := options(t, archive, dir)
			check := func(kind string) *Result {
				paths, err := filepath.Glob(filepath.Join(dir, kind+".*"))
				if err != nil || len(paths) != 1 {
					t.Fatal(paths, err)
				}
				result, err := Check(t.Context(), paths, o)
				if err != nil {
					t.Fatal(err)
				}
				return result
			}
			broken := check("broken")
			i := slices.IndexFunc(broken.Findings, func(f Finding) bool { return f.Rule == r.ID })
			if i < 0 {
				t.Fatalf("not found in what is broken, but %v", names(broken.Findings))
			}
			f := broken.Findings[i]
			if f.Line == 0 || f.Message == "" || strings.HasSuffix(f.Message, ".") || f.Path == "" {
				t.Errorf("%+v", f)
			}
			for _, f := range broken.Findings {
				if f.Rule != r.ID && f.Rule != alsoFound[r.ID] {
					t.Errorf("in what is broken, another rule finds: %s [%s]", f.Message, f.Rule)
				}
			}
			for _, f := range check("cured").Findings {
				if f.Severity != audit.Note && f.Allowed == "" {
					t.Errorf("in what is cured: %s:%d: %s [%s]", filepath.Base(f.Path), f.Line, f.Message, f.Rule)
				}
			}
		})
	}
	files, err := filepath.Glob("testdata/rules/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		id := strings.TrimSuffix(filepath.Base(name), ".txtar")
		if !slices.ContainsFunc(Rules(), func(r Rule) bool { return r.ID == id }) {
			t.Errorf("%s is of no rule", name)
		}
	}
}

// Whether Slurm's programs are in a container says the profile of the cluster, of what containers are usually started with there.
func TestSlurmInside(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.sbatch")
	for _, c := range []struct {
		step, usual string
		inside      any // a bool, or nil
		found       bool
	}{
		{"--container-image=/x.sqsh", "pyxis", nil, true},
		{"--container-image=/x.sqsh", "pyxis", true, false},
		{"--environment=x", "container-engine", nil, false},
		{"--environment=x", "container-engine", false, true},
		{"--container-image=/x.sqsh", "container-engine", true, true},
		{"podman-hpc run x", "podman-hpc", true, false},
	} {
		if err := os.WriteFile(file, []byte("#!/bin/bash\nsrun "+c.step+" bash -c 'scontrol show job'\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		o := Options{Target: cluster.Profile{Name: "ours", Starts: []string{c.usual}}, Lookup: func(string) (string, bool) { return "", false }}
		if inside, told := c.inside.(bool); told {
			o.Target.Container.SlurmInside = &inside
		}
		result, err := Check(t.Context(), []string{file}, o)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(names(result.Findings), "sbatch-scontrol-inside"); got != c.found {
			t.Errorf("%+v: found %v in %v", c, got, names(result.Findings))
		}
	}
}

// A directory that the script itself makes is too late for a Slurm that does not make it, and no matter for one that does.
func TestOutputDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.sbatch")
	if err := os.WriteFile(file, []byte("#!/bin/bash\n#SBATCH --output=logs/%j.log\nmkdir -p logs\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string][]audit.Severity{
		"": {audit.Warning}, "23.11": {audit.Error}, "24.05": {audit.Error}, "24.11": nil, "25.05": nil,
	} {
		o := Options{Target: cluster.Profile{Slurm: cluster.Slurm{Version: version}}, Lookup: func(string) (string, bool) { return "", false }}
		result, err := Check(t.Context(), []string{file}, o)
		if err != nil {
			t.Fatal(err)
		}
		var got []audit.Severity
		for _, f := range result.Findings {
			if f.Rule == "sbatch-output-directory" {
				got = append(got, f.Severity)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("Slurm %q: %v, want %v", version, got, want)
		}
	}
}

// mended are the lines that are written in place of what is broken, by rule.
var mended = map[string][]string{
	"edf-annotation-type":    {`com.hooks.ssh.port = "15263" # the default`},
	"edf-braces":             {`image = "/capstor/scratch/cscs/${USER}/train.sqsh"`},
	"edf-env-type":           {`OMP_NUM_THREADS = "8"`},
	"edf-type":               {`writable = true`},
	"edf-unknown-annotation": {`[annotations.com.hooks.aws_ofi_nccl]`},
	"edf-unknown-key":        {`mounts = ["/capstor:/capstor"]`, `workdir = "/workspace"`},
	"sbatch-case":            {`#SBATCH --account=a1`, `#SBATCH --time=10`},
}

// added are the lines that a diff adds.
func added(diff string) []string {
	var all []string
	for line := range strings.Lines(diff) {
		if text, ok := strings.CutPrefix(line, "+"); ok && !strings.HasPrefix(line, "+++ ") {
			all = append(all, strings.TrimSuffix(text, "\n"))
		}
	}
	return all
}

// What is mended is what was broken, and the file is as it was but for that.
func TestFixes(t *testing.T) {
	for _, r := range Rules() {
		archive, err := txtar.ParseFile(filepath.Join("testdata", "rules", r.ID+".txtar"))
		if err != nil {
			continue
		}
		dir := unpack(t, archive)
		paths, err := filepath.Glob(filepath.Join(dir, "broken.*"))
		if err != nil {
			t.Fatal(err)
		}
		o := options(t, archive, dir)
		before, err := Check(t.Context(), paths, o)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, fix := range before.Fixes() {
			lines = append(lines, added(fix.Diff())...)
			if err := fix.Write(); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(fix.Diff(), "--- "+fix.Path+"\n+++ ") {
				t.Errorf("%s: the diff is %q", r.ID, fix.Diff())
			}
		}
		if !slices.Equal(lines, mended[r.ID]) {
			t.Errorf("%s: mended are the lines %q, want %q", r.ID, lines, mended[r.ID])
		}
		after, err := Check(t.Context(), paths, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range after.Findings {
			if f.Fixable {
				t.Errorf("%s: %s is left after fixing", r.ID, f.Message)
			}
		}
		if len(after.Fixes()) > 0 {
			t.Errorf("%s: a second time mends more", r.ID)
		}
	}
}

// dirRoot is a directory as the root of an image that has no links.
type dirRoot struct{ root string }

func (r dirRoot) Resolve(name string) (string, error) {
	_, err := r.Stat(name)
	return path.Clean("/" + name), err
}

func (r dirRoot) Stat(name string) (facts.Info, error) {
	info, err := os.Stat(filepath.Join(r.root, name))
	if err != nil {
		return facts.Info{}, err
	}
	kind := layer.Regular
	if info.IsDir() {
		kind = layer.Dir
	}
	return facts.Info{Path: strings.Trim(path.Clean("/"+name), "/"), Type: kind, Size: info.Size()}, nil
}

func (r dirRoot) Open(name string) (elfx.Handle, error) {
	data, err := os.ReadFile(filepath.Join(r.root, name))
	return handle{bytes.NewReader(data)}, err
}

type handle struct{ *bytes.Reader }

func (handle) Close() error  { return nil }
func (h handle) Size() int64 { return h.Reader.Size() }

func (r dirRoot) ReadDir(name string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(r.root, name))
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all, err
}

func (r dirRoot) All(visit func(facts.Info) error) error {
	return filepath.WalkDir(r.root, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := r.Stat(strings.TrimPrefix(name, r.root))
		if err != nil {
			return err
		}
		return visit(info)
	})
}
