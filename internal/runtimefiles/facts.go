package runtimefiles

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/lazyregexp"
)

// facts are what the files are made of.
type facts struct {
	image      Image
	env        []variable
	entrypoint []string
	cmd        []string
	workDir    string // absolute and clean
	start      string // the program of image.LabelStart; "" is none

	fromApptainer bool // the entrypoint is Apptainer's, and so are the scripts behind it
	fromEnroot    bool // the same of enroot's

	ownEnv bool // the image's 10-docker2singularity.sh says more than its configuration
}

// variable is one of the environment. The names are distinct and such as a shell can set.
type variable struct {
	name, value string
	bare        bool // "NAME" without a value
}

// The entrypoints of images that [Recover] got from files of the two runtimes. enroot's script is not executable.
var (
	apptainerEntrypoint = []string{"/" + runAction}
	enrootEntrypoint    = []string{"/bin/sh", "/" + rcPath}
)

// defaultCmd is what runs when an image names nothing, as with enroot.
var defaultCmd = []string{"/bin/sh"}

func factsOf(im Image) (*facts, error) {
	c := im.Config.Config
	for _, words := range [][]string{c.Env, c.Entrypoint, c.Cmd, {c.WorkingDir}} {
		for _, w := range words {
			if strings.Contains(w, "\x00") {
				return nil, errors.New("the image's configuration is damaged: a text of it contains NUL")
			}
		}
	}
	f := &facts{
		image: im, entrypoint: c.Entrypoint, cmd: c.Cmd, env: variables(c.Env),
		workDir:       path.Join("/", c.WorkingDir),
		start:         c.Labels[image.LabelStart],
		fromApptainer: slices.Equal(c.Entrypoint, apptainerEntrypoint),
		fromEnroot:    slices.Equal(c.Entrypoint, enrootEntrypoint),
	}
	if len(f.entrypoint) == 0 && len(f.cmd) == 0 {
		f.cmd = defaultCmd
	}
	return f, nil
}

// look finds out what of the image's own files is to be kept.
func (f *facts) look(tree *image.Tree) {
	if f.fromApptainer {
		text, err := tree.ReadFile(dockerEnvPath, maxScript)
		f.ownEnv = err == nil && !isDockerEnv(string(text))
	}
}

// command returns the entrypoint and command that the script of a runtime may start without coming back to itself.
func (f *facts) command(fromItself bool) (entrypoint, cmd []string) {
	if !fromItself {
		return f.entrypoint, f.cmd
	}
	if len(f.cmd) > 0 {
		return nil, f.cmd
	}
	return nil, defaultCmd
}

var validName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)

// variables splits an environment. Of a name that comes twice the last value counts, in the place of the first.
func variables(env []string) []variable {
	at := map[string]int{}
	var vs []variable
	for _, e := range env {
		name, value, found := strings.Cut(e, "=")
		if !validName.MatchString(name) {
			continue
		}
		v := variable{name, value, !found}
		if i, ok := at[name]; ok {
			vs[i] = v
			continue
		}
		at[name] = len(vs)
		vs = append(vs, v)
	}
	return vs
}

// configFile returns the bytes of the image's configuration.
func (im Image) configFile() ([]byte, error) {
	if im.ConfigFile != nil {
		return im.ConfigFile, nil
	}
	data, err := json.Marshal(im.Config)
	if err != nil {
		return nil, fmt.Errorf("encode the image's configuration: %w", err)
	}
	return data, nil
}
