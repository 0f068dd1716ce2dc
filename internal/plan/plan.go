// Package plan turns a locked recipe or a Containerfile into stages of steps, each step under a key.
//
// A key is the SHA-256 of a canonical encoding of everything that decides what the step makes: its inputs, the keys of the
// steps it is based on, and the version of the code that runs it. Equal keys mean equal results, on any machine and at any time,
// so a step whose key the store knows is never run. No time, host, user, directory of this machine, undeclared variable or
// order of a map enters a key.
//
// A plan is plain data: it can be printed, kept and compared, and holds nothing open. Making one reads its arguments,
// SOURCE_DATE_EPOCH, and the files that steps copy, bind or apply, of which it keeps the digests; it changes nothing. Package
// build runs it.
package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/slim"
)

// Key identifies what a step makes: 64 hexadecimal digits.
type Key string

// Plan is what makes one image: the stage whose layers are the image's, and how the image is put together. Other stages are
// reached through the steps that take files of them.
type Plan struct {
	Name     string // of the image: NAME:VERSION; "" if it has none
	Platform v1.Platform
	*Stage
	Image *Image
}

// Image puts the layers of a stage and the configuration together, and slims what comes of it.
type Image struct {
	Key    Key
	Inputs []Input // what Key stands for, besides the keys of the steps
	Args   []Input // see [Step.Args]
	Config Config
	Exact  *v1.Config    // the image's configuration, whatever Config says of it; nil: the base's, changed as Config says
	Author string        // of an exact one
	Start  time.Duration // interval of an exact one's health check while it starts, for which v1.Config has no field
	Slim   *slim.Options // what device code stays; nil: all of it
}

// Config is what the recipe says about the finished image.
type Config struct {
	Env         map[string]string
	Unset       []string    // variables of the base that are not the image's
	VirtualEnv  string      // the environment's directory, absolute; its bin goes before the base's PATH
	Conda       *Activation // the conda environment that programs find themselves in; nil: none
	Entrypoint  []string
	Cmd         []string
	WorkingDir  string
	User        string
	Volumes     []string
	Labels      map[string]string
	Created     time.Time
	Compression layer.Compression
	Unchecked   bool // a label says that nobody looked whether the image will run on its target
}

// The versions of the code that runs each kind of step. A change of what a step makes from the same inputs needs a new one.
// Bases, system packages and layers of wheels carry theirs in packages base, system and python.
const (
	environmentVersion = 1
	relocatableVersion = 2 // 2: activate finds its place whatever CDPATH says

	condaEnvironmentVersion = 2 // 2: a client of the environment stands in the root too
	stepVersion             = 3 // 3: what a step makes is newer than what it is based on
	compileVersion          = 2 // 2: the time is part of it
	imageVersion            = 2 // 2: the history is part of it
)

// Input is one thing that decides what a step makes, under the name by which a person knows it.
type Input struct {
	Name  string `json:"name"`
	Value string `json:"value"` // the thing itself when it is short text, else the digest of what it is
}

// keyOf is the one way in which keys are made from inputs: the SHA-256 of a JSON array.
func keyOf(kind string, version int, on []Key, inputs []Input) Key {
	data, err := json.Marshal([]any{kind, version, on, inputs})
	if err != nil {
		panic("plan: a step that cannot be encoded: " + err.Error()) // strings and numbers only
	}
	sum := sha256.Sum256(data)
	return Key(hex.EncodeToString(sum[:]))
}

// text is a value as an input holds it: JSON as encoding/json writes it, with struct fields in order and map keys sorted.
func text(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	data, err := json.Marshal(v)
	if err != nil {
		panic("plan: an input that cannot be encoded: " + err.Error()) // plain values of this package
	}
	return string(data)
}

// setKey gives the image its key: that of the stage's files, what the history says of each step, and the configuration.
func (p *Plan) setKey(extra ...Input) {
	m := p.Image
	m.Inputs = append([]Input{{"platform", p.Platform.String()}, {"created", text(m.Config.Created)}}, extra...)
	m.Inputs = append(m.Inputs, historyInputs(p.History())...)
	m.Key = keyOf("image", imageVersion, []Key{p.Stage.Key()}, m.Inputs)
}

func historyInputs(history []string) []Input {
	inputs := make([]Input, len(history))
	for i, h := range history {
		inputs[i] = Input{"history", h}
	}
	return inputs
}
