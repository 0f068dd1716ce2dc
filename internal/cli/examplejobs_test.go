package cli

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the files of examples/jobs")

// The files of examples/jobs are what sconce writes.
func TestExampleJobs(t *testing.T) {
	const dir = "examples/jobs"
	t.Chdir("../..")
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	ours := " --cluster " + dir + "/clusters/ours.toml"
	for file, args := range map[string]string{
		"container-engine.sbatch": "sbatch", "container-engine.toml": "edf", "sarus.sbatch": "sbatch --runtime sarus", "sarus.toml": "edf --runtime sarus",
		"pyxis.sbatch": "sbatch" + ours, "torchrun.sbatch": "sbatch --launcher torchrun" + ours, "apptainer.sbatch": "sbatch --runtime apptainer" + ours,
		"sconce.sbatch": "sbatch --runtime sconce" + ours, "podman-hpc.sbatch": "sbatch --cluster perlmutter --runtime podman-hpc",
		"uenv.sbatch": "sbatch --runtime uenv --image jobs.squashfs",
	} {
		words := append([]string{"export"}, strings.Fields(args)...)
		words = append(words[:2], append([]string{dir}, words[2:]...)...)
		var out, errs bytes.Buffer
		a := &app{stdout: &out, stderr: &errs}
		if code := a.run(t.Context(), words); code != 0 {
			t.Errorf("%v: code %d\n%s", words, code, &errs)
			continue
		}
		path := filepath.Join(dir, "files", file)
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
}

// No file that sconce writes has a mistake that it would find in one of somebody else's.
func TestExampleJobsLint(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	var files []string
	for _, pattern := range []string{"../../examples/jobs/files/*", "../job/testdata/*.sbatch", "../job/testdata/*.toml"} {
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
