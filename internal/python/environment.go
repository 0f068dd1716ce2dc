package python

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/entrypoint"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/store"
)

// Environment is what makes the laid-down packages a virtual environment (PEP 405), unless they go to the interpreter's own
// prefix, and what one image says about them
// that another would not: which were asked for, and where they came from. Its layer is small and comes last.
type Environment struct {
	Target             Target
	SystemSitePackages bool       // packages of the base can be imported as well
	Prompt             string     // shown by the activate scripts; empty: the directory's name
	Items              []Item     // all wheels of the environment
	Manifests          []Manifest // of their layers, the lowest first
	Prefer             []string   // see [Places]

	// Of one on top of another environment:
	Chain    []string     // directories of packages that can be imported as well, absolute, after its own and before the base's
	Commands []EntryPoint // of packages there: run from here, they see both
}

// DirectURL is where a package came from when that was no index (PEP 610, "Direct URL Data Structure").
type DirectURL struct {
	URL          string         `json:"url"`
	Subdirectory string         `json:"subdirectory,omitempty"`
	ArchiveInfo  *ArchiveInfo   `json:"archive_info,omitempty"`
	VCSInfo      *VCSInfo       `json:"vcs_info,omitempty"`
	DirInfo      map[string]any `json:"dir_info,omitempty"`
}

// ArchiveInfo says that the package came from an archive.
type ArchiveInfo struct {
	Hashes map[string]string `json:"hashes,omitempty"`
}

// VCSInfo says that the package came from a repository.
type VCSInfo struct {
	VCS               string `json:"vcs"`
	RequestedRevision string `json:"requested_revision,omitempty"`
	CommitID          string `json:"commit_id"`
}

//go:embed activate/activate.sh
var activateSh string

//go:embed activate/activate.fish
var activateFish string

//go:embed activate/activate.csh
var activateCsh string

// interpreterName matches what Pythons are called in bin: the environment's, and others that a command would find before the base's.
var interpreterName = lazyregexp.New(`^(?i:pythonw?[0-9.]*t?)$`)

// reserved says whether the path, relative to the environment, is one that the environment itself has, or lies below a file of it.
func (t Target) reserved(p string) bool {
	switch p {
	case "bin", "lib", t.lib(), t.sitePackages():
		return true
	case t.sitePackages() + "/" + chainFile:
		return t.Relocatable
	}
	top, rest, _ := strings.Cut(p, "/")
	name, _, _ := strings.Cut(rest, "/")
	switch {
	case top == "bin" && interpreterName.MatchString(name):
		return true
	case top == "pyvenv.cfg" || top == "lib64" || top == "bin" && slices.Contains([]string{"activate", "activate.fish", "activate.csh"}, name):
		return !t.Own
	}
	return false
}

// pythonLinks are the names of the interpreter in the environment. The first links to the base's, the others to it.
func (t Target) pythonLinks() []string {
	return []string{"bin/python", "bin/python3", "bin/python" + t.Python.Minor()}
}

// BuildEnvironment makes the environment's layer.
func BuildEnvironment(ctx context.Context, st *store.Store, e Environment, o layer.Options) (layer.Descriptor, error) {
	if err := e.Target.validate(); err != nil {
		return layer.Descriptor{}, err
	}
	task := progress.Begin(ctx, "layer", "Python environment", 0)
	d, err := e.build(ctx, st, o)
	return d, task.End(err)
}

func (e Environment) build(ctx context.Context, st *store.Store, o layer.Options) (layer.Descriptor, error) {
	objects, err := e.objects()
	if err != nil {
		return layer.Descriptor{}, err
	}
	w, err := layer.NewWriter(ctx, st, o)
	if err != nil {
		return layer.Descriptor{}, err
	}
	defer w.Abort()
	made := make(map[string]bool)
	for _, x := range objects {
		if made[x.Path] {
			continue // a directory that something below it has brought already
		}
		made[x.Path] = true
		for _, dir := range layer.Parents(x.Path) {
			if made[dir] {
				continue
			}
			made[dir] = true
			if err := w.Add(layer.Entry{Path: dir, Type: layer.Dir, Mode: 0o755}, nil); err != nil {
				return layer.Descriptor{}, err
			}
		}
		if err := w.Add(x.Entry, x.open); err != nil {
			return layer.Descriptor{}, err
		}
	}
	return w.Close()
}

// object is a small entry with its content.
type object struct {
	layer.Entry
	data []byte
}

func (x object) open() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(x.data)), nil }

// objects lists everything in the layer, in its order.
func (e Environment) objects() ([]object, error) {
	var out []object
	file := func(p string, mode uint32, data []byte) {
		entry := layer.Entry{Path: e.Target.Root + "/" + p, Type: layer.Regular, Mode: mode, Size: int64(len(data))}
		out = append(out, object{entry, data})
	}
	link := func(p, target string) {
		out = append(out, object{Entry: layer.Entry{Path: e.Target.Root + "/" + p, Type: layer.Symlink, Mode: 0o777, Link: target}})
	}
	if !e.Target.Own && !e.Target.Added {
		e.virtual(file, link)
	}
	// site-packages is there even when no package is.
	out = append(out, object{Entry: layer.Entry{Path: e.Target.Root + "/" + e.Target.sitePackages(), Type: layer.Dir, Mode: 0o755}})
	if err := e.origins(file); err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b object) int { return layer.Compare(a.Path, b.Path) })
	return out, nil
}

// virtual adds what makes a virtual environment of a directory with packages.
func (e Environment) virtual(file func(path string, mode uint32, data []byte), link func(path, target string)) {
	file("pyvenv.cfg", 0o644, e.config())
	file("bin/activate", 0o644, e.activate(activateSh))
	file("bin/activate.fish", 0o644, e.activate(activateFish))
	file("bin/activate.csh", 0o644, e.activate(activateCsh))
	link("lib64", "lib")
	if len(e.Chain) > 0 {
		file(e.Target.sitePackages()+"/"+chainFile, 0o644, e.chain())
	}
	for _, c := range e.Commands {
		if !e.has("bin/" + c.Name) {
			file("bin/"+c.Name, 0o755, entrypoint.Script(e.Target.interpreterLine(), c.Module, c.Attr))
		}
	}
	for i, p := range e.Target.pythonLinks() {
		if i == 0 {
			link(p, e.Target.Python.Executable)
		} else {
			link(p, "python")
		}
	}
}

// chainFile is a path configuration file, which site reads (Python, "site").
const chainFile = "_sconce_base.pth"

// chain adds the directories as site itself does: with the path configuration files that they hold.
func (e Environment) chain() []byte {
	var b strings.Builder
	for _, dir := range e.Chain {
		fmt.Fprintf(&b, "import site; site.addsitedir(%s)\n", pythonString(dir))
	}
	return []byte(b.String())
}

// pythonString writes a string as Python reads it.
func pythonString(s string) string {
	var b strings.Builder
	b.WriteByte('\'')
	for _, r := range s {
		if r < 0x20 || r > 0x7e || r == '\'' || r == '\\' {
			fmt.Fprintf(&b, "\\U%08x", r)
			continue
		}
		b.WriteRune(r)
	}
	b.WriteByte('\'')
	return b.String()
}

// has says whether a package of the environment has a file.
func (e Environment) has(name string) bool {
	for _, p := range allPackages(e.Manifests) {
		if slices.ContainsFunc(p.Files, func(f ManifestFile) bool { return f.Path == name }) {
			return true
		}
	}
	return slices.Contains(e.Target.pythonLinks(), name) || strings.HasPrefix(name, "bin/activate")
}

// config is pyvenv.cfg, by which Python knows that it runs in a virtual environment (PEP 405).
func (e Environment) config() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "home = %s\n", path.Dir(e.Target.Python.Executable))
	fmt.Fprintf(&b, "include-system-site-packages = %t\n", e.SystemSitePackages)
	fmt.Fprintf(&b, "version = %s\n", e.Target.Python.Version)
	fmt.Fprintf(&b, "executable = %s\n", e.Target.Python.Executable)
	if e.Prompt != "" {
		fmt.Fprintf(&b, "prompt = %s\n", e.prompt())
	}
	return []byte(b.String())
}

// prompt is the prompt without what could end a line or a quotation in the files that it goes into.
func (e Environment) prompt() string {
	text := e.Prompt
	if text == "" {
		text = path.Base(e.Target.Root)
	}
	return strings.Map(func(r rune) rune {
		if quote.Harmful(r) || strings.ContainsRune("'\"\\$`!", r) {
			return -1
		}
		return r
	}, text)
}

// Of a relocatable environment, the shells that can tell find out where their script is; the others take the place that it was made for.
var ownPlace = map[string]string{
	"VIRTUAL_ENV='@ROOT@'\n": `VIRTUAL_ENV='@ROOT@'
if [ -n "${BASH_SOURCE:-}" ]; then
    VIRTUAL_ENV=$(CDPATH= cd -- "$(dirname -- "$BASH_SOURCE")/.." > /dev/null && pwd)
elif [ -n "${ZSH_VERSION:-}" ]; then
    eval 'VIRTUAL_ENV=${${(%):-%x}:A:h:h}'
fi
`,
	"set -gx VIRTUAL_ENV '@ROOT@'\n": "set -gx VIRTUAL_ENV (realpath -- (dirname -- (status filename | string collect) | string collect)/.. | string collect)\n",
}

func (e Environment) activate(template string) []byte {
	if e.Target.Relocatable {
		for fixed, found := range ownPlace {
			template = strings.Replace(template, fixed, found, 1)
		}
	}
	return []byte(strings.NewReplacer("@ROOT@", "/"+e.Target.Root, "@PROMPT@", e.prompt()).Replace(template))
}

// origins adds REQUESTED and direct_url.json where they belong, and then a RECORD that lists them, which takes the place
// of the one in the wheel's layer.
func (e Environment) origins(file func(path string, mode uint32, data []byte)) error {
	packages := make(map[string]PackageFiles)
	for _, p := range allPackages(e.Manifests) {
		packages[NormalizeName(p.Name)] = p
	}
	for _, it := range e.Items {
		extra, err := it.originFiles()
		if err != nil {
			return err
		}
		if len(extra) == 0 {
			continue
		}
		p, ok := packages[NormalizeName(it.Name)]
		if !ok {
			return fmt.Errorf("package %s is in no layer of the environment", it.Name)
		}
		dir := e.Target.sitePackages() + "/" + p.DistInfo + "/"
		lines := p.recordEntries(e.Target)
		for _, name := range sortedKeys(extra) {
			data := extra[name]
			file(dir+name, 0o644, data)
			lines = append(lines, recordEntry{p.DistInfo + "/" + name, sha256Of(data), int64(len(data))})
		}
		file(dir+"RECORD", 0o644, formatRecord(lines))
	}
	return nil
}

// originFiles are the files of the metadata directory that depend on how the package got into the image.
func (it Item) originFiles() (map[string][]byte, error) {
	extra := make(map[string][]byte)
	if it.Requested {
		extra["REQUESTED"] = nil
	}
	if it.DirectURL != nil {
		data, err := json.Marshal(it.DirectURL)
		if err != nil {
			return nil, fmt.Errorf("direct URL of %s: %w", it.Name, err)
		}
		extra["direct_url.json"] = data
	}
	return extra, nil
}

// recordEntries lists the package's files as [Layout] did for the RECORD in its own layer.
func (p PackageFiles) recordEntries(t Target) []recordEntry {
	files := make([]*File, len(p.Files))
	for i, f := range p.Files {
		files[i] = &File{Path: f.Path, Size: f.Size, SHA256: f.SHA256}
	}
	return recordEntries(files, t, p.DistInfo)
}
