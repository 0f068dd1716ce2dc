package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/facts"
)

// imageOf makes a root file system with a copy of a fixture.
func imageOf(t *testing.T, path, fixture string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../fatbin/testdata", fixture))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	name := filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return "dir:" + root
}

func TestInspectGPU(t *testing.T) {
	t.Setenv("SCONCE_STORE", t.TempDir())
	t.Setenv("SCONCE_SHARED_STORES", "")
	inspect := func(args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		a := &app{stdout: &out, stderr: &errs}
		args = append([]string{"--offline", "inspect", "--gpu", "--platform", "linux/amd64"}, args...)
		if code := a.run(context.Background(), args); code != 0 {
			t.Fatalf("code %d: %s", code, &errs)
		}
		return out.String()
	}
	some := imageOf(t, "usr/lib/python3/dist-packages/torch/lib/libx.so", "host.so")
	var report facts.GPUReport
	if err := json.Unmarshal([]byte(inspect("--json", some)), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Libraries) != 1 || report.Libraries[0].Group != "torch" || report.Warnings == nil {
		t.Errorf("%+v", report)
	}
	out := strings.Join(strings.Fields(inspect(some)), " ")
	for _, want := range []string{
		"LIBRARY SIZE SASS PTX NOTES torch/lib/libx.so ", " 75 80 90a 100f 75 80 (9.5) ", "loads 2 of 4 regions itself",
		"PACKAGE OR DIRECTORY LIBRARIES SIZE torch 1 ", " sm_90a 1 ", " PTX compute_80 1 ", " all 1 ", " 9.0 1 0 - ", " 12.0 0 1 driver newer than 615 ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in: %s", want, out)
		}
	}
	if out := inspect(imageOf(t, "usr/share/kernel.cu", "kernel.cu")); out != "no device code\n" {
		t.Errorf("an image without any: %s", out)
	}
}

func TestGPUNotes(t *testing.T) {
	runs := func(lacking ...int) []facts.Support {
		var list []facts.Support
		for i, n := range lacking {
			list = append(list, facts.Support{Capability: []string{"8.0", "9.0", "10.0"}[i], How: "native", Lacking: n, Partly: n > 1})
		}
		return list
	}
	compiled := []facts.Support{{Capability: "9.0", How: "native", PTX: 1}, {Capability: "12.0", How: "ptx", PTX: 2}}
	for want, l := range map[string]facts.Library{
		"":                            {Linked: true, Parts: 9, Regions: 9, Runs: runs(0, 1, 0)},
		"2 of 9 parts lack 10.0":      {Linked: true, Parts: 9, Regions: 9, Runs: runs(0, 1, 2)},
		"3 of 9 parts lack 8.0 10.0":  {Linked: true, Parts: 9, Regions: 9, Runs: runs(3, 0, 2)},
		"a part has only PTX for 9.0": {Linked: true, Regions: 2, Runs: compiled},
		"for linking":                 {Regions: 3},
		"loads its code itself; LTO-IR 50; damaged": {Linked: true, Own: 3, LTO: []facts.Code{{Arch: "50"}}, Damaged: true},
		"loads 3 of 4 regions itself; ROCm gfx942":  {Linked: true, Own: 3, Regions: 1, ROCm: []string{"gfx942"}},
		// NVIDIA's own libraries choose by the GPU.
		"loads 1 of 10 regions itself": {Path: "lib/libcublasLt.so.12", Linked: true, Parts: 9, Regions: 9, Own: 1, Runs: append(runs(3), compiled...)},
	} {
		if got := strings.Join(gpuNotes(&l), "; "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
