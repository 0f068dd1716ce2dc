package lint

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/edf"
)

var update = flag.Bool("update", false, "write the expected findings of the examples, and docs/lints.md")

// Files as people write them, with what somebody who knows the cluster would say of them: in each archive, under "expected".
func TestExamples(t *testing.T) {
	names, err := filepath.Glob("testdata/examples/*.txtar")
	if err != nil || len(names) < 10 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == "expected" })
			want := ""
			if i >= 0 {
				want = string(archive.Files[i].Data)
				archive.Files = slices.Delete(archive.Files, i, i+1)
			}
			got := judged(t, archive)
			if *update {
				archive.Files = append(archive.Files, txtar.File{Name: "expected", Data: []byte(got)})
				if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// judged judges all files of an archive, and says what was found in lines.
func judged(t *testing.T, archive *txtar.Archive) string {
	t.Helper()
	dir := unpack(t, archive)
	var paths []string
	for _, f := range archive.Files {
		if !strings.HasPrefix(f.Name, "images/") && f.Name != "cluster.toml" {
			paths = append(paths, filepath.Join(dir, f.Name))
		}
	}
	result, err := Check(t.Context(), paths, options(t, archive, dir))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range result.Findings {
		fmt.Fprintf(&b, "%s:%d: %s: %s [%s]\n", filepath.Base(f.Path), f.Line, f.Severity, f.Message, f.Rule)
	}
	return strings.ReplaceAll(b.String(), dir, "DIR")
}

// The mistakes that public EDFs and job scripts have most, each as it was seen there, and cured.
func TestSeenMistakes(t *testing.T) {
	const script = "#!/bin/bash\n#SBATCH --nodes=2\n"
	const ofi, cuda = "image = \"/images/nemo.sqsh\"\n[annotations]\ncom.hooks.aws_ofi_nccl.enabled = \"true\"\n", "com.hooks.aws_ofi_nccl.variant = "
	for _, c := range []struct{ name, file, broken, cured, rule string }{
		{"all of /users", "a.toml", "image = \"/images/nemo.sqsh\"\nmounts = [\"/users:/users\"]\n", "image = \"/images/nemo.sqsh\"\nmounts = [\"/users/ada/app:/users/ada/app\"]\n", "edf-mount-home"},
		{"values beside the hook", "a.toml", ofi + "[env]\nFI_CXI_DEFAULT_TX_SIZE = \"32768\"\n", ofi, "edf-hook-env-override"},
		{"a variant of an older CUDA", "a.toml", ofi + cuda + "\"cuda12\"\n", ofi + cuda + "\"cuda13\"\n", "edf-variant-cuda"},
		{"$USER without braces", "a.toml", "image = \"/images/$USER/a.sqsh\"\n", "image = \"/images/${USER}/a.sqsh\"\n", "edf-braces"},
		{"com. is missing", "a.toml", "image = \"/images/nemo.sqsh\"\n[annotations.hooks.aws_ofi_nccl]\nenabled = \"true\"\n", "image = \"/images/nemo.sqsh\"\n[annotations.com.hooks.aws_ofi_nccl]\nenabled = \"true\"\n", "edf-unknown-annotation"},
		{"a port that is a number", "a.toml", "image = \"/images/nemo.sqsh\"\n[annotations]\ncom.hooks.ssh.port = 15263\n", "image = \"/images/nemo.sqsh\"\n[annotations]\ncom.hooks.ssh.port = \"15263\"\n", "edf-annotation-type"},
		{
			"ssh without a key", "a.toml", "image = \"/images/nemo.sqsh\"\nwritable = true\n[annotations.com.hooks.ssh]\nenabled = \"true\"\n",
			"image = \"/images/nemo.sqsh\"\nwritable = true\n[annotations.com.hooks.ssh]\nenabled = \"true\"\nauthorize_ssh_key = \"/users/me/.ssh/id.pub\"\n", "edf-ssh-key",
		},
		{"a table twice", "a.toml", "image = \"/images/nemo.sqsh\"\n[annotations]\ncom.hooks.cxi.enabled = \"true\"\n[annotations.com.hooks.cxi]\nenabled = \"true\"\n", "image = \"/images/nemo.sqsh\"\n[annotations.com.hooks.cxi]\nenabled = \"true\"\n", "edf-syntax"},
		{"ends of lines from a heredoc", "a.toml", "image = \"/images/nemo.sqsh\"\\n\\n\nwritable = true\n", "image = \"/images/nemo.sqsh\"\n\nwritable = true\n", "edf-syntax"},
		{"a placeholder", "a.toml", "image = \"/images/<username>/a.sqsh\"\n", "image = \"/images/${USER}/a.sqsh\"\n", "edf-placeholder"},
		{"the whole script in a container", "a.sbatch", script + "#SBATCH --environment=./base.toml\nhostname\n", script + "srun --environment=./base.toml hostname\n", "sbatch-environment"},
		{"scontrol inside", "a.sbatch", script + "srun --container-image=/images/nemo.sqsh scontrol show job\n", script + "scontrol show job\nsrun --container-image=/images/nemo.sqsh hostname\n", "sbatch-scontrol-inside"},
		{"pip in every job", "a.sbatch", script + "srun --environment=./base.toml pip install -e .\n", script + "srun --environment=./base.toml python a.py\n", "sbatch-pip-in-job"},
		{"logs made too late", "a.sbatch", script + "#SBATCH --output=logs/%j\nmkdir -p logs\nsrun hostname\n", script + "#SBATCH --output=%j\nsrun hostname\n", "sbatch-output-directory"},
		{
			"one GPU a task", "a.sbatch", script + "#SBATCH --ntasks-per-node=4 --gres=gpu:4 --gpus-per-task=1\nsrun bash -c 'LOCAL_RANK=$SLURM_LOCALID python a.py'\n",
			script + "#SBATCH --ntasks-per-node=4 --gres=gpu:4\nsrun --gpu-bind=none bash -c 'LOCAL_RANK=$SLURM_LOCALID python a.py'\n", "sbatch-gpu-ordinal",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			with := func(text string) string {
				return judged(t, &txtar.Archive{Files: []txtar.File{
					{Name: c.file, Data: []byte(text)},
					{Name: "images/nemo.sqsh/config.json", Data: []byte(`{"platform": "linux/arm64", "env": ["CUDA_VERSION=13.0.1"]}`)},
					{Name: "base.toml", Data: []byte("image = \"/images/nemo.sqsh\"\n")},
				}})
			}
			if got := with(c.broken); !strings.Contains(got, "["+c.rule+"]") {
				t.Errorf("%s is not among\n%s", c.rule, got)
			}
			if got := with(c.cured); got != "" {
				t.Errorf("cured, there still is\n%s", got)
			}
		})
	}
}

// There is nothing to say against the files that sconce writes itself, for every runtime.
func TestFilesOfJobs(t *testing.T) {
	for _, pattern := range []string{"*.sbatch", "*.toml"} {
		paths, err := filepath.Glob(filepath.Join("../job/testdata", pattern))
		if err != nil || len(paths) < 2 {
			t.Fatal(paths, err)
		}
		for _, path := range paths {
			o := Options{Dir: t.TempDir(), Lookup: func(name string) (string, bool) {
				return "/" + name, name == "HOME" || name == "SCRATCH" || name == "PWD"
			}}
			if strings.Contains(path, "sarus") {
				o.Dialect = edf.Sarus
			}
			result, err := Check(t.Context(), []string{path}, o)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range result.Findings {
				t.Errorf("%s:%d: %s [%s]", f.Path, f.Line, f.Message, f.Rule)
			}
		}
	}
}

const pagePath = "../../docs/lints.md"

// groups are what the IDs of rules begin with.
var groups = []struct{ prefix, title string }{
	{"edf", "Environment definition files"},
	{"sbatch", "Job scripts"},
	{"venv", "Virtual environments on top of an image"},
	{"uenv", "uenvs"},
	{"profile", "Profiles of clusters"},
	{"lint", "Comments for lint"},
}

const pageIntro = `# Rules of lint

` + "`sconce lint FILE...`" + ` looks at the files by which jobs run with these rules: environment definition files (EDF), sbatch scripts, uenvs and
profiles; a script together with its EDF, and that with its image. A rule is silent without evidence: what is not known is not
judged. An error ends a job or makes it wrong, a warning makes it slow or fragile, a note is worth knowing. The severity given here is
the usual one. [Files of jobs](guide/lint.md) shows how lint is used.

This page is generated: ` + "`go test ./internal/lint -run TestPage -update`" + ` writes it.
`

// TestPage compares the page with the rules, or writes it.
func TestPage(t *testing.T) {
	var b strings.Builder
	b.WriteString(pageIntro)
	escape := strings.NewReplacer("<", `\<`, "*", `\*`, "_", `\_`)
	for _, g := range groups {
		fmt.Fprintf(&b, "\n## %s\n", g.title)
		for _, r := range Rules() {
			if strings.HasPrefix(r.ID, g.prefix+"-") {
				fmt.Fprintf(&b, "\n### %s\n\n%s · %s.\n\n%s\n\n*What to do:* %s.\n", r.ID, r.Severity, escape.Replace(r.Title), escape.Replace(r.Why), escape.Replace(r.Remedy))
			}
		}
	}
	got := b.String()
	if *update {
		if err := os.WriteFile(pagePath, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(pagePath)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/lints.md is stale; go test ./internal/lint -run TestPage -update writes it:\n%s", diff)
	}
}

// Identifiers are words for a comment, and what is said for people is whole.
func TestRulesAreComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range audit.Rules() {
		seen[r.ID] = true // one may not mean two things
	}
	id := regexp.MustCompile(`^[a-z]+(-[a-z0-9]+)+$`)
	for _, r := range Rules() {
		looks := 0
		for _, look := range []func(*subject){r.edf, r.script, r.uenv, r.any} {
			if look != nil {
				looks++
			}
		}
		if !id.MatchString(r.ID) || seen[r.ID] || r.Title == "" || !strings.HasSuffix(r.Why, ".") || strings.HasSuffix(r.Remedy, ".") || r.Remedy == "" || looks != 1 {
			t.Errorf("%+v", r)
		}
		if !slices.ContainsFunc(groups, func(g struct{ prefix, title string }) bool { return strings.HasPrefix(r.ID, g.prefix+"-") }) {
			t.Errorf("%s is in no group of the page", r.ID)
		}
		seen[r.ID] = true
	}
}
