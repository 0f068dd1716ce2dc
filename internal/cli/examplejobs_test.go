package cli

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the files of the examples")

// exampleFiles are what the files of an example are written by.
var exampleFiles = map[string]map[string]string{
	"examples/jobs": {
		"container-engine.sbatch": "sbatch", "container-engine.toml": "edf", "sarus.sbatch": "sbatch --runtime sarus", "sarus.toml": "edf --runtime sarus",
		"pyxis.sbatch": "sbatch" + oursFlag, "torchrun.sbatch": "sbatch --launcher torchrun" + oursFlag, "apptainer.sbatch": "sbatch --runtime apptainer" + oursFlag,
		"sconce.sbatch": "sbatch --runtime sconce" + oursFlag, "podman-hpc.sbatch": "sbatch --cluster perlmutter --runtime podman-hpc",
		"uenv.sbatch": "sbatch --runtime uenv --image jobs.squashfs",
	},
	"examples/venv": {
		"container-engine.sbatch": "sbatch", "container-engine.toml": "edf", "pyxis.sbatch": "sbatch --cluster examples/venv/clusters/hook.toml",
		"apptainer.sbatch": "sbatch --runtime apptainer" + oursFlag, "sconce.sbatch": "sbatch --runtime sconce" + oursFlag,
	},
}

const oursFlag = " --cluster examples/jobs/clusters/ours.toml"

// The files of the examples are what sconce writes.
func TestExampleJobs(t *testing.T) {
	t.Chdir("../..")
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for dir, files := range exampleFiles {
		for file, args := range files {
			words := append([]string{"export"}, strings.Fields(args)...)
			wantExample(t, filepath.Join(dir, "files", file), append(words[:2], append([]string{dir}, words[2:]...)...))
		}
	}
}

func wantExample(t *testing.T, path string, words []string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs}
	if code := a.run(t.Context(), words); code != 0 {
		t.Errorf("%v: code %d\n%s", words, code, &errs)
		return
	}
	if *update {
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(want, out.Bytes()) {
		t.Errorf("%s is not what %v writes; go test ./internal/cli -run ExampleJobs -update writes it: %v", path, words, err)
	}
}

// No file that sconce writes has a mistake that it would find in one of somebody else's.
func TestExampleJobsLint(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	var files []string
	for _, pattern := range []string{"../../examples/*/files/*.sbatch", "../../examples/*/files/*.toml", "../job/testdata/*.sbatch", "../job/testdata/*.toml"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, err)
		}
		files = append(files, found...)
	}
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs}
	if code := a.run(t.Context(), append([]string{"lint"}, files...)); code != 0 || !strings.HasPrefix(out.String(), "nothing found") {
		t.Errorf("code %d\n%s%s", code, &out, &errs)
	}
}
