package elfx

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// treeFS is an image in memory: files by their names, and symbolic links.
type treeFS struct {
	files map[string][]byte
	links map[string]string
}

func (t treeFS) Resolve(name string) (string, error) {
	real := "/"
	parts := strings.Split(name, "/")
	for follow := 0; len(parts) > 0; {
		part := parts[0]
		parts = parts[1:]
		next := path.Join(real, part)
		target, isLink := t.links[next]
		switch {
		case isLink && follow > 40:
			return "", errors.New("too many links")
		case isLink:
			follow++
			if path.IsAbs(target) {
				real = "/"
			}
			parts = append(strings.Split(target, "/"), parts...)
		case !t.has(next):
			return "", fs.ErrNotExist
		default:
			real = next
		}
	}
	return real, nil
}

func (t treeFS) has(name string) bool {
	_, ok := t.files[name]
	return ok || name == "/" || len(t.names(name)) > 0
}

func (t treeFS) names(dir string) []string {
	var names []string
	add := func(name string) {
		if rest, ok := strings.CutPrefix(name, strings.TrimSuffix(dir, "/")+"/"); ok {
			first, _, _ := strings.Cut(rest, "/")
			names = append(names, first)
		}
	}
	for name := range t.files {
		add(name)
	}
	for name := range t.links {
		add(name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (t treeFS) Open(name string) (Handle, error) {
	data, ok := t.files[name]
	if !ok {
		return nil, fs.ErrInvalid
	}
	return memory{bytes.NewReader(data)}, nil
}

func (t treeFS) ReadDir(name string) ([]string, error) {
	real, err := t.Resolve(name)
	return t.names(real), err
}

// texts makes a tree of text files.
func texts(files map[string]string) treeFS {
	t := treeFS{map[string][]byte{}, map[string]string{}}
	for name, text := range files {
		t.files[name] = []byte(text)
	}
	return t
}

func TestLdSoConf(t *testing.T) {
	tree := texts(map[string]string{
		"/etc/ld.so.conf":              "# first\ninclude ld.so.conf.d/*.conf /opt/*/ld.conf\n  /usr/local/cuda/lib64/  # CUDA\nhwcap 0 nosegneg\nrelative/dir\n/old=libc6\ninclude /etc/ld.so.conf\n/after\n/after",
		"/etc/ld.so.conf.d/b.conf":     "/b",
		"/etc/ld.so.conf.d/a.conf":     "/a one\n\n",
		"/etc/ld.so.conf.d/.hide.conf": "/hidden",
		"/etc/ld.so.conf.d/c.txt":      "/c",
		"/opt/x/ld.conf":               "/opt/x/lib\n/b",
		"/opt/y/other":                 "",
	})
	tree.links["/etc/ld.so.conf.d/z.conf"] = "/opt/x/ld.conf"
	tree.links["/etc/ld.so.conf.d/lost.conf"] = "/gone"
	want := []string{"/a one", "/b", "/opt/x/lib", "/usr/local/cuda/lib64", "/old", "/after"}
	if diff := cmp.Diff(want, (&Loader{FS: tree}).configDirs()); diff != "" {
		t.Error(diff)
	}
	if got := (&Loader{FS: texts(nil)}).configDirs(); got != nil {
		t.Errorf("without a configuration: %q", got)
	}
}

// TestLdSoConfWithoutEnd: each file includes two others.
func TestLdSoConfWithoutEnd(t *testing.T) {
	files := map[string]string{"/etc/ld.so.conf": "include /etc/*\n"}
	for i := range 300 {
		files["/etc/"+strings.Repeat("x", i+1)] = "include /etc/*\n/dir" + strings.Repeat("x", i)
	}
	if got := len((&Loader{FS: texts(files)}).configDirs()); got == 0 || got > maxConfigDirs {
		t.Errorf("%d directories", got)
	}
}

func TestDefaultDirs(t *testing.T) {
	debian := texts(map[string]string{"/usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1": "", "/usr/lib/x86_64-linux-gnu/x": ""})
	musl := texts(map[string]string{"/etc/ld-musl-x86_64.path": "/one:/two\nrelative\n/three\n"})
	for _, test := range []struct {
		name, arch, interpreter, real string
		tree                          treeFS
		libc                          Libc
		want                          []string
	}{
		{"Debian", "arm64", "/lib/ld-linux-aarch64.so.1", "/usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1", debian, Glibc, []string{"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib", "/usr/lib"}},
		{"Debian without an interpreter", "amd64", "", "", debian, UnknownLibc, []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib", "/usr/lib"}},
		{"Fedora", "amd64", "/lib64/ld-linux-x86-64.so.2", "/usr/lib64/ld-linux-x86-64.so.2", texts(nil), Glibc, []string{"/lib64", "/usr/lib64"}},
		{"i386", "386", "/lib/ld-linux.so.2", "/usr/lib/ld-linux.so.2", texts(nil), Glibc, []string{"/lib", "/usr/lib"}},
		{"other", "EM_68K", "", "", texts(nil), UnknownLibc, []string{"/lib", "/usr/lib"}},
		{"Alpine", "amd64", "/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-x86_64.so.1", texts(nil), Musl, []string{"/lib", "/usr/local/lib", "/usr/lib"}},
		{"configured musl", "amd64", "/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-x86_64.so.1", musl, Musl, []string{"/one", "/two", "/three"}},
	} {
		l := &Loader{FS: test.tree}
		if diff := cmp.Diff(test.want, l.defaultDirs(&File{Arch: test.arch}, test.interpreter, test.real, test.libc).dirs); diff != "" {
			t.Error(test.name, diff)
		}
	}
}

// put adds files of this machine to a tree.
func (t treeFS) put(tb testing.TB, from string, names ...string) {
	tb.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range names {
		t.files[name] = data
	}
}

// TestImage is an image with links where merged /usr and CUDA have them, a configuration, and a program that is nowhere else.
func TestImage(t *testing.T) {
	ld := loader(t)
	dir := build(t, `
lib a/libconf.so.1 'int conf() {}'; lib a/nolib.so.1 'int no;'; lib a/libdef.so.1 'int def() {}'
prog p 'int conf(), def(); int main() { conf(); def(); }' a/libconf.so.1 a/libdef.so.1
prog q 'int main() { }' a/nolib.so.1`)
	tree := texts(map[string]string{"/etc/ld.so.conf": "/usr/local/cuda/lib64"})
	tree.links = map[string]string{"/usr/local/cuda": "cuda-12", "/usr/local/cuda-12/lib64": "/usr/local/cuda-12/targets/lib", "/lib64": "usr/lib64", "/lib": "usr/lib", "/usr/bin/p": "../../opt/p"}
	const lib, deflib = "/usr/local/cuda-12/targets/lib/", "/usr/lib64/"
	tree.put(t, filepath.Join(dir, "p"), "/opt/p")
	tree.put(t, filepath.Join(dir, "q"), "/opt/q")
	tree.put(t, filepath.Join(dir, "a/libconf.so.1"), lib+"libconf.so.1")
	tree.put(t, filepath.Join(dir, "a/nolib.so.1"), lib+"nolib.so.1")
	tree.put(t, filepath.Join(dir, "a/libdef.so.1"), deflib+"libdef.so.1", deflib+"glibc-hwcaps/x86-64-v3/libdef.so.1")
	tree.put(t, open(t, "/usr/bin/true").Interpreter, "/usr"+ld)
	tree.put(t, "/lib/"+machines[open(t, "/usr/bin/true").Arch].triplet+"/libc.so.6", deflib+"libc.so.6")

	l := &Loader{FS: tree, ISALevel: 3}
	c, err := l.Closure("/usr/bin/p")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range c.Objects {
		got = append(got, o.Path+" "+o.Real+" "+o.Rule.String())
	}
	def := "/lib64/libdef.so.1 /usr/lib64/libdef.so.1"
	if open(t, "/usr/bin/true").Arch == "amd64" {
		def = "/lib64/glibc-hwcaps/x86-64-v3/libdef.so.1 /usr/lib64/glibc-hwcaps/x86-64-v3/libdef.so.1"
	}
	want := []string{
		"/opt/p /opt/p asked for",
		"/usr/local/cuda/lib64/libconf.so.1 " + lib + "libconf.so.1 configuration of the loader: /usr/local/cuda/lib64",
		def + " default directory: /lib64",
		"/lib64/libc.so.6 /usr/lib64/libc.so.6 default directory: /lib64",
		ld + " /usr" + ld + " the interpreter",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if problems, err := l.Check(c, CheckOptions{}); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	// ldconfig does not take a name that is no library's.
	if diff := cmp.Diff([]string{"/opt/q needs nolib.so.1, which is nowhere the loader looks"}, problemsOf(t, l, "/opt/q", CheckOptions{})); diff != "" {
		t.Error(diff)
	}

	delete(tree.files, "/usr"+ld)
	got = problemsOf(t, &Loader{FS: tree}, "/opt/p", CheckOptions{RootOnly: true})
	if diff := cmp.Diff([]string{"/opt/p needs the interpreter " + ld + ", which is not in the image"}, got); diff != "" {
		t.Error(diff)
	}
	if _, err := l.Closure("/gone"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestMusl has programs for musl's loader. MUSL may name one to judge: it lies where it was unpacked.
func TestMusl(t *testing.T) {
	loader(t)
	dir := build(t, `
musl="-nostdlib -Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"
echo '' > libc.c; gcc -shared -nostdlib -o a/libc.musl-x86_64.so.1 libc.c -Wl,-soname,libc.musl-x86_64.so.1
lib a/libb.so 'int b;' -nostdlib
lib a/liba.so 'int a;' -nostdlib $all a/libb.so a/libc.musl-x86_64.so.1
lib b/libenv.so 'int e;' -nostdlib; cp b/libenv.so a
prog p 'int _start() {}' $musl a/liba.so b/libenv.so a/libc.musl-x86_64.so.1 -Wl,-rpath,'$ORIGIN/a'
prog q 'int _start() {}' $musl a/liba.so a/libb.so -Wl,-rpath,'$LIB/x:$ORIGIN/a'`)
	judge := os.Getenv("MUSL")
	interpreter := filepath.Join(dir, "a/libc.musl-x86_64.so.1")
	if judge != "" {
		interpreter = judge
	}
	l := &Loader{FS: hostFS{map[string]string{"/lib/ld-musl-x86_64.so.1": interpreter}}, LibraryPath: dir + "/b"}
	for name, want := range map[string][]string{
		"p": {"liba.so: RUNPATH of ./p: ./a", "libenv.so: LD_LIBRARY_PATH: ./b", "libb.so: RUNPATH of ./p: ./a"},
		"q": {"liba.so: not found", "libb.so: not found"},
	} {
		c, err := l.Closure(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, rules(c, dir)); diff != "" || c.Libc != Musl {
			t.Error(name, c.Libc, diff)
		}
		if judge == "" {
			continue
		}
		out := run(t, "/", "sh", "-c", "LD_LIBRARY_PATH="+dir+"/b "+judge+" --list "+filepath.Join(dir, name)+" 2>&1 || :")
		t.Log(strings.ReplaceAll(out, dir, "."))
		for _, o := range c.Objects[1:] {
			if o != c.Interpreter && !strings.Contains(out, path.Base(o.Path)+" => "+o.Path+" (") {
				t.Errorf("musl does not have %s", o.Path)
			}
		}
		for _, link := range c.Missing() {
			if !strings.Contains(out, "Error loading shared library "+link.Name) {
				t.Errorf("musl does have %s", link.Name)
			}
		}
	}
}

// A table goes on in the next segment where that follows in memory and in the file, and not otherwise.
func TestMappedAcrossSegments(t *testing.T) {
	im := &image{size: 0x9000, loads: []segment{
		{0x1000, region{0, 0x1000}}, {0x2000, region{0x1000, 0x800}}, {0x2800, region{0x4000, 0x1000}}, {0x9000, region{0x5000, 0x1000}},
	}}
	for _, test := range []struct {
		address, size uint64
		want          region
	}{
		{0x1100, 0x200, region{0x100, 0x200}},
		{0x1100, 0x1200, region{0x100, 0x1200}},
		{0x1100, 0x5000, region{0x100, 0x1700}},
		{0x2800, 0x5000, region{0x4000, 0x1000}},
		{0x3800, 1, region{}},
		{0x9fff, 0x10, region{0x5fff, 1}},
	} {
		if got := im.mapped(test.address, test.size); got != test.want {
			t.Errorf("%#x bytes at %#x: %+v, want %+v", test.size, test.address, got, test.want)
		}
	}
}
