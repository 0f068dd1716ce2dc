package config

import (
	"encoding/json"

	"sconce.dev/sconce/internal/hostconfig"
)

// SchemaFile is the name that the schema of the configuration goes by.
const SchemaFile = "sconce-config.schema.json"

// property is the part of JSON Schema, draft 2020-12, that the configuration needs.
type property struct {
	Schema      string              `json:"$schema,omitempty"`
	ID          string              `json:"$id,omitempty"`
	Title       string              `json:"title,omitempty"`
	Description string              `json:"description,omitempty"`
	Type        string              `json:"type,omitempty"`
	Pattern     string              `json:"pattern,omitempty"`
	Enum        []string            `json:"enum,omitempty"`
	AnyOf       []property          `json:"anyOf,omitempty"`
	Minimum     int                 `json:"minimum,omitempty"`
	Items       *property           `json:"items,omitempty"`
	Properties  map[string]property `json:"properties,omitempty"`
	Required    []string            `json:"required,omitempty"`
	Additional  any                 `json:"additionalProperties,omitempty"` // false, or what further properties are
	Examples    []any               `json:"examples,omitempty"`
}

// What the values of some keys look like.
const (
	formDir     = `^([/~$].*)$`
	formSize    = `^(none|[0-9]+(\.[0-9]+)? ?(%|[kKmMgGtTpPeE]?[iI]?[bB]?))$`
	formTime    = `^([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$`
	formAddress = `^(https?|file)://`
)

// progressModes are the values of the key progress.
var progressModes = []string{"auto", "tty", "plain", "json", "quiet"}

// trustSchema is an entry of keys with all that can be said of one.
func trustSchema() property {
	return property{
		Type: "object", Additional: false, Required: []string{"key"},
		Properties: map[string]property{
			"key":     {Type: "string", Description: "The public key in PEM: its file, env:VARIABLE, or the text itself.", Examples: []any{"/etc/sconce/team.pub"}},
			"since":   {Type: "string", Description: "A day or a time (RFC 3339): verdicts of tests that ended before do not count.", Examples: []any{"2025-01-01"}},
			"until":   {Type: "string", Description: "The same of those that ended later; a day counts to its end, in UTC.", Examples: []any{"2026-11-30"}},
			"revoked": {Type: "boolean", Description: "Nothing counts that the key has ever signed."},
			"comment": {Type: "string", Description: "For people."},
		},
	}
}

// Schema returns the JSON Schema of config.toml, by which editors complete and check it.
func Schema() ([]byte, error) {
	const closed = false
	addresses := map[string]property{}
	for _, archive := range mirrors {
		addresses[archive] = property{Type: "string", Pattern: formAddress, Description: "The address of a mirror of the archive " + archive + "."}
	}
	hashes := map[string]property{}
	for _, arch := range uvArchitectures {
		hashes[arch] = property{Type: "string", Pattern: formSHA256, Description: "The SHA-256 of the wheel for musl on " + arch + "."}
	}
	s := property{
		Schema: "https://json-schema.org/draft/2020-12/schema", ID: SchemaFile, Title: "sconce configuration",
		Description: "What a site and a user decide once; see docs/guide/site.md.", Type: "object", Additional: closed,
		Properties: map[string]property{
			"store": {
				Type: "string", Pattern: formDir, Description: "The directory of the store; variables and ~ are replaced.",
				Examples: []any{"/scratch/${USER}/sconce"},
			},
			"shared-stores": {
				Type: "array", Items: &property{Type: "string", Pattern: formDir}, Description: "Directories of further stores, which are only read.",
				Examples: []any{[]string{"/apps/sconce/store"}},
			},
			"store-size": {
				Type: "string", Pattern: formSize, Description: "How much the store may hold: a size, a share of the disk, or none for no limit.",
				Examples: []any{"200GB", "30%"},
			},
			"patience": {
				Type: "string", Pattern: formTime, Description: "How long a network that says nothing is waited for, as --patience.", Examples: []any{"20m"},
			},
			"progress": {Type: "string", Enum: progressModes, Description: "How progress is shown, as --progress."},
			"host-config": {
				Type: "array", Items: &property{Type: "string", Enum: hostconfig.Kinds}, Description: "What steps of builds see of this machine's configuration, as --host-config.",
				Examples: []any{[]string{"ca", "pip"}},
			},
			"unpack": {Type: "string", Enum: UnpackModes, Description: "When the layers of an image are unpacked that a command runs in, as --unpack."},
			"images": {
				Type: "string", Pattern: formDir, Description: "The directory of a mirror of images, from which the importer of pyxis takes what is there.",
				Examples: []any{"/capstor/images"},
			},
			"scratch": {
				Type: "string", Pattern: formDir, Description: "A directory on a local disk for what is unpacked and what steps write, as SCONCE_SCRATCH.",
				Examples: []any{"/local/$USER"},
			},
			"keys": {
				Type: "array", Items: &property{AnyOf: []property{{Type: "string", Pattern: formDir}, trustSchema()}},
				Description: "Public keys whose evidence sconce verify and promote believe, as --key: files, or tables that say how long one counts.",
				Examples:    []any{[]string{"/etc/sconce/team.pub"}},
			},
			"allow-paths": {
				Type: "array", Items: &property{Type: "string", Pattern: formDir},
				Description: "Files and directories that recipes, Containerfiles and definition files may read besides their own directories, as --allow-path.",
				Examples:    []any{[]string{"/capstor/images"}},
			},
			"files": {
				Type: "object", Additional: closed, Description: "How .sqsh and .sif files are written.",
				Properties: map[string]property{
					"compression": {Type: "string", Enum: []string{"zstd", "gzip", "lz4", "none"}, Description: "As --sqsh-compression."},
					"level":       {Type: "integer", Minimum: 1, Description: "The level of that compression, as --sqsh-level."},
					"block-size":  {Type: "string", Description: "As --sqsh-block-size.", Examples: []any{"128KiB", "1MiB"}},
				},
			},
			"check": {
				Type: "object", Additional: closed, Description: "How images are judged on this machine, whatever their recipes say.",
				Properties: map[string]property{
					"allow":   {Type: "object", Additional: property{Type: "string"}, Description: "Rules that find no error here, each with the reason, as --allow."},
					"require": {Type: "array", Items: &property{Type: "string"}, Description: "Rules that no recipe, flag or other file may allow."},
				},
			},
			"mirrors": {
				Type: "object", Properties: addresses, Additional: closed, Description: "Mirrors of the archives of distributions.",
			},
			"network": {
				Type: "object", Additional: closed, Description: "What recipes may do with this user's logins.",
				Properties: map[string]property{
					"logins": {
						Type: "array", Items: &property{Type: "string", Pattern: formHost}, Examples: []any{[]string{"packages.example.org"}},
						Description: "Hosts that see logins and variables although only a recipe names them, as --allow-login.",
					},
				},
			},
			"cache": {
				Type: "object", Additional: closed, Description: "Whether the registry that a recipe names under [cache] is read, and what is built is sent there.",
				Properties: map[string]property{
					"read": {
						Type: "array", Items: &property{Type: "string", Pattern: formRepository}, Examples: []any{[]string{"registry.example.org/team"}},
						Description: "Registries and repositories, HOST or HOST/PATH, from which the results of steps are downloaded, as --read-cache.",
					},
					"push": {
						Type: "array", Items: &property{Type: "string", Pattern: formRepository}, Examples: []any{[]string{"registry.example.org/team"}},
						Description: "Registries and repositories, HOST or HOST/PATH, to which what is built is sent, as --push-cache. They are read as well.",
					},
				},
			},
			"uv": {
				Type: "object", Additional: closed, Required: []string{"version", "sha256"},
				Description: "The release of uv to use, whatever is on PATH; it comes from the package index.",
				Properties: map[string]property{
					"version": {Type: "string", Pattern: formVersion, Description: "The release.", Examples: []any{"0.13.8"}},
					"sha256":  {Type: "object", Properties: hashes, Additional: closed, Description: "The hashes of its wheels, by architecture."},
				},
			},
		},
	}
	out, err := json.MarshalIndent(s, "", "  ")
	return append(out, '\n'), err
}
