package elfx

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
)

// Loader finds libraries in the file system of an image as the dynamic loader would at run time: glibc's or, for programs
// with musl's interpreter, musl's. Its methods may be called from many goroutines; its fields are not changed after the
// first call.
type Loader struct {
	FS          FS
	LibraryPath string        // LD_LIBRARY_PATH of the image
	Preload     string        // LD_PRELOAD of the image
	Host        []HostLibrary // that the container runtime brings in
	ISALevel    int           // x86-64 level of the processor it will run on, 1 to 4; 0 for unknown: the lowest

	indexes    indexCache
	mu         sync.Mutex
	files      map[string]*opened // by their real names
	configured []string
	configOnce sync.Once
}

// FS is the file system of an image. Names are absolute. Symbolic links are followed inside the image, and ".." is resolved
// after them, as the kernel does it.
type FS interface {
	// Resolve returns the name of a file or directory without links in it. Any error means that there is none.
	Resolve(name string) (string, error)
	// Open opens a regular file. The error wraps fs.ErrInvalid when it is not one.
	Open(name string) (Handle, error)
	// ReadDir returns the names in a directory.
	ReadDir(name string) ([]string, error)
}

// Handle is an open file.
type Handle interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// HostLibrary is a library that is not in the image, such as libcuda.so.1: the container runtime brings it in.
type HostLibrary struct {
	Name    string
	Symbols []string // what its symbols begin with, such as "cu"; empty when any may be its
}

// Object is a file that the loader has in memory.
type Object struct {
	Path string // as the loader calls it: with links, and with ".." from RPATHs
	Real string // the file behind it
	File *File
	By   *Object // who asked for it first; for a plugin the program, nil for a program and its interpreter
	Rule Rule    // by which it was found
}

// Closure is a file and all it needs.
type Closure struct {
	Objects     []*Object // in the order in which symbols are looked up; the first is the file itself
	Links       []Link    // each library that each object needs, in the order in which the loader looks for them
	Libc        Libc      // whose rules were followed
	Interpreter *Object   // nil for a static program, and when the image does not have it; in Objects when one needs it as a library
}

// Link is one object's need of one library.
type Link struct {
	By      *Object
	Name    string   // as in the file, such as libm.so.6
	To      *Object  // nil when the library is missing, unusable or the host's
	Rule    Rule     // by which it was found
	Host    bool     // it is one of the host's
	Err     error    // why the file found is of no use: the loader stops there and does not look further
	Skipped []string // files of that name for other machines, which the loader passed over
}

// Missing returns the libraries that the loader would not find.
func (c *Closure) Missing() []Link {
	var missing []Link
	for _, link := range c.Links {
		if link.To == nil && !link.Host {
			missing = append(missing, link)
		}
	}
	return missing
}

// Rule is how the loader came to a file.
type Rule struct {
	Kind RuleKind
	Of   *Object // whose RPATH or RUNPATH it was
	Dir  string  // where it was found, as the rule has it
}

// RuleKind is one of the loader's rules (ld.so(8)).
type RuleKind int

// The rules.
const (
	NotFound      RuleKind = iota
	Asked                  // it is the file asked about
	Loaded                 // one loaded before has this name
	Path                   // the name is a path
	FromRpath              // RPATH of the object or of one that led to it
	FromEnv                // LD_LIBRARY_PATH
	FromRunpath            // RUNPATH of the object
	FromConfig             // /etc/ld.so.conf, for musl /etc/ld-musl-*.path
	FromDefault            // the directories built into the loader
	FromPreload            // LD_PRELOAD
	IsInterpreter          // it is the loader itself
)

func (r Rule) String() string {
	switch r.Kind {
	case Asked:
		return "asked for"
	case Loaded:
		return "already loaded"
	case Path:
		return "path"
	case FromRpath:
		return fmt.Sprintf("RPATH of %s: %s", r.Of.Path, r.Dir)
	case FromEnv:
		return "LD_LIBRARY_PATH: " + r.Dir
	case FromRunpath:
		return fmt.Sprintf("RUNPATH of %s: %s", r.Of.Path, r.Dir)
	case FromConfig:
		return "configuration of the loader: " + r.Dir
	case FromDefault:
		return "default directory: " + r.Dir
	case FromPreload:
		return "LD_PRELOAD"
	case IsInterpreter:
		return "the interpreter"
	}
	return "not found"
}

// Limits on one closure. The largest seen are some hundred files.
const (
	maxObjects = 16 << 10
	maxLinks   = 256 << 10
	maxTries   = 4 << 20 // files looked for
)

// Closure loads a file and what it needs, breadth first, as the loader does. The closures of before are in memory already,
// as when a program loads the file as a plugin: the program's first, then what it has loaded. Their objects are found by
// their names, and the program's RPATH is searched.
//
// What is missing or damaged is in the links of the result. An error means that the file itself cannot be read, or that FS
// failed.
func (l *Loader) Closure(name string, before ...*Closure) (*Closure, error) {
	real, err := l.FS.Resolve(name)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	f, err := l.open(real)
	if err != nil {
		return nil, err
	}
	root := &Object{Path: real, Real: real, File: f, Rule: Rule{Kind: Asked}}
	s := newSearch(l, root, before)
	if !f.Dynamic || f.Kind == PIE && f.Interpreter == "" { // static
		return s.closure, nil
	}
	s.findInterpreter()
	if err := s.preload(); err != nil {
		return nil, err
	}
	for at := 0; at < len(s.closure.Objects); at++ {
		if err := s.follow(s.closure.Objects[at]); err != nil {
			return nil, err
		}
	}
	return s.closure, nil
}

// search is the state of one loader's work.
type search struct {
	*Loader
	closure *Closure
	root    *Object
	main    *Object            // the program: root or, for a plugin, that of the first closure before
	names   map[string]*Object // what is in memory, by all its names
	reals   map[string]*Object // and by its file
	taken   map[*Object]bool   // in the closure
	libc    Libc
	dirs    defaults
	tries   int

	there                            map[string]bool // whether a directory is
	owns                             map[*Object]own
	fromEnv, fromConfig, fromBuiltin []place // nil until they are made
}

func newSearch(l *Loader, root *Object, before []*Closure) *search {
	s := &search{
		Loader: l, closure: &Closure{}, root: root, main: root,
		names: map[string]*Object{}, reals: map[string]*Object{}, taken: map[*Object]bool{},
		there: map[string]bool{}, owns: map[*Object]own{},
	}
	for i, c := range before {
		if i == 0 {
			s.main, root.By = c.Objects[0], c.Objects[0]
		}
		for _, o := range c.Objects {
			s.learn(o, path.Base(o.Path))
		}
	}
	s.learn(root, "")
	s.add(root)
	return s
}

// learn keeps an object that is now in memory, and the name by which it was asked for.
func (s *search) learn(o *Object, asked string) {
	names := []string{o.Path, asked, o.File.Soname}
	for _, name := range names {
		if _, ok := s.names[name]; !ok && name != "" {
			s.names[name] = o
		}
	}
	if _, ok := s.reals[o.Real]; !ok {
		s.reals[o.Real] = o
	}
}

func (s *search) add(o *Object) {
	if !s.taken[o] {
		s.taken[o] = true
		s.closure.Objects = append(s.closure.Objects, o)
	}
}

// findInterpreter finds out whose rules hold, and loads the interpreter, which is in memory before all libraries.
func (s *search) findInterpreter() {
	name := s.main.File.Interpreter
	if name == "" {
		name = s.guessInterpreter()
	}
	s.libc = libcOf(name)
	s.closure.Libc = s.libc
	var real string
	if o, ok := s.names[name]; ok {
		real, s.closure.Interpreter = o.Real, o
	} else if found, err := s.FS.Resolve(name); err == nil {
		real = found
		if f, err := s.open(real); err == nil && sameMachine(f, s.root.File) {
			o := &Object{Path: name, Real: real, File: f, Rule: Rule{Kind: IsInterpreter}}
			s.closure.Interpreter = o
			s.learn(o, "")
		}
	}
	s.dirs = s.defaultDirs(s.root.File, name, real, s.libc)
}

// guessInterpreter is for libraries, which name none.
func (s *search) guessInterpreter() string {
	musl := slices.ContainsFunc(s.root.File.Needed, func(n string) bool { return strings.HasPrefix(n, "libc.musl-") })
	for _, name := range interpreters(s.root.File.Arch) {
		if musl != (libcOf(name) == Musl) {
			continue
		}
		if _, err := s.FS.Resolve(name); err == nil {
			return name
		}
	}
	for _, name := range interpreters(s.root.File.Arch) {
		if _, err := s.FS.Resolve(name); err == nil {
			return name
		}
	}
	return ""
}

// preload loads the libraries of LD_PRELOAD, which come right after the program.
func (s *search) preload() error {
	for _, name := range strings.FieldsFunc(s.Preload, func(r rune) bool { return r == ':' || r == ' ' }) {
		if err := s.load(s.root, name, true); err != nil {
			return err
		}
	}
	return nil
}

// follow loads what an object needs.
func (s *search) follow(o *Object) error {
	for _, name := range o.File.Needed {
		if err := s.load(o, name, false); err != nil {
			return err
		}
	}
	return nil
}

// load finds one library and adds it to the closure.
func (s *search) load(by *Object, name string, preload bool) error {
	link := Link{By: by, Name: name}
	if err := s.find(&link); err != nil {
		return err
	}
	if link.To == nil && link.Err == nil {
		link.Host = slices.ContainsFunc(s.Host, func(h HostLibrary) bool { return h.Name == name })
	}
	if preload && link.Rule.Kind != NotFound {
		link.Rule = Rule{Kind: FromPreload}
	}
	if s.closure.Links = append(s.closure.Links, link); len(s.closure.Links) > maxLinks || len(s.closure.Objects) > maxObjects {
		return fmt.Errorf("%s: more than %d libraries or %d needs of libraries", s.root.Path, maxObjects, maxLinks)
	}
	if link.To != nil {
		s.add(link.To)
	}
	return nil
}

// try looks whether a file will do for a link. When it returns false, the search goes on.
func (s *search) try(link *Link, name string, rule Rule) (bool, error) {
	real, err := s.FS.Resolve(name)
	if err != nil {
		return false, nil //nolint:nilerr // the search goes on
	}
	link.Rule = rule
	if o, ok := s.reals[real]; ok {
		link.To = o
		s.learn(o, link.Name)
		return true, nil
	}
	f, err := s.open(real)
	var bad *unusableError
	switch {
	case errors.As(err, &bad):
		link.Err = err
		return true, nil
	case err != nil:
		return false, err
	case !sameMachine(f, s.root.File):
		if s.libc == Glibc {
			link.Rule = Rule{}
			link.Skipped = append(link.Skipped, fmt.Sprintf("%s (%s)", name, f.Arch))
			return false, nil
		}
		link.Err = &unusableError{real, fmt.Errorf("it is for %s", f.Arch)}
		return true, nil
	case f.Kind != Shared:
		link.Err = &unusableError{real, fmt.Errorf("not a shared library: %v", f.Kind)}
		return true, nil
	}
	link.To = &Object{Path: name, Real: real, File: f, By: link.By, Rule: rule}
	s.learn(link.To, link.Name)
	return true, nil
}

func sameMachine(a, b *File) bool {
	return a.Machine == b.Machine && a.Class == b.Class && a.image.order == b.image.order
}

// opened is a file that was read, or why it cannot be.
type opened struct {
	file *File
	err  error
}

// unusableError is a file that is there but no library.
type unusableError struct {
	name string
	why  error
}

func (e *unusableError) Error() string { return fmt.Sprintf("%s: %v", e.name, e.why) }
func (e *unusableError) Unwrap() error { return e.why }

// open reads a file once. Errors about the file are unusableErrors, others are those of FS.
func (l *Loader) open(real string) (*File, error) {
	l.mu.Lock()
	o, ok := l.files[real]
	l.mu.Unlock()
	if ok {
		return o.file, o.err
	}
	f, err := l.openNew(real)
	var bad *unusableError
	if err != nil && !errors.As(err, &bad) {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if o, ok := l.files[real]; ok {
		return o.file, o.err
	}
	if l.files == nil {
		l.files = map[string]*opened{}
	}
	l.files[real] = &opened{f, err}
	return f, err
}

func (l *Loader) openNew(real string) (*File, error) {
	h, err := l.FS.Open(real)
	if err != nil {
		if errors.Is(err, fs.ErrInvalid) {
			return nil, &unusableError{real, err}
		}
		return nil, fmt.Errorf("open %s: %w", real, err)
	}
	defer h.Close()
	f, err := Open(h, h.Size())
	if errors.Is(err, ErrFormat) || errors.Is(err, ErrNotELF) {
		return nil, &unusableError{real, err}
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", real, err)
	}
	f.image.r = reopened{l.FS, real}
	return f, nil
}

// reopened is a file that is opened for each reading, so that a closure of many holds none open.
type reopened struct {
	fs   FS
	name string
}

func (r reopened) ReadAt(p []byte, offset int64) (int, error) {
	h, err := r.fs.Open(r.name)
	if err != nil {
		return 0, err
	}
	defer h.Close()
	return h.ReadAt(p, offset)
}
