package python

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/entrypoint"
)

// installer is what INSTALLER names (packaging.python.org, "Recording installed projects").
const installer = "sconce\n"

// entryPointsFile declares commands, in the metadata directory.
const entryPointsFile = "entry_points.txt"

// File is one file of a laid-down package.
type File struct {
	Path   string // relative to the environment: lib/python3.11/site-packages/numpy/__init__.py
	Mode   uint32 // 0o644 or 0o755
	Size   int64  // in bytes
	SHA256 string // URL-safe base64 without padding, as RECORD has it

	member *Member // nil when the bytes are ours
	data   []byte
}

// Open opens the file's bytes, checked while they are read.
func (f *File) Open() (io.ReadCloser, error) {
	if f.member == nil {
		return io.NopCloser(bytes.NewReader(f.data)), nil
	}
	return f.member.Open()
}

// Layout says where every file of w goes under t: the spread of "Binary distribution format", section "Installing a
// wheel". The result, RECORD among it, depends on the wheel and the target alone, and is in no particular order.
func Layout(w *Wheel, t Target) ([]*File, error) {
	if err := t.validate(); err != nil {
		return nil, err
	}
	s := &spread{wheel: w, target: t, taken: make(map[string]string)}
	if err := s.entryPoints(); err != nil {
		return nil, err
	}
	for _, m := range w.Members {
		if err := s.member(m); err != nil {
			return nil, err
		}
	}
	if err := s.add(w.DistInfo+"/INSTALLER", s.ours(t.sitePackages()+"/"+w.DistInfo+"/INSTALLER", 0o644, []byte(installer))); err != nil {
		return nil, err
	}
	return s.files, s.record()
}

// spread collects the files of one wheel.
type spread struct {
	wheel  *Wheel
	target Target
	files  []*File
	taken  map[string]string // path → the member that goes there
}

// written by the installer, whatever the wheel contains under these names.
var installerFiles = map[string]bool{"RECORD": true, "INSTALLER": true, "REQUESTED": true, "direct_url.json": true}

func (s *spread) member(m *Member) error {
	if name, ok := strings.CutPrefix(m.Name, s.wheel.DistInfo+"/"); ok && installerFiles[name] {
		return nil
	}
	if s.staleBytecode(m.Name) {
		return nil
	}
	rest, ok := strings.CutPrefix(m.Name, s.wheel.DataDir+"/")
	if !ok {
		return s.place(m, s.target.sitePackages()+"/"+m.Name)
	}
	scheme, rest, ok := strings.Cut(rest, "/")
	if !ok {
		return s.wheel.bad(m.Name, "it lies in no directory of %s, so there is no place for it", s.wheel.DataDir)
	}
	switch scheme {
	case "purelib", "platlib":
		return s.place(m, s.target.sitePackages()+"/"+rest)
	case "headers":
		return s.place(m, s.target.headers(NormalizeName(s.wheel.Name))+"/"+rest)
	case "scripts":
		return s.script(m, "bin/"+rest)
	case "data":
		return s.place(m, s.throughLib64(rest))
	}
	return s.wheel.bad(m.Name, "%q is no known place for data (purelib, platlib, headers, scripts, data)", scheme)
}

// staleBytecode says whether name is byte code whose source is in the wheel as well. Such a file holds the time of a
// source file that is laid down with another time, so Python would not use it.
func (s *spread) staleBytecode(name string) bool {
	dir, file := path.Split(name)
	if path.Base(dir) != "__pycache__" || !strings.HasSuffix(file, ".pyc") {
		return false
	}
	module, _, _ := strings.Cut(file, ".")
	return s.wheel.member(path.Join(path.Dir(path.Clean(dir)), module+".py")) != nil
}

// throughLib64 resolves the link lib64 → lib that a virtual environment has.
func (s *spread) throughLib64(p string) string {
	if rest, ok := strings.CutPrefix(p, "lib64/"); ok && !s.target.Own {
		return "lib/" + rest
	}
	return p
}

func (s *spread) place(m *Member, at string) error {
	f := &File{Path: at, Mode: 0o644, Size: m.Size, member: m}
	if m.Executable {
		f.Mode = 0o755
	}
	var err error
	if f.SHA256, err = m.sha256(); err != nil {
		return err
	}
	return s.add(m.Name, f)
}

// script places a member of .data/scripts, which is always executable.
func (s *spread) script(m *Member, at string) error {
	if s.taken[at] == entryPointsFile {
		return nil
	}
	marked, err := m.startsWith(interpreterMark)
	if err != nil {
		return err
	}
	if !marked {
		if err := s.place(m, at); err != nil {
			return err
		}
		s.files[len(s.files)-1].Mode = 0o755
		return nil
	}
	text, err := m.readAll(maxScript)
	if err != nil {
		return err
	}
	if text, err = rewriteInterpreter(text, s.target.interpreterLine()); err != nil {
		return s.wheel.bad(m.Name, "%w", err)
	}
	return s.add(m.Name, s.ours(at, 0o755, text))
}

// entryPoints makes the commands that entry_points.txt declares. They come first: a file of the same name in
// .data/scripts is an older way to the same command and gives way, as with pip.
func (s *spread) entryPoints() error {
	commands := append(append([]EntryPoint{}, s.wheel.EntryPoints.Console...), s.wheel.EntryPoints.GUI...)
	for _, p := range commands {
		at := "bin/" + p.Name
		if err := s.add(entryPointsFile, s.ours(at, 0o755, entrypoint.Script(s.target.interpreterLine(), p.Module, p.Attr))); err != nil {
			return err
		}
	}
	return nil
}

func (s *spread) ours(at string, mode uint32, data []byte) *File {
	return &File{Path: at, Mode: mode, Size: int64(len(data)), SHA256: sha256Of(data), data: data}
}

// add takes a file up unless its place belongs to the environment itself or to another member.
func (s *spread) add(from string, f *File) error {
	if s.target.reserved(f.Path) {
		return s.wheel.bad(from, "it would replace %s, which belongs to the Python environment itself", f.Path)
	}
	if other, ok := s.taken[f.Path]; ok {
		if s.replaces(from, other) {
			s.wheel.complaints.add(from, "it replaces %s", other)
			s.files[slices.IndexFunc(s.files, func(g *File) bool { return g.Path == f.Path })] = f
			s.taken[f.Path] = from
			return nil
		}
		return s.wheel.bad(from, "it goes to the same place as %s: %s", other, f.Path)
	}
	s.taken[f.Path] = from
	s.files = append(s.files, f)
	return nil
}

// replaces says whether a member of the data directory goes where another of the wheel has gone: first all others are laid
// down, then these (the specification's phases, unpack and spread).
func (s *spread) replaces(from, other string) bool {
	data := s.wheel.DataDir + "/"
	return strings.HasPrefix(from, data) && !strings.HasPrefix(other, data) && s.wheel.member(other) != nil && other != entryPointsFile
}

// record adds the RECORD of what is laid down. Byte code is not listed, as the specification allows: it can be made
// again, and every installer removes it with its source.
func (s *spread) record() error {
	at := s.target.sitePackages() + "/" + s.wheel.DistInfo + "/RECORD"
	data := formatRecord(recordEntries(s.files, s.target, s.wheel.DistInfo))
	return s.add("RECORD", s.ours(at, 0o644, data))
}

// recordEntries lists files for the RECORD in distInfo, which lists itself without a hash.
func recordEntries(files []*File, t Target, distInfo string) []recordEntry {
	self := distInfo + "/RECORD"
	entries := []recordEntry{{path: self}}
	for _, f := range files {
		rel := t.fromSitePackages(f.Path)
		if rel != self {
			entries = append(entries, recordEntry{rel, f.SHA256, f.Size})
		}
	}
	return entries
}

// fromSitePackages turns a path relative to the environment into one relative to site-packages, as RECORD has it.
func (t Target) fromSitePackages(p string) string {
	if rest, ok := strings.CutPrefix(p, t.sitePackages()+"/"); ok {
		return rest
	}
	if rest, ok := strings.CutPrefix(p, t.lib()+"/"); ok {
		return "../" + rest
	}
	if rest, ok := strings.CutPrefix(p, "lib/"); ok {
		return "../../" + rest
	}
	return "../../../" + p
}

// sha256 returns the member's SHA-256. RECORD nearly always has it; where it has a stronger hash, or none, the member is read
// once.
func (m *Member) sha256() (string, error) {
	if m.hash.algorithm == "sha256" {
		return m.hash.value, nil
	}
	h := sha256.New()
	if err := m.copyTo(h); err != nil {
		return "", err
	}
	return encodeSHA256(h.Sum(nil)), nil
}

// startsWith reads as much of the member as it takes to compare its start.
func (m *Member) startsWith(prefix []byte) (bool, error) {
	r, err := m.Open()
	if err != nil {
		return false, err
	}
	defer r.Close()
	head := make([]byte, len(prefix))
	if _, err := io.ReadFull(r, head); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return false, nil
		}
		return false, err
	}
	return bytes.Equal(head, prefix), nil
}
