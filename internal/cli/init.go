package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/torecipe"
)

// initOptions are the options of `sconce init`.
type initOptions struct {
	dir   string
	force bool
	from  []string
	base  string
}

func newInitCmd(a *app) *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init [DIR]",
		Short: "Write a recipe to start from",
		Long: `Write ` + recipe.FileName + ` into DIR, by default the current directory. The recipe works as it is, and its comments show
what else there is. It stands on Debian's packages, or on an image where no mirror of those is known.

With --from, it is the recipe that builds what is there already: the environment of environment.yml files or of a conda
lock, the packages of requirements.txt files, the dependencies of a pyproject.toml, or the image of a Containerfile. What a
recipe cannot say is refused, with the line and the reason. Files that are named stay where they are: the recipe refers to
them.

DIR is made if it does not exist, and its name becomes the image's. A recipe that is there already stays, unless --force
is given.`,
		Example: examples(
			"sconce init llm-train                        write llm-train/sconce.toml",
			"sconce init --from environment.yml --from more.yml",
			"sconce init --from requirements.txt          a recipe with these packages",
			"sconce init --from pyproject.toml --base docker://python:3.12-slim",
			"sconce init app --from app/Dockerfile        a step for each instruction",
			"sconce init --force                          replace ./sconce.toml",
		),
		Args: wants("[DIR]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.dir = "."
			if len(args) > 0 {
				o.dir = args[0]
			}
			return a.runInit(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.from, "from", nil, "build what this `FILE` says: environment.yml, requirements.txt (both repeatable), pyproject.toml, Containerfile")
	f.StringVar(&o.base, "base", "", "with --from, stand on this `IMAGE` (default: Debian or Ubuntu with a Python that fits)")
	f.BoolVar(&o.force, "force", false, "replace a recipe that is there already")
	return cmd
}

func (a *app) runInit(ctx context.Context, o initOptions) error {
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return err
	}
	path := filepath.Join(o.dir, recipe.FileName)
	if _, err := os.Lstat(path); err == nil && !o.force {
		return exists(path)
	}
	onImage := !engine.HasMirror(recipe.StarterSuite)
	text := recipe.Starter(filepath.Base(dir), onImage)
	if len(o.from) > 0 || o.base != "" {
		if text, err = a.recipeFrom(ctx, o, dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("start a recipe: %w", err)
	}
	if err := writeRecipe(path, text, o.force); err != nil {
		return err
	}
	if onImage && len(o.from) == 0 {
		a.say("it stands on an image of Docker Hub, as no mirror of Debian is known here: `mirrors` in %s names one", config.Site)
	}
	a.say("wrote %s; `sconce build %s` builds it", path, job.Word(o.dir))
	return nil
}

func exists(path string) error {
	return fault.Usage(fault.Hint(fmt.Errorf("%s exists already", path), "--force replaces it"))
}

func writeRecipe(path string, text []byte, force bool) error {
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return exists(path)
	}
	if err != nil {
		return fmt.Errorf("start a recipe: %w", err)
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// The kinds of files that a recipe can be made from.
const (
	fromEnvironments  = "environment files"
	fromCondaLock     = "a conda lock"
	fromRequirements  = "requirements files"
	fromProject       = "a pyproject.toml"
	fromContainerfile = "a Containerfile"
)

func kindOf(file string) (string, error) {
	switch name := filepath.Base(file); {
	case name == "pyproject.toml":
		return fromProject, nil
	case isContainerfile(file):
		return fromContainerfile, nil
	case isDefinition(file):
		return "", fault.Usage(fault.Hint(fmt.Errorf("--from %s: no recipe is made from a definition file", file),
			fmt.Sprintf("`sconce build %s` builds it as it is", job.Word(file))))
	case strings.HasSuffix(name, "conda-lock.yml"), name == "pixi.lock":
		return fromCondaLock, nil
	case strings.HasSuffix(name, ".yml"), strings.HasSuffix(name, ".yaml"):
		return fromEnvironments, nil
	case strings.HasSuffix(name, ".txt"), strings.HasSuffix(name, ".in"):
		return fromRequirements, nil
	}
	return "", fault.Usage(fmt.Errorf("--from %s: it is no environment.yml, requirements.txt, pyproject.toml or Containerfile by its name", file))
}

// recipeFrom writes the recipe that builds what the files say, and checks that it is one.
func (a *app) recipeFrom(ctx context.Context, o initOptions, dir string) ([]byte, error) {
	if len(o.from) == 0 {
		return nil, fault.Usage(fault.Hint(errors.New("--base: it goes with --from"), "without it, name the image in the recipe, under [base]"))
	}
	kind, err := kindOf(o.from[0])
	if err != nil {
		return nil, err
	}
	for _, file := range o.from[1:] {
		other, err := kindOf(file)
		if err != nil {
			return nil, err
		}
		if other != kind || kind != fromRequirements && kind != fromEnvironments {
			return nil, fault.Usage(fmt.Errorf("--from %s and %s: a recipe is made from one file, or from several environment or requirements files", o.from[0], file))
		}
	}
	how := torecipe.Options{Name: recipe.ImageName(filepath.Base(dir)), Base: o.base, Dir: dir}
	var text []byte
	switch kind {
	case fromEnvironments:
		text, err = torecipe.FromEnvironments(o.from, how)
	case fromCondaLock:
		text, err = torecipe.FromCondaLock(o.from[0], how)
	case fromRequirements:
		text, err = torecipe.FromRequirements(o.from, how)
	case fromProject:
		text, err = torecipe.FromProject(o.from[0], how)
	default:
		text, err = a.recipeFromContainerfile(ctx, o, how)
	}
	if err != nil {
		return nil, err
	}
	return text, recipe.Validate(text, recipe.FileName, dir)
}

func (a *app) recipeFromContainerfile(ctx context.Context, o initOptions, how torecipe.Options) ([]byte, error) {
	if o.base != "" {
		return nil, fault.Usage(errors.New("--base: a Containerfile names its own, after FROM"))
	}
	file := o.from[0]
	text, err := a.readBuildFile(file)
	if err != nil {
		return nil, err
	}
	s, err := a.open(ctx)
	if err != nil {
		return nil, err
	}
	c := torecipe.Containerfile{File: file, Context: filepath.Dir(file), Ignored: ignoreFileOf(file)}
	c.Build, c.Base, err = s.ReadContainerfile(ctx, engine.Containerfile{
		File: file, Text: text, Context: c.Context, Platform: v1.Platform{OS: "linux", Architecture: runtime.GOARCH},
	})
	if err != nil {
		return nil, err
	}
	written, notes, err := torecipe.FromContainerfile(c, how)
	for _, n := range notes {
		a.say("note: %s", n)
	}
	return written, err
}

// ignoreFileOf returns the file that says what the context of a Containerfile leaves out, "" when there is none.
func ignoreFileOf(file string) string {
	if own := fileop.IgnoreFileOf(file); own != "" {
		return own
	}
	for _, name := range fileop.IgnoreFiles {
		path := filepath.Join(filepath.Dir(file), name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}
