package recipe

import (
	"maps"
	"reflect"
	"sync"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/lazyregexp"
)

// key describes one key of the recipe: for messages, for the schema and for docs/recipe.md. Its type is that of the Go
// field.
type key struct {
	Doc     string // what it does, in sentences
	Default string // in words; "" when it must be given or is simply empty
	Example string // a TOML value

	// What a string must look like: of the value itself, of each element of a list, of each value of a string table.
	Form     *lazyregexp.Regexp
	FormName string // what Form means: "base.bootstrap.suite must be " + FormName
	Enum     []string

	NameForm     *lazyregexp.Regexp // of the keys that the user chooses
	NameFormName string

	Lines bool // a string that may have many lines, and tabs

	Min, Max int // of a number
}

// Forms that several keys share. Every expression is anchored and means the same in Go and in ECMA-262, which JSON
// Schema uses.
var (
	// formComponent is one path component of an OCI repository name (distribution-spec, "Pulling manifests").
	formComponent = lazyregexp.New(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*$`)
	// formTag is an OCI tag (distribution-spec, "Pulling manifests").
	formTag = lazyregexp.New(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
	// formRepository is a registry host with an optional port, then at least one path component.
	formRepository = lazyregexp.New(`^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)+$`)
	formPlatform   = lazyregexp.New(`^(linux/)?(amd64|x86_64|arm64|aarch64|arm64/v8)$`)
	formSuite      = lazyregexp.New(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
	// formDebian is a package name (Debian Policy 5.6.7), with an architecture and a version as apt takes them.
	formDebian = lazyregexp.New(`^[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?(=[A-Za-z0-9.+:~-]+)?$`)
	formArea   = lazyregexp.New(`^[a-z][a-z0-9-]*$`)
	formMirror = lazyregexp.New(`^(https?|file)://[^\s]+$`)
	formSource = lazyregexp.New(`^(https?|file)://[^\s@\[\]]+ [a-z0-9][a-z0-9./-]*( [a-z][a-z0-9./-]*)+$`)
	// formDnf is a release, or the address of a repository.
	formDnf = lazyregexp.New(`^([a-z][a-z0-9]*:[0-9][0-9.]*|(https?|file)://[^\s@\[\]]+)$`)
	// formBasePackage is a package of Debian or of a distribution of RPM packages; which of them, validateBootstrap knows.
	formBasePackage = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9+._-]+(:[a-z0-9-]+)?(=[A-Za-z0-9.+:~^_-]+)?$`)
	formRPM         = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9+._-]+(=[A-Za-z0-9.+:~^_-]+)?$`)
	formBaseSource  = lazyregexp.New(`^(https?|file)://[^\s@\[\]]+( [a-z0-9][a-z0-9./-]*( [a-z][a-z0-9./-]*)+)?$`)
	formRPMSource   = lazyregexp.New(`^(https?|file)://[^\s@\[\]]+$`)
	formImage       = lazyregexp.New(`^[^\s]([^\r\n\t]*[^\s])?$`)
	// formPackage is a Python project name; extras and dependency groups have the same form (PEP 508, PEP 735).
	formPackage    = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	formOnlyBinary = lazyregexp.New(`^(:all:|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)$`)
	formTorch      = lazyregexp.New(`^(auto|target|cpu|xpu|cu[0-9]{2,3}|rocm[0-9]+\.[0-9]+(\.[0-9]+)?)$`)
	formEnvName    = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)
	formLabel      = lazyregexp.New(`^[^\s=]+$`)
	formAbsPath    = lazyregexp.New(`^/`)
	formUser       = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)
	// formSystem is a name as apt, dnf or zypper take it, with a version if they do. A dash at its end would make apt remove it.
	formSystem = lazyregexp.New(`^[A-Za-z0-9@]([A-Za-z0-9+._:~@/=<>^-]*[A-Za-z0-9+])?$`)
	formSize   = lazyregexp.New(`^[0-9]+(\.[0-9]+)?\s?[kKMGT](i?B)?$`)
	formScript = lazyregexp.New(`^[\s\S]*\S[\s\S]*$`)
	formRule   = lazyregexp.New(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	formAny    = lazyregexp.New(`^[\s\S]+$`)

	formJob     = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	formTime    = lazyregexp.New(`^([0-9]+(\.[0-9]+)?[smhd]|([0-9]+-)?[0-9]{1,4}:[0-9]{2}:[0-9]{2})$`)
	formJobPath = lazyregexp.New(`^(/|\$\{[A-Za-z_][A-Za-z0-9_]*\})[^\s]*$`)
	formOneWord = lazyregexp.New(`^[^\s'"\x60\\-][^\s'"\x60\\]*$`)
	formArray   = lazyregexp.New(`^[0-9]+(-[0-9]+(:[0-9]+)?)?(,[0-9]+(-[0-9]+(:[0-9]+)?)?)*(%[0-9]+)?$`)
	formOption  = lazyregexp.New(`^--?[A-Za-z][^\r\n\t]*$`)
	// formPrefix keeps shebangs below the 127 bytes that Linux reads, and placeholders of packages longer than what replaces them.
	formPrefix  = lazyregexp.New(`^(/[A-Za-z0-9_][A-Za-z0-9_.+-]*){1,12}$`)
	formVariant = lazyregexp.New(`^[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?$`)
	formKey     = lazyregexp.New(`^(env:[A-Za-z_][A-Za-z0-9_]*|file:[^\s]+)$`)
	formDays    = lazyregexp.New(`^[0-9]{1,5}[dh]$`)
	formVirtual = lazyregexp.New(`^__[a-z][a-z0-9_]*$`)

	formModule      = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)
	formMeasurement = lazyregexp.New(`^[A-Za-z][A-Za-z0-9._@/-]*$`)

	formComponentName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`)
	formAddress       = lazyregexp.New(`^[^\s-][^\s]*$`)
	formSHA256        = lazyregexp.New(`^[0-9a-f]{64}$`)
	formCommit        = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_./+-]*$`)
	formDebianSource  = lazyregexp.New(`^[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+:~-]+)?$`)
)

const formJobPathName = `an absolute path or one that begins with a variable, such as "${HOME}/my-app"`

// keys holds every key by its dotted path, tables included: those of the files keys_*.go, and what a cluster's profile has, from its own
// table. TestKeys checks it against the Go types.
var keys = withProfile(
	baseKeys, variantKeys, condaKeys, pythonKeys, componentKeys, stepKeys, imageKeys, publishKeys, jobKeys,
)

// withProfile joins tables, and adds the keys of profiles: those of a profile itself, below "profile", and below "target" all that may
// differ. How jobs are run is the profile's alone.
func withProfile(tables ...map[string]key) map[string]key {
	keys := map[string]key{}
	for _, t := range tables {
		maps.Copy(keys, t)
	}
	keys[profilePath] = key{Doc: "What a cluster is."}
	for table, doc := range map[string]string{
		"slurm": "What jobs ask of Slurm, and what its nodes have.", "paths": "Directories of the cluster. They may begin with a variable: `${SCRATCH}/images`.",
		"container": "What the runtime does with containers.", "reliability": "How often the cluster breaks.",
	} {
		keys[profilePath+"."+table] = key{Doc: doc}
	}
	for _, k := range cluster.Keys() {
		of := key{
			Doc: k.Doc, Example: k.Example, Form: k.Form, FormName: k.FormName, Enum: k.Enum, Min: k.Min, Max: k.Max,
			NameForm: k.NameForm, NameFormName: k.NameFormName,
		}
		if k.Name != envUenv {
			keys[profilePath+"."+k.Name] = of
		}
		if _, own := keys["target."+k.Name]; !own && k.Describes() && !k.OfJobs() {
			keys["target."+k.Name] = of
		}
	}
	return keys
}

// envUenv is a table in a table of the user's own keys, of which the schema is told by itself.
const envUenv = "env.uenv"

// profilePath is where the keys of a profile are that a file of its own has.
const profilePath = "profile"

// profile is the shape of a cluster's profile.
var profile = sync.OnceValue(func() *shape { return shapeOf(reflect.TypeFor[cluster.Profile](), "", profilePath) })
