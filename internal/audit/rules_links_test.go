package audit

import (
	"testing"

	"sconce.dev/sconce/internal/facts"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/cluster"
)

func TestTargetLinks(t *testing.T) {
	const dir = "usr/lib/x86_64-linux-gnu/"
	focal := []facts.Object{ // Ubuntu 20.04: the C library itself has added nothing in 2.31
		{Path: dir + "libc-2.31.so", Arch: "amd64", Kind: "shared", Soname: "libc.so.6", Provides: []string{"GLIBC_2.2.5", "GLIBC_2.30", "GLIBC_PRIVATE"}},
		{Path: dir + "libpthread-2.31.so", Arch: "amd64", Kind: "shared", Soname: "libpthread.so.0", Provides: []string{"GLIBC_2.31"}},
		{Path: "opt/conda/x86_64-conda-linux-gnu/sysroot/lib64/libc.so.6", Arch: "amd64", Kind: "shared", Soname: "libc.so.6", Provides: []string{"GLIBC_2.12"}},
	}
	levels := []facts.Object{
		{Path: "usr/bin/p", Arch: "amd64", Kind: "pie", ISALevel: 3},
		{Path: dir + "glibc-hwcaps/x86-64-v4/libx.so.1", Arch: "amd64", Kind: "shared", ISALevel: 4},
	}
	const image = "the image's C library has versions up to GLIBC_2.31, the host's is GLIBC_2.38, and the runtime brings in "
	for _, test := range []struct {
		name    string
		objects []facts.Object
		target  cluster.Profile
		want    []string
	}{
		{"nothing is known", focal, cluster.Profile{}, nil},
		{"a host that is as old", focal, cluster.Profile{Glibc: "2.31", Injects: []string{"libmpi.so.12"}}, nil},
		{"a host that is older", focal, cluster.Profile{Glibc: "2.4", Injects: []string{"libmpi.so.12"}}, nil},
		{"a newer host", focal, cluster.Profile{Glibc: "2.38", Injects: []string{"libcuda.so.1"}}, []string{"note link-host-glibc " + image + "libraries of NVIDIA's driver"}},
		{
			"Apptainer", focal,
			cluster.Profile{Glibc: "2.38", Runtime: cluster.Apptainer},
			[]string{"warning link-host-glibc " + image + "the driver's libraries and, with --nv, the host's OpenGL and OpenCL"},
		},
		{
			"an MPI of a newer host", focal,
			cluster.Profile{Glibc: "2.38", Injects: []string{"libcuda.so.1", "libmpi.so.12", "libfabric.so.1"}},
			[]string{"error link-host-glibc " + image + "libmpi.so.12, libfabric.so.1"},
		},
		{"an image without glibc", nil, cluster.Profile{Glibc: "2.38", Injects: []string{"libmpi.so.12"}}, nil},
		{"a processor that is too old", levels, cluster.Profile{CPULevel: 2}, []string{"error link-cpu-level up to x86-64-v3 is needed by 1 file of the image, the target's processors have x86-64-v2"}},
		{"one that is not", levels, cluster.Profile{CPULevel: 3}, nil},
		{"another platform", levels, cluster.Profile{Platform: "linux/arm64"}, []string{"error link-cpu-architecture the image is for linux/amd64, the target is linux/arm64"}},
		{"the same platform", levels, cluster.Profile{Platform: "linux/amd64/v3"}, nil},
	} {
		f := &facts.Facts{Platform: "linux/amd64", Objects: test.objects}
		if diff := cmp.Diff(test.want, linkFindings(t, f, test.target)); diff != "" {
			t.Error(test.name, diff)
		}
	}
}

func TestGraphicsUnderApptainer(t *testing.T) {
	f := &facts.Facts{Links: []facts.LinkProblem{{Path: "x/site-packages/cv2/cv2.abi3.so", In: "x/site-packages/cv2/cv2.abi3.so", Role: facts.RoleImport, Kind: "library", Library: "libGL.so.1"}}}
	const message = " link-missing-library /x/site-packages/cv2/cv2.abi3.so needs libGL.so.1, which the loader does not find in the image"
	if diff := cmp.Diff([]string{"note" + message}, linkFindings(t, f, cluster.Profile{Runtime: cluster.Apptainer})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"error" + message}, linkFindings(t, f, cluster.Profile{Runtime: cluster.Pyxis})); diff != "" {
		t.Error(diff)
	}
}
