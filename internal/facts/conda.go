package facts

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/layer"
)

// Limits of what is read and kept of conda environments.
const (
	maxCondaRecords = 20_000 // in an image
	maxCondaFiles   = 20     // that are named of one kind, of a package
	maxCondaScripts = 200    // of an environment that are read for the directory that they name
)

// CondaEnvironment is a directory that conda, mamba, pixi or sconce installed packages in.
type CondaEnvironment struct {
	Prefix   string         `json:"prefix"`             // without a slash in front: "opt/conda"
	Packages []CondaPackage `json:"packages,omitempty"` // by name
	Clobbers []CondaClobber `json:"clobbers,omitempty"` // by path
}

// CondaPackage is what the record of an installed package says (CEP 32), and where the image differs from it. Of files only those
// count that something breaks without: programs, shared libraries and Python modules, tests aside. Images are often
// rid of the others to be smaller.
type CondaPackage struct {
	Name          string    `json:"name"`
	Version       string    `json:"version"`
	Build         string    `json:"build,omitempty"`
	Channel       string    `json:"channel,omitempty"` // a name or an address
	URL           string    `json:"url,omitempty"`
	Subdir        string    `json:"subdir,omitempty"` // "linux-64", "noarch"
	Record        string    `json:"record"`           // its path, without a slash in front
	Depends       []string  `json:"depends,omitempty"`
	Constrains    []string  `json:"constrains,omitempty"`
	Distributions []string  `json:"distributions,omitempty"` // directories of metadata of the Python distributions in it, like Distribution.Dir
	Missing       FileNames `json:"missing,omitzero"`
	Altered       FileNames `json:"altered,omitzero"`      // of another size than recorded
	Unpatched     FileNames `json:"unpatched,omitzero"`    // scripts that have the placeholder still where the prefix belongs
	Held          FileNames `json:"held,omitzero"`         // other files that have one: libraries, programs, what compilers and build systems read
	Moved         FileNames `json:"moved,omitzero"`        // scripts whose interpreter is not there: it was in the directory from which the environment comes
	Interpreter   string    `json:"interpreter,omitempty"` // of the first of these
}

// FileNames are files of which not all are named.
type FileNames struct {
	Count int      `json:"count"`
	First []string `json:"first"` // without a slash in front
}

func (n *FileNames) add(name string) {
	if n.Count++; n.Count <= maxCondaFiles {
		n.First = append(n.First, name)
	}
}

// CondaClobber is a file that several packages have, and not the same.
type CondaClobber struct {
	Path     string   `json:"path"`
	Packages []string `json:"packages"` // "zlib 1.3.1"
	Vital    bool     `json:"vital"`    // a program, library or module
}

// condaRecord is what is read of conda-meta/NAME-VERSION-BUILD.json.
type condaRecord struct {
	CondaPackage
	PathsData struct {
		Paths []condaPath `json:"paths"`
	} `json:"paths_data"`
}

type condaPath struct {
	Path           string `json:"_path"`
	Original       string `json:"original_path"` // where rattler would have put it, but for a file of another package
	Type           string `json:"path_type"`
	Size           *int64 `json:"size_in_bytes"`
	SHA256         string `json:"sha256"`
	SHA256InPrefix string `json:"sha256_in_prefix"`
	Placeholder    string `json:"prefix_placeholder"`
	FileMode       string `json:"file_mode"`
}

// findConda lists the conda environments of an image, by prefix, and the files in which placeholders may have been left. A record that
// cannot be read is passed over, as conda does.
func findConda(ctx context.Context, f *Facts) ([]CondaEnvironment, []held, error) {
	records := map[string][]string{} // by prefix
	count := 0
	for _, n := range f.Paths {
		dir, name := path.Split(n.Path)
		dir = strings.TrimSuffix(dir, "/")
		if path.Base(dir) != "conda-meta" || n.Type != layer.Regular || count >= maxCondaRecords {
			continue
		}
		if prefix := strings.Trim(path.Dir("/"+dir), "/"); path.Ext(name) == ".json" {
			records[prefix] = append(records[prefix], n.Path)
			count++
		}
	}
	if len(records) == 0 {
		return nil, nil, nil
	}
	infos := make(map[string]*Info, len(f.Paths))
	for i := range f.Paths {
		infos[f.Paths[i].Path] = &f.Paths[i]
	}
	var all []CondaEnvironment
	var files []held
	for _, prefix := range slices.Sorted(maps.Keys(records)) {
		c := condaFinder{root: f.Root, files: infos, prefix: prefix, owners: map[string][]condaOwner{}}
		for _, name := range slices.Sorted(slices.Values(records[prefix])) {
			if err := ctx.Err(); err != nil {
				return nil, nil, err
			}
			c.read(name)
		}
		if e := c.environment(); len(e.Packages) > 0 {
			all = append(all, e)
			files = append(files, c.held...)
		}
	}
	return all, files, nil
}

// condaFinder compares the records of one environment with its files.
type condaFinder struct {
	root    Root
	files   map[string]*Info // all of the image
	prefix  string
	records []condaRecord
	owners  map[string][]condaOwner // by path in the prefix
	scripts int                     // that were read
	held    []held                  // files that may have a placeholder
	texts   int                     // of these, such that the record says nothing of
}

// condaOwner is a package that has a file with a content.
type condaOwner struct{ pkg, sha256 string }

func (c *condaFinder) read(name string) {
	var r condaRecord
	if err := json.Unmarshal(ReadText(c.root, name), &r); err != nil || r.Name == "" || r.Version == "" {
		return
	}
	r.Record = name
	// These are found below, whatever the record says.
	r.Distributions, r.Missing, r.Altered, r.Unpatched, r.Held, r.Moved, r.Interpreter = nil, FileNames{}, FileNames{}, FileNames{}, FileNames{}, FileNames{}, ""
	c.records = append(c.records, r)
	for _, p := range r.PathsData.Paths {
		if sum := cmp.Or(p.SHA256InPrefix, p.SHA256); sum != "" && p.Type == "hardlink" {
			at := cmp.Or(p.Original, p.Path)
			c.owners[at] = append(c.owners[at], condaOwner{r.Name + " " + r.Version, sum})
		}
	}
}

func (c *condaFinder) environment() CondaEnvironment {
	e := CondaEnvironment{Prefix: c.prefix, Clobbers: c.clobbers()}
	clobbered := map[string]bool{}
	for _, x := range e.Clobbers {
		clobbered[x.Path] = true
	}
	for i := range c.records {
		r := &c.records[i]
		for _, p := range r.PathsData.Paths {
			c.compare(&r.CondaPackage, p, clobbered[p.Path])
		}
		e.Packages = append(e.Packages, r.CondaPackage)
	}
	slices.SortStableFunc(e.Packages, func(a, b CondaPackage) int { return cmp.Compare(a.Name, b.Name) })
	return e
}

// compare looks for a file of a package. Its size is known of what neither the installer nor another package wrote into.
func (c *condaFinder) compare(pkg *CondaPackage, p condaPath, clobbered bool) {
	at := path.Join(c.prefix, p.Path)
	if dir, name := path.Split(at); name == "METADATA" || name == "PKG-INFO" {
		pkg.Distributions = append(pkg.Distributions, strings.TrimSuffix(dir, "/"))
	}
	if !c.inside(p.Path) {
		return
	}
	info := c.find(at)
	if info != nil && info.Type == layer.Regular && !clobbered {
		c.hold(pkg.Record, info, p)
	}
	if !vital(p.Path) {
		return
	}
	switch {
	case info == nil:
		pkg.Missing.add(at)
	case info.Type != layer.Regular || clobbered:
	case p.FileMode == "binary":
	case p.Placeholder != "" || p.Type == "unix_python_entry_point":
		c.script(pkg, info, p.Placeholder)
	case p.Type == "hardlink" && p.Size != nil && info.Size != *p.Size && (path.Ext(at) == ".py" || info.Size == 0):
		pkg.Altered.add(at) // libraries and programs are often stripped
	}
}

// inside says whether a path of a record is one in the prefix.
func (c *condaFinder) inside(p string) bool {
	return p != "" && !path.IsAbs(p) && path.Clean(p) == p && p != ".." && !strings.HasPrefix(p, "../")
}

// find returns what is at a path: a link as it is, unless a directory on the way is one.
func (c *condaFinder) find(at string) *Info {
	if info, ok := c.files[at]; ok {
		return info
	}
	if info, err := c.root.Stat("/" + at); err == nil {
		return &info
	}
	return nil
}

// script compares a small script in bin, which the installer has written the prefix into, with where it is.
func (c *condaFinder) script(pkg *CondaPackage, info *Info, placeholder string) {
	if !isSmallScript(info.Path, info.Size) || c.scripts >= maxCondaScripts {
		return
	}
	c.scripts++
	text := ReadText(c.root, info.Path)
	if c.unpatched(text, placeholder) {
		pkg.Unpatched.add(info.Path)
	} else if program := c.gone(text); program != "" {
		pkg.Moved.add(info.Path)
		pkg.Interpreter = cmp.Or(pkg.Interpreter, program)
	}
}

// unpatched says whether a script has the placeholder.
func (c *condaFinder) unpatched(text []byte, placeholder string) bool {
	return c.foreign(placeholder) && bytes.Contains(text, []byte(placeholder))
}

// foreign says whether a placeholder has no place in the environment's files. An environment may lie where the package was built.
func (c *condaFinder) foreign(placeholder string) bool {
	prefix := "/" + c.prefix
	return len(placeholder) >= 8 && !strings.Contains(prefix, placeholder) && !strings.HasPrefix(placeholder, prefix)
}

// systemBins are where programs of the distribution are: one that is missing there was in no other environment.
var systemBins = []string{"/bin", "/usr/bin", "/usr/local/bin"}

// gone returns the interpreter in the first line of a script if it is that of another environment, and is not there.
func (c *condaFinder) gone(text []byte) string {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	rest, ok := bytes.CutPrefix(line, []byte("#!"))
	words := strings.Fields(string(rest))
	if !ok || len(words) == 0 || !path.IsAbs(words[0]) {
		return ""
	}
	program := path.Clean(words[0])
	dir := path.Dir(program)
	if dir == "/"+c.prefix+"/bin" || path.Base(dir) != "bin" || slices.Contains(systemBins, dir) || c.find(program[1:]) != nil {
		return ""
	}
	return program
}

func (c *condaFinder) clobbers() []CondaClobber {
	var all []CondaClobber
	for _, at := range slices.Sorted(maps.Keys(c.owners)) {
		owners := c.owners[at]
		if len(owners) < 2 || !slices.ContainsFunc(owners, func(o condaOwner) bool { return o.sha256 != owners[0].sha256 }) {
			continue
		}
		x := CondaClobber{Path: at, Vital: vital(at)}
		for _, o := range owners {
			x.Packages = append(x.Packages, o.pkg)
		}
		if slices.Sort(x.Packages); len(slices.Compact(slices.Clone(x.Packages))) > 1 {
			all = append(all, x)
		}
	}
	return all
}

// vital says whether something breaks without a file of a package: a program, a shared library, a Python module.
func vital(p string) bool {
	for part := range strings.SplitSeq(path.Dir(p), "/") {
		switch part {
		case "test", "tests", "share", "Menu", "pkgs", "info", "conda-meta", "__clobbers__", "examples", "doc", "docs":
			return false
		}
	}
	base := path.Base(p)
	ext := path.Ext(base)
	return path.Dir(p) == "bin" && !strings.HasPrefix(base, ".") || ext == ".py" || ext == ".so" || strings.Contains(base, ".so.")
}
