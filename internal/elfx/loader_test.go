package elfx

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/tooltest"
)

// build runs a script with gcc in a fresh directory and returns it. The functions of the prelude make a library or a
// program from a source text: lib DIR/FILE SOURCE FLAGS...
func build(t testing.TB, script string) string {
	t.Helper()
	tooltest.Path(t, "gcc")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const prelude = `set -eu
mkdir -p a b c
lib() { out=$1 src=$2; shift 2; echo "$src" > source.c; gcc -w -shared -fPIC -Wl,-soname,"${out##*/}" -o "$out" source.c "$@"; }
prog() { out=$1 src=$2; shift 2; echo "$src" > source.c; gcc -w -o "$out" source.c -Wl,--no-as-needed -Wl,--allow-shlib-undefined "$@"; }
old='-Wl,--disable-new-dtags' new='-Wl,--enable-new-dtags'
all=-Wl,--no-as-needed
`
	run(t, dir, "sh", "-c", prelude+script)
	return dir
}

// rules returns how each library of a closure was found: the first link for each, but for the C library's own.
func rules(c *Closure, dir string) []string {
	var lines []string
	for _, link := range c.Links {
		if link.Rule.Kind == FromDefault || link.To != nil && (link.To.By == nil || strings.HasPrefix(link.To.Path, "/lib/")) {
			continue
		}
		line := link.Name + ": "
		switch {
		case link.Host:
			line += "host"
		case link.Err != nil:
			line += "unusable"
		default:
			line += link.Rule.String()
		}
		lines = append(lines, strings.ReplaceAll(line, dir, "."))
	}
	return lines
}

var loaderTests = []struct {
	name   string
	script string
	env    string // LD_LIBRARY_PATH, with ./ for the directory
	want   []string
}{
	{
		name: "an RPATH is inherited",
		script: `lib a/libb.so 'int b;'; lib a/liba.so 'extern int b; int a() { return b; }' $all a/libb.so
			prog p 'int a(); int main() { a(); }' a/liba.so $old -Wl,-rpath,'$ORIGIN/a'`,
		want: []string{"liba.so: RPATH of ./p: ./a", "libb.so: RPATH of ./p: ./a"},
	},
	{
		name: "a RUNPATH is not",
		script: `lib a/libb.so 'int b;'; lib a/liba.so 'extern int b; int a() { return b; }' $all a/libb.so
			prog p 'int a(); int main() { a(); }' a/liba.so $new -Wl,-rpath,'${ORIGIN}/a'`,
		want: []string{"liba.so: RUNPATH of ./p: ./a", "libb.so: not found"},
	},
	{
		name: "a RUNPATH hides the RPATH of the chain",
		script: `lib a/libb.so 'int b;'; lib a/liba.so 'extern int b; int a() { return b; }' $all a/libb.so $new -Wl,-rpath,/nowhere
			prog p 'int a(); int main() { a(); }' a/liba.so $old -Wl,-rpath,'$ORIGIN/a'`,
		want: []string{"liba.so: RPATH of ./p: ./a", "libb.so: not found"},
	},
	{
		name: "a library with a RUNPATH passes the program's RPATH on, but none of its own",
		script: `lib b/libc1.so 'int c;'; lib c/libd1.so 'int d;'
			lib a/libb.so 'int b;' $all b/libc1.so c/libd1.so
			lib a/liba.so 'int a;' $all a/libb.so $new -Wl,-rpath,'$ORIGIN:$ORIGIN/../c'
			prog p 'int main() { }' a/liba.so $old -Wl,-rpath,'$ORIGIN/a:$ORIGIN/b'`,
		want: []string{"liba.so: RPATH of ./p: ./a", "libb.so: RUNPATH of ./a/liba.so: ./a", "libc1.so: RPATH of ./p: ./b", "libd1.so: not found"},
	},
	{
		name: "an RPATH comes before LD_LIBRARY_PATH",
		script: `lib a/liba.so 'int a;'; lib b/liba.so 'int a;'
			prog p 'int main() { }' a/liba.so $old -Wl,-rpath,'$ORIGIN/a'`,
		env:  "./b",
		want: []string{"liba.so: RPATH of ./p: ./a"},
	},
	{
		name: "a RUNPATH after",
		script: `lib a/liba.so 'int a;'; lib b/liba.so 'int a;'
			prog p 'int main() { }' a/liba.so $new -Wl,-rpath,'$ORIGIN/a'`,
		env:  "/nowhere;./b/",
		want: []string{"liba.so: LD_LIBRARY_PATH: ./b/"},
	},
	{
		name: "a name that is a path",
		script: `echo 'int a;' > a.c; gcc -shared -fPIC -o a/liba.so a.c; gcc -shared -fPIC -Wl,-soname,'$ORIGIN/b/libb.so' -o b/libb.so a.c
			prog p 'int main() { }' "$PWD/a/liba.so" b/libb.so`,
		want: []string{"./a/liba.so: path", "$ORIGIN/b/libb.so: path"},
	},
	{
		name: "a library that another name stands for",
		script: `lib a/liba.so 'int a;'; ln -s liba.so a/libx.so; lib a/libx.so.tmp 'int x;' -Wl,-soname,libx.so
			lib a/libb.so 'int b;' $all a/libx.so.tmp; rm a/libx.so.tmp
			prog p 'int main() { }' a/liba.so a/libb.so $old -Wl,-rpath,'$ORIGIN/a'`,
		want: []string{"liba.so: RPATH of ./p: ./a", "libb.so: RPATH of ./p: ./a", "libx.so: RPATH of ./p: ./a"},
	},
	{
		name: "a name that a library loaded before has as its SONAME",
		script: `lib a/libfile.so 'int a;' -Wl,-soname,libname.so; lib b/libname.so 'int a;'
			lib a/libb.so 'int b;' $all b/libname.so; cp a/libfile.so a/libother.so
			printf 'int main() { }' > p.c; gcc -o p p.c $all "$PWD/a/libother.so" a/libb.so $old -Wl,-rpath,'$ORIGIN/b:$ORIGIN/a'`,
		want: []string{"libname.so: RPATH of ./p: ./b", "libb.so: RPATH of ./p: ./a", "libname.so: already loaded"},
	},
	{
		name: "a library for another machine is passed over",
		script: `lib a/liba.so 'int a;'; cp a/liba.so b/liba.so; printf '\025\000' | dd of=b/liba.so bs=1 seek=18 conv=notrunc status=none
			prog p 'int main() { }' a/liba.so $old -Wl,-rpath,'$ORIGIN/b:$ORIGIN/a'`,
		want: []string{"liba.so: RPATH of ./p: ./a"},
	},
	{
		name: "a directory with better libraries for the processor",
		script: `lib a/liba.so 'int a;'; mkdir -p a/glibc-hwcaps/x86-64-v2; cp a/liba.so a/glibc-hwcaps/x86-64-v2/
			prog p 'int main() { }' a/liba.so $new -Wl,-rpath,'$ORIGIN/a'`,
		want: []string{"liba.so: RUNPATH of ./p: ./a"},
	},
	{
		name: "no default directories",
		script: `lib a/liba.so 'int a;'
			prog p 'int main() { }' a/liba.so -lz -Wl,-z,nodefaultlib || prog p 'int main() { }' a/liba.so -Wl,-z,nodefaultlib`,
		env:  "./a",
		want: nil, // whatever the judge says
	},
}

func TestClosure(t *testing.T) {
	judge := loader(t)
	for _, test := range loaderTests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := build(t, test.script)
			env := strings.ReplaceAll(test.env, "./", dir+"/")
			l := &Loader{FS: hostFS{}, LibraryPath: env, ISALevel: hostLevel(t, judge)}
			program := filepath.Join(dir, "p")
			compare(t, l, judge, program, "LD_LIBRARY_PATH="+env)
			c, err := l.Closure(program)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, rules(c, dir)); diff != "" && test.want != nil {
				t.Error(diff)
			}
		})
	}
}

func TestClosureSaysWhatWasPassedOver(t *testing.T) {
	loader(t)
	dir := build(t, `lib a/liba.so 'int a;'; cp a/liba.so b/liba.so; printf '\025\000' | dd of=b/liba.so bs=1 seek=18 conv=notrunc status=none
		prog p 'int main() { }' a/liba.so $old -Wl,-rpath,'$ORIGIN/b'`)
	l := &Loader{FS: hostFS{}}
	problems := problemsOf(t, l, filepath.Join(dir, "p"), CheckOptions{})
	want := []string{dir + "/p needs liba.so, which is there for other machines only: " + dir + "/b/liba.so (ppc64le)"}
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Error(diff)
	}
}

// problemsOf returns the problems of a file and all it needs.
func problemsOf(t testing.TB, l *Loader, name string, o CheckOptions, before ...*Closure) []string {
	t.Helper()
	c, err := l.Closure(name, before...)
	if err != nil {
		t.Fatal(err)
	}
	problems, err := l.Check(c, o)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, p := range problems {
		lines = append(lines, p.String())
	}
	return lines
}

func TestUnusableLibrary(t *testing.T) {
	loader(t)
	dir := build(t, `lib a/liba.so 'int a;'; lib a/libb.so 'int b;'; lib a/libc1.so 'int c;'; lib a/libd1.so 'int d;'
		prog p 'int main() { }' a/liba.so a/libb.so a/libc1.so a/libd1.so $old -Wl,-rpath,'$ORIGIN/a'
		echo 'GROUP ( liba.so.1 )' > a/liba.so; cp p a/libb.so; head -c 100 a/libc1.so > x; mv x a/libc1.so; rm a/libd1.so; mkdir a/libd1.so`)
	got := problemsOf(t, &Loader{FS: hostFS{}}, filepath.Join(dir, "p"), CheckOptions{})
	var whole string
	for i, want := range []string{
		"liba.so, which cannot be used: " + dir + "/a/liba.so: not an ELF file",
		"libb.so, which cannot be used: " + dir + "/a/libb.so: not a shared library: position-independent executable",
		"libc1.so, which cannot be used: " + dir + "/a/libc1.so: read the program headers: damaged ELF file: a table ends",
		"libd1.so, which cannot be used: " + dir + "/a/libd1.so: open " + dir + "/a/libd1.so: invalid argument",
	} {
		if i >= len(got) || !strings.HasPrefix(got[i], dir+"/p needs "+want) {
			t.Errorf("got %q, want it to have %q", got, want)
		}
		whole += want
	}
	if len(got) != 4 {
		t.Errorf("%d problems: %q", len(got), got)
	}
	if _, err := (&Loader{FS: hostFS{}}).Closure(filepath.Join(dir, "a/liba.so")); !errors.Is(err, ErrNotELF) {
		t.Errorf("closure of a text: %v", err)
	}
}

const versionScripts = `
cat > one.map <<E
V_1.2 { global: f; local: *; };
E
cat > two.map <<E
V_1.2 { global: f; local: *; };
V_1.10 { global: g; h; } V_1.2;
OTHER { global: i; };
E
lib a/liba.so 'int f() {} int g() {} int h() {} int i() {}' -Wl,--version-script,two.map
prog p 'int f(), g(), i(); int main() { f(); g(); i(); }' a/liba.so $new -Wl,-rpath,'$ORIGIN/b:$ORIGIN/a'
`

func TestMissingVersion(t *testing.T) {
	judge := loader(t)
	dir := build(t, versionScripts+`lib b/liba.so 'int f() {} int g() {} int i() {}' -Wl,--version-script,one.map`)
	l := &Loader{FS: hostFS{}}
	program := filepath.Join(dir, "p")
	compare(t, l, judge, program)
	want := []string{
		dir + "/p needs version V_1.10 of liba.so, but " + dir + "/b/liba.so has none above V_1.2",
		dir + "/p needs version OTHER of liba.so, but " + dir + "/b/liba.so has no versions of that kind",
	}
	got := problemsOf(t, l, program, CheckOptions{})
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestLibraryWithoutVersions: ld.so warns only, and takes the symbols.
func TestLibraryWithoutVersions(t *testing.T) {
	judge := loader(t)
	dir := build(t, versionScripts+`lib b/liba.so 'int puts(); int f() { puts(""); } int i() {}'`)
	l := &Loader{FS: hostFS{}}
	program := filepath.Join(dir, "p")
	c, err := l.Closure(program)
	if err != nil {
		t.Fatal(err)
	}
	problems, err := l.Check(c, CheckOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, want, _ := ldd(t, judge, program)
	if diff := cmp.Diff(want, undefined(problems)); diff != "" || len(want) != 1 {
		t.Error(diff, want)
	}
}

// TestLibraryWithoutVersionTable: when it uses no versions of other libraries either, ld.so gives up.
func TestLibraryWithoutVersionTable(t *testing.T) {
	judge := loader(t)
	dir := build(t, versionScripts+`lib b/liba.so 'int f() {} int g() {} int i() {}'`)
	program := filepath.Join(dir, "p")
	_, _, rest := ldd(t, judge, program)
	if !slices.ContainsFunc(rest, func(line string) bool { return strings.HasPrefix(line, "Inconsistency detected") }) {
		t.Skipf("this loader takes it: %q", rest)
	}
	got := problemsOf(t, &Loader{FS: hostFS{}}, program, CheckOptions{})
	if len(got) != 3 || !strings.Contains(got[0], "needs version") {
		t.Error(got)
	}
}

// TestSymbolVersions has definitions of all sorts, and references to them.
func TestSymbolVersions(t *testing.T) {
	judge := loader(t)
	dir := build(t, `
cat > lib.map <<E
V_1 { global: old; both; local: *; };
V_2 { global: both; only2; } V_1;
E
lib a/libv.so '__asm__(".symver both1, both@V_1"); __asm__(".symver both2, both@@V_2"); __asm__(".symver older, old@V_1"); __asm__(".symver hid, only2@V_2");
	int both1() {} int both2() {} int older() {} int hid() {}' -Wl,--version-script,lib.map
lib a/libu.so 'int plain() {} extern int weakly() __attribute__((weak)); int w() { return weakly ? weakly() : 0; } __thread int tls;'
lib a/libr.so 'int both(), old(), only2(), plain(), gone(); extern int data; extern __thread int tls, notls;
	int r() { return both() + old() + only2() + plain() + gone() + data + tls + notls; }'
prog p 'int main() { }' a/libv.so a/libu.so a/libr.so $old -Wl,-rpath,'$ORIGIN/a'`)
	l := &Loader{FS: hostFS{}}
	program := filepath.Join(dir, "p")
	compare(t, l, judge, program)
	c, err := l.Closure(program)
	if err != nil {
		t.Fatal(err)
	}
	problems, err := l.Check(c, CheckOptions{MaxSymbols: 2})
	if err != nil {
		t.Fatal(err)
	}
	if len(problems) != 2 || problems[1].More != 2 {
		t.Errorf("got %v", problems)
	}
	if problems, err = l.Check(c, CheckOptions{RootOnly: true}); err != nil || len(problems) > 0 {
		t.Errorf("of the program alone: %v, %v", problems, err)
	}
}

// TestPlugin: an extension module gets symbols from the program, libraries that were loaded before by their SONAMEs, and
// others by the program's RPATH.
func TestPlugin(t *testing.T) {
	loader(t)
	dir := build(t, `
lib a/libtorch.so 'int torch;'
lib a/libext.so 'int ext;'
echo 'int PyInit() {} int main() {}' > p.c; gcc -rdynamic -o p p.c $old -Wl,-rpath,'$ORIGIN/a'
lib b/_torch.so 'extern int torch; int t() { return torch; }' a/libtorch.so $new -Wl,-rpath,'$ORIGIN/../a'
lib b/plugin.so 'int PyInit(); extern int torch, ext, cuda; int _ZN3c106detail5checkEPKc(); int x() { return PyInit() + torch + ext + cuda + _ZN3c106detail5checkEPKc(); }' \
	a/libtorch.so a/libext.so $new -Wl,-rpath,'$ORIGIN'
mkdir d; mv a/libtorch.so d; sed -i 's,/\.\./a,/../d,' b/_torch.so`)
	l := &Loader{FS: hostFS{}}
	plugin := filepath.Join(dir, "b/plugin.so")

	alone := problemsOf(t, l, plugin, CheckOptions{})
	want := []string{plugin + " needs libtorch.so, which is nowhere the loader looks", plugin + " needs libext.so, which is nowhere the loader looks"}
	if diff := cmp.Diff(want, alone); diff != "" {
		t.Error(diff)
	}

	program, err := l.Closure(filepath.Join(dir, "p"))
	if err != nil {
		t.Fatal(err)
	}
	torch, err := l.Closure(filepath.Join(dir, "b/_torch.so"), program)
	if err != nil {
		t.Fatal(err)
	}
	// The plugin has a RUNPATH, so the program's RPATH is of no use for it.
	c, err := l.Closure(plugin, program, torch)
	if err != nil {
		t.Fatal(err)
	}
	if got := rules(c, dir); !slices.Equal(got, []string{"libtorch.so: already loaded", "libext.so: not found"}) {
		t.Errorf("with a RUNPATH: %q", got)
	}

	run(t, dir, "gcc", "-shared", "-fPIC", "-w", "-o", "b/plugin.so", "source.c", "-Wl,--no-as-needed", "d/libtorch.so", "a/libext.so")
	l = &Loader{FS: hostFS{}}
	options := CheckOptions{Global: []*Closure{program}, Provided: []string{"cu"}}
	got := problemsOf(t, l, plugin, options, program, torch)
	if diff := cmp.Diff([]string{plugin + " needs the symbol c10::detail::check(char const*), which nothing defines that is loaded with it"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestHostLibraries(t *testing.T) {
	loader(t)
	dir := build(t, `lib a/libcuda.so.1 'int cuInit() {} int other() {}'
		lib a/libx.so 'int cuInit(), other(), cuGone(); int x() { return cuInit() + other() + cuGone(); }' $all a/libcuda.so.1; mv a/libcuda.so.1 b`)
	name := filepath.Join(dir, "a/libx.so")
	for _, test := range []struct {
		symbols []string
		want    []string
	}{
		{nil, nil},
		{[]string{"cu"}, []string{name + " needs the symbol other, which nothing defines that is loaded with it"}},
	} {
		l := &Loader{FS: hostFS{}, Host: []HostLibrary{{"libcuda.so.1", test.symbols}}}
		if diff := cmp.Diff(test.want, problemsOf(t, l, name, CheckOptions{})); diff != "" {
			t.Error(test.symbols, diff)
		}
	}
	// One that is in the image is the image's.
	l := &Loader{FS: hostFS{}, LibraryPath: dir + "/b", Host: []HostLibrary{{Name: "libcuda.so.1"}}}
	want := []string{name + " needs the symbol cuGone, which nothing defines that is loaded with it"}
	if diff := cmp.Diff(want, problemsOf(t, l, name, CheckOptions{})); diff != "" {
		t.Error(diff)
	}
}

func TestPreload(t *testing.T) {
	judge := loader(t)
	dir := build(t, `lib a/liba.so 'int a;'; lib b/libp.so 'int p;'; prog p 'int main() { }' a/liba.so $old -Wl,-rpath,'$ORIGIN/a'`)
	preload := dir + "/b/libp.so libgone.so"
	l := &Loader{FS: hostFS{}, Preload: preload}
	c, err := l.Closure(filepath.Join(dir, "p"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range c.Objects[1:] {
		got = append(got, o.Path)
	}
	libraries, _, _ := ldd(t, judge, filepath.Join(dir, "p"), "LD_PRELOAD="+preload)
	for i := range libraries {
		libraries[i] = libraries[i][strings.LastIndex(libraries[i], " ")+1:]
	}
	if diff := cmp.Diff(libraries, got); diff != "" {
		t.Error(diff)
	}
}

func TestProcessorTooOld(t *testing.T) {
	loader(t)
	dir := build(t, `lib a/liba.so 'int a;' -Wl,-z,x86-64-v3; prog p 'int main() { }' a/liba.so $old -Wl,-rpath,'$ORIGIN/a'`)
	if got := problemsOf(t, &Loader{FS: hostFS{}, ISALevel: 3}, filepath.Join(dir, "p"), CheckOptions{}); got != nil {
		t.Error(got)
	}
	got := problemsOf(t, &Loader{FS: hostFS{}, ISALevel: 2}, filepath.Join(dir, "p"), CheckOptions{})
	if diff := cmp.Diff([]string{dir + "/a/liba.so needs a processor of level x86-64-v3"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestSymbolsAfterClosure: a closure holds no file open, so each reading opens it again.
func TestSymbolsAfterClosure(t *testing.T) {
	loader(t)
	dir := build(t, `lib a/liba.so 'int a;'`)
	c, err := (&Loader{FS: hostFS{}}).Closure(filepath.Join(dir, "a/liba.so"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for s, err := range c.Objects[0].File.Exported() {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, s.Name)
	}
	if !slices.Contains(names, "a") {
		t.Error(names)
	}
	os.Remove(filepath.Join(dir, "a/liba.so"))
	for _, err := range c.Objects[0].File.Exported() {
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("of a file that is gone: %v", err)
		}
	}
}
