package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/build"
	"sconce.dev/sconce/internal/containerfile"
	"sconce.dev/sconce/internal/deffile"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/source"
)

// Containerfile is a Containerfile and what it leaves open.
type Containerfile struct {
	File       string // for messages
	Definition bool   // it is a definition file of Apptainer's
	Text       []byte
	Context    string            // directory that COPY and ADD take files from
	IgnoreFile string            // says what the context leaves out; "": the usual ones beside File and in Context
	Name       string            // of the image in the store, NAME:TAG
	Platform   v1.Platform       // that the image is for
	Stage      string            // what is built; "" is the last
	Args       map[string]string // of ARG
	Labels     map[string]string // of the image, besides those of the file

	NoNetwork bool // for any of its commands

	// Contexts are what names stand for before stages and images: references to images, and directories.
	Contexts map[string]containerfile.Source

	Compression string // of new layers: "gzip", "zstd"; "" is gzip
}

// PlanContainerfile reads a Containerfile and decides what it means today. An error names all that is wrong in the file, and all that
// it takes from this machine and that is not there.
func (s *Session) PlanContainerfile(ctx context.Context, f Containerfile) (*Plan, error) {
	pins := s.pins(f)
	evaluated, err := f.evaluate(ctx, pins)
	if evaluated == nil {
		return nil, err
	}
	from, openErr := fileop.OpenContext(f.Context, f.ignoreFile())
	if openErr != nil {
		return nil, errors.Join(err, openErr)
	}
	opened := newContexts()
	opened.add(f.Context, from)
	p := &Plan{contexts: opened, means: build.Options{Pass: evaluated.Proxy, Open: opened.Open}}
	o := plan.ContainerfileOptions{
		File: f.File, Name: f.Name, Platform: f.Platform, Context: f.Context, Open: opened.Open,
		Compression: cmp.Or(layer.Compression(f.Compression), layer.Gzip), Pin: pins.pin,
	}
	if err != nil {
		err = errors.Join(err, plan.FindSources(ctx, evaluated, o))
	} else if err = s.resolveURLs(ctx, f.File, evaluated); err == nil {
		p.Plan, err = plan.NewContainerfile(ctx, evaluated, o)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// ignoreFile says what is left out of the context.
func (f Containerfile) ignoreFile() string {
	switch {
	case f.IgnoreFile != "":
		return f.IgnoreFile
	case f.Definition: // of which no ignore file knows
		return os.DevNull
	default:
		return fileop.IgnoreFileOf(f.File)
	}
}

// ReadContainerfile says what a Containerfile means, and what the image says that its last stage begins with, if it is one.
func (s *Session) ReadContainerfile(ctx context.Context, f Containerfile) (*containerfile.Build, v1.Config, error) {
	pins := s.pins(f)
	evaluated, err := f.evaluate(ctx, pins)
	if err != nil {
		return nil, v1.Config{}, err
	}
	last := evaluated.Stages[len(evaluated.Stages)-1]
	if last.From == "" || last.From == containerfile.Scratch {
		return evaluated, v1.Config{}, nil
	}
	config, err := pins.config(ctx, last.From, last.Platform)
	if err != nil {
		return nil, v1.Config{}, err
	}
	return evaluated, config.Config, nil
}

// evaluate says what the file means, and warns. With mistakes in it there is an error, and what the rest of it means.
func (f Containerfile) evaluate(ctx context.Context, p *pins) (*containerfile.Build, error) {
	evaluated, err := f.read(ctx, p)
	if err != nil {
		return evaluated, err
	}
	last := &evaluated.Stages[len(evaluated.Stages)-1].Config
	if len(f.Labels) > 0 && last.Labels == nil {
		last.Labels = make(map[string]string)
	}
	maps.Copy(last.Labels, f.Labels)
	if f.NoNetwork {
		forbidNetwork(evaluated)
	}
	for _, w := range evaluated.Warnings {
		progress.Warn(ctx, place(f.File, w.Line)+w.Message, w.Hint)
	}
	return evaluated, nil
}

func (f Containerfile) read(ctx context.Context, p *pins) (*containerfile.Build, error) {
	if f.Definition {
		parsed, err := deffile.Parse(f.File, f.Text, f.Args)
		if err != nil {
			return nil, err
		}
		o := deffile.Options{Target: f.Stage, Platform: f.Platform, Bootstrap: func(b deffile.Bootstrap) string { return p.bootstrap(f.File, b) }}
		b, err := parsed.Evaluate(ctx, o, p.config)
		if err != nil {
			return b, err
		}
		return b, f.reachFiles(b, p.opts.Reach)
	}
	parsed, err := containerfile.Parse(f.File, f.Text)
	if err != nil {
		return nil, err
	}
	return parsed.Evaluate(ctx, containerfile.Options{BuildArgs: f.Args, Target: f.Stage, Platform: f.Platform, Contexts: f.Contexts}, p.config)
}

// bounds are the files of this machine that f may name: a Containerfile those of its context, and a definition file those of its own
// directory, as Apptainer's has no context. What the command line gives a name is the user's word.
func (f Containerfile) bounds() reach.Bounds {
	var named []string
	for _, given := range f.Contexts {
		if given.Dir != "" {
			named = append(named, given.Dir)
		} else if ref, err := source.Parse(given.Image); err == nil && ref.Path() != "" {
			named = append(named, ref.Path())
		}
	}
	if f.Definition && f.Context != "." { // which is where the command runs, and nobody's word
		named = append(named, f.Context)
	}
	if f.Definition && f.File != "-" {
		return reach.InRepository("the definition file", filepath.Dir(f.File)).With(named...)
	}
	return reach.In("the build context", f.Context).With(named...)
}

// reachFiles refuses files of this machine that a definition file takes from outside of its bounds. Its relative paths start in the
// current directory, links below which count as well.
func (f Containerfile) reachFiles(b *containerfile.Build, bounds reach.Bounds) error {
	var outside []error
	for _, stage := range b.Stages {
		for _, op := range stage.Ops {
			if op.Copy == nil || op.Copy.From.Dir == "" && !op.Copy.From.Context {
				continue
			}
			dir := op.Copy.From.Dir
			if op.Copy.From.Context {
				dir = f.Context
			}
			dir = cmp.Or(dir, ".")
			for _, pattern := range op.Copy.Sources {
				from := dir + "/" + pattern
				if strings.ContainsAny(pattern, `*?[\`) {
					from = dir // what it matches may be a link to what is beside
				}
				if err := bounds.Check(from); err != nil {
					outside = append(outside, fmt.Errorf("%s%s: %w", place(f.File, op.Line), op.Text, err))
				}
			}
		}
	}
	return fault.Join(outside...)
}

// forbidNetwork takes the network from all commands.
func forbidNetwork(b *containerfile.Build) {
	for _, stage := range b.Stages {
		for _, op := range stage.Ops {
			if op.Run != nil {
				op.Run.NoNetwork = true
			}
		}
	}
}

// place is what goes before a message about a line of a file, 0 for one about the whole.
func place(file string, line int) string {
	if line == 0 {
		return file + ": "
	}
	return fmt.Sprintf("%s:%d: ", file, line)
}

// pins are the images that a Containerfile names, each pinned once.
type pins struct {
	opts     base.Options
	seen     map[string]*base.Pinned
	packages map[string]packagesBase // what references stand for that name no image
}

// packagesBase is a base from a distribution's packages that a definition file asks for.
type packagesBase struct {
	place   string // of the line that does
	request base.Packages
}

// bootstrap gives a base from packages a reference.
func (p *pins) bootstrap(file string, b deffile.Bootstrap) string {
	r := base.Packages{Suite: b.Suite, Mirror: b.Mirror, Packages: b.Packages, Variant: "minbase"}
	words := []string{"debootstrap", b.Suite, b.Mirror}
	if len(b.Repositories) > 0 { // Apptainer's base has rpm and what is included, and what its package manager asks is what its packages say
		r.Dnf, r.Sources, r.Beside, r.Variant = b.Repositories[0], b.Repositories[1:], true, "essential"
		words = append([]string{"dnf"}, b.Repositories...)
	}
	if b.Keys != "" {
		r.Keys = []string{b.Keys}
	}
	reference := strings.Join(slices.Concat(words, []string{b.Keys}, b.Packages), " ")
	if _, known := p.packages[reference]; !known {
		p.packages[reference] = packagesBase{place(file, b.Line), r}
	}
	return reference
}

func (s *Session) pins(f Containerfile) *pins {
	return &pins{
		opts: base.Options{Store: s.Store, Fetch: s.Fetch, Offline: s.Offline, Reach: f.bounds()},
		seen: make(map[string]*base.Pinned), packages: make(map[string]packagesBase),
	}
}

func (p *pins) pin(ctx context.Context, reference string, platform v1.Platform) (*base.Pinned, error) {
	id := platform.String() + " " + reference
	if known := p.seen[id]; known != nil {
		return known, nil
	}
	pinned, err := p.ask(ctx, reference, platform)
	if err != nil {
		return nil, err
	}
	p.seen[id] = pinned
	return pinned, nil
}

func (p *pins) ask(ctx context.Context, reference string, platform v1.Platform) (*base.Pinned, error) {
	b, ok := p.packages[reference]
	if !ok {
		return base.PinImage(ctx, reference, platform, p.opts)
	}
	pinned, err := base.PinPackages(ctx, b.request, platform, p.opts)
	if err != nil {
		return nil, inHeaders(fmt.Errorf("%s%w", b.place, err))
	}
	return pinned, nil
}

// headers are what a definition file says for the keys of a recipe that hints about bases from packages name.
var headers = strings.NewReplacer(
	"base.bootstrap.mirror", "MirrorURL", "[base] bootstrap.packages", "Include",
	"base.bootstrap.keys names the files with the keys that sign it: all of them, and no others count", "GPG names the key that signs it, and no other counts then: a file, or its address, https://…",
	"base.bootstrap.keys names the files with the keys", "GPG names the file, or the address, of the keys",
	"base.bootstrap.sources names further repositories", "UpdateURL and OtherURL0 name further repositories",
	"is believed with trusted = true", "is believed by a recipe alone, with trusted = true",
	"platform under [target]", "--platform",
)

// inHeaders has the hint of an error say what to write in a definition file.
func inHeaders(err error) error {
	hint := fault.HintOf(err)
	if said := headers.Replace(hint); said != hint {
		return fault.Hint(err, said)
	}
	return err
}

func (p *pins) config(ctx context.Context, reference string, platform v1.Platform) (*v1.ConfigFile, error) {
	pinned, err := p.pin(ctx, reference, platform)
	if err != nil {
		return nil, err
	}
	config, err := pinned.Config(ctx, platform, p.opts)
	if err == nil {
		pinned.Layers = len(config.RootFS.DiffIDs)
	}
	return config, err
}

// resolveURLs downloads what ADD takes from the network and nobody has said the digest of: only its bytes tell whether a
// step has to be made again.
func (s *Session) resolveURLs(ctx context.Context, file string, b *containerfile.Build) error {
	for _, stage := range b.Stages {
		for _, op := range stage.Ops {
			if op.Copy == nil {
				continue
			}
			for i := range op.Copy.URLs {
				u := &op.Copy.URLs[i]
				if u.Digest != "" {
					continue
				}
				var err error
				if u.Digest, err = s.Fetch.Unpinned(ctx, fetch.Request{URL: u.Address, Name: fetch.Redact(u.Address), OfRecipe: true}); err != nil {
					return fmt.Errorf("%s:%d: %w", file, op.Line, err)
				}
			}
		}
	}
	return nil
}
