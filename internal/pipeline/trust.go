package pipeline

import (
	"context"
	"errors"
	"fmt"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/store"
)

// judges are the keys by which it is judged what registries have: none where the pipeline signs nothing. unable says why none can be read
// where it does sign, as in a job for a merge request: nothing of the registry is to be taken then.
func (p *Pipeline) judges(more []*attest.PublicKey) (keys []*attest.PublicKey, unable error) {
	if _, err := p.listed(); err != nil {
		return nil, err // what is revoked there has to be known
	}
	keys, err := p.trusted(more)
	if err != nil && len(more) > 0 {
		return more, nil
	}
	return keys, err
}

// lookingBy are judges for looking alone, which works without a key, and not without the keys that the pipeline lists.
func (p *Pipeline) lookingBy(ctx context.Context) ([]*attest.PublicKey, error) {
	if _, err := p.listed(); err != nil {
		return nil, err
	}
	keys, unable := p.judges(nil)
	if unable != nil {
		progress.Warn(ctx, "signatures are not checked, and what nobody has signed looks like what the team has: "+unable.Error(), "")
	}
	return keys, nil
}

// belongs reports whether what a registry has under the canonical reference of an image may stay there: somebody trusted has signed that
// it belongs there. Otherwise it is replaced by made, the image that was made here, if that is the very same, or Replace says so.
func (r *runner) belongs(ctx context.Context, i *Image, there, made store.Digest) (bool, error) {
	trust, err := r.trusted(nil)
	if err != nil {
		return false, err
	}
	err = r.session.CheckKey(ctx, inRegistry(i.Canonical, there), i.Key, trust)
	var strange *engine.StrangeError
	switch {
	case err == nil:
		return true, nil
	case !errors.As(err, &strange):
		return false, err
	case there == made || r.opts.Replace:
		return false, nil
	}
	err = fmt.Errorf("%w; what its recipe makes here is %s", strange, made.Short())
	hint := fmt.Sprintf("find out who has written it; then `sconce pipeline run %s --replace` puts what was built here in its place", quote.Word(i.Ref))
	return false, fault.Hint(fault.Problem(err), hint)
}

// inRegistry is what is under a reference, HOST/PATH:TAG.
func inRegistry(ref string, digest store.Digest) engine.InRegistry {
	name, tag := store.SplitImageName(ref)
	return engine.InRegistry{Repository: name, Tag: tag, Digest: digest}
}

// Below says how a recipe of the pipeline is planned by somebody who builds it alone: where images are that it may stand on, and whose
// signatures count. more are keys that are believed besides the pipeline's own. Without any key of a pipeline that signs, none is taken.
func (p *Pipeline) Below(ctx context.Context, more []*attest.PublicKey) engine.PlanOptions {
	trust, unable := p.judges(more)
	if unable != nil {
		progress.Notef(ctx, fmt.Sprintf("what a recipe is based on is built here, as signatures cannot be checked: %v", unable))
		return engine.PlanOptions{}
	}
	return engine.PlanOptions{Canonical: p.CanonicalOf, Trust: trust}
}
