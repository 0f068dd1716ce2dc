package wheelbuild

import (
	"fmt"
	"io"
	"os"
	"strings"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/units"
	"sconce.dev/sconce/internal/wheelbuild/catalog"
)

// Limits on where the cause of a failure is looked for. The traceback of the backend may be longer than what an error shows.
const (
	maxSearched   = 64 << 10 // bytes at the end of a log
	searchedLines = 200
)

// missingHint returns what to write in the recipe when a build failed for want of a header, a compiler or a tool; "" when it
// was not for that.
func (s *site) missingHint(f *execop.Failure) string {
	m, ok := catalog.FindMissing(lastLines(f))
	switch {
	case !ok:
		return ""
	case m.Note == "" && len(m.Requires) > 0:
		return m.Name + fmt.Sprintf(" is not there: requires = [%s] under [python.compile.%s]", units.Quoted(m.Requires), s.pkg.Name)
	default:
		return packagesHint(m, s.tree, "[system]")
	}
}

// MissingPackages returns what a table of the recipe needs among its packages, such as [system], when a command failed for want of a
// header, a compiler or a tool; "" when it was not for that. The command ran in tree, nil when that is not known.
func MissingPackages(f *execop.Failure, tree *image.Tree, table string) string {
	m, ok := catalog.FindMissing(lastLines(f))
	if !ok {
		return ""
	}
	return packagesHint(m, tree, table)
}

func packagesHint(m catalog.Missing, tree *image.Tree, table string) string {
	text := m.Name + " is not there: "
	switch packages := packagesFor(m, tree); {
	case m.Note != "":
		return text + m.Note
	case len(packages) > 0:
		return text + fmt.Sprintf("packages = [%s] under %s", units.Quoted(packages), table)
	default:
		return text + fmt.Sprintf("add the package that brings it to `packages` under %s; Debian calls it %s", table, strings.Join(m.Apt, ", "))
	}
}

// packagesFor returns what brings m with the package manager of tree, nothing when that is not known.
func packagesFor(m catalog.Missing, tree *image.Tree) []string {
	switch {
	case tree == nil:
		return nil
	case isFile(tree, "usr/bin/apt-get"):
		return m.Apt
	case isFile(tree, "usr/bin/dnf"):
		return m.Dnf
	case isFile(tree, "usr/bin/zypper") && len(m.Zypper) > 0:
		return m.Zypper
	case isFile(tree, "usr/bin/zypper"):
		return m.Dnf
	}
	return nil
}

// lastLines returns the end of a failure's log, and what its error has of it when the log cannot be read.
func lastLines(f *execop.Failure) []string {
	text, err := readEnd(f.Log)
	if err != nil {
		return f.Tail
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return lines[max(0, len(lines)-searchedLines):]
}

func readEnd(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	start := max(0, info.Size()-maxSearched)
	data, err := io.ReadAll(io.NewSectionReader(file, start, maxSearched))
	return string(data), err
}
