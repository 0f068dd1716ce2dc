package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/slim"
)

func TestSlimTable(t *testing.T) {
	t.Setenv("SCONCE_STORE", t.TempDir())
	t.Setenv("SCONCE_SHARED_STORES", "")
	run := func(args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		a := &app{stdout: &out, stderr: &errs}
		if code := a.run(context.Background(), append([]string{"--offline", "slim", "--platform", "linux/amd64"}, args...)); code != 0 {
			t.Fatalf("code %d: %s", code, &errs)
		}
		return out.String()
	}
	some := imageOf(t, "usr/lib/python3/dist-packages/torch/lib/libx.so", "host.so")
	explained := run(some, "--gpu", "9.0", "--explain")
	done := run(some, "--gpu", "9.0", "--name", "slim")
	for _, out := range []string{explained, done} {
		for _, want := range []string{"LIBRARY KEPT DROPPED BEFORE AFTER", "torch/lib/libx.so 90a PTX 75 80 75 80 100f 8.7 kB 2.3 kB", "all 8.7 kB 2.3 kB"} {
			if flat := strings.Join(strings.Fields(out), " "); !strings.Contains(flat, want) {
				t.Errorf("no %q in: %s", want, out)
			}
		}
	}
	if rest, ok := strings.CutPrefix(done, explained); !ok || !strings.Contains(rest, "LAYER") || !strings.Contains(rest, "all 1") {
		t.Errorf("explained:\n%s\ndone:\n%s", explained, done)
	}
	var r slimmed
	if err := json.Unmarshal([]byte(run(some, "--gpu", "8.0", "--explain", "--json")), &r); err != nil || len(r.Files) != 1 || r.GPUs[0] != "8.0" {
		t.Errorf("%v: %+v", err, r)
	}
	if out := run(imageOf(t, "etc/x", "kernel.cu"), "--gpu", "8.0", "--explain"); out != "no device code\n" {
		t.Errorf("an image without: %q", out)
	}
}

func TestSlimRows(t *testing.T) {
	r := &slim.Report{
		Files: []slim.FileReport{
			{Path: "a/site-packages/x/l.so", Kept: []slim.Code{{Kind: "ptx", Arch: "90", Size: 10}, {Kind: "lto-ir", Arch: "80", Size: 1}, {Kind: "other", Arch: "70", Size: 1}}, Dropped: []slim.Code{{Kind: "sass", Arch: "80", Size: 100}}},
			{Path: "lib/whole.so", Kept: []slim.Code{{Kind: "sass", Arch: "90", Size: 5}}},
			{Path: "lib/odd.so", Refused: "it is odd"},
		},
		Before: 117, After: 17,
	}
	rows, refused, whole := slimRows(r)
	want := [][]string{
		{"LIBRARY", "KEPT", "DROPPED", "BEFORE", "AFTER"},
		{"x/l.so", "PTX 90 LTO-IR 80 other 70", "80", "112 B", "12 B"},
		{"all", "", "", "117 B", "17 B"},
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][]string{{"/lib/odd.so", "it is odd"}}, refused); diff != "" || whole != 1 {
		t.Errorf("refused, %d whole (-want +got):\n%s", whole, diff)
	}
}

func TestSlimUsage(t *testing.T) {
	t.Setenv("SCONCE_STORE", t.TempDir())
	for want, args := range map[string][]string{
		"--gpu is missing":                   {"x"},
		"no GPU of compute capability 9.1":   {"x", "--gpu", "9.1"},
		`--ptx "drop"`:                       {"x", "--gpu", "9.0", "--ptx", "drop"},
		`--relfatbin "x"`:                    {"x", "--gpu", "9.0", "--relfatbin", "x"},
		"cannot be used together":            {"x", "--gpu", "9.0", "--explain", "-o", "y"},
		"so the new image has no name":       {"dir:" + t.TempDir(), "--gpu", "9.0"},
		"--sqsh-compression":                 {"dir:" + t.TempDir(), "--gpu", "9.0", "-o", "x.sqsh", "--sqsh-compression", "rar"},
		`output "tar:": the path is missing`: {"dir:" + t.TempDir(), "--gpu", "9.0", "-o", "tar:"},
	} {
		var out, errs bytes.Buffer
		a := &app{stdout: &out, stderr: &errs}
		if code := a.run(context.Background(), append([]string{"--offline", "slim"}, args...)); code != fault.CodeUsage || !strings.Contains(errs.String(), want) {
			t.Errorf("%q: code %d, %q; want %q", args, code, errs.String(), want)
		}
	}
}
