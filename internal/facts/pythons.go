package facts

import (
	"cmp"
	"context"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
)

// Limits of what is read of Python installations.
const (
	maxPythonText    = 8 << 20 // bytes of one text file
	maxDistributions = 50_000  // in an image
)

// sitePath is a directory that an interpreter imports from by default: prefix, version, kind. Debian's packages are for
// every Python 3 that it has, in a directory without a version.
var sitePath = lazyregexp.New(`^((?:.*/)?)lib(?:64)?/python(3(?:\.[0-9]{1,3})?)t?/(site-packages|dist-packages)$`)

// findPythons lists the directories of installed distributions, virtual environments without any among them, by directory.
// What cannot be read is passed over, as Python's own tools do.
func findPythons(ctx context.Context, f *Facts) ([]Python, error) {
	s := siteFinder{f: f, venvs: map[string]pyvenv{}, metadata: map[string][]Info{}}
	s.collect()
	var all []Python
	count := 0
	for _, dir := range slices.Sorted(maps.Keys(s.sites())) {
		p := s.python(dir)
		for _, n := range s.metadata[dir] {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if d, ok := s.distribution(n); ok && count < maxDistributions {
				p.Distributions = append(p.Distributions, d)
				count++
			}
		}
		slices.SortFunc(p.Distributions, func(a, b Distribution) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Dir, b.Dir))
		})
		all = append(all, p)
	}
	return all, ctx.Err()
}

// siteFinder holds what one walk over the names of an image tells.
type siteFinder struct {
	f        *Facts
	dirs     []string          // site directories by their name
	venvs    map[string]pyvenv // by prefix
	metadata map[string][]Info // *.dist-info and *.egg-info by the directory they are in
}

// collect sorts the names of the image.
func (s *siteFinder) collect() {
	for _, n := range s.f.Paths {
		dir, name := path.Split(n.Path)
		dir = strings.TrimSuffix(dir, "/")
		switch {
		case n.Type == layer.Dir && strings.HasSuffix(name, "-packages") && sitePath.MatchString(n.Path) && !inCondaCache(n.Path):
			s.dirs = append(s.dirs, n.Path)
		case name == "pyvenv.cfg":
			s.venvs[dir] = readPyvenv(s.f.Root, n.Path)
		case isMetadata(n):
			s.metadata[dir] = append(s.metadata[dir], n)
		}
	}
}

// isMetadata tells a distribution's metadata. A name with a tilde is what pip left of an installation that it broke off.
func isMetadata(n Info) bool {
	name := path.Base(n.Path)
	switch path.Ext(name) {
	case ".dist-info":
		return n.Type != layer.Regular && !strings.HasPrefix(name, "~")
	case ".egg-info":
		return !strings.HasPrefix(name, "~")
	}
	return false
}

// inCondaCache says whether a directory is in conda's store of unpacked packages, from which nothing is imported.
func inCondaCache(dir string) bool {
	m := sitePath.FindStringSubmatch(dir)
	return m != nil && path.Base(path.Dir(strings.TrimSuffix(m[1], "/"))) == "pkgs"
}

// sites returns the directories that count: with distributions, of virtual environments, or named by PYTHONPATH.
func (s *siteFinder) sites() map[string]bool {
	sites := map[string]bool{}
	for _, dir := range s.dirs {
		if _, venv := s.venvs[sitePrefix(dir)]; venv || len(s.metadata[dir]) > 0 {
			sites[dir] = true
		}
	}
	for _, dir := range s.f.PythonPath() {
		if len(s.metadata[dir]) > 0 {
			sites[dir] = true
		}
	}
	return sites
}

// python describes a site directory, its distributions aside.
func (s *siteFinder) python(dir string) Python {
	p := Python{Dir: dir, System: true, Distributions: []Distribution{}}
	m := sitePath.FindStringSubmatch(dir)
	if m == nil {
		return p
	}
	p.Version = m[2]
	if v, ok := s.venvs[sitePrefix(dir)]; ok {
		p.System, p.SystemSite = false, v.systemSite
		p.Base = s.base(v.home)
	}
	if p.Version == "3" {
		p.Version = s.debianDefault(strings.TrimSuffix(m[1], "/"))
	}
	return p
}

// base returns the prefix of the Python whose programs are in home.
func (s *siteFinder) base(home string) string {
	if home == "" {
		return ""
	}
	if real, err := s.f.Root.Resolve(home); err == nil {
		home = real
	}
	return strings.TrimPrefix(path.Dir(path.Clean(home)), "/")
}

// debianDefault returns the version that prefix/bin/python3 is a link to.
func (s *siteFinder) debianDefault(prefix string) string {
	real, err := s.f.Root.Resolve("/" + path.Join(prefix, "bin/python3"))
	if err != nil {
		return ""
	}
	version, ok := strings.CutPrefix(path.Base(real), "python")
	if !ok || !strings.HasPrefix(version, "3.") {
		return ""
	}
	return version
}

// distribution reads the metadata at n.
func (s *siteFinder) distribution(n Info) (Distribution, bool) {
	file, egg := n.Path+"/METADATA", path.Ext(n.Path) == ".egg-info"
	switch {
	case egg && n.Type == layer.Regular:
		file = n.Path
	case egg:
		file = n.Path + "/PKG-INFO"
	}
	m, err := python.ParseMetadata(ReadText(s.f.Root, file))
	if err != nil {
		return Distribution{}, false
	}
	d := Distribution{
		Name: python.NormalizeName(m.Name), Version: m.Version, Dir: n.Path,
		Requires: m.RequiresDist, RequiresPython: m.RequiresPython,
	}
	switch {
	case !egg:
		d.Tags = wheelTags(ReadText(s.f.Root, n.Path+"/WHEEL"))
	case len(d.Requires) == 0 && n.Type != layer.Regular:
		d.Requires = eggRequirements(ReadText(s.f.Root, n.Path+"/requires.txt"))
	}
	return d, true
}

// wheelTags returns the values of "Tag:" in a WHEEL file. One that stands for several, as the names of wheels have them and maturin writes
// them here too, is taken apart (PEP 425, "Compressed Tag Sets").
func wheelTags(data []byte) []string {
	var tags []string
	for line := range strings.Lines(string(data)) {
		tag, ok := strings.CutPrefix(line, "Tag:")
		if !ok {
			continue
		}
		parts := strings.Split(strings.TrimSpace(tag), "-")
		if len(parts) != 3 || strings.Count(tag, ".") > maxCompressed {
			tags = append(tags, strings.TrimSpace(tag))
			continue
		}
		for interpreter := range strings.SplitSeq(parts[0], ".") {
			for abi := range strings.SplitSeq(parts[1], ".") {
				for platform := range strings.SplitSeq(parts[2], ".") {
					tags = append(tags, interpreter+"-"+abi+"-"+platform)
				}
			}
		}
	}
	return tags
}

// maxCompressed is how many dots a tag may have that is taken apart: that of a wheel for three Pythons and all manylinux has fewer.
const maxCompressed = 30

// eggRequirements returns the lines of a requires.txt of setuptools as Requires-Dist would have them: a section
// "[extra:marker]" applies to the lines below it, either part may be missing.
func eggRequirements(data []byte) []string {
	var list []string
	condition := ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		section, isSection := strings.CutPrefix(line, "[")
		switch {
		case line == "":
		case isSection:
			extra, marker, _ := strings.Cut(strings.TrimSuffix(section, "]"), ":")
			condition = sectionMarker(extra, marker)
		case condition == "":
			list = append(list, line)
		case strings.Contains(line, "@"): // an address ends at a blank
			list = append(list, line+" ; "+condition)
		default:
			list = append(list, line+"; "+condition)
		}
	}
	return list
}

func sectionMarker(extra, marker string) string {
	switch {
	case extra == "":
		return marker
	case marker == "":
		return `extra == "` + extra + `"`
	}
	return "(" + marker + `) and extra == "` + extra + `"`
}

// pyvenv is what a pyvenv.cfg says.
type pyvenv struct {
	home       string // directory of the base's programs, absolute
	version    string // full, "" when it is not given
	systemSite bool
}

// readPyvenv reads a file that is in no format but "key = value" (docs.python.org, "site").
func readPyvenv(root Root, name string) pyvenv {
	var v pyvenv
	for line := range strings.Lines(string(ReadText(root, name))) {
		key, value, _ := strings.Cut(line, "=")
		value = strings.TrimSpace(value)
		switch strings.ToLower(strings.TrimSpace(key)) {
		case "home":
			v.home = value
		case "version", "version_info": // venv; virtualenv and uv
			v.version = value
		case "include-system-site-packages":
			v.systemSite = strings.EqualFold(value, "true")
		}
	}
	return v
}

// sitePrefix returns the directory that a site directory's lib is in, "" for what is no such path.
func sitePrefix(dir string) string {
	if m := sitePath.FindStringSubmatch(dir); m != nil {
		return strings.TrimSuffix(m[1], "/")
	}
	return ""
}

// PythonPath returns the directories of the image's PYTHONPATH that exist, without a slash in front.
func (f *Facts) PythonPath() []string {
	var dirs []string
	value, _ := f.Env("PYTHONPATH")
	for dir := range strings.SplitSeq(value, ":") {
		if !path.IsAbs(dir) {
			continue
		}
		if real, err := f.Root.Resolve(dir); err == nil {
			dirs = append(dirs, strings.TrimPrefix(real, "/"))
		}
	}
	return dirs
}

// ReadText returns a file's content, nil when it cannot be read or is far too large.
func ReadText(root Root, name string) []byte {
	h, err := root.Open("/" + strings.TrimPrefix(name, "/"))
	if err != nil {
		return nil
	}
	defer h.Close()
	if h.Size() > maxPythonText {
		return nil
	}
	data := make([]byte, h.Size())
	if _, err := io.ReadFull(io.NewSectionReader(h, 0, h.Size()), data); err != nil {
		return nil
	}
	return data
}
