package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/units"
)

// containerfiles are the names that a directory's build file may have, the first that exists counts.
var containerfiles = []string{"Containerfile", "Dockerfile"}

// containerfileOf says which build file and context the arguments name. found is false when they name a recipe.
func containerfileOf(o buildOptions) (file, dir string, found bool) {
	if o.file != "" {
		return o.file, o.recipe, true
	}
	info, err := os.Stat(o.recipe)
	switch {
	case err != nil:
		return "", "", false // the recipe's reader explains it
	case !info.IsDir():
		if isDefinition(o.recipe) {
			return o.recipe, ".", true // Apptainer takes files from where it is called
		}
		return o.recipe, filepath.Dir(o.recipe), isContainerfile(o.recipe)
	}
	if _, err := os.Stat(filepath.Join(o.recipe, recipe.FileName)); err == nil {
		return "", "", false
	}
	for _, name := range containerfiles {
		file := filepath.Join(o.recipe, name)
		if _, err := os.Stat(file); err == nil {
			return file, o.recipe, true
		}
	}
	return definitionIn(o.recipe)
}

// definitionIn finds the definition file of a directory, when there is one and no other.
func definitionIn(dir string) (file, context string, found bool) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", "", false // the recipe's reader explains it
	}
	var names []string
	for _, e := range entries {
		if e.Name() == "Singularity" || filepath.Ext(e.Name()) == ".def" && !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	if len(names) != 1 {
		return "", "", false
	}
	return filepath.Join(dir, names[0]), dir, true
}

// isDefinition goes by the usual names of definition files: train.def, Singularity, Singularity.train.
func isDefinition(file string) bool {
	name := filepath.Base(file)
	return strings.HasSuffix(name, ".def") || name == "Singularity" || strings.HasPrefix(name, "Singularity.")
}

// nothingToBuild adds to err, of a directory without a recipe, that a Containerfile would do as well.
func nothingToBuild(o buildOptions, err error) error {
	info, statErr := os.Stat(o.recipe)
	if statErr != nil || !info.IsDir() {
		return err
	}
	if _, statErr := os.Stat(filepath.Join(o.recipe, recipe.FileName)); statErr == nil {
		return err
	}
	return fault.Hint(err, "`sconce init` writes a commented one to start from; a Containerfile, Dockerfile or one definition file (NAME.def) there, or named by -f, is built as well")
}

// isContainerfile goes by the usual names: Containerfile, Dockerfile.dev, train.Dockerfile.
func isContainerfile(file string) bool {
	name := strings.ToLower(filepath.Base(file))
	for _, known := range []string{"containerfile", "dockerfile"} {
		if name == known || strings.HasPrefix(name, known+".") || strings.HasSuffix(name, "."+known) {
			return true
		}
	}
	return false
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
	if f.Definition = isDefinition(file); f.Definition {
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
	if f.Contexts, err = parseContexts(o.contexts); err != nil {
		return nil, nil, err
	}
	lines, err := argumentLines(o.argFiles)
	if err != nil {
		return nil, nil, err
	}
	if f.Args, err = buildArgs(append(lines, o.buildArgs...)); err != nil {
		return nil, nil, err
	}
	if f.Text, err = a.readBuildFile(file); err != nil {
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

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

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

// maxContainerfile bounds a Containerfile in bytes.
const maxContainerfile = 4 << 20

// readBuildFile reads the file, or standard input for "-".
func (a *app) readBuildFile(file string) ([]byte, error) {
	from := a.stdin
	if file != "-" {
		f, err := os.Open(file)
		if errors.Is(err, os.ErrNotExist) {
			return nil, fault.Usage(fault.Hint(fmt.Errorf("no file %s", file), "sconce build -f FILE [CONTEXT] builds a Containerfile, sconce build [RECIPE] a recipe"))
		}
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from = f
	}
	return readAtMost(from, maxContainerfile, file)
}

// argumentLines reads --build-arg-file: lines NAME=VALUE, and comments.
func argumentLines(files []string) ([]string, error) {
	var lines []string
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, fault.Usage(fmt.Errorf("--build-arg-file: %w", err))
		}
		data, err := readAtMost(f, maxContainerfile, name)
		f.Close()
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(data)) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				lines = append(lines, line)
			}
		}
	}
	return lines, nil
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

// readAtMost reads all of r, which must not be longer than limit bytes.
func readAtMost(r io.Reader, limit int64, name string) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("read %s: it is larger than %s", name, units.Size(limit))
	}
	return data, nil
}
