package catalog

import (
	"bytes"
	_ "embed"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/lazyregexp"
)

// Missing is something that a build did not find, and what brings it.
type Missing struct {
	Kind     string   `toml:"kind"` // as in [sign]: "header", "program", "library", "module" (of pkg-config), "cmake"
	Name     string   `toml:"-"`    // as the log has it: "mpi.h"
	Names    []string `toml:"names"`
	Apt      []string `toml:"apt"`      // packages of Debian and Ubuntu
	Dnf      []string `toml:"dnf"`      // packages of Fedora and what comes of it; none: not known
	Zypper   []string `toml:"zypper"`   // packages of SUSE where they are called otherwise; none: as Dnf
	Requires []string `toml:"requires"` // build requirements, from the package index
	Note     string   `toml:"note"`     // what else brings it
}

// sign is how a tool says that it did not find something.
type sign struct {
	Kind    string `toml:"kind"`
	Pattern string `toml:"pattern"` // of a line; its group is the name
	Name    string `toml:"name"`    // where the line does not say it

	expr *lazyregexp.Regexp
}

//go:embed missing.toml
var missingData []byte

var loadMissing = sync.OnceValue(func() (table struct {
	Sign    []sign    `toml:"sign"`
	Missing []Missing `toml:"missing"`
},
) {
	if err := toml.NewDecoder(bytes.NewReader(missingData)).DisallowUnknownFields().Decode(&table); err != nil {
		panic(fmt.Sprintf("catalog: its own table of what is missing: %v", err)) // a test reads it
	}
	for i, s := range table.Sign {
		table.Sign[i].expr = lazyregexp.New(s.Pattern)
	}
	return table
})

// FindMissing returns what the lines of a failed build say was not found. Of several things that are known it is the last: what
// went wrong before did not end the build.
func FindMissing(lines []string) (Missing, bool) {
	for _, line := range slices.Backward(lines) {
		for _, s := range loadMissing().Sign {
			if m, ok := s.read(line); ok {
				return m, true
			}
		}
	}
	return Missing{}, false
}

// read returns the thing that line says is missing, when it is known.
func (s sign) read(line string) (Missing, bool) {
	groups := s.expr.FindStringSubmatch(line)
	if groups == nil {
		return Missing{}, false
	}
	name := s.Name
	if name == "" {
		name = groups[1]
	}
	if s.Kind == "program" {
		name = target.ReplaceAllString(path.Base(name), "")
	}
	all := loadMissing().Missing
	i := slices.IndexFunc(all, func(m Missing) bool { return m.Kind == s.Kind && slices.ContainsFunc(m.Names, matches(name)) })
	if i < 0 {
		return Missing{}, false
	}
	found := all[i]
	found.Name = name
	return found, true
}

// target is the machine in the name of a compiler: x86_64-linux-gnu-gcc.
var target = lazyregexp.New(`^[a-z0-9_]+-(?:[a-z]+-)?linux-gnu-`)

// matches returns whether a name of the table stands for name: the same, or a directory of headers, as boost/.
func matches(name string) func(string) bool {
	return func(known string) bool {
		return known == name || strings.HasSuffix(known, "/") && strings.HasPrefix(name, known)
	}
}
