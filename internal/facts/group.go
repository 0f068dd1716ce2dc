package facts

import (
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fatbin"
)

// GroupOf names the Python package that a file is in, or else its directory. A package is what stands in site-packages or, on
// Debian, dist-packages; nvidia is a name that many of NVIDIA's packages share.
func GroupOf(name string) string {
	parts := strings.Split(name, "/")
	i := len(parts) - 1
	for i >= 0 && parts[i] != "site-packages" && parts[i] != "dist-packages" {
		i--
	}
	inside := parts[i+1:]
	switch {
	case i < 0 || len(inside) == 0:
		return "/" + strings.TrimPrefix(path.Dir(name), ".")
	case len(inside) == 1: // a module that is one file: name.cpython-312-x86_64-linux-gnu.so
		module, _, _ := strings.Cut(inside[0], ".")
		return module
	case inside[0] == "nvidia" && len(inside) > 2:
		return "nvidia/" + inside[1]
	}
	return inside[0]
}

// rocmTargets lists the GPUs that bundles have code for: gfx90a of "hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+".
func rocmTargets(bundles []fatbin.Bundle) []string {
	seen := map[string]bool{}
	var list []string
	for _, b := range bundles {
		for _, t := range b.Targets {
			_, target, ok := strings.Cut(t.ID, "--")
			if !ok || target == "" || seen[target] || len(list) == maxArchs {
				continue
			}
			seen[target] = true
			list = append(list, target)
		}
	}
	slices.Sort(list)
	return list
}
