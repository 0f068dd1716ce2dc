package wheelbuild

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/execop"
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
	if !ok {
		return ""
	}
	text := m.Name + " is not there: "
	switch packages := s.packagesFor(m); {
	case m.Note != "":
		return text + m.Note
	case len(m.Requires) > 0:
		return text + fmt.Sprintf("requires = [%s] under [python.compile.%s]", quoted(m.Requires), s.pkg.Name)
	case len(packages) > 0:
		return text + fmt.Sprintf("packages = [%s] under [system]", quoted(packages))
	default:
		return text + fmt.Sprintf("add the package that brings it to `packages` under [system]; Debian calls it %s", strings.Join(m.Apt, ", "))
	}
}

// packagesFor returns what brings m with the base's package manager, nothing when that is not known.
func (s *site) packagesFor(m catalog.Missing) []string {
	switch {
	case s.tree == nil:
		return nil
	case isFile(s.tree, "usr/bin/apt-get"):
		return m.Apt
	case isFile(s.tree, "usr/bin/dnf"):
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

func quoted(names []string) string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = strconv.Quote(name)
	}
	return strings.Join(out, ", ")
}
