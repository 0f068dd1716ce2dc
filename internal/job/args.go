package job

import (
	"fmt"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/quote"
)

// Args are what another program calls srun with, such as a launcher that writes scripts of its own.
type Args struct {
	Runtime     string            `json:"runtime"`
	Srun        []string          `json:"srun"`        // options of srun
	Program     []string          `json:"program"`     // that the command is put behind; empty for what srun starts by itself
	Environment map[string]string `json:"environment"` // to be set before srun
}

// SrunArgs returns what srun is called with. Variables are expanded by lookup, since nobody expands them later; one that is not set is an
// error. Errors are of exit code 2.
func SrunArgs(r Request, lookup func(string) (string, bool)) (Args, error) {
	s, err := r.settle()
	if err != nil {
		return Args{}, err
	}
	a := Args{Runtime: s.runtime, Srun: []string{"--kill-on-bad-exit=1"}, Program: []string{}, Environment: map[string]string{}}
	a.Srun = append(a.Srun, s.stepOptions()...)
	if s.runtime == uenv && !s.uenvInStep() {
		a.Srun = append(a.Srun, s.uenvOptions()...)
	}
	var names []string
	if !s.usesEDF() {
		for _, v := range s.env {
			a.Environment[v.name] = v.value
			names = append(names, v.name)
		}
	}
	how := s.start(s.Image.File, names)
	a.Srun, a.Program = append(a.Srun, how.options...), append(a.Program, how.program...)
	return a, fault.Usage(a.expand(lookup))
}

// expand puts values in place of variables.
func (a *Args) expand(lookup func(string) (string, bool)) error {
	var err error
	replace := func(text string) string {
		isMount := mounts.MatchString(text)
		return variable.ReplaceAllStringFunc(text, func(ref string) string {
			m := reference.FindStringSubmatch(ref)
			value, ok := lookup(m[1])
			if !ok && m[2] == "" {
				err = fault.Hint(fmt.Errorf("the variable %s is not set here", m[1]), "set it, or name a path without it in the profile")
			}
			if isMount && strings.ContainsAny(value, ",:") {
				err = fault.Hint(fmt.Errorf("a mount ends at the comma or colon in %s, which is %q", m[1], value), noSeparator)
			}
			if !ok {
				return strings.TrimPrefix(m[2], ":-")
			}
			return value
		})
	}
	for _, list := range [][]string{a.Srun, a.Program} {
		for i := range list {
			list[i] = replace(list[i])
		}
	}
	for name, value := range a.Environment {
		a.Environment[name] = replace(value)
	}
	return err
}

// mounts begins an option that has mounts in it.
var mounts = lazyregexp.New(`^--(container-mounts|bind|volume|venv)=`)

// reference takes ${NAME} and ${NAME:-else} apart.
var reference = lazyregexp.New(`^\$\{([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?\}$`)

// String writes the arguments as words of a shell, which is also how they are read from a file.
func (a Args) String() string {
	return quote.Words(slices.Concat(a.Srun, a.Program)...)
}
