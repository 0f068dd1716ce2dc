package conda

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Script is a shell script of a package.
type Script struct {
	Package string   // its name
	Kind    string   // "pre-link", "post-link" or "activate"
	Path    string   // in the image, absolute
	SHA256  string   // of its content
	Env     []string // variables that a link script runs with, sorted; PATH is what the step has, with the script's directory before it
}

// LinkScripts returns the scripts that packages want run when they are installed (CEP 34, "Pre- and post-link/unlink scripts"), in
// the order in which they run: that of packages, which are sorted by [SortPackages], and of each package pre-link first. In an
// image all files are there already when the first one runs. bash runs them; what a package has to say to the user is in
// PREFIX/.messages.txt afterwards, which is to be shown and removed.
func LinkScripts(packages []Package, manifests []Manifest, prefix, rootPrefix string) []Script {
	files := packageFiles(manifests)
	var scripts []Script
	for _, p := range packages {
		f, ok := files[p.Name]
		if !ok {
			continue
		}
		for _, kind := range []string{"pre-link", "post-link"} {
			at := "bin/." + p.Name + "-" + kind + ".sh"
			i := slices.IndexFunc(f.Files, func(m ManifestFile) bool { return m.Path == at && !m.Lost })
			if i < 0 {
				continue
			}
			scripts = append(scripts, Script{Package: p.Name, Kind: kind, Path: prefix + "/" + at, SHA256: f.Files[i].SHA256, Env: []string{
				"PKG_BUILDNUM=" + fmt.Sprint(f.BuildNumber), "PKG_NAME=" + p.Name, "PKG_VERSION=" + p.Version,
				"PREFIX=" + prefix, "ROOT_PREFIX=" + rootPrefix, "SOURCE_DIR=" + prefix,
			}})
		}
	}
	return scripts
}

// packageFiles returns the packages of manifests by name.
func packageFiles(manifests []Manifest) map[string]PackageFiles {
	all := map[string]PackageFiles{}
	for _, m := range manifests {
		for _, p := range m.Packages {
			all[p.Name] = p
		}
	}
	return all
}

// ActivateScripts returns the scripts that are sourced when the environment is activated, in their order: that of the code points
// of their names (CEP 32).
func ActivateScripts(manifests []Manifest, prefix string) []Script {
	var scripts []Script
	for _, m := range manifests {
		for _, p := range m.Packages {
			for _, f := range p.Files {
				if path.Dir(f.Path) == "etc/conda/activate.d" && strings.HasSuffix(f.Path, ".sh") && f.Type != "d" && !f.Lost {
					scripts = append(scripts, Script{Package: p.Name, Kind: "activate", Path: prefix + "/" + f.Path, SHA256: f.SHA256})
				}
			}
		}
	}
	slices.SortFunc(scripts, func(a, b Script) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Package, b.Package))
	})
	return slices.CompactFunc(scripts, func(a, b Script) bool { return a.Path == b.Path })
}

// PackageVariables returns the environment variables that packages bring in etc/conda/env_vars.d: files by name, later ones over
// earlier ones (CEP 32). What the environment itself sets goes above them.
func PackageVariables(manifests []Manifest) map[string]string {
	var files []VariableFile
	for _, m := range manifests {
		for _, p := range m.Packages {
			files = append(files, p.Variables...)
		}
	}
	slices.SortFunc(files, func(a, b VariableFile) int { return strings.Compare(a.Path, b.Path) })
	all := map[string]string{}
	for _, f := range files {
		for name, value := range f.Variables {
			all[name] = value
		}
	}
	return all
}
