package elfx

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// hostFS is the file system of this machine. Names that begin with a directory of redirect are elsewhere.
type hostFS struct {
	redirect map[string]string // a file of an image to the one that stands for it
}

func (h hostFS) Resolve(name string) (string, error) {
	if to, ok := h.redirect[name]; ok {
		name = to
	}
	return filepath.EvalSymlinks(name)
}

func (h hostFS) Open(name string) (Handle, error) {
	if to, ok := h.redirect[name]; ok {
		name = to
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f, err := os.Open(name)
	return hostFile{f, info.Size()}, err
}

func (h hostFS) ReadDir(name string) ([]string, error) {
	entries, err := os.ReadDir(name)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

type hostFile struct {
	*os.File
	size int64
}

func (f hostFile) Size() int64 { return f.size }

// open opens a file of this machine.
func open(t testing.TB, name string) *File {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	file, err := Open(f, info.Size())
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return file
}

// run runs a command in a directory and returns its output.
func run(t testing.TB, dir string, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
	return string(out)
}

// trace returns a closure as ldd does: each library once, by the name of who asked first, but missing ones for each who
// asked. ldd has the interpreter right behind the library before it, whatever is missing between them.
func trace(c *Closure) []string {
	var lines []string
	last := 0 // behind the last library found
	seen := map[string]bool{c.Objects[0].Path: true}
	add := func(o *Object, line string) {
		if seen[o.Path] {
			return
		}
		seen[o.Path] = true
		if o == c.Interpreter {
			lines = slices.Insert(lines, last, o.Path)
			last++
			return
		}
		lines = append(lines, line)
		last = len(lines)
	}
	for _, link := range c.Links {
		switch {
		case link.To == nil:
			lines = append(lines, link.Name+" => not found")
		case strings.Contains(link.Name, "/"):
			add(link.To, link.To.Path)
		default:
			add(link.To, link.Name+" => "+link.To.Path)
		}
	}
	if slices.Contains(c.Objects, c.Interpreter) && len(c.Links) > 0 { // else it calls the file static
		add(c.Interpreter, "")
	}
	return lines
}

// ldd asks this machine's loader as ldd -r does: what it says about libraries, in the form of trace, about symbols, in that
// of undefined, and the rest.
func ldd(t testing.TB, loader, name string, env ...string) (libraries, symbols, rest []string) {
	t.Helper()
	cmd := exec.Command(loader, name)
	cmd.Env = append([]string{"LD_TRACE_LOADED_OBJECTS=1", "LD_WARN=yes", "LD_BIND_NOW=yes"}, env...)
	cmd.Dir = "/"
	out, _ := cmd.CombinedOutput() // fails when something is missing
	for line := range strings.Lines(string(out)) {
		indented := strings.HasPrefix(line, "\t")
		line = strings.TrimSpace(line)
		symbol, isSymbol := strings.CutPrefix(line, "undefined symbol: ")
		if i := strings.LastIndex(line, " (0x"); i >= 0 {
			line = line[:i]
		}
		switch {
		case isSymbol:
			symbols = append(symbols, symbol)
		case strings.HasPrefix(line, "linux-vdso"), line == "statically linked", line == "":
		case indented:
			libraries = append(libraries, line)
		default:
			rest = append(rest, line)
		}
	}
	slices.Sort(symbols)
	return libraries, slices.Compact(symbols), rest
}

// undefined returns the undefined symbols as ldd -r does.
func undefined(problems []Problem) []string {
	var lines []string
	for _, p := range problems {
		if p.Kind != UndefinedSymbol {
			continue
		}
		line := p.Symbol
		if p.Version != "" {
			line += ", version " + p.Version
		}
		lines = append(lines, line+"\t("+p.Object.Path+")")
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}
