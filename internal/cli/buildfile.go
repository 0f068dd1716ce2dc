package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
)

// buildFileOf says which build file and context the arguments name. found is false when they name a recipe.
func buildFileOf(o buildOptions) (file, dir string, found bool) {
	if o.file != "" {
		return o.file, o.recipe, true
	}
	return engine.FindBuildFile(o.recipe)
}

// checkBuildFlags refuses flags that mean nothing to what is built.
func checkBuildFlags(o buildOptions, isFile bool) error {
	misplaced := map[string]bool{"--locked": o.locked, "--publish": o.publish, "--wheels": o.wheels != ""}
	what, instead := "a Containerfile", "a recipe (sconce.toml)"
	if !isFile {
		misplaced = map[string]bool{
			"--build-arg": len(o.buildArgs) > 0, "--build-arg-file": len(o.argFiles) > 0, "--target": o.target != "", "--tag": len(o.tags) > 0, "--ignore-file": o.ignoreFile != "",
			"--label": len(o.labels) > 0, "--network none": o.steps.network == noNetwork, "--build-context": len(o.contexts) > 0,
		}
		what, instead = instead, what
	}
	for _, name := range []string{"--locked", "--publish", "--wheels", "--build-arg", "--build-arg-file", "--target", "--tag", "--ignore-file", "--label", "--network none", "--build-context"} {
		if misplaced[name] {
			err := fmt.Errorf("%s: this builds %s, and the flag is for %s", name, what, instead)
			if key := inRecipe[name]; key != "" {
				err = fault.Hint(err, "a recipe says it itself, by "+key)
			}
			return fault.Usage(err)
		}
	}
	return nil
}

// inRecipe is by which keys a recipe says what flags say of a Containerfile.
var inRecipe = map[string]string{
	"--tag": "name and version; `sconce pull IMAGE --name NAME:TAG` gives an image further names", "--label": "labels under [image]", "--network none": "network = false in a [[step]]",
	"--build-arg": "env under [image] or of a [[step]], and by [variant]", "--target": "[variant]",
}

func (a *app) planFile(ctx context.Context, o buildOptions, file, dir string) (*engine.Session, *engine.Plan, error) {
	f := engine.Containerfile{File: file, Context: dir, IgnoreFile: o.ignoreFile, Stage: o.target, Compression: o.compression}
	var err error
	named := dir
	if f.Definition = engine.IsDefinition(file); f.Definition {
		if len(o.contexts) > 0 {
			return nil, nil, fault.Usage(errors.New("--build-context: a definition file has no names for it to mean"))
		}
		if name, is := strings.CutSuffix(filepath.Base(file), ".def"); is {
			named = name
		}
	}
	if f.Platform, err = platformOf(o); err != nil {
		return nil, nil, err
	}
	if f.Name, err = imageName(o.tags, named); err != nil {
		return nil, nil, err
	}
	network, err := readNetwork(o.steps.network)
	if err != nil {
		return nil, nil, err
	}
	f.NoNetwork = network == noNetwork
	if f.Labels, err = parseLabels(o.labels); err != nil {
		return nil, nil, err
	}
	if f.Contexts, err = engine.ReadContexts(o.contexts); err != nil {
		return nil, nil, fault.Usage(fmt.Errorf("--build-context %w", err))
	}
	lines, err := argumentLines(o.argFiles)
	if err != nil {
		return nil, nil, err
	}
	if f.Args, err = buildArgs(append(lines, o.buildArgs...)); err != nil {
		return nil, nil, err
	}
	if f.Text, err = engine.ReadBuildFile(file, a.stdin); err != nil {
		return nil, nil, err
	}
	s, err := a.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	p, err := s.PlanContainerfile(ctx, f)
	return s, p, err
}

// platformOf is what the image is built for: --platform, else this machine.
func platformOf(o buildOptions) (v1.Platform, error) {
	text := "linux/" + runtime.GOARCH
	if o.platform != "" {
		var err error
		if text, err = recipe.ParsePlatform(o.platform); err != nil {
			return v1.Platform{}, fault.Usage(fmt.Errorf("--platform: %w", err))
		}
	}
	p, err := v1.ParsePlatform(text)
	if err != nil {
		return v1.Platform{}, err
	}
	return *p, nil
}

var notInNames = lazyregexp.New(`[^a-z0-9]+`)

// imageName is the first name that the image gets in the store: that of --tag, else that of the context's directory.
func imageName(tags []string, dir string) (string, error) {
	if len(tags) > 0 {
		return tags[0], nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(filepath.Base(abs)), "-"), "-")
	return cmp.Or(name, "image") + ":" + store.DefaultTag, nil
}

// wholeNames are the names of --tag, each with its tag.
func wholeNames(tags []string) ([]string, error) {
	names := make([]string, len(tags))
	for i, given := range tags {
		name, tag, err := store.ParseImageName(given)
		if err != nil {
			return nil, err
		}
		names[i] = name + ":" + tag
	}
	return names, nil
}

// argumentLines reads --build-arg-file.
func argumentLines(files []string) ([]string, error) {
	var all []string
	for _, name := range files {
		lines, err := engine.ReadArguments(name)
		if err != nil {
			return nil, fault.Usage(fmt.Errorf("--build-arg-file: %w", err))
		}
		all = append(all, lines...)
	}
	return all, nil
}

// buildArgs reads --build-arg NAME=VALUE, or NAME for a variable of this process.
func buildArgs(flags []string) (map[string]string, error) {
	args := make(map[string]string)
	for _, text := range flags {
		name, value, given := strings.Cut(text, "=")
		if name == "" {
			return nil, fault.Usage(fmt.Errorf("--build-arg %q is not of the form NAME=VALUE", text))
		}
		if !given {
			if value, given = os.LookupEnv(name); !given {
				continue // as if it was not said at all
			}
		}
		args[name] = value
	}
	return args, nil
}
