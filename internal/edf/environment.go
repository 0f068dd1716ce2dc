package edf

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// MaxDepth is how many levels of bases there may be.
const MaxDepth = 10

// Search says where files are looked for.
type Search struct {
	Dialect Dialect
	Dirs    []string // where relative paths start: the directory of the job, that of the file
	Lookup  Lookup   // variables: EDF_PATH, HOME
}

// Setting is a value with the file that it is from.
type Setting struct {
	File  *File
	Entry *Entry
	Value Value // of an item of a list that item, else the entry's
}

// Environment is a file put over its bases: tables are merged key by key, lists appended, all else replaced.
type Environment struct {
	Files       []*File // bases first, the file itself last
	Top         map[string]Setting
	Env         map[string]Setting
	Annotations map[string]Setting // by dotted name
	Mounts      []Setting
	Devices     []Setting
}

// Text is a string at the top level, "" when it is not said.
func (e *Environment) Text(key string) string {
	if s, ok := e.Top[key]; ok && s.Value.Kind == String {
		return s.Value.Text
	}
	return ""
}

// Annotation is the text of an annotation, "" when it is not said.
func (e *Environment) Annotation(name string) string { return e.Annotations[name].Value.Text }

// On reports whether a hook was switched on: "cxi", "aws_ofi_nccl", "ssh".
func (e *Environment) On(hook string) bool {
	return strings.EqualFold(e.Annotation("com.hooks."+hook+".enabled"), "true")
}

// ProblemKind is why a base cannot be had.
type ProblemKind string

// The kinds of problems.
const (
	Missing ProblemKind = "missing"
	Cycle   ProblemKind = "cycle"
	Deep    ProblemKind = "deep"
	Broken  ProblemKind = "broken"
)

// Problem is a base that cannot be had.
type Problem struct {
	Kind    ProblemKind
	File    *File // that names it
	Value   Value // where
	Message string
}

// Resolve puts a file over its bases. What cannot be had is left out, and is told.
func Resolve(f *File, s Search) (*Environment, []Problem) {
	r := resolver{search: s, env: &Environment{
		Top: map[string]Setting{}, Env: map[string]Setting{}, Annotations: map[string]Setting{},
	}}
	r.add(f, []string{absolute(f.Path)})
	return r.env, r.problems
}

type resolver struct {
	search   Search
	env      *Environment
	problems []Problem
	files    int
}

// maxFiles bounds how many files are read for one: bases of bases can be many.
const maxFiles = 200

// add adds a file and, before it, its bases. way is the files that led here, itself last.
func (r *resolver) add(f *File, way []string) {
	for _, base := range f.Strings(Base) {
		r.base(f, base, way)
	}
	r.env.put(f)
}

func (r *resolver) base(f *File, base Value, way []string) {
	tell := func(kind ProblemKind, message string) {
		r.problems = append(r.problems, Problem{kind, f, base, message})
	}
	name, undefined := Expand(base.Text, r.search.Lookup)
	if name == "" || len(undefined) > 0 {
		return
	}
	path, err := r.search.Find(name, filepath.Dir(f.Path))
	switch {
	case errors.Is(err, errUnknown):
		return
	case err != nil:
		tell(Missing, err.Error())
		return
	case slices.Contains(way, absolute(path)):
		tell(Cycle, fmt.Sprintf("%q leads back to %s", name, path))
		return
	case len(way) > MaxDepth || r.files >= maxFiles:
		tell(Deep, fmt.Sprintf("%q is more than %d levels of bases away", name, MaxDepth))
		return
	}
	r.files++
	read, err := Read(path)
	if err != nil {
		tell(Broken, fmt.Sprintf("%s: %s", path, err))
		return
	}
	r.add(read, append(slices.Clone(way), absolute(path)))
}

func absolute(path string) string {
	if all, err := filepath.Abs(path); err == nil {
		path = all
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return path
}

// put puts a file over what there is.
func (e *Environment) put(f *File) {
	e.Files = append(e.Files, f)
	for i := range f.Entries {
		entry := &f.Entries[i]
		s := Setting{f, entry, entry.Value}
		switch {
		case len(entry.Name) > 1 && entry.Name[0] == Env:
			e.Env[entry.Dotted()] = s
		case len(entry.Name) > 1 && entry.Name[0] == Annotations:
			e.Annotations[entry.Dotted()] = s
		case len(entry.Name) > 1:
		case entry.Name[0] == Mounts:
			e.Mounts = appendItems(e.Mounts, s)
		case entry.Name[0] == Devices:
			e.Devices = appendItems(e.Devices, s)
		default:
			e.Top[entry.Name[0]] = s
		}
	}
}

// appendItems appends the strings of a list; exact duplicates are dropped.
func appendItems(list []Setting, s Setting) []Setting {
	for _, item := range s.Value.Items {
		same := func(o Setting) bool { return o.Value.Text == item.Text }
		if item.Kind == String && !slices.ContainsFunc(list, same) {
			list = append(list, Setting{s.File, s.Entry, item})
		}
	}
	return list
}

// Read reads a file.
func Read(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("it is not a regular file"))
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// errUnknown says that nothing can be said: no directory of environments is on this machine.
var errUnknown = errors.New("there is no directory of environments here")

// Find returns the path of the file that a name stands for, as srun finds it: a path, or the name of a file in EDF_PATH or in ~/.edf.
// beside is a directory that is looked in as well, as files that belong together are often kept before they are installed.
func (s Search) Find(name, beside string) (string, error) {
	if s.isPath(name) {
		return s.findPath(name, beside)
	}
	file := strings.TrimSuffix(name, ".toml") + ".toml"
	dirs := s.directories()
	seen := false
	for _, dir := range append(slices.Clone(dirs), beside) {
		path := filepath.Join(dir, file)
		if isFile(path) {
			return path, nil
		}
		if info, err := os.Stat(dir); dir != beside && err == nil && info.IsDir() {
			seen = true
		}
	}
	if !seen {
		return "", errUnknown
	}
	return "", fmt.Errorf("there is no environment %q in %s", name, strings.Join(dirs, ", "))
}

// Unknown reports whether a file was not found because this machine is not one where it would be.
func Unknown(err error) bool { return errors.Is(err, errUnknown) }

func (s Search) isPath(name string) bool {
	if s.Dialect == Sarus && strings.HasSuffix(name, ".toml") {
		return true
	}
	return strings.HasPrefix(name, "/") || strings.HasPrefix(name, ".") || strings.Contains(name, "/")
}

func (s Search) findPath(name, beside string) (string, error) {
	if filepath.IsAbs(name) {
		if isFile(name) {
			return name, nil
		}
		if !isDir(filepath.Dir(name)) {
			return "", errUnknown
		}
		return "", fmt.Errorf("there is no file %s", name)
	}
	for _, dir := range append(slices.Clone(s.Dirs), beside) {
		if path := filepath.Join(dir, name); isFile(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no file %s, neither here nor beside the file that names it", name)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() || errors.Is(err, fs.ErrPermission)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// directories are where a bare name is looked for. The Sarus Suite takes EDF_PATH for one directory, whatever colons are in it.
func (s Search) directories() []string {
	if path, set := s.Lookup("EDF_PATH"); set && path != "" {
		if s.Dialect == Sarus {
			return []string{path}
		}
		return filepath.SplitList(path)
	}
	home, set := s.Lookup("HOME")
	if !set || home == "" {
		return nil
	}
	return []string{filepath.Join(home, ".edf")}
}
