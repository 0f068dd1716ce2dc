package python

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
)

// lockMachines are the interpreters of judge.py.
var lockMachines = map[string]Interpreter{
	"3.11 x86_64 glibc 2.36":  {Version: "3.11.1", Implementation: "cpython", Platform: "x86_64", Glibc: "2.36"},
	"3.12 aarch64 glibc 2.39": {Version: "3.12.1", Implementation: "cpython", Platform: "aarch64", Glibc: "2.39"},
	"3.13 x86_64 musl 1.2":    {Version: "3.13.1", Implementation: "cpython", Platform: "x86_64", Musl: "1.2"},
	"3.9 x86_64 glibc 2.17":   {Version: "3.9.1", Implementation: "cpython", Platform: "x86_64", Glibc: "2.17"},
}

func bookworm() Interpreter { return lockMachines["3.11 x86_64 glibc 2.36"] }

// openLock reads the lock file at path.
func openLock(file string) (*Lock, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read lock: %w", err)
	}
	defer f.Close()
	l, err := ReadLock(f)
	if err != nil {
		return nil, fmt.Errorf("read lock %s: %w", file, err)
	}
	if l.Dir, err = filepath.Abs(filepath.Dir(file)); err != nil {
		return nil, fmt.Errorf("read lock %s: %w", file, err)
	}
	return l, nil
}

// The reference implementation chooses the same files from the same locks.
func TestSelectJudge(t *testing.T) {
	var judged []struct {
		Lock, Environment string
		Extras, Groups    []string
		Files             map[string]string // nil where it refuses
	}
	readJudge(t, "pylock.json", &judged)
	if len(judged) < 2*len(lockMachines)*4 {
		t.Fatal("the judge has lost its cases")
	}
	for _, c := range judged {
		name := fmt.Sprint(c.Lock, " ", c.Environment, " ", c.Extras, " ", c.Groups)
		l, err := openLock(filepath.Join("testdata/pylock", c.Lock))
		if err != nil {
			t.Fatal(err)
		}
		i := lockMachines[c.Environment]
		packages, err := l.Select(EnvironmentOf(i), i.Tags(), c.Extras, c.Groups)
		if (err == nil) != (c.Files != nil) {
			t.Errorf("%s: %v, want %v", name, err, c.Files)
			continue
		}
		got := map[string]string{}
		for _, p := range packages {
			got[p.Name] = p.Wheel.Name
		}
		if diff := cmp.Diff(c.Files, got); diff != "" && err == nil {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestSelectDetails(t *testing.T) {
	l, err := openLock("testdata/pylock/chosen.toml")
	if err != nil {
		t.Fatal(err)
	}
	packages, err := l.Select(EnvironmentOf(bookworm()), bookworm().Tags(), []string{"Train"}, []string{"dev", "docs"})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs("testdata/pylock")
	if err != nil {
		t.Fatal(err)
	}
	sum := func(digit string) string { return strings.Repeat(digit, 64) }
	digest := func(digit string) store.Digest { return store.Digest("sha256:" + sum(digit)) }
	want := []Package{
		{Name: "always", Version: "1.0", Wheel: WheelRef{Name: "always-1.0-py3-none-any.whl", URL: "https://files.example.org/a", Digest: digest("1"), Size: 12}},
		{Name: "trainer", Version: "2.0+cu128", Wheel: WheelRef{
			Name: "trainer-2.0+cu128-cp311-cp311-manylinux_2_28_x86_64.whl", Path: dir + "/wheels/trainer-2.0+cu128-cp311-cp311-manylinux_2_28_x86_64.whl",
			Digest: digest("4"),
		}},
		{
			Name: "docs-tool", Version: "1!4.0",
			Wheel:     WheelRef{Name: "docs_tool-1!4.0-py3-none-any.whl", URL: "https://user:secret@files.example.org/docs_tool-1!4.0-py3-none-any.whl", Digest: digest("8")},
			DirectURL: &DirectURL{URL: "https://files.example.org/docs_tool-1!4.0-py3-none-any.whl", ArchiveInfo: &ArchiveInfo{Hashes: map[string]string{"sha256": sum("8")}}},
		},
		{Name: "dev-tool", Version: "5.0", Wheel: WheelRef{Name: "dev_tool-5.0-py2.py3-none-any.whl", Path: "/srv/wheels/dev_tool-5.0-py2.py3-none-any.whl", Digest: digest("9")}},
	}
	if diff := cmp.Diff(want, packages); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

const lockHead = "lock-version = \"1.0\"\ncreated-by = \"test\"\n"

// lockEntry returns a package with the wheels of these names.
func lockEntry(name, version string, wheels ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[[packages]]\nname = %q\nversion = %q\n", name, version)
	for i, w := range wheels {
		if i == 0 {
			b.WriteString("wheels = [\n")
		}
		fmt.Fprintf(&b, "  { url = \"https://files.example.org/%s\", hashes = { sha256 = %q } },\n", w, strings.Repeat("a", 64))
	}
	if len(wheels) > 0 {
		b.WriteString("]\n")
	}
	return b.String()
}

func selectFrom(text string) ([]Package, error) {
	l, err := ReadLock(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	return l.Select(EnvironmentOf(bookworm()), bookworm().Tags(), nil, nil)
}

func TestSelectBuildTag(t *testing.T) {
	packages, err := selectFrom(lockHead + lockEntry("a", "1", "a-1-py3-none-any.whl", "a-1-9-py3-none-any.whl", "a-1-10-py3-none-any.whl", "a-1-2z-py3-none-any.whl"))
	if err != nil {
		t.Fatal(err)
	}
	if got := packages[0].Wheel.Name; got != "a-1-10-py3-none-any.whl" {
		t.Errorf("selected %s", got)
	}
}

func TestSelectEscapedName(t *testing.T) {
	packages, err := selectFrom(lockHead + lockEntry("torch", "2.7.0+cu128", "torch-2.7.0%2Bcu128-cp311-cp311-manylinux_2_28_x86_64.whl"))
	if err != nil {
		t.Fatal(err)
	}
	if got := packages[0].Wheel.Name; got != "torch-2.7.0+cu128-cp311-cp311-manylinux_2_28_x86_64.whl" {
		t.Errorf("name %s", got)
	}
}

func TestSelectErrors(t *testing.T) {
	one := func(name string, more string) string {
		return lockHead + "[[packages]]\nname = \"" + name + "\"\n" + more
	}
	hash := "{ sha256 = \"" + strings.Repeat("a", 64) + "\" }"
	for name, c := range map[string]struct{ lock, want, hint string }{
		"no wheel fits": {
			lockHead + lockEntry("numpy", "1.26.4", "numpy-1.26.4-cp39-cp39-manylinux_2_17_x86_64.whl", "numpy-1.26.4-cp311-cp311-win_amd64.whl"),
			"numpy 1.26.4: no wheel for cp311 manylinux_2_36_x86_64; the lock has: numpy-1.26.4-cp39-cp39-manylinux_2_17_x86_64, numpy-1.26.4-cp311-cp311-win_amd64", "lock again",
		},
		"only sdist": {
			one("x", "version = \"1\"\nsdist = { url = \"https://files.example.org/x-1.tar.gz\", hashes = "+hash+" }\n"),
			"x 1: no wheel for cp311 manylinux_2_36_x86_64; the lock has: only a source distribution", "x @ file:///",
		},
		"both unfit": {
			lockHead + lockEntry("a", "1", "a-1-cp39-cp39-win32.whl") + lockEntry("b", "2", "b-2-cp39-cp39-win32.whl"),
			"b 2: no wheel", "",
		},
		"ambiguous": {
			lockHead + lockEntry("A_b", "1", "a_b-1-py3-none-any.whl") + lockEntry("a-b", "2", "a_b-2-py3-none-any.whl"),
			"ambiguous: A_b 1 and a-b 2", "lock again",
		},
		"no sha256":         {one("x", "wheels = [{ url = \"https://files.example.org/x-1-py3-none-any.whl\", hashes = { md5 = \"00\" } }]\n"), "x: x-1-py3-none-any.whl: the lock gives no sha256", "lock again"},
		"bad sha256":        {one("x", "wheels = [{ url = \"https://files.example.org/x-1-py3-none-any.whl\", hashes = { sha256 = \"zz\" } }]\n"), "\"zz\" is not a sha256", ""},
		"negative size":     {one("x", "wheels = [{ size = -1, url = \"https://files.example.org/x-1-py3-none-any.whl\", hashes = "+hash+" }]\n"), "its size is -1", ""},
		"relative path":     {one("x", "wheels = [{ path = \"x-1-py3-none-any.whl\", hashes = "+hash+" }]\n"), "directory is not known", ""},
		"nowhere":           {one("x", "wheels = [{ name = \"x-1-py3-none-any.whl\", hashes = "+hash+" }]\n"), "neither a url nor a path", ""},
		"other scheme":      {one("x", "wheels = [{ url = \"ftp://files.example.org/x-1-py3-none-any.whl\", hashes = "+hash+" }]\n"), "nothing can be fetched from", ""},
		"scheme missing":    {one("x", "wheels = [{ url = \"//files.example.org/x-1-py3-none-any.whl\", hashes = "+hash+" }]\n"), "nothing can be fetched from", ""},
		"file on a host":    {one("x", "wheels = [{ url = \"file://host/x-1-py3-none-any.whl\", hashes = "+hash+" }]\n"), "does not name a file", ""},
		"another project":   {lockHead + lockEntry("x", "1", "y-1-py3-none-any.whl"), "x 1: the wheel y-1-py3-none-any.whl is of something else", ""},
		"another version":   {lockHead + lockEntry("x", "1", "x-2-py3-none-any.whl"), "is of something else", ""},
		"not a wheel name":  {lockHead + lockEntry("x", "1", "x.whl"), "no wheel for", ""},
		"escape in name":    {lockHead + lockEntry("x", "1", "%1b[31mx-1-py3-none-win32.whl"), "?[31mx", ""},
		"vcs":               {one("x", "vcs = { type = \"git\", url = \"https://example.org/x.git\", commit-id = \"0\" }\n"), "x: it comes from a repository", "build a wheel"},
		"directory":         {one("x", "directory = { path = \".\" }\n"), "x: it comes from a directory", "--no-emit-project"},
		"source archive":    {one("x", "archive = { url = \"https://files.example.org/x.zip\", hashes = "+hash+" }\n"), "source archive \"x.zip\"", "build a wheel"},
		"unfit archive":     {one("x", "archive = { url = \"https://files.example.org/x-1-py3-none-win32.whl\", hashes = "+hash+" }\n"), "no wheel for", ""},
		"python too old":    {lockHead + "requires-python = \">=3.12\"\npackages = []\n", "the lock requires Python >=3.12, and this is 3.11.1", "lock again"},
		"package's python":  {one("x", "requires-python = \"<3\"\nwheels = [{ url = \"https://files.example.org/x-1-py3-none-any.whl\", hashes = "+hash+" }]\n"), "x requires Python <3", ""},
		"other environment": {lockHead + "environments = [\"sys_platform == 'win32'\"]\npackages = []\n", "but for: sys_platform == 'win32'", "lock again"},
		"undefined marker":  {one("x", "marker = \"extra == 'y'\"\nwheels = [{ url = \"https://files.example.org/x-1-py3-none-any.whl\", hashes = "+hash+" }]\n"), "\"extra\" has no value", ""},
	} {
		t.Run(name, func(t *testing.T) {
			packages, err := selectFrom(c.lock)
			if err == nil {
				t.Fatalf("selected %v", packages)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q lacks %q", err, c.want)
			}
			if hint := fault.HintOf(err); !strings.Contains(hint, c.hint) {
				t.Errorf("hint %q lacks %q", hint, c.hint)
			}
		})
	}
}

func TestSelectUnknownChoices(t *testing.T) {
	l, err := openLock("testdata/pylock/chosen.toml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Select(EnvironmentOf(bookworm()), bookworm().Tags(), []string{"tarin"}, nil); err == nil || !strings.Contains(err.Error(), `no extra "tarin"; it has: train, serve`) {
		t.Errorf("extra: %v", err)
	}
	if _, err := l.Select(EnvironmentOf(bookworm()), bookworm().Tags(), nil, []string{"test"}); err == nil || !strings.Contains(err.Error(), `no dependency group "test"; it has: dev, docs`) {
		t.Errorf("group: %v", err)
	}
}

func TestReadLockErrors(t *testing.T) {
	for name, c := range map[string]struct{ lock, want string }{
		"empty":           {"", "no lock-version"},
		"version 2":       {"lock-version = \"2.0\"\ncreated-by = \"x\"\npackages = []\n", "only 1.x is known"},
		"no version":      {"lock-version = \"x\"\ncreated-by = \"x\"\npackages = []\n", "only 1.x is known"},
		"no creator":      {"lock-version = \"1.0\"\npackages = []\n", "created-by"},
		"no packages":     {lockHead, "no packages"},
		"syntax":          {lockHead + "packages = [\n", "line 3"},
		"type":            {lockHead + "packages = 3\n", "line 3, column 12"},
		"name":            {lockHead + "[[packages]]\nname = \"../x\"\n", "not the name of a package"},
		"no name":         {lockHead + "[[packages]]\nversion = \"1\"\n", "not the name of a package"},
		"marker":          {lockHead + "[[packages]]\nname = \"x\"\nmarker = \"foo\"\n", `package 1 ("x"): marker "foo"`},
		"version":         {lockHead + "[[packages]]\nname = \"x\"\nversion = \"new\"\n", `"new" is not a version`},
		"requires-python": {lockHead + "requires-python = \"3\"\npackages = []\n", "requires-python"},
		"no source":       {lockHead + "[[packages]]\nname = \"x\"\n", "no source"},
		"two sources":     {lockHead + "[[packages]]\nname = \"x\"\nsdist = {}\nvcs = {}\n", "exclude each other: vcs, wheels or sdist"},
		"environment":     {lockHead + "environments = [\"foo\"]\npackages = []\n", "environments"},
	} {
		if l, err := ReadLock(strings.NewReader(c.lock)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v, want %q", name, l, err, c.want)
		}
	}
	if _, err := ReadLock(strings.NewReader("lock-version = \"1.7\"\ncreated-by = \"x\"\npackages = []\nnew = 1\n")); err != nil {
		t.Errorf("a later minor version: %v", err)
	}
}

func TestWheelNameBomb(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat("a.", 100), ".")
	if _, err := parseWheelName("x-1-" + many + "-" + many + "-" + many + ".whl"); err == nil {
		t.Error("a name of a million tags is accepted")
	}
}

func FuzzPylock(f *testing.F) {
	data, err := os.ReadFile("testdata/pylock/chosen.toml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(lockHead + lockEntry("a", "1", "a-1-2-py3-none-any.whl")))
	f.Add([]byte(lockHead + "[[packages]]\nname = \"x\"\narchive = { path = \"x-1-py3-none-any.whl\" }\n"))
	tags := bookworm().Tags()
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := ReadLock(strings.NewReader(string(data)))
		if err != nil {
			return
		}
		l.Dir = "/locks"
		packages, err := l.Select(EnvironmentOf(bookworm()), tags, l.Extras, l.Groups)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, p := range packages {
			checkSelected(t, p, seen)
		}
		if len(seen) != len(packages) {
			t.Fatalf("%d packages with %d names: %v", len(packages), len(seen), slices.Collect(maps.Keys(seen)))
		}
	})
}

func checkSelected(t *testing.T, p Package, seen map[string]bool) {
	t.Helper()
	seen[NormalizeName(p.Name)] = true
	w, err := parseWheelName(p.Wheel.Name)
	if err != nil || NormalizeName(w.name) != NormalizeName(p.Name) || p.Version == "" {
		t.Fatalf("bad package %+v: %v", p, err)
	}
	if len(p.Wheel.Digest.Hex()) != 64 || p.Wheel.Size < 0 || p.Wheel.URL == "" && !filepath.IsAbs(p.Wheel.Path) {
		t.Fatalf("bad wheel %+v", p.Wheel)
	}
}
