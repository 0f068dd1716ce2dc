package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/units"
)

// lockOptions are the options of `sconce lock`.
type lockOptions struct {
	recipe   string
	check    bool
	upgrade  bool
	packages []string
	platform string
}

func newLockCmd(a *app) *cobra.Command {
	var o lockOptions
	cmd := &cobra.Command{
		Use:   "lock [RECIPE]",
		Short: "Pin what a recipe means today",
		Long: `Decide everything that RECIPE (a sconce.toml or its directory, by default the current one) leaves open, and write it
beside the recipe: the base by digest, the system packages, the sources of components by hash and commit, and the facts about
the base's Python into sconce.lock, the Python packages into pylock.toml, the standard lock file of Python (PEP 751), and the
conda packages into conda-lock.yml (CEP 37).

What an earlier lock decided stays while the recipe still asks for it; --upgrade and --upgrade-package take the newest.
Python packages are resolved by uv, for the base's Python and the target's platform, with the indexes and credentials that
uv (or, where uv has none, pip) is configured with. System packages are those that the base's own package manager would
install, which is asked in a sandbox; nothing else of the base is run.

The versions are those that uv takes by itself. What has no wheel that fits comes as its source, of which nothing is run, and
is compiled when the image is built. If another version has to be taken (only-binary, or a source that cannot be used), lock
says so.

What the recipe's base brings and protects (torch, when the base has it) is not replaced. Packages that come from a lock
of your own (lock = "pylock.toml", or a project's uv.lock) are taken as they are; --upgrade then concerns the base alone.`,
		Example: examples(
			"sconce lock                              pin ./sconce.toml",
			"sconce lock --upgrade-package torch      take a newer torch, keep the rest",
			"sconce lock --check                      exit 3 if the lock does not fit the recipe",
		),
		Args: wants("[RECIPE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.recipe = recipeArgument(args)
			return a.runLock(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.check, "check", false, "change nothing; say how lock and recipe differ")
	f.BoolVarP(&o.upgrade, "upgrade", "U", false, "take the newest of everything, the base included")
	f.StringArrayVarP(&o.packages, "upgrade-package", "P", nil, "take the newest of this Python or conda `PACKAGE` (repeatable)")
	f.StringVar(&o.platform, "platform", "", "lock for linux/amd64 or linux/arm64 (default: the recipe's, else this machine's)")
	cmd.MarkFlagsMutuallyExclusive("check", "upgrade")
	cmd.MarkFlagsMutuallyExclusive("check", "upgrade-package")
	complete(cmd, "platform", "linux/amd64", "linux/arm64")
	return cmd
}

// recipeArgument is the recipe that a command was given, by default the one in the current directory.
func recipeArgument(args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	return "."
}

func (a *app) runLock(ctx context.Context, o lockOptions) error {
	r, err := loadRecipe(o.recipe, o.platform, "")
	if err != nil {
		return err
	}
	if o.check {
		if err := r.CheckLock(); err != nil {
			return err
		}
		a.say("%s fits the recipe", r.LockName())
		return nil
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	l, err := s.Lock(ctx, r, engine.LockOptions{Upgrade: o.upgrade, Packages: o.packages})
	if err != nil {
		return err
	}
	if l.Fresh {
		a.say("%s is up to date", r.LockName())
	} else {
		a.say("wrote %s: %s", r.LockName(), describeLock(l))
	}
	return nil
}

func describeLock(l *engine.Locked) string {
	base := l.Base.Reference
	if b := l.Base.Bootstrap; b != nil {
		base = fmt.Sprintf("%s (%s)", b.Suite, units.Number(len(b.Packages), "package"))
	}
	text := "base " + base
	if l.System != nil {
		text += ", " + units.Number(len(l.System.Packages), "system package")
	}
	if n := len(l.Source); n > 0 {
		text += ", " + units.Number(n, "source")
	}
	if l.Lock.Conda != nil {
		text += ", " + units.Number(len(l.Conda.Packages), "conda package")
	}
	if l.Python != nil {
		text += fmt.Sprintf(", Python %s, %s", l.Python.Version, units.Number(len(l.Wheels), "Python package"))
	}
	return text
}
