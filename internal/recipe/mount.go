package recipe

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/units"
)

// Mount is something that a step's script sees while it runs, and that is in no layer.
type Mount struct {
	Kind   string // "cache", "bind", "tmpfs", "secret" or "ssh"
	Target string // absolute; "" of a secret or an agent is their usual place, or none when Env is set

	ID       string // of a cache, a secret or an agent
	Sharing  string // of a cache: "shared", "private" or "locked"
	Source   string // of a bind: an absolute path of this machine
	ReadOnly bool   // of a cache or a bind
	Size     int64  // of a tmpfs, in bytes; 0 is no limit
	Mode     uint32 // permissions; 0 is what is usual for the kind
	UID, GID int    // of a cache, a secret or an agent
	Env      string // of a secret: the variable that holds it too
	Required bool   // of a secret or an agent: the step fails without it

	Variables []string          // of a cache: KEY=VALUE, for a script that does not set KEY otherwise
	Files     map[string]string // of a cache: small files by their path, that the script sees instead of the image's
}

// mountKind says how a kind of mount is written.
type mountKind struct {
	form, example string
	positions     []string // what the parts after the kind are, in the short form
	options       []string // what may be set by name
}

var mountKinds = map[string]mountKind{
	"cache": {
		"cache:NAME[:TARGET][:ro][:private|locked]", "cache:ccache",
		[]string{"id", "target"},
		[]string{"id", "target", "sharing", "ro", "rw", "mode", "uid", "gid"},
	},
	"bind":  {"bind:SRC:TARGET[:rw]", "bind:src:/src", []string{"source", "target"}, []string{"source", "target", "ro", "rw"}},
	"tmpfs": {"tmpfs:TARGET[:size=SIZE]", "tmpfs:/scratch:size=8GiB", []string{"target"}, []string{"target", "size", "mode"}},
	"secret": {
		"secret:ID[:TARGET][:env=NAME][:optional]", "secret:token:env=TOKEN",
		[]string{"id", "target"},
		[]string{"id", "target", "env", "required", "optional", "mode", "uid", "gid"},
	},
	"ssh": {"ssh[:ID][:optional]", "ssh", []string{"id", "target"}, []string{"id", "target", "required", "optional", "mode", "uid", "gid"}},
}

// mountOrder is the order in which messages name the kinds.
var mountOrder = []string{"cache", "bind", "tmpfs", "secret", "ssh"}

// mountAliases are other names of options, as Docker and BuildKit have them.
var mountAliases = map[string]string{"dst": "target", "destination": "target", "src": "source", "readonly": "ro", "readwrite": "rw"}

// knownCache is what is known of a program's cache: where it goes, and what makes the program use that place.
type knownCache struct {
	targets   map[string]string // by ID
	variables []string          // @ stands for the target
	files     map[string]string
	locked    bool
}

// knownCaches are those that a step can have by their name alone. They lie below /var/cache, which every user may enter
// and every image has, and not in a home that the user of the step may not be allowed into.
var knownCaches = map[string]knownCache{
	// The lists alone, not all of /var/lib/apt: apt notes there which packages nobody asked for, which is the image's own.
	"apt": {
		targets: map[string]string{"apt": "/var/cache/apt", "apt-lists": "/var/lib/apt/lists"},
		files:   map[string]string{"/etc/apt/apt.conf.d/docker-clean": aptKeeps},
		locked:  true,
	},
	// A compiler is told by its content: files of layers share one time, by which ccache would tell it.
	"ccache": {targets: inVarCache("ccache"), variables: []string{"CCACHE_DIR=@", "CCACHE_COMPILERCHECK=content"}},
	// What `cargo install` makes shall be in the image, not in the cache.
	"cargo": {targets: inVarCache("cargo"), variables: []string{"CARGO_HOME=@", "CARGO_INSTALL_ROOT=/usr/local"}},
	"conda": {targets: inVarCache("conda"), variables: []string{"CONDA_PKGS_DIRS=@"}, locked: true},
	"go":    {targets: inVarCache("go"), variables: []string{"GOCACHE=@/build", "GOMODCACHE=@/mod"}},
	"npm":   {targets: inVarCache("npm"), variables: []string{"npm_config_cache=@"}},
	"pip":   {targets: inVarCache("pip"), variables: []string{"PIP_CACHE_DIR=@"}},
	// uv links files out of its cache, which is another file system here.
	"uv": {targets: inVarCache("uv"), variables: []string{"UV_CACHE_DIR=@", "UV_LINK_MODE=copy"}},
}

func inVarCache(name string) map[string]string { return map[string]string{name: "/var/cache/" + name} }

// aptKeeps stands in for the configuration by which container images make apt throw every package away. It keeps the two
// caches off that apt tells by the times of files, which are the same in many images.
const aptKeeps = `Binary::apt::APT::Keep-Downloaded-Packages "true";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
`

// knownCacheNames returns the names in knownCaches, sorted.
func knownCacheNames() []string {
	var names []string
	for name := range knownCaches {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// ParseMount reads one element of [Step.Mounts]: "KIND:…", or "type=KIND,…" as BuildKit writes it. A cache that is known
// by name may take more than one mount.
func (r *Recipe) ParseMount(text string) ([]Mount, error) {
	mounts, err := parseMount(text)
	for i := range mounts {
		if mounts[i].Kind == "bind" {
			mounts[i].Source = r.Resolve(mounts[i].Source)
		}
	}
	return mounts, err
}

// mountParser reads one mount.
type mountParser struct {
	Mount
	given map[string]bool
}

// parseMount is ParseMount with sources as they are written.
func parseMount(text string) ([]Mount, error) {
	p := &mountParser{given: map[string]bool{}}
	read := p.readShort
	if i := strings.IndexAny(text, ":=,"); i >= 0 && text[i] != ':' {
		read = p.readLong
	}
	if err := read(text); err != nil {
		return nil, err
	}
	return p.finish()
}

// readLong reads "type=cache,id=NAME,target=/x,…" in any order.
func (p *mountParser) readLong(text string) error {
	fields := strings.Split(text, ",")
	for _, field := range fields {
		if kind, ok := strings.CutPrefix(field, "type="); ok {
			p.Kind = kind
		}
	}
	if err := p.knowKind(); err != nil {
		return err
	}
	for _, field := range fields {
		if strings.HasPrefix(field, "type=") {
			continue
		}
		if err := p.setField(field); err != nil {
			return err
		}
	}
	return nil
}

// readShort reads "KIND:PART:…", where the parts have their usual order and options may follow.
func (p *mountParser) readShort(text string) error {
	parts := strings.Split(text, ":")
	p.Kind = parts[0]
	if err := p.knowKind(); err != nil {
		if len(parts) > 1 && strings.HasPrefix(parts[1], "/") && spelling.Nearest(p.Kind, mountOrder) == "" {
			return fault.Hint(err, fmt.Sprintf("write %q for a directory beside the recipe", "bind:"+text)) // as for docker run -v
		}
		return err
	}
	positions := mountKinds[p.Kind].positions
	for i, part := range parts[1:] {
		if part == "" {
			return p.wrong("%q has nothing between two colons, or after the last", text)
		}
		if len(positions) > 1 && positions[0] == "id" && strings.HasPrefix(part, "/") { // what has an ID may be without
			positions = []string{"target"}
		}
		if len(positions) == 0 || isMountOption(part) && (i > 0 || p.Kind == "ssh") {
			if err := p.setField(part); err != nil {
				return err
			}
			continue
		}
		if err := p.set(positions[0], part); err != nil {
			return err
		}
		positions = positions[1:]
	}
	return nil
}

// isMountOption reports whether a part is an option and not a place.
func isMountOption(part string) bool {
	return !strings.HasPrefix(part, "/") && (strings.Contains(part, "=") || slices.Contains(mountFlags, part))
}

// mountFlags are the options without a value.
var mountFlags = []string{"ro", "rw", "readonly", "readwrite", "shared", "private", "locked", "required", "optional"}

func (p *mountParser) knowKind() error {
	if _, ok := mountKinds[p.Kind]; ok {
		return nil
	}
	hint := "the kinds are " + strings.Join(mountOrder, ", ") + `, such as "` + mountKinds["bind"].example + `"`
	if near := spelling.Nearest(p.Kind, mountOrder); near != "" {
		hint = fmt.Sprintf("did you mean %q, as in %q?", near, mountKinds[near].example)
	}
	if p.Kind == "" {
		return fault.Hint(fmt.Errorf("the mount has no type"), hint)
	}
	return fault.Hint(fmt.Errorf("%q is no kind of mount", p.Kind), hint)
}

// wrong is an error that tells the form of the mount's kind.
func (p *mountParser) wrong(format string, args ...any) error {
	k := mountKinds[p.Kind]
	return fault.Hint(fmt.Errorf(format, args...), fmt.Sprintf("write %s, such as %q", k.form, k.example))
}

// setField sets an option that is written as NAME=VALUE or, where there are only a few values, as the value alone.
func (p *mountParser) setField(field string) error {
	name, value, hasValue := strings.Cut(field, "=")
	if known, ok := mountAliases[name]; ok {
		name = known
	}
	switch {
	case hasValue:
	case slices.Contains([]string{"shared", "private", "locked"}, name):
		name, value = "sharing", name
	default:
		value = "true"
	}
	return p.set(name, value)
}

func (p *mountParser) set(name, value string) error {
	if options := mountKinds[p.Kind].options; !slices.Contains(options, name) {
		if name == "from" {
			return p.wrong("a step's mount cannot come from another image")
		}
		return p.wrong("a %s mount has no %q; it has %s", p.Kind, printable(name), units.Quoted(options))
	}
	if p.given[name] {
		return p.wrong("%q is given twice", name)
	}
	p.given[name] = true
	switch name {
	case "id", "source", "target", "env", "sharing":
		return p.setText(name, value)
	case "size", "mode", "uid", "gid":
		return p.setNumber(name, value)
	default:
		return p.setFlag(name, value)
	}
}

// formID is the form of a mount's ID, which becomes part of file names.
var formID = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

func (p *mountParser) setText(name, value string) error {
	switch name {
	case "id":
		if p.ID = value; !formID.MatchString(value) {
			return p.wrong("%q is not a name of letters, digits, dots, dashes and underscores", value)
		}
	case "source":
		if p.Source = value; value == "" {
			return p.wrong("the source is empty")
		}
	case "target":
		if p.Target = path.Clean(value); !strings.HasPrefix(value, "/") || p.Target == "/" {
			return p.wrong("the target %q is not an absolute path below /", value)
		}
	case "env":
		if p.Env = value; !formEnvName.MatchString(value) {
			return p.wrong("%q is not the name of an environment variable", value)
		}
	case "sharing":
		if p.Sharing = value; !slices.Contains([]string{"shared", "private", "locked"}, value) {
			return p.wrong(`sharing is "shared", "private" or "locked", not %q`, value)
		}
	}
	return nil
}

func (p *mountParser) setNumber(name, value string) error {
	if name == "size" {
		size, err := units.ParseSize(value)
		if p.Size = size; err != nil {
			return p.wrong("%w", err)
		}
		return nil
	}
	base, bits := 10, 31
	if name == "mode" {
		base, bits = 8, 12
	}
	n, err := strconv.ParseUint(value, base, bits)
	if err != nil {
		return p.wrong("%s cannot be %q", name, value)
	}
	switch name {
	case "mode":
		p.Mode = uint32(n)
	case "uid":
		p.UID = int(n)
	case "gid":
		p.GID = int(n)
	}
	return nil
}

func (p *mountParser) setFlag(name, value string) error {
	on, err := strconv.ParseBool(value)
	if err != nil {
		return p.wrong("%s is true or false, not %q", name, value)
	}
	p.given[name] = on
	return nil
}

// finish fills in what the kind makes of what was not given, and finds what is missing.
func (p *mountParser) finish() ([]Mount, error) {
	if p.given["ro"] && p.given["rw"] || p.given["required"] && p.given["optional"] {
		return nil, p.wrong("two of the options exclude each other")
	}
	p.ReadOnly = p.given["ro"]
	switch p.Kind {
	case "cache":
		return p.finishCache()
	case "bind":
		if p.Source == "" || p.Target == "" {
			return nil, p.wrong("a bind mount needs a source and a target")
		}
		if on, said := p.given["ro"]; said {
			p.ReadOnly = on
		} else {
			p.ReadOnly = !p.given["rw"]
		}
	case "tmpfs":
		if p.Target == "" {
			return nil, p.wrong("a tmpfs mount needs a target")
		}
	case "secret":
		if p.ID == "" {
			return nil, p.wrong("a secret needs an ID, by which `sconce build --secret` gives it")
		}
		p.Required = p.required()
		if p.Target == "" && p.Env == "" {
			p.Target = "/run/secrets/" + p.ID
		}
	case "ssh":
		p.Required = p.required()
		if p.ID == "" {
			p.ID = "default"
		}
	}
	return []Mount{p.Mount}, nil
}

// required reports whether the step fails without what is mounted: it does unless the recipe says otherwise, so that a
// forgotten secret is not found out by what it leads to.
func (p *mountParser) required() bool {
	on, said := p.given["required"]
	return !p.given["optional"] && (on || !said)
}

func (p *mountParser) finishCache() ([]Mount, error) {
	known, ok := knownCaches[p.ID]
	switch {
	case p.ID == "" && p.Target == "":
		return nil, p.wrong("a cache needs a name")
	case p.Target == "" && !ok:
		hint := "add the target, such as \"cache:" + p.ID + ":/var/cache/" + p.ID + "\"; those that are known by name are " + strings.Join(knownCacheNames(), ", ")
		return nil, fault.Hint(fmt.Errorf("where the cache %q goes is not known", p.ID), hint)
	case p.ID == "":
		p.ID = cacheID(p.Target)
	}
	if p.Sharing == "" {
		p.Sharing = "shared"
		if known.locked {
			p.Sharing = "locked"
		}
	}
	if !ok {
		return []Mount{p.Mount}, nil
	}
	return p.knownMounts(known)
}

// cacheID makes an ID of a target, as BuildKit does.
func cacheID(target string) string { return strings.ReplaceAll(strings.Trim(target, "/"), "/", "-") }

func (p *mountParser) knownMounts(known knownCache) ([]Mount, error) {
	if len(known.targets) > 1 && p.Target != "" {
		return nil, fault.Hint(fmt.Errorf("where the cache %q goes is fixed", p.ID), fmt.Sprintf("write \"cache:%s\"", p.ID))
	}
	var mounts []Mount
	for id, target := range known.targets {
		m := p.Mount
		m.ID = id
		if m.Target == "" {
			m.Target = target
		}
		mounts = append(mounts, m)
	}
	slices.SortFunc(mounts, func(a, b Mount) int { return strings.Compare(a.ID, b.ID) })
	for _, v := range known.variables {
		mounts[0].Variables = append(mounts[0].Variables, strings.ReplaceAll(v, "@", mounts[0].Target))
	}
	mounts[0].Files = known.files
	return mounts, nil
}

// validateMounts wants the mounts of a step to be readable, and each at a place of its own.
func (c *checker) validateMounts(n *node, label string) {
	places := map[string]bool{}
	c.eachItem(n, "mounts", func(text string, at span) error {
		mounts, err := parseMount(text)
		for _, m := range mounts {
			if m.Kind == "bind" {
				c.validateExists(m.Source, label+": mounts", at)
			}
			if m.Target != "" && places[m.Target] {
				return fmt.Errorf("two mounts have the target %s", m.Target)
			}
			places[m.Target] = true
		}
		return err
	}, label)
}
