package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/tooltest"
)

// In a job of Slurm's what is unpacked goes to the directory that the cluster's profile says each node has, and info says so; elsewhere, and
// where the profile does not fit the node, as without a profile.
func TestScratchOfAJob(t *testing.T) {
	store, place, config := tooltest.WithoutAttributes(t), t.TempDir(), t.TempDir()
	local := filepath.Join(place, "of-the-node")
	if err := os.MkdirAll(filepath.Join(config, "sconce/clusters"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, "sconce/clusters/hill.toml"), []byte("[paths]\nlocal = \"${NODE_DISK}/of-the-node\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CONFIG_HOME", config)
	in := func(job, cluster, disk string) {
		t.Setenv("SLURM_JOB_ID", job)
		t.Setenv("SLURM_CLUSTER_NAME", cluster)
		t.Setenv("NODE_DISK", disk)
	}
	for name, c := range map[string][3]string{
		"no job":                      {"", "hill", place},
		"an unknown cluster":          {"7", "valley", place},
		"no cluster":                  {"7", "", place},
		"a file as a cluster":         {"7", filepath.Join(config, "sconce/clusters/hill.toml"), place},
		"a path that is not absolute": {"7", "hill", "disk"},
	} {
		in(c[0], c[1], c[2])
		if got := localOfJob(); got != (jobPlace{}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if _, err := os.Stat(local); err == nil {
		t.Error("it was made by who has no use for it")
	}
	forAll := filepath.Join(place, "for-all")
	if err := os.WriteFile(filepath.Join(config, "sconce/clusters/plain.toml"), fmt.Appendf(nil, "[paths]\nlocal = %q\n", forAll), 0o644); err != nil {
		t.Fatal(err)
	}
	in("7", "plain", place)
	if _, err := os.Stat(forAll); localOfJob().dir != forAll || err == nil {
		t.Errorf("a directory for all users is made by one of them: %v", err)
	}
	in("7", "hill", filepath.Join(place, "not", "there"))
	if got := scratchOf(store, LookOptions{}); got == nil || strings.Contains(got.Why, "paths.local") {
		t.Errorf("with a disk that the node does not have: %+v", got)
	}
	in("7", "hill", place)
	if got := localOfJob(); got != (jobPlace{local, "hill"}) {
		t.Fatalf("in a job: %+v", got)
	}
	if host.FileSystemOf(local).Free < 30e9 {
		t.Skip("there is so little room that another place may be taken")
	}
	if got := scratchOf(store, LookOptions{}); got == nil || got.Dir != local || !strings.Contains(got.Why, "as paths.local of hill says") {
		t.Errorf("info says %+v", got)
	}
	dir, remove, err := chooseScratch(t.Context(), store)
	if err != nil || filepath.Dir(dir) != local {
		t.Fatalf("%s is used, %v", dir, err)
	}
	remove()
	if left, err := os.ReadDir(local); err != nil || len(left) > 0 {
		t.Errorf("left there: %v, %v", left, err)
	}
}
