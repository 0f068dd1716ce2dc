package test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"sconce.dev/sconce/internal/mirrortest"
	"sconce.dev/sconce/internal/tooltest"
)

// wheels are the packages that the tests build with, complete with what they require. numpy is the large one.
var wheels = []string{
	"certifi==2026.10.18", "charset-normalizer==3.5.2", "click==8.5.1", "einops==0.8.2", "idna==3.20", "markdown-it-py==4.3.0",
	"markupsafe==3.0.4", "mdurl==0.1.2", "numpy==2.2.6", "pip==26.3", "pygments==2.21.0", "requests==2.34.2", "rich==15.0.0",
	"setuptools==80.9.0", "six==1.17.0", "urllib3==2.8.0",
}

// machines are the architectures that wheels are downloaded for.
var machines = []string{"x86_64", "aarch64"}

var sharedWheels once[string]

// wheelDir returns a directory with the wheels, downloaded by pip from wherever it is set up to, and kept for the next run.
func wheelDir(t *testing.T) string {
	t.Helper()
	return sharedWheels.get(t, func(t *testing.T) string {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(cache, "sconce-e2e-wheels")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, m := range machines {
			downloadWheels(t, dir, m, wheels)
		}
		return dir
	})
}

func downloadWheels(t *testing.T, dir, machine string, pins []string) {
	t.Helper()
	var missing []string
	for _, pin := range pins {
		if !haveWheel(t, dir, pin, machine) {
			missing = append(missing, pin)
		}
	}
	if len(missing) == 0 {
		return
	}
	fresh := t.TempDir()
	args := append(pip(t), "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", fresh, "--implementation", "cp", "--python-version", "3.11")
	for _, tag := range []string{"manylinux_2_28_", "manylinux_2_17_", "manylinux2014_"} {
		args = append(args, "--platform", tag+machine)
	}
	args = append(args, missing...)
	if out, err := mirrortest.Run(func() *exec.Cmd { return exec.Command(args[0], args[1:]...) }); err != nil {
		tooltest.Missing(t, "download test wheels: %v\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(fresh, "*.whl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		to := filepath.Join(dir, filepath.Base(f))
		if err := errors.Join(copyFile(f, to+".new"), os.Rename(to+".new", to)); err != nil {
			t.Fatal(err)
		}
	}
}

// pip returns how to start pip: of python3, or of the environment that uv was installed into.
func pip(t *testing.T) []string {
	t.Helper()
	candidates := []string{tooltest.Path(t, "python3")}
	if uv, err := uvProgram(); err == nil {
		candidates = append(candidates, filepath.Join(filepath.Dir(uv), "python"))
	}
	for _, python := range candidates {
		if exec.Command(python, "-m", "pip", "--version").Run() == nil {
			return []string{python, "-m", "pip"}
		}
	}
	tooltest.Missing(t, "pip is not installed for any of %s", candidates)
	return nil
}

// haveWheel reports whether dir has the wheel of a pin like numpy==2.2.6 for a machine.
func haveWheel(t *testing.T, dir, pin, machine string) bool {
	t.Helper()
	name, version, _ := strings.Cut(pin, "==")
	files, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		parts := strings.Split(filepath.Base(f), "-")
		if projectName(parts[0]) == name && parts[1] == version && (strings.HasSuffix(f, "-any.whl") || strings.HasSuffix(f, machine+".whl")) {
			return true
		}
	}
	return false
}

var nameRuns = regexp.MustCompile(`[-_.]+`)

// projectName normalises a name (PEP 503).
func projectName(s string) string { return strings.ToLower(nameRuns.ReplaceAllString(s, "-")) }

// index is a package index (PEP 503) over the wheels. It counts what is asked of it, and makes trouble when told to.
type index struct {
	t   testing.TB
	dir string
	url string

	mu      sync.Mutex
	gets    map[string]int // by file, downloads begun
	pause   time.Duration  // before every 64 KiB of a file; 0: none
	trouble func(w http.ResponseWriter, r *http.Request, file string) bool
}

func newIndex(t *testing.T) *index {
	t.Helper()
	return indexOf(t, wheelDir(t))
}

// indexOf is an index over the wheels of a directory.
func indexOf(t *testing.T, dir string) *index {
	t.Helper()
	ix := &index{t: t, dir: dir}
	ix.reset()
	srv := httptest.NewServer(ix)
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	ix.url = srv.URL
	return ix
}

// reset forgets what was counted.
func (ix *index) reset() {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.gets = make(map[string]int)
}

// downloads returns how often each file was asked for since the last reset.
func (ix *index) downloads() map[string]int {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	return maps.Clone(ix.gets)
}

// spoil lets f answer for files; when it returns false, they are served as they are.
func (ix *index) spoil(f func(w http.ResponseWriter, r *http.Request, file string) bool) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.trouble = f
}

func (ix *index) slow(pause time.Duration) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.pause = pause
}

// use points uv in p to the index.
func (ix *index) use(p *place) {
	p.env = append(p.env, "UV_DEFAULT_INDEX="+ix.url+"/simple/", "no_proxy=127.0.0.1", "NO_PROXY=127.0.0.1")
}

func (ix *index) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch dir, name := path.Split(strings.TrimSuffix(r.URL.Path, "/")); dir {
	case "/simple/":
		ix.page(w, name)
	case "/files/":
		ix.file(w, r, name)
	default:
		http.NotFound(w, r)
	}
}

func (ix *index) page(w http.ResponseWriter, project string) {
	files, _ := filepath.Glob(filepath.Join(ix.dir, "*-*.[wt]*")) // wheels, and sources as tar.gz; the pattern is a good one
	w.Header().Set("Content-Type", "text/html")
	for _, f := range files {
		base := filepath.Base(f)
		if name, _, _ := strings.Cut(base, "-"); projectName(name) != project {
			continue
		}
		data, err := os.ReadFile(f)
		if err != nil {
			ix.t.Error(err)
			return
		}
		sum := sha256.Sum256(data)
		fmt.Fprintf(w, "<a href=\"%s/files/%s#sha256=%s\">%s</a>\n", ix.url, base, hex.EncodeToString(sum[:]), base)
	}
}

func (ix *index) file(w http.ResponseWriter, r *http.Request, name string) {
	ix.mu.Lock()
	trouble, pause := ix.trouble, ix.pause
	if r.Method == http.MethodGet {
		ix.gets[name]++
	}
	ix.mu.Unlock()
	out := &slowWriter{w, pause}
	if trouble != nil && trouble(out, r, name) {
		return
	}
	w.Header().Set("ETag", `"`+name+`"`)
	http.ServeFile(out, r, filepath.Join(ix.dir, name))
}

// slowWriter waits before every piece of an answer.
type slowWriter struct {
	http.ResponseWriter
	pause time.Duration
}

func (s *slowWriter) Write(p []byte) (int, error) {
	const piece = 64 << 10
	done := 0
	for done < len(p) {
		time.Sleep(s.pause)
		n, err := s.ResponseWriter.Write(p[done:min(len(p), done+piece)])
		if done += n; err != nil {
			return done, err
		}
	}
	return done, nil
}
