package engine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/containerfile"
	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/recipe"
)

// buildFiles are the names that a directory's build file may have, the first that exists counts.
var buildFiles = []string{"Containerfile", "Dockerfile"}

// FindBuildFile says which Containerfile or definition file somebody means by a path, and which directory it takes files from. found is
// false when the path names a recipe.
func FindBuildFile(path string) (file, context string, found bool) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", "", false // the recipe's reader explains it
	case !info.IsDir() && IsDefinition(path):
		return path, ".", true // Apptainer takes files from where it is called
	case !info.IsDir():
		return path, filepath.Dir(path), IsContainerfile(path)
	case hasRecipe(path):
		return "", "", false
	}
	for _, name := range buildFiles {
		file := filepath.Join(path, name)
		if _, err := os.Stat(file); err == nil {
			return file, path, true
		}
	}
	return definitionIn(path)
}

func hasRecipe(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, recipe.FileName))
	return err == nil
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

// IsDefinition goes by the usual names of definition files: train.def, Singularity, Singularity.train.
func IsDefinition(file string) bool {
	name := filepath.Base(file)
	return strings.HasSuffix(name, ".def") || name == "Singularity" || strings.HasPrefix(name, "Singularity.")
}

// IsContainerfile goes by the usual names: Containerfile, Dockerfile.dev, train.Dockerfile.
func IsContainerfile(file string) bool {
	name := strings.ToLower(filepath.Base(file))
	for _, known := range []string{"containerfile", "dockerfile"} {
		if name == known || strings.HasPrefix(name, known+".") || strings.HasSuffix(name, "."+known) {
			return true
		}
	}
	return false
}

// NothingToBuild adds to err, of a directory without a recipe, what else would do.
func NothingToBuild(path string, err error) error {
	if info, statErr := os.Stat(path); statErr != nil || !info.IsDir() || hasRecipe(path) {
		return err
	}
	return fault.Hint(err, "`sconce init` writes a commented one to start from; a Containerfile, Dockerfile or one definition file (NAME.def) there, or named by -f, is built as well")
}

// maxBuildFile bounds a Containerfile, and a file of arguments for one, in bytes.
const maxBuildFile = 4 << 20

// ReadBuildFile reads a Containerfile or a definition file, or stdin for "-".
func ReadBuildFile(file string, stdin io.Reader) ([]byte, error) {
	if file == "-" {
		text, err := ctxio.ReadAtMost(stdin, maxBuildFile)
		if err != nil {
			return nil, fmt.Errorf("read stdin: %w", err)
		}
		return text, nil
	}
	text, err := ctxio.ReadFile(file, maxBuildFile)
	if errors.Is(err, os.ErrNotExist) {
		err = fault.Usage(fault.Hint(fmt.Errorf("no file %s", file), "sconce build -f FILE [CONTEXT] builds a Containerfile, sconce build [RECIPE] a recipe"))
	}
	return text, err
}

// ReadArguments reads a file of arguments for a Containerfile: lines NAME=VALUE or NAME, and comments.
func ReadArguments(file string) ([]string, error) {
	text, err := ctxio.ReadFile(file, maxBuildFile)
	if err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			lines = append(lines, line)
		}
	}
	return lines, nil
}

// ReadContexts reads what names in a Containerfile stand for: NAME=DIR or NAME=docker-image://REFERENCE.
func ReadContexts(texts []string) (map[string]containerfile.Source, error) {
	contexts := make(map[string]containerfile.Source, len(texts))
	for _, text := range texts {
		name, from, err := readContext(text)
		if err != nil {
			return nil, err
		}
		contexts[name] = from
	}
	return contexts, nil
}

func readContext(text string) (name string, from containerfile.Source, err error) {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" || value == "" {
		return "", from, fmt.Errorf("%q is not of the form NAME=DIR or NAME=docker-image://REFERENCE", text)
	}
	from.Stage = -1
	kind, rest, hasKind := strings.Cut(value, "://")
	switch {
	case !hasKind:
		from.Dir = value
		if info, err := os.Stat(value); err != nil || !info.IsDir() {
			return "", from, fmt.Errorf("%s: there is no directory %s", name, value)
		}
	case slices.Contains([]string{"docker-image", "container-image", "docker"}, kind):
		from.Image = rest
	case kind == "oci-layout":
		from.Image = "oci:" + rest
	default:
		err := fmt.Errorf("%s: %s:// is neither an image nor a directory", name, kind)
		return "", from, fault.Hint(err, "download it first, and give the directory")
	}
	return strings.ToLower(name), from, nil
}
