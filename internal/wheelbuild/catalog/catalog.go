// Package catalog holds what is known of Python packages that are hard to compile: what has to be there while they are built,
// which variables they read, how much memory one compiler of theirs takes.
//
// The facts are data, in catalog.toml, each with where it is from. A recipe's own keys go before them.
// What builds may fail to find, and which package brings it, is in missing.toml.
package catalog

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"
)

// Package is what is known of one package.
type Package struct {
	Name         string            `toml:"name" json:"name"` // normalised
	Seen         string            `toml:"seen" json:"seen"` // the version in which the facts were seen
	Isolation    bool              `toml:"isolation" json:"isolation"`
	Requires     []string          `toml:"requires" json:"requires"`           // PEP 508: what must be there while it is built
	Env          map[string]string `toml:"env" json:"env,omitempty"`           // see [Package.Environment]
	GPUEnv       map[string]string `toml:"gpu-env" json:"gpuEnv,omitempty"`    // only for a target with a GPU
	Archs        []string          `toml:"archs" json:"archs,omitempty"`       // the only compute capabilities that it is compiled for; nil: any
	MemoryPerJob string            `toml:"memory-per-job" json:"memoryPerJob"` // "5GiB"
	CUDA         bool              `toml:"cuda" json:"cuda"`                   // the toolkit's major version must be that of torch
	Network      bool              `toml:"network" json:"network,omitempty"`   // it downloads while it is built
	Depends      *[]string         `toml:"depends" json:"depends,omitempty"`   // its Requires-Dist where its source does not say; nil: not known
	Note         string            `toml:"note" json:"note,omitempty"`         // what else a user must know
}

//go:embed catalog.toml
var data []byte

var load = sync.OnceValue(func() []Package {
	var file struct {
		Package []Package `toml:"package"`
	}
	if err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(&file); err != nil {
		panic(fmt.Sprintf("known: its own table: %v", err)) // a test reads it
	}
	slices.SortFunc(file.Package, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	return file.Package
})

// All returns all packages, by name.
func All() []Package { return slices.Clone(load()) }

// Lookup returns what is known of the package called name, which is normalised.
func Lookup(name string) (Package, bool) {
	all := load()
	i := slices.IndexFunc(all, func(p Package) bool { return p.Name == name })
	if i < 0 {
		return Package{}, false
	}
	return all[i], true
}

// archsPlace stands for the target's architectures in a value.
const archsPlace = "{archs}"

// Environment returns the variables that the package is built with for these compute capabilities: 8.0, 9.0a.
func (p Package) Environment(gpu []string) map[string]string {
	env := make(map[string]string)
	archs := strings.Join(p.architectures(gpu), ";")
	for name, value := range p.Env {
		if strings.Contains(value, archsPlace) && archs == "" {
			continue
		}
		env[name] = strings.ReplaceAll(value, archsPlace, archs)
	}
	if len(gpu) > 0 {
		maps.Copy(env, p.GPUEnv)
	}
	return env
}

// architectures returns capabilities as their compilers' numbers, 9.0 as 90: of those that the package can be compiled for,
// the best that runs on each.
func (p Package) architectures(gpu []string) []string {
	var out []string
	for _, capability := range gpu {
		capability = strings.TrimSuffix(capability, "+PTX")
		if p.Archs != nil {
			capability = p.nearest(capability)
		}
		if number := strings.ReplaceAll(capability, ".", ""); number != "" && !slices.Contains(out, number) {
			out = append(out, number)
		}
	}
	return out
}

// nearest returns the newest of p.Archs whose code runs on capability: of the same major version and not newer (CUDA
// Programming Guide, "Binary Compatibility").
func (p Package) nearest(capability string) string {
	major, minor, ok := split(capability)
	best, found := -1, ""
	for _, arch := range p.Archs {
		if m, n, _ := split(arch); ok && m == major && n <= minor && n > best {
			best, found = n, arch
		}
	}
	return found
}

func split(capability string) (major, minor int, ok bool) {
	a, b, _ := strings.Cut(strings.TrimRight(capability, "af"), ".")
	major, err1 := strconv.Atoi(a)
	minor, err2 := strconv.Atoi(b)
	return major, minor, err1 == nil && err2 == nil
}
