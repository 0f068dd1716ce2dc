package plan

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/slim"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/system"
	"sconce.dev/sconce/internal/transfer"
)

// venvRoot is where the virtual environment lies in every image, relative to the root.
const venvRoot = "opt/venv"

// Options are what decides about an image besides the recipe and its lock.
type Options struct {
	RunsHere bool // programs of the image's platform run on this machine: byte code is compiled by the image's own Python

	Compiles []lock.Compile          // packages that have to be built
	Sources  map[string]store.Digest // of those that are directories of this machine, by the package's name

	// Open opens a directory that steps copy from or bind. Whoever gives it closes what it opened when the plan is not used
	// any more.
	Open      func(dir string) (*transfer.Context, error)
	Slim      *slim.Options // what device code stays in the image; nil: all of it
	GPU       []string      // compute capabilities of the target, as TORCH_CUDA_ARCH_LIST has them: what steps compile for
	Unchecked bool          // nobody looks whether the image will run on its target, which a label says
}

// New plans the image that r asks for and l pins. Of this machine it reads the files that the recipe's steps copy, patch with
// and bind, to know their digests.
func New(ctx context.Context, r *recipe.Recipe, l *lock.Lock, wheels []lock.Wheel, o Options) (*Plan, error) {
	platform, err := v1.ParsePlatform(l.Platform)
	if err != nil {
		return nil, fmt.Errorf("the lock's platform: %w", err)
	}
	modTime, err := fixedTime()
	if err != nil {
		return nil, err
	}
	compression := layer.Compression(r.Image.Compression)
	p := &Plan{Name: r.Name + ":" + r.Version, Platform: *platform}
	p.Stage = &Stage{Label: p.Name, Layer: layer.Options{Compression: compression, ModTime: modTime}}
	p.Base = &BaseStep{Key: Key(l.Base.Key()), Pinned: l.Base, Platform: *platform, Reference: r.BaseReference()}
	if l.System != nil {
		p.System = &SystemStep{Key: Key(system.LayerKey(string(p.Base.Key), l.System, p.Layer)), Pinned: l.System}
	}
	if err := checkLayers(r, l, len(o.Compiles)); err != nil {
		return nil, err
	}
	if l.Python != nil {
		p.planPython(r, l, wheels, o, compression, modTime)
	}
	p.stand(p.foundation()...)
	if err := p.planSteps(ctx, r, o); err != nil {
		return nil, err
	}
	p.planImage(r, l, o, compression, modTime)
	return p, nil
}

// foundation lists the keys of everything below the steps.
func (s *Stage) foundation() []Key {
	keys := []Key{s.Base.Key}
	if s.System != nil {
		keys = append(keys, s.System.Key)
	}
	keys = append(keys, s.wheelKeys()...)
	keys = append(keys, s.compileKeys()...)
	if s.Env != nil {
		keys = append(keys, s.Env.Key)
	}
	return keys
}

// fixedTime is the time of everything that the image adds: SOURCE_DATE_EPOCH where it is set
// (reproducible-builds.org/specs/source-date-epoch), else always the same.
func fixedTime() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return layer.DefaultModTime.UTC(), nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, fault.Usage(fmt.Errorf("SOURCE_DATE_EPOCH is %q, which is not a number of seconds", text))
	}
	return time.Unix(seconds, 0).UTC(), nil
}

func (p *Plan) planPython(r *recipe.Recipe, l *lock.Lock, wheels []lock.Wheel, o Options, c layer.Compression, modTime time.Time) {
	target := python.Target{Root: venvRoot, Python: l.Python.Interpreter()}
	bytecode := o.RunsHere && (r.Python.Bytecode == nil || *r.Python.Bytecode)
	items := make([]python.Item, len(wheels))
	for i, w := range wheels {
		items[i] = w.Item
	}
	options := python.LayerOptions{Options: layer.Options{Compression: c, ModTime: modTime}}
	for _, g := range python.GroupItems(items, layersForWheels(r, l, len(o.Compiles))) {
		p.Wheels = append(p.Wheels, &WheelsStep{
			Key: Key(python.LayerKey(g, target, bytecode, options)), Group: g, Target: target, Bytecode: bytecode, Options: options,
		})
	}
	p.planCompiles(r, o, &WheelsStep{Target: target, Bytecode: bytecode, Options: options})
	p.Env = &EnvironmentStep{
		Environment: python.Environment{
			Target: target, SystemSitePackages: l.Python.SystemSitePackages, Prompt: r.Name, Items: items,
		},
		Options: options.Options,
	}
	p.Env.Key = keyOf("environment", environmentVersion, struct {
		Target  python.Target
		System  bool
		Prompt  string
		Items   []python.Item
		Layers  []Key
		Options layer.Options
		Built   []Key `json:",omitempty"`
	}{target, p.Env.Environment.SystemSitePackages, r.Name, sortedItems(items), p.wheelKeys(), options.Options, p.compileKeys()})
}

// How many layers there may be.
const (
	// stackable is how many layers the overlay driver of Docker mounts over each other at most.
	stackable = 127
	// leastForWheels is what the wheels get beside a base of many layers, as vendors make them, when the recipe does not
	// say how many layers there may be.
	leastForWheels = 12
	// environmentLayers is the layer of the environment itself.
	environmentLayers = 1
)

// layersForWheels is how many layers the wheels may take.
func layersForWheels(r *recipe.Recipe, l *lock.Lock, compiles int) int {
	others := l.Base.Layers + environmentLayers + compiles + layersOfSteps(r)
	room := r.Image.MaxLayers - others
	if r.Image.MaxLayers == recipe.DefaultMaxLayers {
		room = max(room, min(leastForWheels, stackable-others))
	}
	return room
}

// layersOfSteps is how many layers the recipe's steps make, with that of the system's packages.
func layersOfSteps(r *recipe.Recipe) int {
	n := 0
	if len(r.System.Packages) > 0 {
		n++
	}
	for _, s := range r.Steps {
		n += len(s.Copy) + len(s.Patch)
		if s.Run != "" {
			n++
		}
	}
	return n
}

// checkLayers makes sure that base, environment, steps and at least one layer of wheels find room.
func checkLayers(r *recipe.Recipe, l *lock.Lock, compiles int) error {
	limit := r.Image.MaxLayers
	if limit == recipe.DefaultMaxLayers {
		limit = stackable
	}
	tooMany := l.Base.Layers+layersOfSteps(r) > limit
	if l.Python != nil {
		tooMany = layersForWheels(r, l, compiles) < 1
	}
	if !tooMany {
		return nil
	}
	what := "the base alone has"
	if layersOfSteps(r) > 0 {
		what = "the base and the recipe's steps have"
	}
	return fault.Hint(fmt.Errorf("%s %d layers, and the image may have %d", what, l.Base.Layers+layersOfSteps(r), limit),
		"raise max-layers under [image], or make the base one layer: `sconce copy BASE tar:base.tar`, then image = \"tar:base.tar\" under [base]")
}

func sortedItems(items []python.Item) []python.Item {
	sorted := slices.Clone(items)
	slices.SortFunc(sorted, func(a, b python.Item) int { return strings.Compare(a.File, b.File) })
	return sorted
}

func (s *Stage) wheelKeys() []Key {
	var keys []Key
	for _, w := range s.Wheels {
		keys = append(keys, w.Key)
	}
	return keys
}

func (p *Plan) planImage(r *recipe.Recipe, l *lock.Lock, o Options, c layer.Compression, created time.Time) {
	config := Config{
		Env: r.Image.Env, Entrypoint: r.Image.Entrypoint, Cmd: r.Image.Cmd, WorkingDir: r.Image.Workdir,
		User: r.Image.User, Volumes: r.Image.Volumes, Labels: labels(r, l), Created: created, Compression: c,
		Unchecked: o.Unchecked,
	}
	if p.Env != nil {
		config.PathPrefix = "/" + venvRoot + "/bin"
		config.VirtualEnv = "/" + venvRoot
	}
	p.Image = &ImageStep{Config: config, Slim: o.Slim}
	slimmed := "" // leaves the keys of all other images as they are
	if o.Slim != nil {
		slimmed = o.Slim.Key()
	}
	keys := p.foundation()
	for _, s := range p.Steps {
		keys = append(keys, s.Key)
	}
	p.Image.Key = keyOf("image", imageVersion, struct {
		Platform string
		Steps    []Key
		Config   Config
		Slim     string `json:",omitempty"`
	}{p.Platform.String(), keys, config, slimmed})
}

// labels are the standard annotations of the OCI image specification ("Pre-Defined Annotation Keys"), which the recipe's
// own labels may replace.
func labels(r *recipe.Recipe, l *lock.Lock) map[string]string {
	m := map[string]string{
		"org.opencontainers.image.title":   r.Name,
		"org.opencontainers.image.version": r.Version,
	}
	if l.Base.Digest != "" {
		m["org.opencontainers.image.base.digest"] = string(l.Base.Digest)
		if l.Base.Name != "" {
			m["org.opencontainers.image.base.name"] = l.Base.Name
		}
	}
	for k, v := range r.Image.Labels {
		m[k] = v
	}
	return m
}
