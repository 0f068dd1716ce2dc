package python

import (
	"archive/tar"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/zipread"
)

// Certainty says how much what a source states of its dependencies is worth.
type Certainty int

// From nothing to a promise.
const (
	Unknown Certainty = iota // it says nothing
	// Recorded is what came out where the source distribution was made: mostly the same everywhere, but the author did
	// not promise it (core metadata before 2.2, or a field that is listed as Dynamic).
	Recorded
	Static // every wheel built from it will say the same (core metadata 2.2, "Dynamic"; pyproject.toml, "dynamic")
)

// SourceInfo is what a source says about itself without any of its code being run.
type SourceInfo struct {
	Name, Version  string // "" when it says them only when it is built
	RequiresPython string
	Requires       []string // Requires-Dist, as written
	Extras         []string
	Certainty      Certainty // of Requires

	// How it is built (packaging.python.org, "pyproject.toml specification", [build-system]).
	BuildRequires []string
	Backend       string
	BackendPath   []string

	// Pins are the files that say by hash what Cargo and Go download while it is built, from the archive's directory on; sorted.
	Pins []string
}

// What builds a source that does not say what builds it (the same, "Specifying a build system").
const legacyBackend = "setuptools.build_meta:__legacy__"

var legacyRequires = []string{"setuptools>=40.8.0"}

// Limits on a source: far above the largest known.
const (
	maxSourceFile    = 8 << 20  // bytes of one file that is read
	maxSourceEntries = 2 << 20  // files in the archive
	maxSourceBytes   = 32 << 30 // bytes of the unpacked archive that are read past
)

// ReadSdist reads what a source archive says about itself. name is the file's name, by which the form is known: .tar.gz,
// .tgz, .tar.bz2, .tar or .zip; size is the archive's in bytes. subdirectory is where the package is in it, "" at the top.
func ReadSdist(r io.ReaderAt, size int64, name, subdirectory string) (SourceInfo, error) {
	files := sourceFiles{dir: subdirectory, found: make(map[string][]byte)}
	var err error
	section := io.NewSectionReader(r, 0, size)
	switch lower := strings.ToLower(name); {
	case strings.HasSuffix(lower, ".zip"):
		err = files.zip(r, size)
	case strings.HasSuffix(lower, ".tar.gz") || strings.HasSuffix(lower, ".tgz"):
		var unpacked *gzip.Reader
		if unpacked, err = gzip.NewReader(section); err == nil {
			err = files.tar(unpacked)
		}
	case strings.HasSuffix(lower, ".tar.bz2"):
		err = files.tar(bzip2.NewReader(section))
	case strings.HasSuffix(lower, ".tar"):
		err = files.tar(section)
	default:
		err = errors.New("it is no form of archive that source distributions come in (.tar.gz, .zip)")
	}
	if err != nil {
		return SourceInfo{}, fmt.Errorf("read source %s: %w", name, err)
	}
	info, err := files.info()
	if err != nil {
		return info, fmt.Errorf("read source %s: %w", name, err)
	}
	return info, nil
}

// ReadSourceDir reads what the source in a directory says about itself.
func ReadSourceDir(dir fs.FS) (SourceInfo, error) {
	files := sourceFiles{found: make(map[string][]byte)}
	patterns := []string{"PKG-INFO", "pyproject.toml", "*.txt", "*.in", "require*/*.txt", "require*/*.in", "Cargo.lock", "*/Cargo.lock", "go.sum", "*/go.sum"}
	if _, err := fs.Stat(dir, "PKG-INFO"); err == nil {
		// An unpacked source distribution; in a checkout, an earlier version would have left it there.
		patterns = append(patterns, "*.egg-info/requires.txt", "src/*.egg-info/requires.txt")
	}
	for _, pattern := range patterns {
		names, err := fs.Glob(dir, pattern)
		if err != nil {
			return SourceInfo{}, err
		}
		for _, name := range names {
			if err := files.open(dir, name); err != nil {
				return SourceInfo{}, fmt.Errorf("read source: %w", err)
			}
		}
	}
	return files.info()
}

// open takes the file called name if it is a regular one.
func (s *sourceFiles) open(dir fs.FS, name string) error {
	if info, err := fs.Stat(dir, name); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return s.take(name, f)
}

// sourceFiles are the files of a source that say something about it, by their path in the package's directory.
type sourceFiles struct {
	dir   string
	top   string // the archive's one directory, "NAME-VERSION"
	found map[string][]byte
	pins  []string
}

var telling = lazyregexp.New(`^(?:PKG-INFO|pyproject\.toml|(?:src/)?[^/]+\.egg-info/requires\.txt|(?:require[^/]*/)?[^/]+\.(?:txt|in))$`)

// pins matches the locks of Cargo ("The Cargo Book", "Cargo.lock") and of Go ("Go Modules Reference", "go.sum files"). That they are
// there is all that is read of them.
var pins = lazyregexp.New(`^(?:.*/)?(?:Cargo\.lock|go\.sum)$`)

// listing matches files that may list requirements, and may be anything else as well.
var listing = lazyregexp.New(`\.(?:txt|in)$`)

// maxListing bounds such a file: what is larger lists no requirements. They are read before it is known whether pyproject.toml names them.
const (
	maxListing  = 256 << 10 // bytes
	maxListings = 100       // files
)

// wants returns the path in the package's directory of the archive's member called name, if it is one to read.
func (s *sourceFiles) wants(name string) (string, bool) {
	top, rest, ok := strings.Cut(path.Clean(strings.TrimPrefix(name, "./")), "/")
	if !ok {
		return "", false
	}
	if s.top == "" {
		s.top = top
	}
	if top != s.top {
		return "", false
	}
	if pins.MatchString(rest) {
		return rest, true // also at the top of a workspace, above the package's directory
	}
	if s.dir != "" {
		if rest, ok = strings.CutPrefix(rest, s.dir+"/"); !ok {
			return "", false
		}
	}
	return rest, telling.MatchString(rest)
}

func (s *sourceFiles) take(name string, r io.Reader) error {
	if pins.MatchString(name) {
		s.pins = append(s.pins, name)
		return nil
	}
	if listing.MatchString(name) && !strings.HasSuffix(name, ".egg-info/requires.txt") {
		return s.takeListing(name, r)
	}
	data, err := ctxio.ReadAtMost(r, maxSourceFile)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	s.found[name] = data
	return nil
}

func (s *sourceFiles) takeListing(name string, r io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(r, maxListing+1))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(data) <= maxListing && len(s.found) < maxListings {
		s.found[name] = data
	}
	return nil
}

func (s *sourceFiles) tar(r io.Reader) error {
	limited := &io.LimitedReader{R: r, N: maxSourceBytes}
	archive := tar.NewReader(limited)
	for range maxSourceEntries {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = layer.CheckPAX(h)
		}
		if err != nil {
			return err
		}
		if name, ok := s.wants(h.Name); ok && h.Typeflag == tar.TypeReg {
			if err := s.take(name, archive); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("it holds more than %d files", maxSourceEntries)
}

func (s *sourceFiles) zip(r io.ReaderAt, size int64) error {
	archive, err := zipread.Open(r, size)
	if err != nil {
		return err
	}
	for _, member := range archive.File {
		name, ok := s.wants(member.Name)
		if !ok || !member.Mode().IsRegular() {
			continue
		}
		f, err := member.Open()
		if err != nil {
			return err
		}
		err = s.take(name, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// info puts together what the files say.
func (s *sourceFiles) info() (SourceInfo, error) {
	slices.Sort(s.pins)
	info := SourceInfo{Backend: legacyBackend, BuildRequires: slices.Clone(legacyRequires), Pins: s.pins}
	if data, ok := s.found["PKG-INFO"]; ok {
		if err := info.metadata(data); err != nil {
			return info, fmt.Errorf("PKG-INFO: %w", err)
		}
	}
	if info.Certainty != Static && len(info.Requires) == 0 {
		info.recorded(s.found)
	}
	if data, ok := s.found["pyproject.toml"]; ok {
		if err := info.project(data, s.found); err != nil {
			return info, fmt.Errorf("pyproject.toml: %w", err)
		}
	}
	return info, nil
}

// metadata reads PKG-INFO.
func (info *SourceInfo) metadata(data []byte) error {
	h, err := parseHeaders(data)
	if err != nil {
		return err
	}
	m, err := ParseMetadata(data)
	if err != nil {
		return err
	}
	info.Name, info.Version = m.Name, m.Version
	info.RequiresPython, info.Requires, info.Extras = m.RequiresPython, m.RequiresDist, m.ProvidesExtra
	info.Certainty = Recorded
	if static(h) {
		info.Certainty = Static
	}
	return nil
}

// static reports whether the metadata promise that every wheel will have the same dependencies.
func static(h headers) bool {
	v, err := ParseVersion(h.get("Metadata-Version"))
	least, _ := ParseVersion("2.2")
	if err != nil || v.Compare(least) < 0 {
		return false
	}
	return !slices.ContainsFunc(h["dynamic"], func(field string) bool {
		field = strings.ToLower(strings.TrimSpace(field))
		return field == "requires-dist" || field == "provides-extra"
	})
}

// recorded reads the requires.txt that setuptools leaves beside its sources: sections of an extra, a marker or both, with a
// requirement on each line (setuptools' documentation, "Eggs format").
func (info *SourceInfo) recorded(found map[string][]byte) {
	for name, data := range found {
		if !strings.HasSuffix(name, "requires.txt") {
			continue
		}
		info.Certainty = Recorded
		extra, marker := "", ""
		for line := range strings.Lines(string(data)) {
			line = strings.TrimSpace(line)
			switch {
			case line == "":
			case strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]"):
				extra, marker, _ = strings.Cut(line[1:len(line)-1], ":")
			default:
				info.Requires = append(info.Requires, withMarker(line, marker, extra))
			}
		}
		return
	}
}

// withMarker adds a condition and an extra to a requirement.
func withMarker(requirement, marker, extra string) string {
	name, own, has := strings.Cut(requirement, ";")
	var all []string
	for _, m := range []string{strings.TrimSpace(own), marker} {
		if m != "" {
			all = append(all, "("+m+")")
		}
	}
	if extra != "" {
		all = append(all, `extra == "`+extra+`"`)
	}
	if len(all) == 0 {
		return strings.TrimSpace(requirement)
	}
	if has && len(all) == 1 && extra == "" {
		return strings.TrimSpace(requirement)
	}
	return strings.TrimSpace(name) + " ; " + strings.Join(all, " and ")
}

// pyproject is what a pyproject.toml says of building and of the package.
type pyproject struct {
	BuildSystem *struct {
		Requires    []string `toml:"requires"`
		Backend     string   `toml:"build-backend"`
		BackendPath []string `toml:"backend-path"`
	} `toml:"build-system"`
	Project *struct {
		Name           string              `toml:"name"`
		Version        string              `toml:"version"`
		RequiresPython string              `toml:"requires-python"`
		Dependencies   []string            `toml:"dependencies"`
		Optional       map[string][]string `toml:"optional-dependencies"`
		Dynamic        []string            `toml:"dynamic"`
	} `toml:"project"`
	Tool struct {
		Setuptools struct {
			Dynamic struct {
				Dependencies any `toml:"dependencies"`
				Optional     any `toml:"optional-dependencies"`
			} `toml:"dynamic"`
		} `toml:"setuptools"`
	} `toml:"tool"`
}

// listed reads the requirements that setuptools takes from files when it builds (its documentation, "Configuring setuptools using
// pyproject.toml files", dynamic metadata): {file = "requirements.txt"}, or several, and comments in them. ok is false where a
// file is not there, or has options, which setuptools does not take.
func listed(directive any, found map[string][]byte) (requirements []string, ok bool) {
	table, _ := directive.(map[string]any)
	var files []string
	switch file := table["file"].(type) {
	case string:
		files = []string{file}
	case []any:
		for _, f := range file {
			name, _ := f.(string)
			files = append(files, name)
		}
	}
	for _, name := range files {
		data, there := found[path.Clean(name)]
		if !there {
			return nil, false
		}
		for line := range strings.Lines(string(data)) {
			line, _, _ = strings.Cut(" "+strings.TrimSpace(line), " #")
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "-") || strings.HasSuffix(line, `\`) {
				return nil, false
			}
			if line != "" {
				requirements = append(requirements, line)
			}
		}
	}
	return requirements, len(files) > 0
}

// dynamic puts together dependencies and extras of which some come from files that setuptools reads.
func (p *pyproject) dynamic(found map[string][]byte) (dependencies []string, optional map[string][]string, ok bool) {
	dependencies, optional = p.Project.Dependencies, p.Project.Optional
	from := p.Tool.Setuptools.Dynamic
	if slices.Contains(p.Project.Dynamic, "dependencies") {
		if dependencies, ok = listed(from.Dependencies, found); !ok {
			return nil, nil, false
		}
	}
	if slices.Contains(p.Project.Dynamic, "optional-dependencies") {
		extras, _ := from.Optional.(map[string]any)
		optional = make(map[string][]string)
		for extra, directive := range extras {
			if optional[extra], ok = listed(directive, found); !ok {
				return nil, nil, false
			}
		}
	}
	return dependencies, optional, true
}

func (info *SourceInfo) project(data []byte, found map[string][]byte) error {
	var p pyproject
	if err := toml.NewDecoder(bytes.NewReader(data)).Decode(&p); err != nil {
		return lockSyntax(err)
	}
	if b := p.BuildSystem; b != nil {
		info.BuildRequires, info.BackendPath = b.Requires, b.BackendPath
		if b.Backend != "" {
			info.Backend = b.Backend
		}
	}
	q := p.Project
	if q == nil {
		return nil
	}
	if info.Name == "" {
		info.Name = q.Name
	}
	if info.Version == "" {
		info.Version = q.Version
	}
	certainty := Static
	if slices.Contains(q.Dynamic, "dependencies") || slices.Contains(q.Dynamic, "optional-dependencies") {
		certainty = Recorded // setup.py may do otherwise
	}
	dependencies, optional, ok := p.dynamic(found)
	if info.Certainty >= certainty || !ok {
		return nil
	}
	info.Certainty, info.Requires, info.Extras = certainty, slices.Clone(dependencies), nil
	info.RequiresPython = q.RequiresPython
	for _, extra := range sortedKeys(optional) {
		info.Extras = append(info.Extras, extra)
		for _, r := range optional[extra] {
			info.Requires = append(info.Requires, withMarker(r, "", extra))
		}
	}
	return nil
}
