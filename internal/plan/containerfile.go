package plan

import (
	"context"
	"fmt"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/containerfile"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/step"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/transfer"
)

// ContainerfileOptions says what a Containerfile leaves open.
type ContainerfileOptions struct {
	File        string // the Containerfile, for messages
	Name        string // of the image: NAME:TAG; may be empty
	Platform    v1.Platform
	Context     *transfer.Context
	Compression layer.Compression

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
	for _, s := range b.Stages {
		if err := c.addStage(ctx, s); err != nil {
			return nil, err
		}
	}
	last := b.Stages[len(b.Stages)-1]
	p := &Plan{Name: o.Name, Platform: o.Platform, Stage: c.stages[len(c.stages)-1]}
	p.Image = &ImageStep{Exact: &last.Config, Author: last.Author, Config: Config{Created: modTime, Compression: o.Compression}}
	p.Image.Key = keyOf("image", imageVersion, struct {
		Platform, Author string
		On               Key
		History          []string
		Config           v1.Config
		Created          any
	}{o.Platform.String(), last.Author, p.key, p.titles(), last.Config, modTime})
	return p, nil
}

// titles are what the image's history says.
func (s *Stage) titles() []string {
	if s == nil {
		return nil
	}
	all := s.Parent.titles()
	for _, t := range s.Steps {
		all = append(all, t.Title)
	}
	return all
}

// containerfilePlan turns the stages of one Containerfile into those of a plan.
type containerfilePlan struct {
	opts   ContainerfileOptions
	layer  layer.Options
	stages []*Stage
	images map[string]*Stage // those that files are taken from, by platform and reference
}

func (c *containerfilePlan) addStage(ctx context.Context, s *containerfile.Stage) error {
	stage := &Stage{Label: s.Name, Layer: c.layer}
	switch {
	case s.Parent >= 0:
		stage.Parent = c.stages[s.Parent]
		stage.key = stage.Parent.key
	case s.From != containerfile.Scratch:
		image, err := c.image(ctx, s.From, s.Platform)
		if err != nil {
			return err
		}
		stage.Base, stage.key = image.Base, image.key
	}
	for _, op := range s.Ops {
		t, content, err := c.step(ctx, s, op)
		if err != nil {
			return fmt.Errorf("%s:%d: %s: %w", c.opts.File, op.Line, op.Text, err)
		}
		stage.add(t, content)
	}
	c.stages = append(c.stages, stage)
	return nil
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
	s := &Stage{Label: reference, Base: &BaseStep{Key: Key(pinned.Key()), Pinned: *pinned, Reference: reference, Platform: platform}}
	s.stand(s.Base.Key)
	c.images[id] = s
	return s, nil
}

func (c *containerfilePlan) step(ctx context.Context, s *containerfile.Stage, op containerfile.Op) (*Step, any, error) {
	t := &Step{Title: op.Text, Place: fmt.Sprintf("%s:%d", c.opts.File, op.Line)}
	switch {
	case op.Run != nil:
		content, err := c.run(ctx, s, t, op.Run)
		return t, content, err
	case op.Copy != nil:
		from, err := c.source(ctx, s, op.Copy.From)
		if err != nil {
			return nil, nil, err
		}
		t.Copy = &CopyStep{Copy: op.Copy.Copy, From: from}
		content, err := copyContent(ctx, t.Copy)
		return t, content, err
	case op.WorkDir != nil:
		t.Dir = &DirStep{Path: op.WorkDir.Dir, Owner: op.WorkDir.User}
		return t, t.Dir, nil
	}
	return t, nil, nil
}

func (c *containerfilePlan) run(ctx context.Context, s *containerfile.Stage, t *Step, r *containerfile.Run) (any, error) {
	t.Run = &RunStep{Command: r.Command}
	for _, m := range r.Mounts {
		from, err := c.source(ctx, s, m.From)
		if err != nil {
			return nil, err
		}
		t.Run.Mounts = append(t.Run.Mounts, Mount{Mount: m.Mount, Files: from})
	}
	return runContent(ctx, t.Run, "")
}

func (c *containerfilePlan) source(ctx context.Context, s *containerfile.Stage, from containerfile.Source) (Source, error) {
	switch {
	case from.Context:
		return Source{Context: c.opts.Context}, nil
	case from.Stage >= 0 && from.Image == "":
		return Source{Stage: c.stages[from.Stage]}, nil
	case from.Image != "":
		image, err := c.image(ctx, from.Image, s.Platform)
		return Source{Stage: image}, err
	}
	return Source{}, nil
}

// copyContent is what a copy's key is made of.
func copyContent(ctx context.Context, c *CopyStep) (any, error) {
	var digest store.Digest
	if c.From.Stage == nil {
		var files transfer.Files
		if c.From.Context != nil {
			files = c.From.Context
		}
		var err error
		if digest, err = c.Copy.Digest(ctx, files); err != nil {
			return nil, err
		}
	}
	return struct {
		Copy transfer.Copy
		From string
	}{c.Copy, sourceKey(c.From, digest)}, nil
}

// runContent is what a command's key is made of. Mounts get their From on the way.
func runContent(ctx context.Context, r *RunStep, venv string) (any, error) {
	var mounts []step.Mount
	for i := range r.Mounts {
		m := &r.Mounts[i]
		if err := m.name(ctx); err != nil {
			return nil, err
		}
		mounts = append(mounts, m.Mount)
	}
	return struct {
		Command step.Command
		Inherit bool   `json:",omitempty"`
		Venv    string `json:",omitempty"`
		Mounts  []step.Mount
	}{r.Command, r.Inherit, venv, mounts}, nil
}

// name says what the mount's files are. What lies in a cache decides nothing: that is for who mounts it to see to.
func (m *Mount) name(ctx context.Context) error {
	switch {
	case m.Files.Stage != nil:
		m.From = sourceKey(m.Files, "")
	case m.Files.Context != nil:
		digest, err := m.Part().Digest(ctx, m.Files.Context)
		if err != nil {
			return err
		}
		m.From = string(digest)
	}
	return nil
}

// Part is the part of a build context that the mount shows, at the same place.
func (m *Mount) Part() transfer.Copy {
	source := strings.Trim(path.Clean("/"+m.Source), "/")
	if source == "" {
		return transfer.Copy{Sources: []string{"."}, Dest: "/"}
	}
	return transfer.Copy{Sources: []string{escapeGlob(source)}, Dest: "/", Parents: true}
}

// escapeGlob makes a pattern that matches nothing but the path p.
func escapeGlob(p string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}
