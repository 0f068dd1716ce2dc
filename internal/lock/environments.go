package lock

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/condalock"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/recipe"
)

// WithEnvironments returns r with what the environment files of [conda] list for pip among its Python packages: these are resolved
// together, and built in the order of the files. A recipe without such lists comes back as it is.
func WithEnvironments(r *recipe.Recipe) (*recipe.Recipe, error) {
	files, err := readEnvironments(r)
	if err != nil {
		return nil, err
	}
	earlier := make(map[string]string) // variables of the files before
	var lists []recipe.PipList
	for i, e := range files {
		list := recipe.PipList{File: r.Conda.Environment[i], Variables: maps.Clone(earlier)}
		unisolated, err := sharesEnvironment(earlier)
		if err != nil && len(e.Pip) > 0 { // else pip would not be there to say so
			return nil, fmt.Errorf("%s: %w", list.File, err)
		}
		var text strings.Builder
		for _, item := range e.Pip {
			text.WriteString(pipLine(e, item) + "\n")
			list.Lines = append(list.Lines, item.Line)
			asked, err := readListed(r, list.File, e, item)
			if err != nil {
				return nil, err
			}
			for _, a := range asked {
				list.Asked = append(list.Asked, recipe.PipRequirement{Text: a, Unisolated: item.NoIsolation || unisolated})
			}
		}
		if list.Text = text.String(); list.Text != "" {
			lists = append(lists, list)
		}
		maps.Copy(earlier, e.Variables)
	}
	if len(lists) == 0 {
		return r, nil
	}
	if r.Python.Lock != "" {
		return nil, fault.Hint(fmt.Errorf("%s: python.lock decides all Python packages, and %s lists some for pip", r.Path, lists[0].File),
			"take the list out of the file, or the lock out of the recipe")
	}
	with := *r
	with.Python.Listed = lists
	return &with, nil
}

// readEnvironments reads the environment files of r for its platform.
func readEnvironments(r *recipe.Recipe) ([]*condalock.Environment, error) {
	var all []*condalock.Environment
	for _, file := range r.Conda.Environment {
		e, err := condalock.ReadEnvironment(r.Resolve(file), condalock.Subdir(r.Target.Platform))
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, reachChannels(r, all)
}

// warnOfEnvironments tells which keys of the environment files of r have no effect.
func warnOfEnvironments(ctx context.Context, r *recipe.Recipe) error {
	files, err := readEnvironments(r)
	for _, e := range files {
		for _, w := range e.Warnings {
			progress.Warn(ctx, w.Text, w.Hint)
		}
	}
	return err
}

// Variables are those of the environment files of r, NAME=VALUE by name; a later file's go before an earlier one's.
func Variables(r *recipe.Recipe) ([]string, error) {
	files, err := readEnvironments(r)
	if err != nil {
		return nil, err
	}
	all := make(map[string]string)
	for _, e := range files {
		maps.Copy(all, e.Variables)
	}
	list := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, name+"="+all[name])
	}
	return list, nil
}

// noIsolation is the variable that pip reads the other way round: a word for "no" turns isolation off, as the option
// --no-build-isolation does, which stores False (pip's configuration of boolean options).
const noIsolation = "PIP_NO_BUILD_ISOLATION"

// sharesEnvironment reports whether variables turn the isolation of pip's builds off. The words are those of pip (strtobool in its
// utils); an empty value says nothing, and any other is an error there too.
func sharesEnvironment(variables map[string]string) (bool, error) {
	value := variables[noIsolation]
	switch strings.ToLower(value) {
	case "0", "no", "n", "off", "f", "false":
		return true, nil
	case "", "1", "yes", "y", "on", "t", "true":
		return false, nil
	}
	return false, fault.Hint(fmt.Errorf("the variable %s of an earlier file is %q, which pip does not understand", noIsolation, value),
		"0 turns the isolation of builds off, as --no-build-isolation does, and 1 leaves it on")
}

// pipLine is an item as a line of a requirements file that may lie anywhere.
func pipLine(e *condalock.Environment, item condalock.PipItem) string {
	var words []string
	switch {
	case item.File != "":
		words = append(words, "-r "+fromHere(e, item.File))
	case item.Constraints != "":
		words = append(words, "-c "+fromHere(e, item.Constraints))
	case item.Editable:
		words = append(words, "-e "+fromHere(e, item.Requirement))
	case item.Requirement != "":
		words = append(words, requirementFromHere(e, item.Requirement))
	}
	for _, o := range item.Options {
		value := o.Value
		if o.Name == "find-links" {
			value = fromHere(e, value)
		}
		words = append(words, strings.TrimSpace("--"+o.Name+" "+value))
	}
	return strings.Join(words, " ")
}

// requirementFromHere makes the path of a requirement absolute that is one, "./mine" or "mine @ ./mine".
func requirementFromHere(e *condalock.Environment, text string) string {
	name, address, named := strings.Cut(text, "@")
	if address = strings.TrimSpace(address); named && strings.HasPrefix(address, ".") {
		return strings.TrimSpace(name) + " @ file://" + e.Resolve(address)
	}
	if strings.HasPrefix(text, ".") {
		return e.Resolve(text)
	}
	return text
}

func fromHere(e *condalock.Environment, path string) string {
	if strings.Contains(path, "://") {
		return path
	}
	return filepath.Clean(e.Resolve(path))
}
