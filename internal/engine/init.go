package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/torecipe"
)

// InitOptions say what recipe to start from.
type InitOptions struct {
	Dir   string   // where it is written; its name becomes the image's
	From  []string // files that say what the image has; none: a recipe with comments
	Base  string   // the image that it is based on, of files that name none; "": a distribution with a Python that fits
	Force bool     // replace a recipe that is there already
}

// Initialized is a recipe that was written.
type Initialized struct {
	Path    string
	Notes   []string // on what it cannot say as it was said
	OnImage bool     // nobody said on what it stands, and no mirror of a distribution is known
	Outside []string // files and directories that it names and that are not its own, see [reach.Bounds]
}

// Init writes a recipe.
func Init(ctx context.Context, o InitOptions, open Opener) (Initialized, error) {
	made := Initialized{Path: filepath.Join(o.Dir, recipe.FileName)}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return made, err
	}
	if _, err := os.Lstat(made.Path); err == nil && !o.Force {
		return made, exists(made.Path)
	}
	var text []byte
	if len(o.From) > 0 || o.Base != "" {
		text, made.Notes, err = recipeFrom(ctx, o, dir, open)
		if err == nil {
			made.Outside = o.outside(dir)
		}
	} else {
		made.OnImage = !HasMirror(recipe.StarterSuite)
		text = recipe.Starter(filepath.Base(dir), made.OnImage)
	}
	if err != nil {
		return made, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return made, fmt.Errorf("start a recipe: %w", err)
	}
	return made, writeRecipe(made.Path, text, o.Force)
}

// outside lists what the recipe in dir will name and may not read without the user's word.
func (o InitOptions) outside(dir string) []string {
	bounds := reach.InRepository("the recipe", dir)
	named := slices.Clone(o.From)
	if kind, err := originOfAll(o.From); err == nil && (kind == fromProject || kind == fromContainerfile) {
		named = []string{filepath.Dir(o.From[0])}
	}
	if ref, err := source.Parse(o.Base); err == nil && ref.Path() != "" {
		named = append(named, ref.Path())
	}
	return slices.DeleteFunc(named, func(path string) bool { return bounds.Check(path) == nil })
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

// origin is a kind of files that a recipe can be made from.
type origin int

const (
	fromEnvironments origin = iota
	fromCondaLock
	fromRequirements
	fromProject
	fromContainerfile
)

func originOf(file string) (origin, error) {
	switch name := filepath.Base(file); {
	case name == "pyproject.toml":
		return fromProject, nil
	case IsContainerfile(file):
		return fromContainerfile, nil
	case IsDefinition(file):
		return 0, fault.Usage(fault.Hint(fmt.Errorf("--from %s: no recipe is made from a definition file", file),
			fmt.Sprintf("`sconce build %s` builds it as it is", quote.Word(quote.Operand(file)))))
	case strings.HasSuffix(name, "conda-lock.yml"), name == "pixi.lock":
		return fromCondaLock, nil
	case strings.HasSuffix(name, ".yml"), strings.HasSuffix(name, ".yaml"):
		return fromEnvironments, nil
	case strings.HasSuffix(name, ".txt"), strings.HasSuffix(name, ".in"):
		return fromRequirements, nil
	}
	return 0, fault.Usage(fmt.Errorf("--from %s: it is no environment.yml, requirements.txt, pyproject.toml or Containerfile by its name", file))
}

// originOfAll is the kind of the files, which are one, or several that are read together.
func originOfAll(files []string) (origin, error) {
	kind, err := originOf(files[0])
	if err != nil {
		return 0, err
	}
	for _, file := range files[1:] {
		other, err := originOf(file)
		if err != nil {
			return 0, err
		}
		if other != kind || kind != fromRequirements && kind != fromEnvironments {
			return 0, fault.Usage(fmt.Errorf("--from %s and %s: a recipe is made from one file, or from several environment or requirements files", files[0], file))
		}
	}
	return kind, nil
}

// recipeFrom writes the recipe that builds what the files say, and checks that it is one.
func recipeFrom(ctx context.Context, o InitOptions, dir string, open Opener) (text []byte, notes []string, err error) {
	if len(o.From) == 0 {
		return nil, nil, fault.Usage(fault.Hint(errors.New("--base: it goes with --from"), "without it, name the image in the recipe, under [base]"))
	}
	kind, err := originOfAll(o.From)
	if err != nil {
		return nil, nil, err
	}
	how := torecipe.Options{Name: recipe.ImageName(filepath.Base(dir)), Base: o.Base, Dir: dir}
	switch kind {
	case fromEnvironments:
		text, err = torecipe.FromEnvironments(o.From, how)
	case fromCondaLock:
		text, err = torecipe.FromCondaLock(o.From[0], how)
	case fromRequirements:
		text, err = torecipe.FromRequirements(o.From, how)
	case fromProject:
		text, err = torecipe.FromProject(o.From[0], how)
	default:
		text, notes, err = recipeFromContainerfile(ctx, o, how, open)
	}
	if err != nil {
		return nil, notes, err
	}
	return text, notes, recipe.Validate(text, recipe.FileName, dir)
}

func recipeFromContainerfile(ctx context.Context, o InitOptions, how torecipe.Options, open Opener) (text []byte, notes []string, err error) {
	if o.Base != "" {
		return nil, nil, fault.Usage(errors.New("--base: a Containerfile names its own, after FROM"))
	}
	f := Containerfile{File: o.From[0], Context: filepath.Dir(o.From[0]), Platform: v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}
	if f.Text, err = ReadBuildFile(f.File, nil); err != nil {
		return nil, nil, err
	}
	s, err := open(ctx)
	if err != nil {
		return nil, nil, err
	}
	c := torecipe.Containerfile{File: f.File, Context: f.Context, Ignored: fileop.FindIgnoreFile(f.Context, f.File)}
	if c.Build, c.Base, err = s.ReadContainerfile(ctx, f); err != nil {
		return nil, nil, err
	}
	return torecipe.FromContainerfile(c, how)
}
