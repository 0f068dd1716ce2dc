package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/slurmtest"
)

// standIns puts programs on PATH that answer as those of a cluster do, and nothing else: there is no cluster here.
func standIns(t *testing.T, answers map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, answer := range answers {
		script := "#!/bin/sh\n/bin/cat <<'END'\n" + answer + "\nEND\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

func detectOn(t *testing.T, root string, env map[string]string, types map[string]string) Detected {
	t.Helper()
	m := machine{
		root: root, getenv: func(name string) string { return env[name] }, arch: "arm64",
		fs: func(path string) host.FileSystem {
			return host.FileSystem{Type: types[path], Shared: types[path] == "lustre"}
		},
	}
	return m.detect(t.Context())
}

func TestDetect(t *testing.T) {
	standIns(t, map[string]string{
		"sinfo": "debug|debug|30:00|288|32|gpu:gh200:4(S:0-3)\nnormal|normal*|1-00:00:00|288+|1200|gpu:gh200:4(S:0-3),tmp:1\nxfer|xfer|1-00:00:00|64|2|(null)",
		"scontrol": "Configuration data as of 2026-11-01T00:00:00\nClusterName             = alps\nMpiDefault              = cray_shasta\n" +
			"SLURM_VERSION           = 25.05.9\n",
		"srun":       "  -N, --nodes=N          number of nodes\n      --environment=PATH  [pyxis] the environment\n      --uenv=NAME         a uenv\n      --view=NAME",
		"nvidia-smi": "9.0, 550.54.15\n9.0, 550.54.15",
		"getconf":    "glibc 2.31",
		"apptainer":  "",
	})
	root := t.TempDir()
	write(t, filepath.Join(root, "sys/class/cxi/cxi0/x"), "")
	d := detectOn(t, root, map[string]string{"SCRATCH": "/capstor/scratch/ada", "HOME": "/users/ada"},
		map[string]string{"/capstor/scratch/ada": "lustre", "/users/ada": "lustre", "/dev/shm": "tmpfs"})
	yes := true
	want := Profile{
		Name: "alps", Platform: "linux/arm64", GPU: []string{"9.0"}, Driver: "550.54.15", Glibc: "2.31", Runtime: ContainerEngine, Fabric: Slingshot, PMI: "cray",
		Starts:    []string{"container-engine", "uenv", "apptainer"},
		Slurm:     Slurm{Version: "25.05.9", Partition: "normal", GPUsPerNode: 4, CPUsPerNode: 288, GPURequest: "gpus-per-node", MaxTime: "24h"},
		Paths:     Paths{Scratch: "${SCRATCH}", Images: "${SCRATCH}/images", Local: "/dev/shm", HomeShared: &yes, Stripe: "-E 4M -c 1 -E 64M -c 4 -E -1 -c -1 -S 4M"},
		Container: Container{Mounts: []string{"${SCRATCH}"}, SqshMount: "edf"},
	}
	if diff := cmp.Diff(want, d.Profile); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if again, err := parse([]byte(d.TOML())); err != nil || cmp.Diff(again, d.Profile) != "" {
		t.Errorf("it is no profile: %v\n%s", err, d.TOML())
	}
	if notes := strings.Join(d.Notes, "\n"); !strings.Contains(notes, "runtimes: uenv, as srun has --uenv") {
		t.Errorf("notes:\n%s", notes)
	}
}

// Where there is nothing, nothing is claimed, and what was asked for is said.
func TestDetectNothing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	d := detectOn(t, t.TempDir(), nil, nil)
	if diff := cmp.Diff(Profile{Platform: "linux/arm64"}, d.Profile); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, want := range []string{"sinfo: not found", "srun: not found", "nvidia-smi: not found", "there is no variable SCRATCH"} {
		if !strings.Contains(strings.Join(d.Notes, "\n"), want) {
			t.Errorf("the notes lack %q: %q", want, d.Notes)
		}
	}
}

// Programs that answer nonsense, or another thing than was asked for, make no profile that is refused.
func TestDetectNonsense(t *testing.T) {
	standIns(t, map[string]string{
		"sinfo": "a|b|c\n|*||9999999+||gpu:99999\nx y|x y*|infinite|none|many|gpu:a:b", "scontrol": "ClusterName =\nSLURM_VERSION = git\nMpiDefault = none",
		"srun": "--containers", "nvidia-smi": "No devices were found", "getconf": "musl",
	})
	root := t.TempDir()
	write(t, filepath.Join(root, "sys/class/infiniband/mlx5_0/ports/1/link_layer"), "Ethernet\n")
	write(t, filepath.Join(root, "sys/class/infiniband/mlx5_1/ports/1/link_layer"), "InfiniBand\n")
	d := detectOn(t, root, map[string]string{"SCRATCH": "relative", "HOME": "/root"}, map[string]string{"/root": "ext4"})
	if _, err := parse([]byte(d.TOML())); err != nil || d.Fabric != InfiniBand || len(d.Starts) > 0 || d.Slurm.GPUsPerNode > 0 {
		t.Errorf("%v\n%s", err, d.TOML())
	}
}

func TestSlurmTime(t *testing.T) {
	for text, want := range map[string]string{"30:00": "30m", "1-00:00:00": "24h", "12:00:00": "12h", "1:30:00": "90m", "infinite": "", "n/a": "", "7-12:00:00": "180h"} {
		if got := slurmTime(text); got != want {
			t.Errorf("%s is %q, want %q", text, got, want)
		}
	}
}

// The program that a test on a real cluster runs there: this test itself.
func TestDetectHere(t *testing.T) {
	file := os.Getenv("SCONCE_TEST_DETECT")
	if file == "" {
		t.Skip("only as part of TestDetectSlurm")
	}
	d := Detect(t.Context())
	if err := os.WriteFile(file, []byte(d.TOML()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// What a real Slurm says is understood.
func TestDetectSlurm(t *testing.T) {
	c := slurmtest.Start(t, slurmtest.Options{})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.SharedDir, "detect"), data, 0o755); err != nil {
		t.Fatal(err)
	}
	c.Run(slurmtest.Alice, "SCONCE_TEST_DETECT=/shared/profile.toml SCRATCH=/shared ./detect -test.run '^TestDetectHere$'")
	text, err := os.ReadFile(filepath.Join(c.SharedDir, "profile.toml"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	version := p.Slurm.Version
	p.Slurm.Version = ""
	want := Slurm{Partition: "debug", GPUsPerNode: 4, CPUsPerNode: 8, GPURequest: "gpus-per-node", MaxTime: "30m"}
	if diff := cmp.Diff(want, p.Slurm); diff != "" || !formVersion.MatchString(version) || p.Paths.Scratch != "${SCRATCH}" || p.Glibc == "" {
		t.Errorf("version %q (-want +got):\n%s\n%s", version, diff, text)
	}
}
