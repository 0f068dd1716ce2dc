package audit

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/cluster"
)

// siteFacts are the facts of an image with a directory of installed packages, as far as the rules on GPUs and drivers need.
func siteFacts(t *testing.T, dir string) *Facts {
	t.Helper()
	const site = "opt/venv/lib/python3.12/site-packages"
	f := &Facts{}
	var found []scanned
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !mayHoldCode(name) {
			return err
		}
		h, err := os.Open(name)
		if err != nil {
			return err
		}
		defer h.Close()
		info, err := h.Stat()
		if err != nil || info.Size() <= minSize {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		c, err := look(t.Context(), File{path.Join(site, rel), info.Size(), h})
		if c := c.at(path.Join(site, rel), info.Size()); c.Object != nil {
			f.Objects = append(f.Objects, *c.Object)
		}
		found = append(found, c.at(path.Join(site, rel), info.Size()))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if version, err := os.ReadFile(filepath.Join(dir, "torch/version.py")); err == nil {
		f.Root = mapRoot{path.Join(site, "torch/version.py"): string(version)}
	}
	f.GPU = gpuReport(found)
	p := Python{Dir: site, Version: "3.12"}
	infos, err := filepath.Glob(filepath.Join(dir, "*.dist-info"))
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		name, version, _ := strings.Cut(strings.TrimSuffix(filepath.Base(info), ".dist-info"), "-")
		p.Distributions = append(p.Distributions, Distribution{
			Name: strings.ReplaceAll(name, "_", "-"), Version: version, Dir: path.Join(site, filepath.Base(info)),
		})
	}
	f.Pythons = []Python{p}
	return f
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

func showFindings(t *testing.T, f *Facts, target cluster.Profile, changed bool) {
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
