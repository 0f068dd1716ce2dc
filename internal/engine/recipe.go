package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/recipe"
)

// Recipe is a recipe and what its image is for, found out once.
type Recipe struct {
	*recipe.Recipe // as the user wrote it, under the changes
	Target         Target
	Below          *Recipe // what it is based on, when that is a recipe; nil: something else

	pinned   *recipe.Recipe // as if it said of the target what the cluster's profile does, and what environment files do: what is locked
	lockless bool           // what it means is decided anew each time, and not kept
	outside  string         // the directory that it lies outside of, where a recipe has led to it: its lock is read and not written; else ""
}

// Changes go before what a recipe says. Empty ones change nothing.
type Changes struct {
	Platform    string // "linux/arm64"
	Compression string // of layers: "gzip", "zstd"
}

// LoadRecipe reads a recipe, PATH[:VARIANT], and finds out what its image is for.
func LoadRecipe(path string, c Changes) (*Recipe, error) {
	r, err := recipe.Load(path)
	if err != nil {
		return nil, err
	}
	if c.Platform != "" {
		r.Target.Platform, r.Target.AnyPlatform = c.Platform, false
	}
	if c.Compression != "" {
		r.Image.Compression = c.Compression
	}
	return withTarget(r)
}

// NewRecipe completes a recipe that a program has put together, see [recipe.New]. Without a LockFile it has no lock: what it means
// is decided at each use, nothing is written beside anything, and --locked cannot be met.
func NewRecipe(r recipe.Recipe) (*Recipe, error) {
	whole, err := recipe.New(r)
	if err != nil {
		return nil, err
	}
	made, err := withTarget(whole)
	if err == nil {
		made.lockless = whole.LockFile == ""
	}
	return made, err
}

func withTarget(r *recipe.Recipe) (*Recipe, error) { return withTargetOn(r, []string{idOf(r)}, "") }

// withTargetOn is withTarget of a recipe to which others have led: way, it included. outside is as in [Recipe].
func withTargetOn(r *recipe.Recipe, way []string, outside string) (*Recipe, error) {
	t, err := TargetOf(r, "")
	if err != nil {
		return nil, err
	}
	pinned := *r
	if r.Target.Cluster != "" {
		pinned.Target.Platform, pinned.Target.GPU = t.Platform, t.GPU
		pinned.Target.Driver, pinned.Target.CPULevel = t.Driver, t.CPULevel
	}
	whole, err := lock.WithEnvironments(&pinned)
	if err != nil {
		return nil, err
	}
	made := &Recipe{Recipe: r, Target: t, pinned: whole, outside: outside}
	return made, made.loadBelow(way)
}

// IsRecipe reports whether somebody means a recipe, and not an image.
func IsRecipe(path string) bool {
	if strings.HasSuffix(path, ".toml") {
		return true
	}
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return false
	}
	_, err = os.Stat(filepath.Join(path, recipe.FileName))
	return err == nil || path == "."
}

// Ref is how the recipe is named: PATH, or PATH:VARIANT, where PATH is the directory of a sconce.toml.
func (r *Recipe) Ref() string {
	path := r.Path
	if filepath.Base(path) == recipe.FileName {
		path = filepath.Dir(path)
	}
	if r.Variant != "" {
		path += ":" + r.Variant
	}
	return path
}

// FullName is the name of the recipe's image in the store.
func (r *Recipe) FullName() string { return r.Name + ":" + r.Version }

// Published is where the recipe wants its image sent, tagged with its version.
func (r *Recipe) Published() (string, error) {
	if r.Publish.Repository == "" {
		return "", fault.Hint(fmt.Errorf("%s names no publish.repository", r.Path), "name one in the recipe, or use --push REF")
	}
	return r.Publish.Repository + ":" + r.Version, nil
}
