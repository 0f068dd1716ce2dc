// Package conda lays down packages of conda channels as layers, without conda.
package conda

import "sconce.dev/sconce/internal/store"

// Package is one package of a channel, as its repodata and locks describe it (CEP 32, CEP 36).
type Package struct {
	Name        string `json:"name"` // normalised
	Version     string `json:"version"`
	Build       string `json:"build"`
	BuildNumber int    `json:"build_number"`

	Channel string `json:"channel"` // address of the channel, without login and subdir
	Subdir  string `json:"subdir"`  // "linux-64", "linux-aarch64", "noarch"
	File    string `json:"fn"`      // "numpy-2.1.0-py312_0.conda"
	URL     string `json:"url"`     // without login

	SHA256 store.Digest `json:"sha256,omitempty"`
	MD5    string       `json:"md5,omitempty"`  // hexadecimal; all that old channels have
	Size   int64        `json:"size,omitempty"` // of the archive, in bytes; 0: unknown

	Noarch       string   `json:"noarch,omitempty"` // "", "python" or "generic"
	Depends      []string `json:"depends,omitempty"`
	Constrains   []string `json:"constrains,omitempty"`
	License      string   `json:"license,omitempty"`
	SitePackages string   `json:"python_site_packages_path,omitempty"` // of a python, below the prefix (CEP 17)
}
