package fatbin

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// librariesEnv names a directory whose files are compared with cuobjdump too, as that of a package's libraries.
const librariesEnv = "SCONCE_TEST_CUDA_LIBRARIES"

// cudaTool finds a tool of the CUDA toolkit, which few machines have and which cannot be required.
func cudaTool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s of the CUDA toolkit is not here, which no distribution has", name)
	}
	return path
}

// cuobjdump counts the images of a file by kind, architecture and compression, as NVIDIA's tool sees them.
func cuobjdump(t *testing.T, tool, file string) map[string]int {
	t.Helper()
	out, err := exec.Command(tool, file).CombinedOutput()
	if err != nil && !bytes.Contains(out, []byte("does not contain device code")) {
		t.Fatalf("cuobjdump %s: %v\n%.500s", file, err, out)
	}
	counts := map[string]int{}
	var kind, arch string
	packed, packedAll := false, false // the latter for the parts of a concatenated image
	flush := func() {
		switch {
		case kind == "concatenated":
			packedAll = packed
		case kind != "":
			counts[line(kind, arch, packed)]++
		}
		kind, arch, packed = "", "", false
	}
	scanner := bufio.NewScanner(bytes.NewReader(out))
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		text := scanner.Text()
		field := strings.TrimSpace(text)
		switch {
		case strings.HasPrefix(field, "Fatbin ") && strings.HasSuffix(field, "code:"):
			flush()
			kind, _, _ = strings.Cut(strings.TrimPrefix(field, "Fatbin "), " ")
			packed = packedAll && strings.HasPrefix(text, "\t")
		case strings.HasPrefix(field, "arch = "):
			arch = strings.TrimPrefix(field, "arch = ")
		case field == "compressed":
			packed = true
		}
	}
	flush()
	return counts
}

func line(kind, arch string, packed bool) string {
	return fmt.Sprintf("%s %s packed=%v", kind, arch, packed)
}

// seenBy lists what cuobjdump sees: executable regions, and relocatable ones of the members that have no others.
func seenBy(f *File) map[string]int {
	kinds := map[Kind]string{PTX: "ptx", ELFImage: "elf", LTOIR: "nvvm"}
	executable := map[string]bool{}
	for i := range f.Regions {
		if f.Regions[i].Place == Executable {
			executable[f.Regions[i].Member] = true
		}
	}
	counts := map[string]int{}
	for i := range f.Regions {
		r := &f.Regions[i]
		if r.Place == Relocatable && executable[r.Member] {
			continue
		}
		for e := range r.Images() {
			counts[line(kinds[e.Kind], e.Arch.String(), e.Compression != Stored)]++
		}
	}
	return counts
}

func compare(t *testing.T, tool, name string) {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	f, err := Scan(file, info.Size(), Options{SectionsOnly: true})
	took := time.Since(start)
	if err != nil {
		t.Skipf("%s is no file with device code: %v", name, err)
	}
	start = time.Now()
	want := cuobjdump(t, tool, name)
	theirs := time.Since(start)
	got := seenBy(f)
	if d := cmp.Diff(want, got); d != "" || len(f.Problems) > 0 {
		t.Errorf("%s: problems %v, images (-cuobjdump +scan):\n%s", name, f.Problems, d)
	}
	total := 0
	for n := range maps.Values(got) {
		total += n
	}
	t.Logf("%s: %d MB, %d regions, %d images seen by both; %v, cuobjdump %v", filepath.Base(name), info.Size()/1e6, len(f.Regions), total, took, theirs)
}

func TestAgainstCuobjdump(t *testing.T) {
	tool := cudaTool(t, "cuobjdump")
	names, err := filepath.Glob("testdata/*.fatbin")
	if err != nil {
		t.Fatal(err)
	}
	names = append(names, "testdata/host.so", "testdata/host.o", "testdata/host.exe", "testdata/host-relr.so")
	if dir := os.Getenv(librariesEnv); dir != "" {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Type().IsRegular() || e.Type()&os.ModeSymlink != 0 {
				names = append(names, filepath.Join(dir, e.Name()))
			}
		}
	}
	slices.Sort(names)
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) { compare(t, tool, name) })
	}
}

// TestAgainstCompiler compares what nvcc makes of the fixtures' kernel: an object, a device-linked library, an archive.
func TestAgainstCompiler(t *testing.T) {
	tool, nvcc := cudaTool(t, "cuobjdump"), cudaTool(t, "nvcc")
	dir := t.TempDir()
	source := "#include <cuda_runtime.h>\n" + string(fixture(t, "kernel.cu")) + "void launch(float *x) { scale<<<1, 32>>>(x, 2); }\n"
	if err := os.WriteFile(filepath.Join(dir, "launch.cu"), []byte(source), 0o666); err != nil {
		t.Fatal(err)
	}
	archs := []string{"-gencode", "arch=compute_80,code=[sm_80,compute_80]", "-gencode", "arch=compute_90a,code=sm_90a", "-Xcompiler", "-fPIC"}
	for _, step := range [][]string{
		append([]string{"-c", "launch.cu", "-o", "plain.o"}, archs...),
		append([]string{"-c", "-rdc=true", "launch.cu", "-o", "relocatable.o"}, archs...),
		append([]string{"-dlink", "relocatable.o", "-cudadevrt=none", "-o", "linked.o"}, archs...),
		{"-lib", "plain.o", "relocatable.o", "-o", "both.a"},
	} {
		command := exec.Command(nvcc, step...)
		command.Dir = dir
		if out, err := command.CombinedOutput(); err != nil {
			t.Skipf("this nvcc compiles nothing here: %v: %v\n%s", step, err, out)
		}
	}
	for name, regions := range map[string]int{"plain.o": 1, "relocatable.o": 1, "linked.o": 1, "both.a": 2} {
		compare(t, tool, filepath.Join(dir, name))
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		f := scan(t, b, Options{})
		v := verify(t, f)
		if len(f.Regions) != regions || len(f.Wrappers) != regions || len(f.Problems)+len(v.Problems) > 0 {
			t.Errorf("%s: %d regions, %d wrappers, problems %v, %v", name, len(f.Regions), len(f.Wrappers), f.Problems, v.Problems)
		}
		for _, w := range f.Wrappers {
			if w.Region < 0 || w.Version == wrapperLinked != (name == "linked.o") {
				t.Errorf("%s: wrapper %+v", name, w)
			}
		}
	}
}
