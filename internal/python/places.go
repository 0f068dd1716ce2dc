package python

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
)

// ConflictError says that two packages put different things in one place.
type ConflictError struct {
	Path          string // relative to the environment
	First, Second string // name and version of the packages, in the order of the alphabet
	More          int    // further conflicts of the package that was added last
}

func (e *ConflictError) Error() string {
	text := fmt.Sprintf("%s and %s both install %s, and not the same", e.First, e.Second, e.Path)
	if e.More > 0 {
		text += fmt.Sprintf(" (and %d more conflicts)", e.More)
	}
	return text
}

// Hint says what to do, and that other installers would have gone on.
func (e *ConflictError) Hint() string {
	first, _, _ := strings.Cut(e.First, " ")
	second, _, _ := strings.Cut(e.Second, " ")
	first, second = NormalizeName(first), NormalizeName(second)
	return fmt.Sprintf("leave one out of the recipe; or, when another package asks for it, out of the lock, by a uv.toml beside the recipe with exclude-dependencies = [%q]; "+
		"or say whose files stay: prefer = [%q] under [python]. pip and uv let the one that they happen to install last overwrite the other's file without a word", first, second)
}

// Places keeps who has which path of an environment. The zero value is ready, and its methods may be called from many
// goroutines.
type Places struct {
	Prefer  []string // normalised names of packages whose files go before those of others, the first above all
	Stacked bool     // packages are added in the order of their layers, lowest first

	mu    sync.Mutex
	files map[string]owner
	dirs  map[string]string // directory → the label of a package that has files in it
}

// owner is the package that has a path.
type owner struct{ sha256, name, label string }

// Add takes the files of more packages. It fails when one of them goes where a package before has another file, or a file where
// the other has a directory. The same bytes in one place are no conflict: namespace packages ship them. Nor are files that
// nobody reads by that name, see [harmless], and those of which Prefer says who wins.
//
// The winner's layer must lie above the loser's: whoever stacks them sees to that, and is told when it is not so.
func (p *Places) Add(m Manifest) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.files == nil {
		p.files, p.dirs = make(map[string]owner), make(map[string]string)
	}
	var first *ConflictError
	for _, pkg := range m.Packages {
		label := pkg.Name + " " + pkg.Version
		name := NormalizeName(pkg.Name)
		for _, f := range pkg.Files {
			at, other := p.place(f, owner{f.SHA256, name, label})
			switch {
			case other == "":
			case first == nil:
				first = &ConflictError{Path: at, First: min(label, other), Second: max(label, other)}
			default:
				first.More++
			}
		}
	}
	if first == nil {
		return nil
	}
	return first
}

// place gives a path to a package. It returns where that clashes with another package and the label of that, or "".
func (p *Places) place(f ManifestFile, by owner) (at, clash string) {
	if label, ok := p.dirs[f.Path]; ok {
		return f.Path, label
	}
	if at, label := p.markParents(f.Path, by.label); label != "" {
		return at, label
	}
	other, taken := p.files[f.Path]
	p.files[f.Path] = by
	if !taken || other.name == by.name || other.sha256 == f.SHA256 || harmless(f.Path) || p.settled(other, by) {
		return "", ""
	}
	return f.Path, other.label
}

// settled reports whether Prefer says which of two packages wins.
func (p *Places) settled(below, above owner) bool {
	low, high := p.rank(below.name), p.rank(above.name)
	if p.Stacked {
		return high < low
	}
	return high != low
}

// rank is the place in Prefer, or one behind the last.
func (p *Places) rank(name string) int {
	if i := slices.Index(p.Prefer, name); i >= 0 {
		return i
	}
	return len(p.Prefer)
}

// markParents notes every directory above a path. When one of them is a file, it returns that and whose it is.
func (p *Places) markParents(file, label string) (at, clash string) {
	for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
		if _, known := p.dirs[dir]; known {
			return "", ""
		}
		if other, isFile := p.files[dir]; isFile {
			return dir, other.label
		}
		p.dirs[dir] = label
	}
	return "", ""
}

// What packages leave at the top by mistake: about themselves, or for their own makers. Nothing imports or opens it there.
var (
	harmlessFiles = []string{"readme", "license", "licence", "copying", "notice", "authors", "contributors", "changelog", "changes", "history", "news", "todo"}
	harmlessDirs  = []string{"tests", "test", "docs", "doc", "examples", "example", "benchmarks", "benchmark"}
)

// harmless reports whether it does not matter whose file a path is: a README and the like, or something in a directory of tests
// and the like, at the top of site-packages or of the environment.
func harmless(file string) bool {
	if rest, ok := strings.CutPrefix(file, "lib/"); ok {
		_, rest, _ = strings.Cut(rest, "/")
		if file, ok = strings.CutPrefix(rest, "site-packages/"); !ok {
			return false
		}
	}
	top, _, below := strings.Cut(strings.ToLower(file), "/")
	if below {
		return slices.Contains(harmlessDirs, top)
	}
	stem, _, _ := strings.Cut(top, ".")
	return slices.Contains(harmlessFiles, stem) && !strings.HasSuffix(top, ".py")
}

// CheckConflicts reports whether packages of layers, the lowest first, clash; see [Places.Add].
func CheckConflicts(manifests []Manifest, prefer []string) error {
	p := &Places{Prefer: prefer, Stacked: true}
	for _, m := range manifests {
		if err := p.Add(m); err != nil {
			return err
		}
	}
	return nil
}
