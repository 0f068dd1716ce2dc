package cotainr

import (
	"os"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
)

// names is where the images lie in the store among those that have names of their own.
const names = "cotainr/"

// The labels of an image that cotainr built.
const (
	labelCommand = "cotainr.command"
	labelVersion = "cotainr.version"
	labelURL     = "cotainr.url"

	url = "https://github.com/DeiC-HPC/cotainr"
)

// recipe returns what is to be built as a recipe. Its lock is the file that the user named, else nobody keeps one.
func (b *build) recipe() (*engine.Recipe, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	return engine.NewRecipe(recipe.Recipe{
		Path:     "the command line",
		Dir:      dir,
		LockFile: b.lock,
		Name:     names + imageName(b.image),
		Reach:    b.bounds(),
		Base:     recipe.Base{Image: b.base, Anywhere: true},
		Image: recipe.ImageConfig{
			Labels: map[string]string{
				labelCommand: strings.Join(b.app.Command, " "),
				labelVersion: Release + " by sconce " + b.app.Version,
				labelURL:     url,
			},
			Compression: b.compression(),
		},
		Conda: b.conda(),
		Steps: b.steps(),
	})
}

// bounds are the environment files, which the user has named, and what lies beside them. They may be somebody else's.
func (b *build) bounds() reach.Bounds {
	bounds := reach.In("the directories of the environment files", "")
	for _, env := range b.condaEnvs {
		bounds = bounds.With(env, filepath.Dir(env))
	}
	if b.lock != "" { // the user has named it, and what it names lies beside it
		bounds = bounds.With(filepath.Dir(b.lock))
	}
	return bounds
}

// compression is that of the layers. A file that clusters run holds none: they are read again at once, and nobody sends them anywhere,
// so that compressing them would cost a quarter of the time and save room in the store alone. What becomes an archive of layers may go
// to programs that know gzip alone.
func (b *build) compression() string {
	if strings.HasPrefix(outputOf(b.image), "oci-archive:") {
		return string(layer.Gzip)
	}
	return string(layer.None)
}

// The environment is where cotainr has it, so that paths in scripts hold.
const prefix = "/opt/cotainr/conda/envs/conda_container_env"

// conda asks for the environment. The priority of channels is conda's own default.
func (b *build) conda() recipe.Conda {
	if len(b.condaEnvs) == 0 {
		return recipe.Conda{}
	}
	return recipe.Conda{
		Environment: b.condaEnvs, Prefix: prefix, ChannelPriority: "flexible", Client: b.client, AcceptLicenses: b.accept,
	}
}

// steps lay the environment files into the image's root, as cotainr does.
func (b *build) steps() []recipe.Step {
	var steps []recipe.Step
	for _, env := range b.condaEnvs {
		steps = append(steps, recipe.Step{Copy: []string{pattern.Replace(env) + ":/"}})
	}
	return steps
}

// pattern makes a path a pattern that only it matches (path.Match).
var pattern = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// imageName makes a name for the store of a file's.
func imageName(file string) string {
	name := filepath.Base(file)
	return recipe.ImageName(strings.TrimSuffix(name, filepath.Ext(name)))
}
