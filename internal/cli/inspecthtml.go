package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"sconce.dev/sconce/internal/engine"
)

// errNoPage says what the options are for that go with --html.
var errNoPage = errors.New("--cluster and --force go with --html FILE; `sconce check IMAGE --cluster NAME` prints what a page would say")

// inspectHTML writes a page about an image. The target's platform is chosen where there are several and the user names none; an
// image for another will do then, as the page says so.
func (a *app) inspectHTML(ctx context.Context, o inspectOptions) error {
	t, err := engine.FindTarget(o.cluster, "")
	if err != nil {
		return err
	}
	platform, err := parsePlatform(cmp.Or(o.platform, t.Platform))
	if err != nil {
		return err
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	subject, err := s.Open(o.image, engine.Wanted{Platform: platform, OrOther: o.platform == ""})
	if err != nil {
		return err
	}
	defer subject.Close()
	count, err := s.Page(ctx, subject, t, o.html, o.force)
	if err != nil {
		return fmt.Errorf("inspect %s: %w", o.image, err)
	}
	a.say("%s: %s", o.html, countWords(count))
	return nil
}
