package conda

import (
	"fmt"
	"strings"

	"sconce.dev/sconce/internal/entrypoint"
)

// entryPoint is a command that calls a function of a Python module.
type entryPoint struct{ name, module, function string }

// parseEntryPoint reads "name = module:function".
func parseEntryPoint(s string) (entryPoint, error) {
	name, value, ok := strings.Cut(s, "=")
	module, function, called := strings.Cut(value, ":")
	e := entryPoint{strings.TrimSpace(name), strings.TrimSpace(module), strings.TrimSpace(function)}
	switch {
	case !ok || !called || !entrypoint.Dotted(e.module) || !entrypoint.Dotted(e.function):
		return e, fmt.Errorf("%.200q does not name a function as command = module:function", s)
	case strings.Contains(e.name, "/") || checkPath(e.name) != nil:
		return e, fmt.Errorf("%.200q cannot be the name of a command", e.name)
	}
	return e, nil
}

// addEntryPoints makes the commands of a package for any Python. One that the package also has as a file is as the package has it.
func (u *unpacker) addEntryPoints(places map[string]*file) error {
	if err := u.spool.flush(); err != nil {
		return err
	}
	for _, line := range u.c.entrypoint {
		e, err := parseEntryPoint(line)
		if err != nil {
			return u.a.bad("info/link.json", "%w", err)
		}
		at := "bin/" + e.name
		if places[at] != nil {
			continue
		}
		f, err := u.spool.addGenerated(at, 0o755, "unix_python_entry_point", entrypoint.Script(u.target.Executable(), e.module, e.function))
		if err != nil {
			return err
		}
		places[at] = f
	}
	return nil
}
