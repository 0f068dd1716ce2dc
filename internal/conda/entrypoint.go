package conda

import (
	"fmt"

	"sconce.dev/sconce/internal/entrypoint"
)

// addEntryPoints makes the commands of a package for any Python. One that the package also has as a file is as the package has it.
func (u *unpacker) addEntryPoints(places map[string]*file) error {
	if err := u.spool.flush(); err != nil {
		return err
	}
	for _, line := range u.c.entrypoint {
		e, err := entrypoint.Parse(line)
		if err == nil && checkPath(e.Name) != nil {
			err = fmt.Errorf("%.200q cannot be the name of a command", e.Name)
		}
		if err != nil {
			return u.a.bad("info/link.json", "%w", err)
		}
		at := "bin/" + e.Name
		if places[at] != nil {
			continue
		}
		f, err := u.spool.addGenerated(at, 0o755, "unix_python_entry_point", entrypoint.Script(u.target.Executable(), e.Module, e.Attr))
		if err != nil {
			return err
		}
		places[at] = f
	}
	return nil
}
