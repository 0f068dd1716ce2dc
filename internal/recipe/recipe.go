// Package recipe reads sconce.toml, the file in which a user says what the image shall hold.
//
// Reading is strict: an unknown key, a value of the wrong type or form, or two keys that exclude each other is an
// [Error] that names file, line and column and offers the nearest thing that would have been right. All mistakes of a
// file are reported at once, as [fault.Errors].
//
// The Go types below are the single source: the JSON Schema ([Schema]) and the tables of docs/recipe.md are generated
// from them and from the tables in keys_*.go.
package recipe

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/reach"
)

// FileName is the name of a recipe in its directory.
const FileName = "sconce.toml"

// Recipe is what the user wrote, checked and with the defaults filled in.
type Recipe struct {
	Path string `toml:"-"` // the recipe file, as the user named it
	Dir  string `toml:"-"` // its directory, absolute: relative paths in the recipe start here

	LockFile string `toml:"-"` // where its lock is, absolute; "": beside the recipe
	Variant  string `toml:"-"` // which of its variants this is; "": it has none

	// Hosts that may see the logins of whoever uses the recipe, although only the recipe names them: HOST or HOST:PORT.
	LoginHosts []string     `toml:"-"`
	Reach      reach.Bounds `toml:"-"` // which files of this machine it may name, and the files that it leads to

	Name    string `toml:"name"`
	Version string `toml:"version"`

	HostConfig []string `toml:"host-config"` // kinds of hostconfig that steps see of this machine; in no key

	Base   Base   `toml:"base"`
	Target Target `toml:"target"`
	System System `toml:"system"`
	Conda  Conda  `toml:"conda"`
	Python Python `toml:"python"`

	Source    map[string]Source    `toml:"source"`    // by name
	Component map[string]Component `toml:"component"` // likewise; see Recipe.ComponentOrder

	Steps   []Step      `toml:"step"`
	Image   ImageConfig `toml:"image"`
	Slim    Slim        `toml:"slim"`
	Start   Start       `toml:"start"`
	Check   Check       `toml:"check"`
	Cache   Cache       `toml:"cache"`
	Publish Publish     `toml:"publish"`

	Jobs  map[string]job.Job `toml:"job"`  // by name: what the image is run as on a cluster
	Tests []imagetest.Test   `toml:"test"` // which tell whether it is good

	// What makes variants of a recipe. What Load returns is one of them, in which these are empty.
	Variants map[string]any      `toml:"variant"`
	Matrix   map[string][]string `toml:"matrix"`
}

// Base says what the image is based on. Exactly one of Image, Bootstrap and Recipe is set.
type Base struct {
	Image     string     `toml:"image"` // as written; see Recipe.BaseReference
	Bootstrap *Bootstrap `toml:"bootstrap"`
	Recipe    string     `toml:"recipe"` // another recipe, PATH[:VARIANT], as written; see Recipe.BaseRecipe
	Remove    []string   `toml:"remove"` // patterns of its files that are not there for what is built on it

	Key string `toml:"-"` // of the image of Recipe: what its plan is; "" as long as nobody has planned it

	Anywhere bool `toml:"-"` // Image may be any file of this machine, whatever Reach says: the user has named it
}

// Bootstrap asks for a root file system made from the distribution's packages: Debian's or Ubuntu's, by Suite, or RPM's, by Dnf. One of
// the two is set.
type Bootstrap struct {
	Suite      string   `toml:"suite"`
	Dnf        string   `toml:"dnf"` // a release, NAME:RELEASE, or the address of a repository
	Packages   []string `toml:"packages"`
	Mirror     string   `toml:"mirror"` // "" is the distribution's own
	Components []string `toml:"components"`
	Variant    string   `toml:"variant"`
	Sources    []string `toml:"sources"` // further archives: ADDRESS SUITE COMPONENT…; with Dnf, addresses of repositories
	Keys       []string `toml:"keys"`    // files; see Recipe.Resolve. None: those of the distributions
	Trusted    bool     `toml:"trusted"` // no signature is asked for
}

// Target says what the image runs on: a cluster, and what is to be known of it besides or otherwise.
type Target struct {
	Cluster string `toml:"cluster"` // name or file of a profile; "" is none

	// Profile goes before what the cluster's says. It has neither name nor description. Its platform is linux/amd64 or linux/arm64,
	// whichever alias was written.
	cluster.Profile

	AnyPlatform bool `toml:"-"` // none was written: Platform is this machine's, unless the cluster has another
}

// Named reports whether the recipe says of a machine more than its platform.
func (t Target) Named() bool {
	t.Platform = ""
	return t.Cluster != "" || !t.Empty()
}

// System says what the base's own package manager installs.
type System struct {
	Packages []string `toml:"packages"` // as that manager takes them: NAME, NAME=VERSION, ...
}

// Conda says what the conda environment holds. With one, [Python] means it: there is no virtual environment.
type Conda struct {
	Environment     []string          `toml:"environment"` // files, one on top of the other; see Recipe.Resolve
	Packages        []string          `toml:"packages"`    // MatchSpecs (CEP 29)
	Channels        []string          `toml:"channels"`
	ChannelPriority string            `toml:"channel-priority"`
	Prefix          string            `toml:"prefix"`
	Lock            string            `toml:"lock"`             // the user's own: conda-lock.yml, pixi.lock or a list of addresses
	LockCategories  []string          `toml:"lock-categories"`  // of a conda-lock.yml, besides main
	LockEnvironment string            `toml:"lock-environment"` // of a pixi.lock; "": default
	Virtual         map[string]string `toml:"virtual"`          // virtual packages by name, "__cuda"; "": the target has none of that name
	LinkScripts     *[]string         `toml:"link-scripts"`     // packages whose link scripts run; nil: all
	Client          bool              `toml:"client"`           // conda and mamba are added
	AcceptLicenses  bool              `toml:"accept-licenses"`
}

// Asked reports whether the recipe wants a conda environment.
func (c Conda) Asked() bool { return len(c.Environment)+len(c.Packages) > 0 || c.Lock != "" }

// Python says what the virtual environment holds.
type Python struct {
	Packages     []string `toml:"packages"`     // PEP 508 requirements
	Requirements []string `toml:"requirements"` // files; see Recipe.Resolve
	Project      string   `toml:"project"`      // directory with a pyproject.toml; what it depends on is installed

	InstallProject *bool `toml:"install-project"` // the project itself too; nil: no

	Lock         string    `toml:"lock"` // the user's own pylock.toml
	TorchBackend string    `toml:"torch-backend"`
	Protect      *[]string `toml:"protect"`  // nil: torch, when the base has it
	Prefer       []string  `toml:"prefer"`   // packages whose files go before those of others
	Bytecode     *bool     `toml:"bytecode"` // nil: true
	Extras       []string  `toml:"extras"`
	Groups       []string  `toml:"groups"`
	OnlyBinary   []string  `toml:"only-binary"` // packages that never come as their source; ":all:" is all of them

	Compile map[string]Compile `toml:"compile"` // by the package's name, normalised (PEP 503)

	// What environment files of [conda] list for pip, in their order, once they have been read.
	Listed []PipList `toml:"-"`

	// What makes the environment one on top of the base's own, whatever that is; nil: it is the image's environment. No file says it.
	OnTop *OnTop `toml:"-"`
}

// OnTop says how an environment is based on top of the base's: it sees all packages of the base, and replaces none.
type OnTop struct {
	Root   string   // its directory, absolute
	Shadow []string // packages of the base that it may have in a version of its own
}

// PipList is the pip list of an environment file.
type PipList struct {
	File  string // as the recipe names it
	Text  string // as a requirements file, paths made absolute; see Recipe.Resolve
	Lines []int  // of File, for each line of Text: where it is from

	Asked     []PipRequirement  // requirements of the list and of files that it includes
	Variables map[string]string // of the environment files before this one: packages of the list without a wheel are built with them
}

// PipRequirement is a requirement that a pip list leads to.
type PipRequirement struct {
	Text       string // PEP 508, or an address or path; without options
	Unisolated bool   // a build sees what is installed before it, where [python.compile] says nothing else
}

// ImageConfig is what the finished image says about itself.
type ImageConfig struct {
	Env         map[string]string `toml:"env"`
	Unset       []string          `toml:"unset"`
	Entrypoint  []string          `toml:"entrypoint"`
	Cmd         []string          `toml:"cmd"`
	Workdir     string            `toml:"workdir"`
	Labels      map[string]string `toml:"labels"`
	Volumes     []string          `toml:"volumes"`
	User        string            `toml:"user"`
	Compression string            `toml:"compression"`
	MaxLayers   int               `toml:"max-layers"`
}

// Slim says what is taken out of the finished image.
type Slim struct {
	GPU       bool   `toml:"gpu"`       // device code that the target cannot run
	PTX       string `toml:"ptx"`       // "keep" or "drop-where-native"
	Relfatbin string `toml:"relfatbin"` // "keep" or "drop"

	Strip         bool     `toml:"strip"`          // symbols that nothing needs at run time
	Remove        []string `toml:"remove"`         // patterns of files that no layer shall have
	PackageCaches bool     `toml:"package-caches"` // what package managers leave behind
}

// Start says what a user of the image begins with.
type Start struct {
	Run []string `toml:"run"` // commands for a shell; what they read is written together into squashfs and SIF files
}

// Check says how the finished image is judged.
type Check struct {
	Allow map[string]string `toml:"allow"` // by the id of a rule, why what it finds is no error here; the ids are not checked
}

// Cache says where what a build made is kept for others.
type Cache struct {
	Registry string `toml:"registry"` // a repository without a tag; "" is none
	Push     *bool  `toml:"push"`     // nil: true
}

// Publish says where the image goes.
type Publish struct {
	Repository string `toml:"repository"`
	Index      bool   `toml:"index"`    // in a pipeline: with the variants of other platforms, as one image
	Untested   string `toml:"untested"` // likewise: Allow, or "refuse"; "" is what the pipeline says
}

// Pushes reports whether what is new shall be sent to the registry.
func (c Cache) Pushes() bool { return c.Registry != "" && (c.Push == nil || *c.Push) }

// The values of keys that a recipe leaves out.
const (
	DefaultVersion     = "latest"
	DefaultCompression = "gzip"
	DefaultVariant     = "minbase"
	DefaultPrefix      = "/opt/conda"
	DefaultPriority    = "strict"
	DefaultPTX         = "keep"
	DefaultRelfatbin   = "keep"
	// DefaultMaxLayers leaves room under the 127 layers that Docker's overlay driver can stack, and keeps the overlay
	// mount of a layer-by-layer runtime within one page of mount options.
	DefaultMaxLayers = 60
)

// maxSize bounds a recipe in bytes: far above what anyone writes, far below what hurts.
const maxSize = 1 << 20

// Load reads the recipe at path: the file itself, or a directory that holds a sconce.toml. Behind it, ":VARIANT" names one of its
// variants, which can be left out where there is only one. The version of a variant has its name behind it, and without a version
// is its name.
//
// Mistakes in the file come back as one *[Error] or as [Errors], in the order of the file; both mean exit code 2.
func Load(path string) (*Recipe, error) {
	path, variant := SplitVariant(path)
	path = fileOf(path)
	data, err := read(path)
	if err != nil {
		return nil, fault.Usage(err)
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("find the directory of %s: %w", path, err)
	}
	return parseVariant(data, path, dir, variant)
}

// fileOf is the recipe's file, of which path may be the directory.
func fileOf(path string) string {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return filepath.Join(path, FileName)
	}
	return path
}

// read reads a recipe's file, or a pipeline's, which may have come along with its directory as a link: an error about a file that is not its
// own must not show a line of it.
func read(path string) ([]byte, error) {
	err := reach.InRepository("the recipe", filepath.Dir(path)).Check(path)
	if err != nil {
		return nil, fmt.Errorf("read recipe: %w", err)
	}
	data, err := ctxio.ReadRegular(path, maxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Hint(fmt.Errorf("no recipe at %s", path), "`sconce init` writes a commented one to start from")
	}
	if err != nil {
		return nil, fmt.Errorf("read recipe: %w", err)
	}
	return data, nil
}

// byteOrderMark is what editors of Windows put before a text.
var byteOrderMark = []byte("\xef\xbb\xbf")

// parseVariant is Load without the reading. file is the name in messages, dir where relative paths start.
func parseVariant(data []byte, file, dir, variant string) (*Recipe, error) {
	c := newChecker(data, file, dir)
	c.variant, c.reach = variant, reach.InRepository("the recipe", dir)
	r := c.run()
	if err := c.err(); err != nil {
		return nil, err
	}
	if c.failure != nil {
		return nil, fault.Usage(c.failure)
	}
	r.Path, r.Dir, r.Variant, r.Reach = file, dir, c.variant, c.reach
	if r.Variant != "" {
		r.Version = strings.TrimPrefix(r.Version+"-"+r.Variant, "-")
	}
	r.fillDefaults()
	return r, nil
}

// Validate finds the mistakes in the text of a recipe that a program has written for a user, who may name any file. file is its name in
// messages, dir where relative paths start.
func Validate(text []byte, file, dir string) error {
	c := newChecker(text, file, dir)
	c.reach = reach.Anywhere()
	c.run()
	return cmp.Or(c.err(), fault.Usage(c.failure))
}

// Mistake is the error of a key of the recipe's file whose value only others can know to be wrong, with the line of it. Where that cannot
// be said, as of a variant's key, it names the file alone.
func (r *Recipe) Mistake(err error, key ...string) error {
	name := strings.Join(key, ".")
	data, readErr := read(r.Path)
	c := newChecker(data, r.Path, r.Dir)
	c.doc = readDocument(c.source)
	at := c.find(key...)
	if readErr != nil || at == nil {
		return fmt.Errorf("%s: %s: %w", r.Path, name, err)
	}
	c.add(at.value, fault.HintOf(err), "%s: %v", name, err)
	return c.err()
}

// New completes a recipe that a program has put together: what it leaves out gets its default, as in a file. Path names it in
// messages and nothing is there; Dir is where its relative paths start. What only a file can get wrong is not looked at. Reach says which
// files of this machine it may name: without it, none.
func New(r Recipe) (*Recipe, error) {
	if r.Name == "" || (r.Base.Image == "") == (r.Base.Bootstrap == nil) || r.Base.Recipe != "" {
		return nil, fmt.Errorf("%s: a recipe needs a name, and an image or a bootstrap to stand on", r.Path)
	}
	if !filepath.IsAbs(r.Dir) || r.LockFile != "" && !filepath.IsAbs(r.LockFile) {
		return nil, fmt.Errorf("%s: the directory of a recipe and its lock need absolute paths: %q, %q", r.Path, r.Dir, r.LockFile)
	}
	if r.Target.Platform != "" {
		if _, err := ParsePlatform(r.Target.Platform); err != nil {
			return nil, fault.Usage(err)
		}
	}
	if err := r.reachNothingElse(); err != nil {
		return nil, err
	}
	r.Steps = slices.Clone(r.Steps)
	r.fillDefaults()
	return &r, nil
}

func (r *Recipe) fillDefaults() {
	if r.Version == "" {
		r.Version = DefaultVersion
	}
	if r.Image.Compression == "" {
		r.Image.Compression = DefaultCompression
	}
	if r.Slim.GPU {
		r.Slim.PTX = cmp.Or(r.Slim.PTX, DefaultPTX)
		r.Slim.Relfatbin = cmp.Or(r.Slim.Relfatbin, DefaultRelfatbin)
	}
	if r.Image.MaxLayers == 0 {
		r.Image.MaxLayers = DefaultMaxLayers
	}
	if b := r.Base.Bootstrap; b != nil {
		if b.Variant == "" {
			b.Variant = DefaultVariant
		}
		if len(b.Components) == 0 && b.Dnf == "" {
			b.Components = []string{"main"}
		}
	}
	if c := &r.Conda; c.Asked() {
		c.Prefix = cmp.Or(c.Prefix, DefaultPrefix)
	}
	for i := range r.Steps {
		r.Steps[i].Run = unixLines(r.Steps[i].Run)
	}
	for name, c := range r.Component {
		c.Run = unixLines(c.Run)
		r.Component[name] = c
	}
	r.Python.Compile = normalNames(r.Python.Compile)
	r.Target.AnyPlatform = r.Target.Platform == ""
	r.Target.Platform = normalPlatform(r.Target.Platform)
}

// architectures maps the names that uname and Python use to those of OCI.
var architectures = map[string]string{"amd64": "amd64", "x86_64": "amd64", "arm64": "arm64", "aarch64": "arm64", "arm64/v8": "arm64"}

// normalPlatform returns the OCI platform that s, which has been checked, stands for; "" is this machine's.
func normalPlatform(s string) string {
	arch, ok := architectures[strings.TrimPrefix(s, "linux/")]
	if !ok {
		arch = runtime.GOARCH
	}
	return "linux/" + arch
}

// ParsePlatform returns the OCI platform that s, in any of its usual spellings, stands for: "linux/amd64" or
// "linux/arm64".
func ParsePlatform(s string) (string, error) {
	if _, ok := architectures[strings.TrimPrefix(s, "linux/")]; !ok {
		return "", fmt.Errorf("%q is not a platform that images are built for: linux/amd64 or linux/arm64", s)
	}
	return normalPlatform(s), nil
}

// Resolve returns the absolute path of a file that the recipe names.
func (r *Recipe) Resolve(path string) string { return resolve(r.Dir, path) }

func resolve(dir, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}

// PythonPackages returns python.packages with addresses that are relative paths, such as "mine @ ./mine", made absolute.
func (r *Recipe) PythonPackages() []string {
	packages := slices.Clone(r.Python.Packages)
	for i, text := range packages {
		name, address, found := strings.Cut(text, "@")
		address, rest, _ := strings.Cut(strings.TrimSpace(address), " ")
		if found && isPath(address) {
			file := url.URL{Scheme: "file", Path: filepath.ToSlash(r.Resolve(address))}
			packages[i] = strings.TrimSpace(name) + " @ " + strings.TrimSpace(file.String()+" "+rest)
		}
	}
	return packages
}

// InstallsProject reports whether the project is installed itself, and not only what it depends on.
func (p Python) InstallsProject() bool { return p.InstallProject != nil && *p.InstallProject }

// CompilesBytecode reports whether .pyc files shall be laid beside the modules.
func (p Python) CompilesBytecode() bool { return p.Bytecode == nil || *p.Bytecode }

// pathTransports are the ways of naming a base that is a file or directory, with whether a tag may follow the path.
var pathTransports = map[string]bool{
	"oci": true, "oci-archive": true, "docker-archive": true, "tar": false, "dir": false, "sqsh": false, "sif": false,
}

// BaseReference returns base.image with a relative path in it made absolute, or "" when the base is a bootstrap.
func (r *Recipe) BaseReference() string { return r.ImageReference(r.Base.Image) }

// ImageReference returns an image as the recipe names it, such as [Compile.Base], with a relative path in it made
// absolute. A bare path counts as one when it starts with "." or exists beside the recipe.
func (r *Recipe) ImageReference(image string) string {
	if transport, value, ok := strings.Cut(image, ":"); ok {
		if tagged, known := pathTransports[transport]; known {
			return transport + ":" + r.resolveTagged(value, tagged)
		}
	}
	if isPath(image) || r.besideRecipe(image) {
		return r.Resolve(image)
	}
	return image
}

func (r *Recipe) resolveTagged(value string, tagged bool) string {
	if !tagged {
		return r.Resolve(value)
	}
	path, tag, found := strings.Cut(value, ":")
	if found {
		return r.Resolve(path) + ":" + tag
	}
	return r.Resolve(path)
}

// ResolvesOnBase reports whether anything is asked for that the base decides about: which packages there are, for which Python.
func (r *Recipe) ResolvesOnBase() bool {
	for _, c := range r.Component {
		if len(c.Packages) > 0 {
			return true
		}
	}
	for _, s := range r.Source {
		if s.Debian != "" {
			return true
		}
	}
	return len(r.System.Packages) > 0 || r.Python.Asked() || r.Conda.Asked()
}

// BaseRecipe returns base.recipe with its path made absolute, as Load takes it, or "" when the base is none.
func (r *Recipe) BaseRecipe() string {
	if r.Base.Recipe == "" {
		return ""
	}
	return r.Resolve(r.Base.Recipe)
}

func isPath(image string) bool {
	return image == "." || image == ".." || strings.HasPrefix(image, "./") || strings.HasPrefix(image, "../")
}

func (r *Recipe) besideRecipe(image string) bool {
	if image == "" || strings.Contains(image, "://") {
		return false
	}
	_, err := os.Lstat(r.Resolve(image))
	return err == nil
}
