package condalock

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"sconce.dev/sconce/internal/fault"
)

// pixiLock is pixi.lock, versions 6 and 7 (rattler_lock, "v6" and "v7").
type pixiLock struct {
	Version   int `yaml:"version"`
	Platforms []struct {
		Name   string `yaml:"name"`
		Subdir string `yaml:"subdir"` // "": the name says it
	} `yaml:"platforms"` // version 7
	Environments map[string]struct {
		Channels []struct {
			URL string `yaml:"url"`
		} `yaml:"channels"`
		Packages map[string][]pixiRef `yaml:"packages"` // by platform
	} `yaml:"environments"`
	Packages []pixiPackage `yaml:"packages"`
}

// pixiRef points to a package by its address or path.
type pixiRef struct {
	Conda       string `yaml:"conda"`
	CondaSource string `yaml:"conda_source"`
	PyPI        string `yaml:"pypi"`
}

type pixiPackage struct {
	pixiRef `yaml:",inline"`

	Name         string   `yaml:"name"`
	Version      string   `yaml:"version"`
	Build        string   `yaml:"build"`
	BuildNumber  *int     `yaml:"build_number"`
	Subdir       string   `yaml:"subdir"`
	Noarch       string   `yaml:"noarch"`
	SHA256       string   `yaml:"sha256"`
	MD5          string   `yaml:"md5"`
	Depends      []string `yaml:"depends"`
	Constrains   []string `yaml:"constrains"`
	Channel      string   `yaml:"channel"`
	License      string   `yaml:"license"`
	Size         int64    `yaml:"size"`
	SitePackages string   `yaml:"python_site_packages_path"`
}

// parsePixi reads one environment of a pixi.lock, for all its platforms.
func parsePixi(file string, text []byte, environment string) (*Lock, error) {
	var in pixiLock
	if err := yaml.Unmarshal(text, &in); err != nil {
		return nil, yamlError(file, err)
	}
	if in.Version != 6 && in.Version != 7 {
		return nil, fault.Hint(fault.Usage(fmt.Errorf("%s: version %d of pixi.lock is not known, only 6 and 7 are", file, in.Version)),
			"write it anew with a `pixi lock` of today")
	}
	env, ok := in.Environments[environment]
	if !ok {
		return nil, fault.Usage(fmt.Errorf("%s: no environment %q, only %s", file, environment,
			strings.Join(slices.Sorted(maps.Keys(in.Environments)), ", ")))
	}
	l := &Lock{Format: "pixi.lock"}
	for _, c := range env.Channels {
		l.Channels = append(l.Channels, strings.TrimRight(withoutLogins(c.URL), "/"))
	}
	subdirs := map[string]string{}
	for _, p := range in.Platforms {
		subdirs[p.Name] = cmp.Or(p.Subdir, p.Name)
	}
	known := map[pixiRef]*pixiPackage{}
	for i, p := range in.Packages {
		known[p.pixiRef] = &in.Packages[i]
	}
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(env.Packages)) {
		part := l.platform(cmp.Or(subdirs[name], name))
		if len(part.Packages)+len(part.Wheels) > 0 {
			continue // a second platform of the same subdir, for other machines
		}
		for _, ref := range env.Packages[name] {
			if err := part.addPixi(ref, known[ref], path.Dir(file)); err != nil {
				problems = append(problems, fmt.Errorf("%s: %s: %w", file, name, err))
			}
		}
	}
	return l.finish(file, problems)
}

func (part *Platform) addPixi(ref pixiRef, p *pixiPackage, dir string) error {
	switch {
	case ref.CondaSource != "":
		return fmt.Errorf("%s is built from source by pixi, and has no package", ref.CondaSource)
	case p == nil:
		return fmt.Errorf("%s is not among the packages of the file", withoutLogins(ref.Conda+ref.PyPI))
	case ref.PyPI != "":
		w, err := wheelOf(p.Name, p.Version, ref.PyPI, p.SHA256)
		part.Wheels = append(part.Wheels, w)
		return err
	}
	address := ref.Conda
	if !schemed.MatchString(address) {
		if !path.IsAbs(address) {
			address = path.Join(dir, address)
		}
		address = (&url.URL{Scheme: "file", Path: address}).String()
	}
	found, err := fromURL(address)
	if err != nil {
		return err
	}
	if err := found.agree(p.Name, p.Version, p.Build); err != nil {
		return err
	}
	one := found.Package
	one.Depends, one.Constrains, one.License, one.Size, one.SitePackages = p.Depends, p.Constrains, p.License, p.Size, p.SitePackages
	one.Subdir = cmp.Or(p.Subdir, one.Subdir)
	if p.BuildNumber != nil {
		one.BuildNumber = *p.BuildNumber
	}
	if p.Noarch == "python" || p.Noarch == "generic" {
		one.Noarch = p.Noarch
	}
	if strings.Contains(p.Channel, "://") {
		one.Channel = strings.TrimRight(withoutLogins(p.Channel), "/")
	}
	return part.add(one, lockHash{MD5: p.MD5, SHA256: p.SHA256})
}
