// Package plan turns a locked recipe into a graph of steps, each under a key.
//
// A key is the SHA-256 of a canonical encoding of everything that decides what the step makes: what it does, the keys of
// the steps it stands on, the digests of its inputs and the version of the code that runs it. Equal keys mean equal
// results, on any machine and at any time, so a step whose key the store knows is never run. No time, host, user,
// directory of this machine, undeclared variable or order of a map enters a key.
//
// Making a plan reads nothing but its arguments and SOURCE_DATE_EPOCH, and changes nothing: see package build for what runs it.
package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/slim"
)

// Key identifies what a step makes: 64 hexadecimal digits.
type Key string

// Plan is the graph for one image.
type Plan struct {
	Name     string // of the image: NAME:VERSION; "" if it has none
	Platform v1.Platform
	*Stage   // whose layers are the image's; other stages are reached through its steps
	Image    *ImageStep
}

// BaseStep brings the base into the store.
type BaseStep struct {
	Key       Key
	Pinned    base.Pinned
	Platform  v1.Platform
	Reference string // where to look for the base, with paths made absolute; not part of the key
}

// WheelsStep makes one layer of one or several wheels.
//
// Its key holds the wheels and the Python's version, not the base: the same wheel is the same layer in every image. The
// base is only what its byte code is compiled with.
type WheelsStep struct {
	Key      Key
	Group    python.Group
	Target   python.Target
	Bytecode bool
	Options  python.LayerOptions
}

// EnvironmentStep makes the small layer that turns the wheels' directory into a virtual environment of the base's Python.
type EnvironmentStep struct {
	Key         Key
	Environment python.Environment // without the manifests, which are known once the wheels are laid down
	Options     layer.Options
}

// ImageStep puts base, layers and configuration together, and slims what comes of it.
type ImageStep struct {
	Key    Key
	Config Config
	Exact  *v1.Config    // the image's configuration, whatever Config says of it; nil: the base's, changed as Config says
	Author string        // of an exact one
	Slim   *slim.Options // what device code stays; nil: all of it
}

// Config is what the recipe says about the finished image.
type Config struct {
	Env         map[string]string
	PathPrefix  string // goes before the base's PATH
	VirtualEnv  string // the environment's directory, absolute
	Entrypoint  []string
	Cmd         []string
	WorkingDir  string
	User        string
	Volumes     []string
	Labels      map[string]string
	Created     time.Time
	Compression layer.Compression
	Unchecked   bool `json:",omitempty"` // a label says that nobody looked whether the image will run on its target
}

// The versions of the code that runs each kind of step. A change of what a step makes from the same inputs needs a new one.
// Bases and layers of wheels carry theirs in packages bootstrap and python.
const (
	environmentVersion = 1
	stepVersion        = 1
	compileVersion     = 1
	imageVersion       = 1
)

// keyOf hashes the canonical encoding of a step: JSON as encoding/json writes it, with struct fields in order and map
// keys sorted.
func keyOf(kind string, version int, content any) Key { //nolint:unparam // each kind's version goes its own way
	data, err := json.Marshal(struct {
		Kind    string
		Version int
		Content any
	}{kind, version, content})
	if err != nil {
		panic("plan: a step that cannot be encoded: " + err.Error()) // every content is made of plain values, in this package
	}
	sum := sha256.Sum256(data)
	return Key(hex.EncodeToString(sum[:]))
}
