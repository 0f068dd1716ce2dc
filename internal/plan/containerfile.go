package plan

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/containerfile"
	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/layer"
)

// ContainerfileOptions says what a Containerfile leaves open.
type ContainerfileOptions struct {
	File        string // the Containerfile, for messages
	Name        string // of the image: NAME:TAG; may be empty
	Platform    v1.Platform
	Context     string // the directory that COPY and binds take files from, as Open takes it
	Compression layer.Compression
	Open        opener // see Options.Open

	// Pin says what an image reference means today. It is asked once for each.
	Pin func(ctx context.Context, reference string, platform v1.Platform) (*base.Pinned, error)
}

// NewContainerfile plans the image of a Containerfile. The addresses of ADD have their digests already.
func NewContainerfile(ctx context.Context, b *containerfile.Build, o ContainerfileOptions) (*Plan, error) {
	modTime, err := fixedTime()
	if err != nil {
		return nil, err
	}
	c := &containerfilePlan{opts: o, layer: layer.Options{Compression: o.Compression, ModTime: modTime}, images: make(map[string]*Stage)}
	if err := FindSources(ctx, b, o); err != nil {
		return nil, err
	}
	for _, s := range b.Stages {
		if err := c.addStage(ctx, s); err != nil {
			return nil, err
		}
	}
	last := b.Stages[len(b.Stages)-1]
	p := &Plan{Name: o.Name, Platform: o.Platform, Stage: c.stages[len(c.stages)-1]}
	p.Image = &Image{Exact: &last.Config, Author: last.Author, Start: last.StartInterval, Config: Config{Created: modTime, Compression: o.Compression}}
	inputs := []Input{{"author", last.Author}, {"configuration", text(last.Config)}}
	if last.StartInterval != 0 {
		inputs = append(inputs, Input{"start interval", last.StartInterval.String()})
	}
	p.setKey(inputs...)
	p.Image.Args = p.configArgs()
	return p, nil
}

// configArgs are the build arguments of the lines that make the image's configuration.
func (p *Plan) configArgs() []Input {
	var args []Input
	for s := p.Stage; s != nil; s = s.From {
		for _, t := range s.Steps {
			if _, dir := t.Op.(*MakeDir); t.Op != nil && !dir { // WORKDIR is of the configuration, too
				continue
			}
			for _, in := range t.Args {
				if !slices.Contains(args, in) {
					args = append(args, in)
				}
			}
		}
	}
	return args
}

// containerfilePlan turns the stages of one Containerfile into those of a plan.
type containerfilePlan struct {
	opts   ContainerfileOptions
	layer  layer.Options
	stages []*Stage
	images map[string]*Stage // those that are begun with or that files are taken from, by platform and reference
}

// FindSources looks whether all files are there that lines take from this machine, before any of them is read: a person who has
// named several wrong wants to know at once. The error is of all that are not.
func FindSources(ctx context.Context, b *containerfile.Build, o ContainerfileOptions) error {
	var missing []error
	for _, s := range b.Stages {
		for _, op := range s.Ops {
			for _, err := range o.missing(ctx, op) {
				missing = append(missing, o.at(op, err))
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return errors.Join(missing...)
}

// missing says what a line takes from a directory of this machine that is not there.
func (o *ContainerfileOptions) missing(ctx context.Context, op containerfile.Op) []error {
	var all []error
	look := func(from containerfile.Source, part fileop.Copy) {
		dir := from.Dir
		if from.Context {
			dir = o.Context
		}
		if dir == "" {
			return
		}
		files, err := o.Open(dir)
		if err != nil {
			all = append(all, err)
			return
		}
		all = append(all, part.Find(ctx, files)...)
	}
	if op.Copy != nil {
		look(op.Copy.From, op.Copy.Copy)
	}
	if op.Run != nil {
		for _, m := range op.Run.Mounts {
			look(m.From, (&Mount{Mount: m.Mount}).Part())
		}
	}
	return all
}

// at says which line an error is about.
func (o *ContainerfileOptions) at(op containerfile.Op, err error) error {
	return fmt.Errorf("%s:%d: %s: %w", o.File, op.Line, op.Text, err)
}

func (c *containerfilePlan) addStage(ctx context.Context, s *containerfile.Stage) error {
	var from *Stage
	switch {
	case s.Parent >= 0:
		from = c.stages[s.Parent]
	case s.From != containerfile.Scratch:
		image, err := c.image(ctx, s.From, s.Platform)
		if err != nil {
			return err
		}
		from = image
	}
	stage := newStage(s.Name, from, c.layer)
	for _, op := range s.Ops {
		t, err := c.step(ctx, s, op)
		if err != nil {
			return c.opts.at(op, err)
		}
		stage.add(t)
	}
	c.stages = append(c.stages, stage)
	return stage.checkDepth()
}

// image is the stage that consists of an image alone.
func (c *containerfilePlan) image(ctx context.Context, reference string, platform v1.Platform) (*Stage, error) {
	id := platform.String() + " " + reference
	if s := c.images[id]; s != nil {
		return s, nil
	}
	pinned, err := c.opts.Pin(ctx, reference, platform)
	if err != nil {
		return nil, err
	}
	s := newStage(reference, nil, c.layer)
	s.add(&Step{Title: "FROM " + reference, Op: &Base{Pinned: *pinned, Reference: reference, Platform: platform}})
	c.images[id] = s
	return s, nil
}

func (c *containerfilePlan) step(ctx context.Context, s *containerfile.Stage, op containerfile.Op) (*Step, error) {
	t := &Step{Title: op.Text, History: op.Text, Place: fmt.Sprintf("%s:%d", c.opts.File, op.Line)}
	for _, arg := range op.Args {
		t.Args = append(t.Args, Input(arg))
	}
	switch {
	case op.Run != nil:
		run, err := c.run(ctx, s, op.Run)
		if err != nil {
			return nil, err
		}
		t.Op = run
	case op.Copy != nil:
		from, err := c.source(ctx, s, op.Copy.From)
		if err != nil {
			return nil, err
		}
		copied := &Copy{Copy: op.Copy.Copy, From: from}
		t.Op = copied
		return t, copied.hash(ctx, c.opts.Open)
	case op.WorkDir != nil:
		t.Op = &MakeDir{fileop.Dir{Path: op.WorkDir.Dir, Owner: op.WorkDir.User}}
	}
	return t, nil
}

func (c *containerfilePlan) run(ctx context.Context, s *containerfile.Stage, r *containerfile.Run) (*Exec, error) {
	x := &Exec{Command: r.Command}
	for _, m := range r.Mounts {
		from, err := c.source(ctx, s, m.From)
		if err != nil {
			return nil, err
		}
		x.Mounts = append(x.Mounts, Mount{Mount: m.Mount, Files: from})
	}
	return x, x.hash(ctx, c.opts.Open)
}

// source is where files come from. Images named in --from are those of the stage's platform.
func (c *containerfilePlan) source(ctx context.Context, s *containerfile.Stage, from containerfile.Source) (Source, error) {
	switch {
	case from.Context:
		return Source{Dir: c.opts.Context}, nil
	case from.Dir != "":
		return Source{Dir: from.Dir}, nil
	case from.Stage >= 0 && from.Image == "":
		return Source{Stage: c.stages[from.Stage]}, nil
	case from.Image != "":
		image, err := c.image(ctx, from.Image, s.Platform)
		return Source{Stage: image}, err
	}
	return Source{}, nil
}
