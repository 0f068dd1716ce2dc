package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// The tests of advisories_*_test.go each try one class of the faults that were published of other programs of this field, against the real
// command. advisories/README.md says which; they are here, and not in a package of their own, for the places, users and bases.

// asBoth runs a test in a place of who runs the tests, which is root in CI, and in one of an ordinary user.
func asBoth(t *testing.T, try func(t *testing.T, p *place)) {
	t.Helper()
	begin(t)
	users := map[string]*account{"as an ordinary user": ordinary(t)}
	if os.Getuid() == 0 {
		users["as root"] = nil
	}
	for name, user := range users {
		t.Run(name, func(t *testing.T) { try(t, newPlace(t, user)) })
	}
}

// tinyRoot makes a root file system of busybox, in which prepare may do anything.
func (p *place) tinyRoot(name string, prepare ...func(root string)) {
	p.t.Helper()
	busybox, root := tooltest.Path(p.t, "busybox"), p.path(name)
	for _, dir := range []string{"bin", "etc", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			p.t.Fatal(err)
		}
	}
	if err := copyFile(busybox, filepath.Join(root, "bin/busybox")); err != nil {
		p.t.Fatal(err)
	}
	for _, applet := range []string{"cat", "chmod", "cp", "env", "find", "grep", "head", "hostname", "id", "ip", "ls", "mkdir", "mknod", "mount", "nc", "pwd", "readlink", "rm", "sh", "sleep", "stat", "touch", "umount", "wc"} {
		p.link(filepath.Join(name, "bin", applet), "busybox")
	}
	for _, do := range prepare {
		do(root)
	}
	p.own()
}

// tiny makes an image of [place.tinyRoot] in the store: NAME:1.
func (p *place) tiny(name string, prepare ...func(root string)) {
	p.t.Helper()
	p.tinyRoot(name+".root", prepare...)
	p.must("pull", "dir:"+p.path(name+".root"), "--name", name+":1")
}

// link makes a symbolic link in the place.
func (p *place) link(name, target string) {
	p.t.Helper()
	path := p.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		p.t.Fatal(err)
	}
}

// wantUnchanged fails when a directory of the host has anything else than the files, by name, with their content.
func (p *place) wantUnchanged(dir string, files map[string]string) {
	p.t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(p.path(dir), func(path string, e os.DirEntry, err error) error {
		if err != nil || path == p.path(dir) {
			return err
		}
		name, _ := filepath.Rel(p.path(dir), path)
		data := []byte("(not a file)")
		if e.Type().IsRegular() {
			data, err = os.ReadFile(path)
		}
		found[name] = string(data)
		return err
	})
	if err != nil {
		p.t.Error(err)
	}
	for name, data := range found {
		if want, ok := files[name]; !ok || data != want {
			p.t.Errorf("%s of the host was written to: %s is %.80q", dir, name, data)
		}
	}
	for name := range files {
		if _, ok := found[name]; !ok {
			p.t.Errorf("%s of the host was written to: %s is gone", dir, name)
		}
	}
}

// row is a line of a table: | advisory | class | tried | test | result |.
var row = regexp.MustCompile(`(?m)^\| (.*) \| (.*) \| (.*) \| (.*) \| (.*) \|$`)

// named is a test as the table names it: of this package, or DIRECTORY.TestName of another.
var named = regexp.MustCompile("`(?:(internal/[a-z0-9/]+)\\.)?((?:Test|Fuzz)[A-Za-z0-9]+)`")

// The table of advisories is held against the tests: each row names tests that there are, and each test of an advisory has a row.
func TestAdvisoriesTable(t *testing.T) {
	begin(t)
	page, err := os.ReadFile(filepath.Join("advisories", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	there := advisoryTests(t)
	inTable := map[string]bool{}
	rows := row.FindAllStringSubmatch(string(page), -1)
	if len(rows) < 20 { // it is not read, if the form of it has changed
		t.Fatalf("the table has only %d rows", len(rows))
	}
	for _, r := range rows[1:] { // below the heading, which has a line of another form under it
		if strings.Contains(r[4], "not applicable") {
			continue
		}
		tests := named.FindAllStringSubmatch(r[4], -1)
		if len(tests) == 0 {
			t.Errorf("the row of %s names no test", r[1])
		}
		for _, m := range tests {
			dir, name := m[1], m[2]
			if dir == "" {
				inTable[name] = true
				if !slices.Contains(there, name) {
					t.Errorf("the row of %s names %s, which is no test of an advisory", r[1], name)
				}
			} else if !slices.Contains(testsOf(t, filepath.Join("..", dir, "*_test.go")), name) {
				t.Errorf("the row of %s names %s, which is not in %s", r[1], name, dir)
			}
		}
	}
	for _, name := range there {
		if !inTable[name] {
			t.Errorf("%s has no row in advisories/README.md", name)
		}
	}
}

// advisoryTests are the tests of the advisories_*_test.go of this directory.
func advisoryTests(t *testing.T) []string {
	t.Helper()
	return testsOf(t, "advisories_*_test.go")
}

// testsOf lists the tests in files.
func testsOf(t *testing.T, pattern string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s: %v", pattern, err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && (strings.HasPrefix(fn.Name.Name, "Test") || strings.HasPrefix(fn.Name.Name, "Fuzz")) {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names
}
