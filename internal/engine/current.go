package engine

import (
	"context"
	"fmt"
	"path/filepath"

	"sconce.dev/sconce/internal/build"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
)

// CheckCurrent says whether the image that bears the recipe's name in the store is what recipe and lock say now: an error of exit code 3
// when it was built here from others, a warning when it came from elsewhere, so that nothing is known. A recipe without a lock is not
// judged. Nothing is made or fetched.
func (s *Session) CheckCurrent(ctx context.Context, r *Recipe) error {
	state, err := r.ReadLock()
	if err != nil || state.Err != nil || state.Lock == nil {
		return err
	}
	found, err := s.Store.FindImage(r.FullName())
	if err != nil {
		return nil //nolint:nilerr // who places it says so
	}
	hint := fmt.Sprintf("build it again: sconce build %s; or submit it all the same with --any-image", quote.Word(filepath.Dir(r.Path)))
	if !state.Fits() {
		return fault.Problem(fault.Hint(fmt.Errorf("%s is not what %s says: %w", r.FullName(), r.Path, r.driftError(state.Drift)), hint))
	}
	here := false
	for _, unchecked := range []bool{false, true} { // which is a part of what is built
		same, built, err := s.isOf(ctx, r, string(found.Digest), PlanOptions{Locked: true, NoCheck: unchecked})
		if err != nil || same {
			return err
		}
		here = here || built
	}
	err = fmt.Errorf("%s was not built from %s and its lock as they are now", r.FullName(), r.Path)
	if here {
		return fault.Problem(fault.Hint(err, hint))
	}
	progress.Warn(ctx, err.Error(), "it came from elsewhere; build it here to be sure")
	return nil
}

// isOf reports whether a digest is that of the image that a plan of the recipe has made, and whether any image of its name was built here.
func (s *Session) isOf(ctx context.Context, r *Recipe, digest string, o PlanOptions) (same, here bool, err error) {
	p, err := s.Plan(ctx, r, o)
	if err != nil {
		return false, false, err
	}
	defer p.Close()
	last, err := build.LastPlan(s.Store, p.Record())
	if err != nil {
		return false, false, err
	}
	im, err := s.Made(ctx, p)
	return im != nil && string(im.Digest) == digest, last != nil, err
}
