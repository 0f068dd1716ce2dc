package elfx

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// loader returns this machine's loader, which judges.
func loader(t testing.TB) string {
	t.Helper()
	name := machines[runtime.GOARCH].glibc
	if _, err := os.Stat(name); err != nil || name == "" {
		t.Skip("needs a machine with glibc")
	}
	return name
}

// elfFiles returns the dynamic programs and libraries of this machine's architecture below the directories.
func elfFiles(t testing.TB, dirs ...string) []string {
	t.Helper()
	var found []string
	for _, dir := range dirs {
		filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && isDynamic(t, name) {
				found = append(found, name)
			}
			return nil
		})
	}
	return found
}

func isDynamic(t testing.TB, name string) bool {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	beginning := make([]byte, 4)
	f.ReadAt(beginning, 0)
	if !IsELF(beginning) {
		return false
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	file, err := Open(f, info.Size())
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return false
	}
	return file.Dynamic && file.Kind != Other && file.Arch == runtime.GOARCH
}

// compare checks closure and undefined symbols of a file against what ldd -r says.
func compare(t *testing.T, l *Loader, judge, name string, env ...string) {
	t.Helper()
	c, err := l.Closure(name)
	if err != nil {
		t.Error(err)
		return
	}
	libraries, symbols, rest := ldd(t, judge, name, env...)
	if got := trace(c); !slices.Equal(got, libraries) {
		t.Errorf("%s:\n got  %q\n want %q", name, got, libraries)
	}
	problems, err := l.Check(c, CheckOptions{MaxSymbols: 1 << 20})
	if err != nil {
		t.Error(err)
		return
	}
	symbols = slices.DeleteFunc(symbols, func(line string) bool { // said once, with the version
		return slices.ContainsFunc(problems, func(p Problem) bool {
			return p.Kind == MissingVersion && strings.Contains(line, ", version "+p.Version+"\t")
		})
	})
	if got := undefined(problems); !slices.Equal(got, symbols) && len(c.Missing()) == 0 {
		t.Errorf("%s: undefined symbols\n got  %q\n want %q", name, got, symbols)
	}
	said := slices.ContainsFunc(rest, func(line string) bool { return strings.Contains(line, "not found (required by") })
	if got := slices.ContainsFunc(problems, func(p Problem) bool { return p.Kind == MissingVersion }); got != said {
		t.Errorf("%s: problems %v, the loader says %q", name, problems, rest)
	}
}

// chosenFiles returns one of so many programs, and one of so many libraries. ELFX_DIRS may name other directories, of which
// it returns all files.
func chosenFiles(t testing.TB, programs, libraries int) []string {
	t.Helper()
	if dirs := os.Getenv("ELFX_DIRS"); dirs != "" {
		return elfFiles(t, strings.Fields(dirs)...)
	}
	var files []string
	for _, from := range []struct {
		dir   string
		every int
	}{{"/usr/bin", programs}, {"/usr/lib/" + machines[runtime.GOARCH].triplet, libraries}} {
		for i, name := range elfFiles(t, from.dir) {
			if i%from.every == 0 {
				files = append(files, name)
			}
		}
	}
	return files
}

// TestLikeLoader compares with this machine's loader: all programs, and some of the libraries.
func TestLikeLoader(t *testing.T) {
	judge := loader(t)
	files := chosenFiles(t, 1, 40)
	if len(files) < 100 {
		t.Fatalf("only %d files to compare", len(files))
	}
	l := &Loader{FS: hostFS{}, ISALevel: hostLevel(t, judge)}
	for _, name := range files {
		compare(t, l, judge, name)
	}
	t.Logf("%d files", len(files))
}

// TestAtOnce uses one loader from many goroutines.
func TestAtOnce(t *testing.T) {
	loader(t)
	files := elfFiles(t, "/usr/bin")
	files = files[:min(len(files), 40)]
	l := &Loader{FS: hostFS{}}
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for j := range files {
				name := files[(j+10*i)%len(files)]
				c, err := l.Closure(name)
				if err != nil {
					t.Error(err)
					return
				}
				if problems, err := l.Check(c, CheckOptions{}); err != nil || len(problems) > 0 {
					t.Errorf("%s: %v, %v", name, problems, err)
				}
			}
		})
	}
	group.Wait()
}

// hostLevel asks the loader which subdirectories for better processors it searches.
func hostLevel(t testing.TB, judge string) int {
	t.Helper()
	help := run(t, "/", judge, "--help")
	for level := 4; level > 1; level-- {
		if strings.Contains(help, "x86-64-v"+string(rune('0'+level))+" (supported") {
			return level
		}
	}
	return 1
}

// BenchmarkClosure and BenchmarkCheck measure all programs of this machine, with nothing known before.
func BenchmarkClosure(b *testing.B) { benchmark(b, false) }
func BenchmarkCheck(b *testing.B)   { benchmark(b, true) }

func benchmark(b *testing.B, check bool) {
	files := elfFiles(b, "/usr/bin")
	var spent time.Duration
	for b.Loop() {
		start := time.Now()
		l := &Loader{FS: hostFS{}}
		for _, name := range files {
			c, err := l.Closure(name)
			if err != nil {
				b.Fatal(err)
			}
			if !check {
				continue
			}
			if _, err := l.Check(c, CheckOptions{}); err != nil {
				b.Fatal(err)
			}
		}
		spent += time.Since(start)
	}
	b.ReportMetric(float64(len(files)*b.N)/spent.Seconds(), "files/s")
}
