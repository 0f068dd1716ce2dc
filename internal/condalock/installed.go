package condalock

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/store"
)

// ParseInstalled reads the record of a package in a prefix, conda-meta/NAME-VERSION-BUILD.json (CEP 32), as conda, mamba, pixi
// and sconce write it. Logins that are in its address are left out.
func ParseInstalled(data []byte) (conda.Package, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return conda.Package{}, fmt.Errorf("the record of a conda package cannot be read: %w", err)
	}
	if r.URL == "" {
		return conda.Package{}, fmt.Errorf("%s %s: its record has no address", r.Name, r.Version)
	}
	p, err := fromURL(r.URL)
	if err != nil {
		return conda.Package{}, err
	}
	if err := p.agree(r.Name, r.Version, r.Build); err != nil {
		return conda.Package{}, err
	}
	p.BuildNumber, p.Size, p.License, p.SitePackages = r.BuildNumber, r.Size, r.License, r.SitePackages
	p.Depends, p.Constrains = r.Depends, r.Constrains
	if slices.Contains([]string{"python", "generic"}, r.Noarch) {
		p.Noarch = r.Noarch
	}
	if p.MD5 = strings.ToLower(r.MD5); r.SHA256 != "" {
		p.SHA256 = store.Digest("sha256:" + strings.ToLower(r.SHA256))
	}
	return p.Package, check(&p.Package)
}

// Add adds packages that an environment of a platform is made of; there is one of each name.
func (l *Lock) Add(platform string, packages ...conda.Package) error {
	part := l.platform(platform)
	var problems []error
	for _, p := range packages {
		if err := part.add(p, lockHash{MD5: p.MD5, SHA256: p.SHA256.Hex()}); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", p.Name, err))
			continue
		}
		if !slices.Contains(l.Channels, p.Channel) {
			l.Channels = append(l.Channels, p.Channel)
		}
	}
	part.Packages = conda.SortPackages(part.Packages)
	return errors.Join(problems...)
}

// Subdir is what channels call a platform: "linux-64" for "linux/amd64"; "" for one that there are no images of.
func Subdir(platform string) string {
	return map[string]string{"linux/amd64": "linux-64", "linux/arm64": "linux-aarch64"}[platform]
}
