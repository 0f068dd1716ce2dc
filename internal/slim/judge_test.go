package slim

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fatbin"
)

// librariesEnv names a directory whose files, at any depth, are slimmed and compared with cuobjdump, as that of a Python environment.
const librariesEnv = "SCONCE_TEST_CUDA_LIBRARIES"

// TestAgainstCuobjdump slims files and lets NVIDIA's tool list and extract what is in them before and after: it has to see exactly what
// stays, with the same content.
func TestAgainstCuobjdump(t *testing.T) {
	tool, err := exec.LookPath("cuobjdump") // few machines have it, and it cannot be required
	if err != nil {
		t.Skip("cuobjdump of the CUDA toolkit is not here, which no distribution has")
	}
	for _, name := range []string{"zstd.fatbin", "lz4.fatbin", "stored.fatbin", "debug.fatbin", "concatenated.fatbin", "host.so", "host.exe"} {
		t.Run(name, func(t *testing.T) {
			judge(t, tool, filepath.Join("..", "fatbin", "testdata", name), for90, least, Options{GPUs: []int{75}, PTX: DropWhereNative})
		})
	}
	dir := os.Getenv(librariesEnv)
	if dir == "" {
		return
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && libraryName.MatchString(d.Name()) {
			t.Run(d.Name(), func(t *testing.T) { judge(t, tool, path, for90, least) })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

var libraryName = regexp.MustCompile(`\.so(\.|$)`)

func judge(t *testing.T, tool, path string, options ...Options) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	// Some untouched libraries have an image that the tool takes for none.
	if out, err := exec.Command(tool, "-lelf", path).CombinedOutput(); err != nil && bytes.Contains(out, []byte("Invalid ELF")) {
		t.Skipf("cuobjdump cannot list the untouched file: %.200s", out[bytes.LastIndex(out, []byte("cuobjdump")):])
	}
	var all map[[32]byte]int
	for _, o := range options {
		start := time.Now()
		p, err := Look(context.Background(), file, info.Size(), o)
		took := time.Since(start)
		if errors.Is(err, fatbin.ErrFormat) {
			t.Skipf("%s is no file with device code: %v", path, err)
		}
		if err != nil || p.Report.Refused != "" {
			t.Fatalf("%s: %v, %s", path, err, p.Report.Refused)
		}
		if p.Empty() {
			continue
		}
		small := filepath.Join(t.TempDir(), filepath.Base(path))
		write(t, small, p.Reader(io.NewSectionReader(file, 0, info.Size())))
		listing, images := extract(t, tool, small)
		os.Remove(small)
		f := sectionsAt(t, p.ReaderAt(file), info.Size())
		if d := cmp.Diff(expected(f), listing); d != "" {
			t.Errorf("%s, %s: images (-kept +cuobjdump):\n%s", path, o.Key(), d)
		}
		// The tool does not look at the relocatable regions of linked files.
		if v, err := f.Verify(context.Background()); err != nil || len(v.Problems) > 0 {
			t.Errorf("%s, %s: images that do not unpack: %v, %v", path, o.Key(), v.Problems, err)
		}
		if all == nil {
			_, all = extract(t, tool, path)
		}
		count := 0
		for sum, n := range images {
			if count += n; all[sum] < n {
				t.Errorf("%s, %s: %d extracted images are not those of the file", path, o.Key(), n-all[sum])
			}
		}
		for _, n := range listing {
			count -= n
		}
		if count != 0 {
			t.Errorf("%s, %s: %d more images are extracted than listed", path, o.Key(), count)
		}
		t.Logf("%d MB, %d of them zeroed, %d images left, %v", info.Size()/1e6, p.Report.Zeroed/1e6, len(images), took)
	}
}

func write(t *testing.T, path string, r io.Reader) {
	t.Helper()
	w, err := os.Create(path)
	if err == nil {
		_, err = io.Copy(w, r)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// imageName is how cuobjdump names images: "libx.7.sm_90a.cubin", "libx.12.sm_90.ptx".
var imageName = regexp.MustCompile(`\.(sm_\d+a?)f?\.(cubin|ptx)$`) // some versions leave out the f

// extract counts images as cuobjdump lists them, by kind and architecture, and as it writes them, by their sums.
func extract(t *testing.T, tool, path string) (listing map[string]int, images map[[32]byte]int) {
	t.Helper()
	listing, images = map[string]int{}, map[[32]byte]int{}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	for list, get := range map[string]string{"-lelf": "-xelf", "-lptx": "-xptx"} {
		out := run(t, tool, t.TempDir(), list, path)
		lines := bufio.NewScanner(bytes.NewReader(out))
		for lines.Scan() {
			if m := imageName.FindStringSubmatch(strings.TrimSpace(lines.Text())); m != nil {
				listing[m[2]+" "+m[1]]++
			}
		}
		dir := t.TempDir()
		run(t, tool, dir, get, "all", path)
		names, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			b, err := os.ReadFile(filepath.Join(dir, name.Name()))
			if err != nil {
				t.Fatal(err)
			}
			images[sha256.Sum256(b)]++
			os.Remove(filepath.Join(dir, name.Name()))
		}
	}
	return listing, images
}

func run(t *testing.T, tool, dir string, args ...string) []byte {
	t.Helper()
	command := exec.Command(tool, args...)
	command.Dir = dir
	out, err := command.CombinedOutput()
	if err != nil && !bytes.Contains(out, []byte("does not contain device code")) && !bytes.Contains(out, []byte("No ")) {
		t.Fatalf("cuobjdump %v: %v\n%.500s", args, err, out)
	}
	return out
}

// expected counts what cuobjdump lists: executable regions, and relocatable ones only where there are no others.
func expected(f *fatbin.File) map[string]int {
	executable := false
	for i := range f.Regions {
		executable = executable || f.Regions[i].Place == fatbin.Executable
	}
	counts := map[string]int{}
	for i := range f.Regions {
		r := &f.Regions[i]
		if r.Place == fatbin.Relocatable && executable {
			continue
		}
		for e := range r.Images() {
			kind := map[string]string{kindSASS: "cubin", kindPTX: "ptx"}[kindOf(e.Kind)]
			if kind != "" {
				counts[fmt.Sprintf("%s sm_%d%s", kind, e.Arch.SM, strings.Trim(e.Arch.Variant, "f"))]++
			}
		}
	}
	return counts
}
