package conda

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/layer"
)

// Manifest lists what a layer of packages lays down, in the order of linking.
type Manifest struct {
	Packages []PackageFiles `json:"packages"`
}

// PackageFiles is what one package lays down.
type PackageFiles struct {
	Name        string `json:"name"`
	Version     string `json:"version"`
	Build       string `json:"build"`
	BuildNumber int    `json:"buildNumber"`

	Files         []ManifestFile `json:"files"`                   // in the order of a layer, without directories that have files
	Distributions []Distribution `json:"distributions,omitempty"` // Python distributions
	Variables     []VariableFile `json:"variables,omitempty"`     // of etc/conda/env_vars.d
	Stale         []string       `json:"stale,omitempty"`         // sources of Python itself that lack byte code
}

// ManifestFile is one file, its path relative to the prefix.
type ManifestFile struct {
	Path   string `json:"p"`
	Type   string `json:"t,omitempty"` // "" is a regular file, "l" a softlink, "d" a directory
	Mode   uint32 `json:"m,omitempty"`
	SHA256 string `json:"h,omitempty"` // of a regular file, hexadecimal
	Size   int64  `json:"s,omitempty"`
	Link   string `json:"l,omitempty"` // target of a softlink
	Lost   bool   `json:"x,omitempty"` // not in the layer, where another package has the path
}

// VariableFile is a file of environment variables that a package brings (CEP 32, "etc/conda/env_vars.d").
type VariableFile struct {
	Path      string            `json:"path"`
	Variables map[string]string `json:"variables"`
}

// lose notes that a file is not in the layer.
func (m *Manifest) lose(f placed) {
	files := m.Packages[f.from].Files
	if i, ok := slices.BinarySearchFunc(files, f.path, func(x ManifestFile, p string) int {
		return layer.Compare(x.Path, p)
	}); ok && f.kind != layer.Dir {
		files[i].Lost = true
	}
}

// manifest lists the files of a package.
func (u *unpacked) manifest() (PackageFiles, error) {
	p := PackageFiles{Name: u.pkg.Name, Version: u.pkg.Version, Build: u.pkg.Build, BuildNumber: u.buildNumber()}
	for _, f := range u.stale {
		p.Stale = append(p.Stale, f.path)
	}
	slices.Sort(p.Stale)
	for _, f := range u.files {
		m := ManifestFile{Path: f.path, Mode: f.mode}
		switch f.kind {
		case layer.Dir:
			m.Type = "d"
		case layer.Symlink:
			m.Type, m.Link = "l", f.link
		default:
			m.SHA256, m.Size = f.sha256, f.size
		}
		p.Files = append(p.Files, m)
		if err := u.describe(&p, f); err != nil {
			return p, err
		}
	}
	return p, nil
}

// maxDescription bounds metadata and variables that go into a manifest, in bytes.
const maxDescription = 8 << 20

// describe adds what a file says about the package: a Python distribution, or environment variables.
func (u *unpacked) describe(p *PackageFiles, f *file) error {
	variables := path.Dir(f.path) == "etc/conda/env_vars.d" && strings.HasSuffix(f.path, ".json")
	if f.kind != layer.Regular || f.size > maxDescription || !variables && !isMetadata(f.path) {
		return nil
	}
	data, err := u.spool.read(f)
	if err != nil {
		return err
	}
	if !variables {
		if d, ok := parseDistribution(f.path, data); ok {
			d.Metadata = nil
			p.Distributions = append(p.Distributions, d)
		}
		return nil
	}
	v := VariableFile{Path: f.path}
	if err := json.Unmarshal(data, &v.Variables); err == nil { // conda goes on without a file that is none, and so do we
		p.Variables = append(p.Variables, v)
	}
	return nil
}
