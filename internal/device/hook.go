package device

import (
	"os"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/elfx"
)

// hook is a program that a specification wants to be run in the new container, as root of the host. None is run: those of
// NVIDIA's toolkit are known, and what they do is done by mounts.
//
//	create-symlinks --link TARGET::NAME       another name for a mounted file
//	create-soname-symlinks --folder DIR       for every library in DIR, the name that programs know it by
//	update-ldcache --folder DIR               the loader finds DIR
type hook struct {
	Name string   `yaml:"hookName"`
	Path string   `yaml:"path"`
	Args []string `yaml:"args"`
}

func (e *Edits) hook(h *hook) {
	switch {
	case slices.Contains(h.Args, "create-symlinks"):
		for _, l := range flagValues(h.Args, "--link") {
			if target, name, ok := strings.Cut(l, "::"); ok {
				e.link(target, name)
			}
		}
	case slices.Contains(h.Args, "create-soname-symlinks"):
		e.sonames()
	case slices.Contains(h.Args, "update-ldcache"):
		for _, dir := range flagValues(h.Args, "--folder") {
			e.searched(path.Clean(dir))
		}
		e.sonames() // as ldconfig does
	}
}

// flagValues returns the values of a flag in "--flag value" and "--flag=value".
func flagValues(args []string, flag string) []string {
	var values []string
	for i, a := range args {
		if v, ok := strings.CutPrefix(a, flag+"="); ok {
			values = append(values, v)
		} else if a == flag && i+1 < len(args) {
			values = append(values, args[i+1])
		}
	}
	return values
}

// link gives a mounted file another name.
func (e *Edits) link(target, name string) {
	if !path.IsAbs(target) {
		target = path.Join(path.Dir(name), target)
	}
	for _, b := range e.Binds {
		if b.Target == path.Clean(target) {
			e.bind(b.Source, name, b.ReadOnly)
			return
		}
	}
}

// sonames gives each mounted library the name that it has in the programs that need it.
func (e *Edits) sonames() {
	for _, b := range slices.Clone(e.Binds) {
		if soname := sonameOf(b.Source); isLibrary(b.Target) && soname != "" {
			e.bind(b.Source, path.Join(path.Dir(b.Target), soname), b.ReadOnly)
		}
	}
}

// sonameOf reads a library's name; "" when it is none or has none.
func sonameOf(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	lib, err := elfx.Open(f, info.Size())
	if err != nil || strings.Contains(lib.Soname, "/") {
		return ""
	}
	return lib.Soname
}
