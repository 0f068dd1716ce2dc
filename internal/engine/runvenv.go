package engine

import (
	"context"
	"os"
	"strings"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
)

// openVenv opens the environment that a command runs in, and refuses one of another image.
func (r *running) openVenv(ctx context.Context, s *Session, image *Subject) (*Venv, error) {
	name, _ := venvPlace(r.Venv)
	v, err := s.OpenVenv(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := v.Check(ctx, image, false); err != nil {
		if !r.AnyBase {
			v.Close()
			return nil, err
		}
		progress.Warn(ctx, err.Error(), "")
	}
	return v, nil
}

// venvPlace cuts FILE[:DIR].
func venvPlace(text string) (name, at string) {
	if _, err := os.Lstat(text); err == nil {
		return text, ""
	}
	if i := strings.LastIndex(text, ":/"); i > 0 {
		return text[:i], text[i+1:]
	}
	return text, ""
}

// withVenv puts an environment on top of the root that use gets.
func (r *running) withVenv(ctx context.Context, v *Venv, use func(*Session, *Root) error) func(*Session, *Root) error {
	return func(s *Session, root *Root) error {
		_, at := venvPlace(r.Venv)
		m, err := v.Mount(ctx, at)
		if err != nil {
			return err
		}
		with := *root
		with.Mounts = append([]sandbox.Mount{}, root.Mounts...)
		with.Mounts = append(with.Mounts, m)
		config := *root.Config
		config.Config.Env = v.Enter(config.Config.Env, at)
		with.Config = &config
		return use(s, &with)
	}
}
