package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/pipeline"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/units"
)

// lockOptions are the options of `sconce lock`.
type lockOptions struct {
	recipes  []string
	check    bool
	upgrade  bool
	packages []string
	platform string
	json     bool
}

// lockAnswer is what `sconce lock --json` says of a recipe.
type lockAnswer struct {
	Recipe   string               `json:"recipe"`
	Lock     string               `json:"lock,omitempty"` // its file; none when the recipe cannot be read
	UpToDate bool                 `json:"upToDate"`
	Changes  []engine.LockChange  `json:"changes,omitempty"`  // what was decided now, against the lock before
	Warnings []engine.LockWarning `json:"warnings,omitempty"` // of what was decided now
	Drift    []string             `json:"drift,omitempty"`    // --check: how recipe and lock differ
	Error    string               `json:"error,omitempty"`
}

func newLockCmd(a *app) *cobra.Command {
	var o lockOptions
	cmd := &cobra.Command{
		Use:   "lock [RECIPE...]",
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
of your own (lock = "pylock.toml", or a project's uv.lock) are taken as they are; --upgrade then concerns the base alone.

All variants of a recipe are locked, unless one is named: DIR:VARIANT. Of several recipes each is locked, whatever is
wrong with another. ` + "`sconce pipeline lock`" + ` locks all recipes of a pipeline.`,
		Example: examples(
			"sconce lock                              pin ./sconce.toml",
			"sconce lock --upgrade-package torch      take a newer torch, keep the rest",
			"sconce lock --check                      exit 3 if the lock does not fit the recipe",
			"sconce lock images/* --upgrade           take the newest of everything, for each of them",
		),
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.recipes = args; len(args) == 0 {
				o.recipes = []string{"."}
			}
			return a.runLock(cmd.Context(), o)
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&o.platform, "platform", "", "lock for this `PLATFORM`, linux/amd64 or linux/arm64 (default: the recipe's, else this machine's)")
	complete(cmd, "platform", "linux/amd64", "linux/arm64")
	return cmd
}

func (o *lockOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&o.check, "check", false, "change nothing; say how lock and recipe differ")
	f.BoolVarP(&o.upgrade, "upgrade", "U", false, "take the newest of everything, the base included")
	f.StringArrayVarP(&o.packages, "upgrade-package", "P", nil, "take the newest of this Python or conda `PACKAGE` (repeatable)")
	f.BoolVar(&o.json, "json", false, "print what was decided, for each recipe, as JSON")
	cmd.MarkFlagsMutuallyExclusive("check", "upgrade")
	cmd.MarkFlagsMutuallyExclusive("check", "upgrade-package")
}

// recipeArgument is the recipe that a command was given, by default the one in the current directory.
func recipeArgument(args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	return "."
}

// runLock locks recipes, each in all its variants.
func (a *app) runLock(ctx context.Context, o lockOptions) error {
	var refs []string
	for _, r := range o.recipes {
		refs = append(refs, allVariants(r)...)
	}
	return a.lockAll(ctx, refs, o)
}

// lockAll locks recipes one after the other, and those too that come after one with which something is wrong: all of that is told at the
// end.
func (a *app) lockAll(ctx context.Context, refs []string, o lockOptions) error {
	answers := []lockAnswer{}
	var failures []error
	for _, ref := range refs {
		if err := ctx.Err(); err != nil {
			return err
		}
		answer, err := a.lockOne(ctx, ref, o)
		if err != nil {
			answer.Error = err.Error()
			if len(refs) > 1 {
				err = fmt.Errorf("%s: %w", ref, err)
			}
			failures = append(failures, err)
		}
		answers = append(answers, answer)
	}
	if o.json {
		if err := a.printJSON(answers); err != nil {
			return err
		}
	}
	if len(failures) == 1 {
		return failures[0]
	}
	return errors.Join(failures...)
}

func newPipelineLockCmd(a *app) *cobra.Command {
	var o lockOptions
	cmd := &cobra.Command{
		Use:   "lock [IMAGE...]",
		Short: "Pin what the recipes of a pipeline mean today",
		Long: `Lock the recipes of all images of the pipeline, each as by sconce lock: first those that others stand on.
With names, those images alone. What is wrong with one recipe does not keep others from being locked.`,
		Example: examples(
			"sconce pipeline lock                     pin what is not pinned yet",
			"sconce pipeline lock --upgrade           take the newest of everything",
			"sconce pipeline lock --check             exit 3 if a lock does not fit its recipe",
		),
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			refs, err := recipesHere(args)
			if err != nil {
				return err
			}
			return a.lockAll(cmd.Context(), refs, o)
		},
	}
	o.addFlags(cmd)
	return cmd
}

// recipesHere are the recipes of the images of this directory's pipeline, by their paths from here.
func recipesHere(names []string) ([]string, error) {
	p, err := pipeline.Open(".")
	if err != nil {
		return nil, err
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	all, err := p.Recipes(names)
	if err != nil {
		return nil, err
	}
	var refs []string
	for _, r := range all {
		ref := r.Ref()
		if near, err := filepath.Rel(here, ref); err == nil {
			ref = near
		}
		refs = append(refs, ref)
	}
	return refs, nil
}

// allVariants is the recipe that ref names, or all variants of one that has some and of which none is named. What is wrong with the
// recipe is for its reader to say.
func allVariants(ref string) []string {
	path, variant := recipe.SplitVariant(ref)
	if variant != "" {
		return []string{ref}
	}
	variants, err := recipe.Variants(path)
	if err != nil || len(variants) == 0 {
		return []string{ref}
	}
	for i, v := range variants {
		variants[i] = path + ":" + v
	}
	return variants
}

func (a *app) lockOne(ctx context.Context, ref string, o lockOptions) (lockAnswer, error) {
	answer := lockAnswer{Recipe: ref}
	r, err := loadRecipe(ref, o.platform, "")
	if err != nil {
		return answer, err
	}
	answer.Lock = r.LockName()
	if o.check && r.Below == nil {
		return a.checkLock(r, answer)
	}
	s := a.session
	if s == nil {
		if s, err = a.open(ctx); err != nil {
			return answer, err
		}
	}
	below, err := a.below(ctx, r)
	if err != nil {
		return answer, err
	}
	if o.check {
		if err := s.PlanBelow(ctx, r, below.Canonical); err != nil {
			return answer, err
		}
		return a.checkLock(r, answer)
	}
	l, err := s.Lock(ctx, r, engine.LockOptions{Upgrade: o.upgrade, Packages: o.packages, Canonical: below.Canonical, Trust: below.Trust})
	if err != nil {
		return answer, err
	}
	answer.UpToDate, answer.Changes, answer.Warnings = l.Fresh, l.Changes, l.Warnings
	if l.Fresh {
		a.say("%s is up to date", r.LockName())
	} else {
		a.say("wrote %s: %s", r.LockName(), describeLock(l))
	}
	return answer, nil
}

func (a *app) checkLock(r *engine.Recipe, answer lockAnswer) (lockAnswer, error) {
	if err := r.CheckLock(); err != nil {
		if state, readErr := r.ReadLock(); readErr == nil {
			answer.Drift = state.Drift
		}
		return answer, err
	}
	answer.UpToDate = true
	a.say("%s fits the recipe", r.LockName())
	return answer, nil
}

// below says where images of the recipe's pipeline are that it may stand on, and who has to have signed them. Of a recipe that is based on none, and
// of one that is part of no pipeline, there is nothing to say.
func (a *app) below(ctx context.Context, r *engine.Recipe) (none engine.PlanOptions, err error) {
	p, err := pipeline.Open(r.Dir)
	if err != nil || r.Below == nil {
		return none, nil //nolint:nilerr // then it is part of none
	}
	if _, ok := p.Contains(r.Ref()); !ok {
		return none, nil
	}
	more, err := engine.TrustedKeys(a.settings().Believed(nil))
	if err != nil {
		return none, err
	}
	return p.Below(ctx, more), nil
}

func describeLock(l *engine.Locked) string {
	base := l.Base.Reference + l.Base.Recipe
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
