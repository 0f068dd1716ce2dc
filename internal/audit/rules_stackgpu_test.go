package audit

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/facts/factstest"

	"sconce.dev/sconce/internal/cluster"
)

// siteFacts are the facts of an image with a directory of installed packages and nothing else.
func siteFacts(t *testing.T, dir string) *facts.Facts {
	t.Helper()
	const site = "opt/venv/lib/python3.12/site-packages"
	return factstest.Of(t, factstest.Dir{Path: t.TempDir(), Mounts: map[string]string{site: dir}})
}

// TestRealGPUStacks shows what the rules on GPUs and drivers find in directories of installed packages, SCONCE_TEST_SITES=DIR:DIR.
func TestRealGPUStacks(t *testing.T) {
	sites := os.Getenv("SCONCE_TEST_SITES")
	if sites == "" {
		t.Skip("SCONCE_TEST_SITES is not set")
	}
	for dir := range strings.SplitSeq(sites, ":") {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			f := siteFacts(t, dir)
			for _, gpu := range []string{"7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"} {
				for _, driver := range []string{"", "525.60.13", "550.54.15", "580.65.06"} {
					showFindings(t, f, cluster.Profile{GPU: []string{gpu}, Driver: driver}, driver != "")
				}
			}
		})
	}
}

func showFindings(t *testing.T, f *facts.Facts, target cluster.Profile, changed bool) {
	t.Helper()
	for _, r := range slices.Concat(gpuRules, driverRules) {
		if changed && strings.HasPrefix(r.ID, "gpu-") && r.ID != "gpu-ptx-only" {
			continue // the driver is nothing to them
		}
		err := r.look(&Subject{Facts: f, Target: target, Context: t.Context()}, func(found Finding) {
			found = r.complete(found)
			t.Logf("%s %s: %s %s: %s %q", target.GPU[0], target.Driver, found.Severity, found.Rule, found.Message, found.Seen[:min(4, len(found.Seen))])
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
