package pipeline

import (
	"cmp"
	"context"
	"fmt"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
)

// ToTest completes the options by which an image is tested: what stands under its canonical reference is brought into the store, and evidence
// is kept there, signed with the pipeline's key, unless the tests run here.
func (p *Pipeline) ToTest(ctx context.Context, s *engine.Session, name string, o engine.TestOptions) (engine.TestOptions, error) {
	i, err := p.Image(ctx, s, name)
	if err != nil {
		return o, err
	}
	if i.Problem != nil {
		return o, i.Problem
	}
	if len(i.Parts) > 0 {
		return o, fault.Usage(fault.Hint(fmt.Errorf("%s is an index: each of its images has tests of its own", i.Ref), "name one, such as "+i.Parts[0].Ref))
	}
	found, err := s.Find(ctx, i.Canonical)
	if err != nil {
		return o, fault.Hint(fmt.Errorf("%s is not built as it is today: %w", i.Ref, err), "run `sconce build "+quote.Word(i.Ref)+" --canonical` first")
	}
	trust, err := p.trusted(nil)
	if err != nil {
		return o, err
	}
	if err := s.CheckKey(ctx, found, i.Key, trust); err != nil {
		return o, err
	}
	subject, err := s.Open("docker://"+found.Repository+"@"+string(found.Digest), engine.Wanted{})
	if err != nil {
		return o, err
	}
	defer subject.Close()
	named, err := s.Pull(ctx, subject, found.Repository+":"+found.Tag)
	if err != nil {
		return o, err
	}
	if o.Sign = cmp.Or(o.Sign, p.Sign); !o.Here && o.Sign != "" {
		o.Record = found.Repository
	} else if !o.Here {
		progress.Warn(ctx, "no evidence is kept: the pipeline names no key to sign it", `add sign = "env:NAME" or a file to `+p.Path+", or give --sign")
	}
	if o.Here {
		o.Sign = ""
	}
	before, err := p.listed()
	if err != nil {
		return o, err
	}
	o.After = append(before, o.After...)
	o.Recipe, o.Image, o.Known = i.Recipe, named.FullName(), true
	return o, nil
}
