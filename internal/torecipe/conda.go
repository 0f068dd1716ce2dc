package torecipe

import (
	"runtime"
	"strings"

	"sconce.dev/sconce/internal/condalock"
	"sconce.dev/sconce/internal/fault"
)

// subdirs are the channels' names of this machine's platforms, for which selectors in environment files are read.
var subdirs = map[string]string{"amd64": "linux-64", "arm64": "linux-aarch64"}

// withoutPython is the base of an environment, which brings its own Python.
func (o Options) withoutPython() (draftBase, error) {
	if o.Base != "" {
		return o.baseWith(nil)
	}
	return draftBase{Bootstrap: &bootstrap{pythons[0].suite, []string{"ca-certificates"}}}, nil
}

// FromEnvironments writes a recipe whose conda environment is that of the files, each on top of those before. They stay where they are,
// and are read when the recipe is locked. The priority of channels is conda's own default, which decides what such files mean.
func FromEnvironments(files []string, o Options) ([]byte, error) {
	c := &conda{Priority: "flexible"}
	for _, file := range files {
		if _, err := condalock.ReadEnvironment(file, subdirs[runtime.GOARCH]); err != nil {
			return nil, fault.Usage(err)
		}
		name, err := beside(o.Dir, file)
		if err != nil {
			return nil, err
		}
		c.Environment = append(c.Environment, name)
	}
	return o.condaRecipe(c, "The conda environment of "+strings.Join(c.Environment, " and ")+". The files are read when the recipe is locked.")
}

// FromCondaLock writes a recipe whose conda environment is what a lock says: a conda-lock.yml, a pixi.lock or a list of addresses.
func FromCondaLock(file string, o Options) ([]byte, error) {
	if _, err := condalock.Read(file, condalock.Selection{}); err != nil {
		return nil, fault.Usage(err)
	}
	name, err := beside(o.Dir, file)
	if err != nil {
		return nil, err
	}
	return o.condaRecipe(&conda{Lock: name}, "The conda packages of "+name+", just as it has them.")
}

func (o Options) condaRecipe(c *conda, comment string) ([]byte, error) {
	base, err := o.withoutPython()
	if err != nil {
		return nil, err
	}
	d := draft{Name: o.Name, Base: base, Conda: c}
	return d.text(comment)
}
