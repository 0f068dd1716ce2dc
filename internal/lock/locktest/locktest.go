// Package locktest makes what locking and building need, small and without a network: package indexes, wheels and bases.
package locktest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/tooltest"
)

// UV makes sure that uv is there.
func UV(t testing.TB) {
	t.Helper()
	tooltest.Path(t, "uv")
}

// Isolate hides the configuration of uv and pip that this machine has, and returns the empty home that takes its place.
func Isolate(t *testing.T) string {
	t.Helper()
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "UV_") || strings.HasPrefix(name, "PIP_") || strings.HasPrefix(name, "XDG_") || name == "NETRC" || name == "VIRTUAL_ENV" {
			t.Setenv(name, "") // restored after the test
			os.Unsetenv(name)
		}
	}
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_DIRS", filepath.Join(home, "etc"))
	t.Setenv("UV_CACHE_DIR", filepath.Join(home, "uv-cache"))
	warm(t, filepath.Join(home, "uv-cache"))
	t.Setenv("UV_PYTHON_DOWNLOADS", "never")
	return home
}

// interpreters is what uv found out about this machine's Pythons, which takes it longer than all the rest.
var interpreters = sync.OnceValue(func() fs.FS {
	dir, err := os.MkdirTemp("", "sconce-locktest-*")
	if err != nil {
		return nil
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("uv", "python", "list", "--only-installed") // which looks at all of them
	cmd.Env = append(os.Environ(), "UV_CACHE_DIR="+dir)
	if cmd.Run() != nil {
		return nil
	}
	found := make(fstest.MapFS)
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		if strings.HasPrefix(name, "interpreter-") {
			found[name] = &fstest.MapFile{Data: data, Mode: 0o644}
		}
		return err
	})
	return found
})

// warm puts that into a new cache.
func warm(t testing.TB, cache string) {
	t.Helper()
	if known := interpreters(); known != nil {
		if err := os.CopyFS(cache, known); err != nil {
			t.Fatal(err)
		}
	}
}

// Wheel describes a wheel.
type Wheel struct {
	Name, Version string
	Requires      []string          // Requires-Dist
	Tag           string            // "" is py3-none-any
	Files         map[string]string // beside NAME/__init__.py
	Pad           int               // bytes of padding that do not compress, to make it large
}

// File returns the wheel's file name.
func (w Wheel) File() string { return w.Name + "-" + w.Version + "-" + w.tag() + ".whl" }

func (w Wheel) tag() string {
	if w.Tag != "" {
		return w.Tag
	}
	return "py3-none-any"
}

// Bytes returns the wheel's file, the same every time.
func (w Wheel) Bytes(t testing.TB) []byte {
	t.Helper()
	return zipOf(t, w.Unpacked())
}

// Unpacked is what is in the wheel, by path.
func (w Wheel) Unpacked() map[string]string {
	info := w.Name + "-" + w.Version + ".dist-info/"
	metadata := fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n", w.Name, w.Version)
	for _, r := range w.Requires {
		metadata += "Requires-Dist: " + r + "\n"
	}
	files := map[string]string{
		w.Name + "/__init__.py": fmt.Sprintf("__version__ = %q\n", w.Version),
		info + "METADATA":       metadata,
		info + "WHEEL":          "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: " + w.tag() + "\n",
	}
	maps.Copy(files, w.Files)
	if w.Pad > 0 {
		files[w.Name+"/"+padName] = padding(w.Name, w.Pad)
	}
	var record strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		sum := sha256.Sum256([]byte(files[name]))
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(files[name]))
	}
	fmt.Fprintf(&record, "%sRECORD,,\n", info)
	files[info+"RECORD"] = record.String()
	return files
}

// padName is the file of a wheel with its padding.
const padName = "pad.bin"

func padding(seed string, n int) string {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(seed))).Read(data)
	return string(data)
}

// File is a wheel that holds files, whatever they are.
func File(t testing.TB, files map[string]string) []byte {
	t.Helper()
	return zipOf(t, files)
}

func zipOf(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	var pool *sync.Pool
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) {
		c := compressor{pool.Get().(*flate.Writer), pool}
		c.Reset(w)
		return c, nil
	})
	for _, name := range slices.Sorted(maps.Keys(files)) {
		pool = usual
		if path.Base(name) == padName {
			pool = none // which all levels come to, and with the race detector it takes seconds until they do
		}
		f, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate})
		if err == nil {
			_, err = f.Write([]byte(files[name]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// To make a compressor takes longer than it does to compress a file of a test, and with the race detector much longer.
var usual, none = compressors(flate.DefaultCompression), compressors(flate.NoCompression)

func compressors(level int) *sync.Pool {
	return &sync.Pool{New: func() any {
		w, err := flate.NewWriter(nil, level)
		if err != nil {
			panic(err)
		}
		return w
	}}
}

// compressor is one of a pool, to which it returns when it is closed.
type compressor struct {
	*flate.Writer
	pool *sync.Pool
}

// Close ends the file.
func (c compressor) Close() error {
	defer c.pool.Put(c.Writer)
	return c.Writer.Close()
}

// Index is a package index (PEP 503) on this machine.
type Index struct {
	URL string // of the simple index

	mu             sync.Mutex
	files          map[string][]byte
	user, password string
	requests       []string
	hash           func(data []byte) string // what it says of a file behind #; nil: its sha256
}

// NewIndex starts an index with wheels. It stops with the test.
func NewIndex(t testing.TB, wheels ...Wheel) *Index {
	t.Helper()
	x := &Index{files: make(map[string][]byte)}
	server := httptest.NewServer(x)
	t.Cleanup(server.Close)
	x.URL = server.URL + "/simple"
	x.Add(t, wheels...)
	return x
}

// Add offers more wheels.
func (x *Index) Add(t testing.TB, wheels ...Wheel) {
	t.Helper()
	for _, w := range wheels {
		x.AddFile(w.File(), w.Bytes(t))
	}
}

// AddFile offers a file of any kind.
func (x *Index) AddFile(name string, data []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.files[name] = data
}

// Protect demands a login from now on.
func (x *Index) Protect(user, password string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.user, x.password = user, password
}

// HashBy has the index say something else of its files than their sha256: "md5=…".
func (x *Index) HashBy(hash func(data []byte) string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.hash = hash
}

// Downloads returns the files that were asked for since the last call, sorted.
func (x *Index) Downloads() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	got := x.requests
	x.requests = nil
	slices.Sort(got)
	return got
}

// FileURL returns the address of a file.
func (x *Index) FileURL(name string) string {
	return strings.TrimSuffix(x.URL, "/simple") + "/files/" + name
}

// WithLogin returns the index's address with a login in it.
func (x *Index) WithLogin(user, password string) string {
	return strings.Replace(x.URL, "://", "://"+user+":"+password+"@", 1)
}

func (x *Index) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if user, password, _ := r.BasicAuth(); x.user != "" && (user != x.user || password != x.password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="packages"`)
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	if name, ok := strings.CutPrefix(r.URL.Path, "/simple/"); ok {
		x.list(w, strings.Trim(name, "/"))
		return
	}
	name := filepath.Base(r.URL.Path)
	data, ok := x.files[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if r.Method == http.MethodGet {
		x.requests = append(x.requests, name)
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(data)
	}
}

func (x *Index) list(w http.ResponseWriter, name string) {
	found := false
	w.Header().Set("Content-Type", "text/html")
	for _, file := range slices.Sorted(maps.Keys(x.files)) {
		if project, _, _ := strings.Cut(file, "-"); strings.ReplaceAll(strings.ToLower(project), "_", "-") != name {
			continue
		}
		if !found {
			fmt.Fprintln(w, "<!DOCTYPE html><html><body>")
		}
		found = true
		sum := "sha256=" + hexSum(x.files[file])
		if x.hash != nil {
			sum = x.hash(x.files[file])
		}
		fmt.Fprintf(w, "<a href=\"/files/%s#%s\">%s</a>\n", file, sum, file)
	}
	if !found {
		w.WriteHeader(http.StatusNotFound)
	}
}

func hexSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Pylock returns a lock of wheels in the form of PEP 751, downloaded from x.
func (x *Index) Pylock(t testing.TB, wheels ...Wheel) string {
	t.Helper()
	text := "lock-version = \"1.0\"\ncreated-by = \"a test\"\n"
	for _, w := range wheels {
		data := w.Bytes(t)
		text += fmt.Sprintf("\n[[packages]]\nname = %q\nversion = %q\nwheels = [{ url = %q, size = %d, hashes = { sha256 = %q } }]\n",
			w.Name, w.Version, x.FileURL(w.File()), len(data), hexSum(data))
	}
	if len(wheels) == 0 {
		text += "packages = []\n"
	}
	return text
}

// The machines of a base, by their ELF numbers.
const (
	AMD64 = 62
	ARM64 = 183
)

// Base is a root file system with as much of a Python 3.11 as is looked at by reading it.
type Base struct {
	Machine   uint16            // 0 is AMD64
	Installed []Wheel           // packages that the base brings; of them, only the metadata
	Files     map[string]string // more files
}

const libc = "GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n"

// Shell is what a base needs to run a script: a shell and cat, both of busybox.
func Shell(t testing.TB) map[string]string {
	t.Helper()
	busybox, err := os.ReadFile(tooltest.Path(t, "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"bin/busybox": string(busybox), "bin/sh": "-> busybox", "bin/cat": "-> busybox", "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
	}
}

// Tar returns the base as a tar.
func (b Base) Tar(t testing.TB) []byte {
	t.Helper()
	machine, triplet := b.Machine, "x86_64-linux-gnu"
	if machine == 0 {
		machine = AMD64
	}
	if machine == ARM64 {
		triplet = "aarch64-linux-gnu"
	}
	files := map[string]string{
		"usr/bin/python3.11":                elf(machine, "\x003.11.2\x00"),
		"usr/lib/python3.11/os.py":          "",
		"usr/lib/python3/dist-packages/.x":  "",
		"usr/lib/" + triplet + "/libc.so.6": elf(machine, libc),
		"usr/bin/python3":                   "-> python3.11",
	}
	for _, w := range b.Installed {
		metadata := fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n", w.Name, w.Version)
		for _, r := range w.Requires {
			metadata += "Requires-Dist: " + r + "\n"
		}
		files["usr/lib/python3/dist-packages/"+w.Name+"-"+w.Version+".dist-info/METADATA"] = metadata
	}
	maps.Copy(files, b.Files)
	return tarOf(t, files)
}

func tarOf(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name])), Typeflag: tar.TypeReg}
		target, link := strings.CutPrefix(files[name], "-> ")
		if link {
			h.Typeflag, h.Size, h.Linkname = tar.TypeSymlink, 0, target
		}
		err := w.WriteHeader(h)
		if err == nil && !link {
			_, err = w.Write([]byte(files[name]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// elf is as much of a program as is looked at. It cannot run: a test in which it is run fails.
func elf(machine uint16, text string) string {
	const headerSize, segmentSize, loader = 64, 56, "/lib64/ld-linux-x86-64.so.2\x00"
	b := make([]byte, headerSize+segmentSize)
	copy(b, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(b[18:], machine)
	binary.LittleEndian.PutUint64(b[32:], headerSize)
	binary.LittleEndian.PutUint16(b[56:], 1)
	segment := b[headerSize:]
	binary.LittleEndian.PutUint32(segment, 3)
	binary.LittleEndian.PutUint64(segment[8:], headerSize+segmentSize)
	binary.LittleEndian.PutUint64(segment[32:], uint64(len(loader)))
	return string(b) + loader + text
}

// Dir makes a directory with files in it, the base as base.tar among them, and returns it.
func Dir(t testing.TB, b Base, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	Write(t, dir, map[string]string{"base.tar": string(b.Tar(t))})
	Write(t, dir, files)
	return dir
}

// Write writes files into a directory.
func Write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Head begins every recipe of a test: a name, and base.tar as the base.
const Head = "name = \"test\"\n[base]\nimage = \"tar:base.tar\"\n[target]\nplatform = \"linux/amd64\"\n"

// Load writes a recipe into dir and loads it.
func Load(t testing.TB, dir, text string) *recipe.Recipe {
	t.Helper()
	Write(t, dir, map[string]string{recipe.FileName: text})
	r, err := recipe.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Events collects what is reported.
type Events struct {
	mu  sync.Mutex
	all []progress.Event
}

// Emit implements [progress.Sink].
func (s *Events) Emit(e progress.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, e)
}

// Texts returns what was said in events of a kind, with hints.
func (s *Events) Texts(kind progress.Kind) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var texts []string
	for _, e := range s.all {
		if e.Kind == kind {
			texts = append(texts, strings.TrimSpace(strings.Join([]string{e.Verb, e.Name, e.Text, e.Hint, e.Err}, " ")))
		}
	}
	return texts
}

// Everything returns all that was said, for a look at what must not be there.
func (s *Events) Everything() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%+v", s.all)
}
