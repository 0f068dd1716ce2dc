package condalock

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/store"
)

// Lock is what a file says that locks conda packages: which, for each platform.
type Lock struct {
	Format    string   // of the file that was read: "conda-lock.yml", "pixi.lock" or "@EXPLICIT"
	Channels  []string // addresses without logins
	Sources   []string // files that were locked, relative to the lock
	Platforms []Platform
}

// Platform is what a lock holds for one platform.
type Platform struct {
	Name     string // "linux-64"; "" in an @EXPLICIT file of noarch packages only
	Packages []conda.Package
	Wheels   []Wheel // Python packages that the lock has beside
}

// Wheel is a Python package of a lock: a wheel, or the archive of a source.
type Wheel struct {
	Name    string // normalised
	Version string
	URL     string // without login
	SHA256  store.Digest
}

// Selection says what of a lock counts.
type Selection struct {
	Environment string   // of a pixi.lock; "" is "default"
	Categories  []string // of a conda-lock.yml, above "main"
}

// For returns the packages for a platform.
func (l *Lock) For(platform string) (*Platform, error) {
	var names []string
	for i, p := range l.Platforms {
		if p.Name == platform || p.Name == "" {
			return &l.Platforms[i], nil
		}
		names = append(names, p.Name)
	}
	return nil, fault.Hint(fmt.Errorf("the lock has no packages for %s, only for %s", platform, strings.Join(names, ", ")),
		"lock it for that platform too: --platform "+platform+" for conda-lock, platforms in pixi.toml")
}

// Read reads a lock in any of the forms that sconce knows, see [Parse].
func Read(file string, s Selection) (*Lock, error) {
	text, err := ctxio.ReadRegular(file, maxFile)
	if err != nil {
		return nil, fmt.Errorf("conda lock: %w", err)
	}
	return Parse(file, text, s)
}

var explicitLine = lazyregexp.New(`(?m)^[ \t]*@EXPLICIT[ \t]*\r?$`)

// Parse reads a lock in any of the forms that sconce knows: conda-lock.yml (CEP 37), pixi.lock (versions 6 and 7), @EXPLICIT
// (CEP 23). What these leave out stays empty: an @EXPLICIT file has no dependencies and often no SHA-256, for which
// [Solver.Complete] asks. file names the text in messages.
func Parse(file string, text []byte, s Selection) (*Lock, error) {
	if explicitLine.Regexp().Match(text) {
		return parseExplicit(file, text)
	}
	var head struct {
		Version      yaml.Node `yaml:"version"`
		Metadata     yaml.Node `yaml:"metadata"`
		Environments yaml.Node `yaml:"environments"`
	}
	if err := yaml.Unmarshal(text, &head); err != nil {
		return nil, yamlError(file, err)
	}
	switch {
	case head.Environments.Kind != 0:
		return parsePixi(file, text, cmp.Or(s.Environment, "default"))
	case head.Metadata.Kind != 0:
		return parseCondaLock(file, text, s.Categories)
	}
	return nil, fault.Hint(fault.Usage(fmt.Errorf("%s: not a lock of conda packages", file)),
		"it takes conda-lock.yml, pixi.lock and lists of addresses that begin with @EXPLICIT")
}

// lockFile is conda-lock.yml (CEP 37).
type lockFile struct {
	Version  int           `yaml:"version"`
	Metadata lockMetadata  `yaml:"metadata"`
	Package  []lockPackage `yaml:"package"`
}

type lockMetadata struct {
	ContentHash map[string]string `yaml:"content_hash"`
	Channels    []lockChannel     `yaml:"channels"`
	Platforms   []string          `yaml:"platforms"`
	Sources     []string          `yaml:"sources"`
}

type lockChannel struct {
	URL     string   `yaml:"url"`
	EnvVars []string `yaml:"used_env_vars"`
}

type lockPackage struct {
	Name         string            `yaml:"name"`
	Version      string            `yaml:"version"`
	Manager      string            `yaml:"manager"`
	Platform     string            `yaml:"platform"`
	Dependencies map[string]string `yaml:"dependencies"`
	URL          string            `yaml:"url"`
	Hash         lockHash          `yaml:"hash"`
	Build        string            `yaml:"build,omitempty"`
	Category     string            `yaml:"category"`
	Optional     bool              `yaml:"optional"`
}

type lockHash struct {
	MD5    string `yaml:"md5,omitempty"`
	SHA256 string `yaml:"sha256,omitempty"`
}

// Write returns the lock as conda-lock.yml. The same packages give the same bytes.
func (l *Lock) Write() ([]byte, error) {
	out := lockFile{Version: 1, Metadata: lockMetadata{
		ContentHash: map[string]string{}, Channels: []lockChannel{}, Platforms: []string{}, Sources: listOf(l.Sources),
	}}
	for _, c := range l.Channels {
		out.Metadata.Channels = append(out.Metadata.Channels, lockChannel{URL: withoutLogins(c), EnvVars: []string{}})
	}
	out.Package = []lockPackage{}
	for _, p := range l.Platforms {
		out.Metadata.Platforms = append(out.Metadata.Platforms, p.Name)
		out.Metadata.ContentHash[p.Name] = p.contentHash()
		for _, one := range p.Packages {
			out.Package = append(out.Package, condaEntry(p.Name, one))
		}
		for _, w := range p.Wheels {
			out.Package = append(out.Package, lockPackage{
				Name: w.Name, Version: w.Version, Manager: "pip", Platform: p.Name, Dependencies: map[string]string{},
				URL: withoutLogins(w.URL), Hash: lockHash{SHA256: w.SHA256.Hex()}, Category: "main",
			})
		}
	}
	slices.Sort(out.Metadata.Platforms)
	slices.SortFunc(out.Package, func(a, b lockPackage) int {
		return cmp.Or(cmp.Compare(a.Manager, b.Manager), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Platform, b.Platform))
	})
	var b bytes.Buffer
	b.WriteString("# Locked by sconce. Other tools read it too: conda-lock, mamba, conda.\n")
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(out), e.Close()); err != nil {
		return nil, fmt.Errorf("write conda-lock.yml: %w", err)
	}
	if i := bytes.IndexFunc(b.Bytes(), quote.HarmfulInLines); i >= 0 {
		line := b.Bytes()[bytes.LastIndexByte(b.Bytes()[:i], '\n')+1:]
		line, _, _ = bytes.Cut(line, []byte("\n"))
		return nil, fmt.Errorf("write conda-lock.yml: a channel has given a control character: %q", bytes.TrimSpace(line))
	}
	return b.Bytes(), nil
}

// contentHash sums up the packages of a platform: addresses and hashes, sorted.
func (part *Platform) contentHash() string {
	var lines []string
	for _, one := range part.Packages {
		lines = append(lines, withoutLogins(one.URL)+" "+cmp.Or(one.SHA256.Hex(), one.MD5)+"\n")
	}
	for _, w := range part.Wheels {
		lines = append(lines, withoutLogins(w.URL)+" "+w.SHA256.Hex()+"\n")
	}
	slices.Sort(lines)
	return store.DigestOf([]byte(strings.Join(lines, ""))).Hex()
}

func condaEntry(platform string, p conda.Package) lockPackage {
	depends := map[string]string{}
	for _, d := range p.Depends {
		name, rest, _ := strings.Cut(strings.TrimSpace(d), " ")
		if there, twice := depends[name]; twice && there != "" && rest != "" {
			rest = there + "," + rest // a file has room for one of each name
		} else {
			rest = cmp.Or(rest, there)
		}
		depends[name] = rest
	}
	return lockPackage{
		Name: p.Name, Version: p.Version, Manager: "conda", Platform: platform, Dependencies: depends, URL: withoutLogins(p.URL),
		Hash: lockHash{MD5: p.MD5, SHA256: p.SHA256.Hex()}, Build: p.Build, Category: "main",
	}
}

// parseCondaLock reads conda-lock.yml as conda-lock, mamba and sconce write it.
func parseCondaLock(file string, text []byte, categories []string) (*Lock, error) {
	in := lockFile{Version: 1}
	if err := yaml.Unmarshal(text, &in); err != nil {
		return nil, yamlError(file, err)
	}
	if in.Version != 1 {
		return nil, fault.Usage(fmt.Errorf("%s: version %d of conda-lock.yml is not known, only 1 is", file, in.Version))
	}
	l := &Lock{Format: "conda-lock.yml", Sources: in.Metadata.Sources}
	for _, c := range in.Metadata.Channels {
		l.Channels = append(l.Channels, strings.TrimRight(withoutLogins(c.URL), "/"))
	}
	for _, name := range in.Metadata.Platforms {
		l.Platforms = append(l.Platforms, Platform{Name: name})
	}
	seen := map[[3]string]string{} // addresses
	known := map[string]bool{"main": true}
	var problems []error
	for i, entry := range in.Package {
		category := cmp.Or(entry.Category, "main")
		known[category] = true
		if (entry.Optional || category != "main") && !slices.Contains(categories, category) {
			continue
		}
		key := [3]string{entry.Platform, entry.Manager, entry.Name}
		if seen[key] == entry.URL && entry.URL != "" {
			continue // it is in several categories
		}
		seen[key] = entry.URL
		if err := l.addEntry(&entry); err != nil {
			problems = append(problems, fmt.Errorf("%s: package %d, %s: %w", file, i+1, entry.Name, err))
		}
	}
	for _, category := range categories {
		if !known[category] {
			problems = append(problems, fmt.Errorf("%s: no package is of the category %q, only of %s", file, category, strings.Join(slices.Sorted(maps.Keys(known)), ", ")))
		}
	}
	return l.finish(file, problems)
}

// finish sorts the packages, or says what is wrong with the file.
func (l *Lock) finish(file string, problems []error) (*Lock, error) {
	for _, p := range l.Platforms {
		if p.Name != "" && !isPlatform(p.Name) {
			problems = append(problems, fmt.Errorf("%s: %q is not a platform", file, p.Name))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fault.Usage(err)
	}
	for i := range l.Platforms {
		l.Platforms[i].Packages = conda.SortPackages(l.Platforms[i].Packages)
	}
	return l, nil
}

func isPlatform(name string) bool { return subdirName.MatchString(name) && name != "noarch" }

// platform returns the part for a platform, new or not.
func (l *Lock) platform(name string) *Platform {
	for i := range l.Platforms {
		if l.Platforms[i].Name == name {
			return &l.Platforms[i]
		}
	}
	l.Platforms = append(l.Platforms, Platform{Name: name})
	return &l.Platforms[len(l.Platforms)-1]
}

func (l *Lock) addEntry(e *lockPackage) error {
	if !isPlatform(e.Platform) {
		return fmt.Errorf("%q is not a platform", e.Platform)
	}
	switch e.Manager {
	case "conda":
		p, err := fromURL(e.URL)
		if err != nil {
			return err
		}
		if err := p.agree(e.Name, e.Version, e.Build); err != nil {
			return err
		}
		for name, rest := range e.Dependencies {
			p.Depends = append(p.Depends, strings.TrimSpace(name+" "+rest))
		}
		slices.Sort(p.Depends)
		return l.platform(e.Platform).add(p.Package, e.Hash)
	case "pip":
		w, err := wheelOf(e.Name, e.Version, e.URL, e.Hash.SHA256)
		if err != nil {
			return err
		}
		part := l.platform(e.Platform)
		part.Wheels = append(part.Wheels, w)
		return nil
	}
	return fmt.Errorf("manager %q is neither conda nor pip", e.Manager)
}

// located is a package of which the address alone is known.
type located struct{ conda.Package }

// agree checks what a lock says besides the address, which must not contradict it.
func (p *located) agree(name, version, build string) error {
	if name != "" && !strings.EqualFold(name, p.Name) {
		return fmt.Errorf("the address is of %s: %s", p.Name, p.URL)
	}
	if version != "" && version != p.Version {
		return fmt.Errorf("the address is of version %s, and not %s: %s", p.Version, version, p.URL)
	}
	if build != "" && build != p.Build {
		return fmt.Errorf("the address is of build %s, and not %s: %s", p.Build, build, p.URL)
	}
	return nil
}

// add adds a package with its hashes. Each platform has one package of a name.
func (part *Platform) add(p conda.Package, h lockHash) error {
	if h.SHA256 != "" {
		p.SHA256 = store.Digest("sha256:" + strings.ToLower(h.SHA256))
	}
	p.MD5 = strings.ToLower(h.MD5)
	if err := check(&p); err != nil {
		return err
	}
	for _, there := range part.Packages {
		if there.Name == p.Name {
			return fmt.Errorf("it is there twice: %s and %s", there.File, p.File)
		}
	}
	part.Packages = append(part.Packages, p)
	return nil
}

func wheelOf(name, version, address, hash string) (Wheel, error) {
	w := Wheel{Name: python.NormalizeName(name), Version: version, URL: withoutLogins(address)}
	if !stubName.MatchString(w.Name) {
		return w, fmt.Errorf("%q is not the name of a Python package", name)
	}
	if _, err := url.Parse(w.URL); err != nil {
		return w, errors.New("its address cannot be read")
	}
	if hash == "" {
		return w, nil
	}
	d, err := store.ParseDigest("sha256:" + strings.ToLower(hash))
	w.SHA256 = d
	return w, err
}

// buildNumber is at the end of nearly all build strings: py312h1234567_0.
var buildNumber = lazyregexp.New(`(?:^|_)([0-9]{1,9})$`)

// describe fills in what an address alone implies: the number of the build, and what a noarch package is made of, as rattler
// reads it from the build. The package's own index.json decides.
func describe(p *conda.Package) {
	if m := buildNumber.FindStringSubmatch(p.Build); m != nil {
		p.BuildNumber, _ = strconv.Atoi(m[1])
	}
	if p.Subdir == "noarch" {
		p.Noarch = "generic"
		if strings.HasPrefix(p.Build, "py") {
			p.Noarch = "python"
		}
	}
}

// Explicit returns the packages of a platform as an @EXPLICIT file (CEP 23), each after those that it depends on.
func (part *Platform) Explicit() []byte {
	var b bytes.Buffer
	b.WriteString("# This file may be used to create an environment using:\n# $ conda create --name <env> --file <this file>\n")
	if part.Name != "" {
		fmt.Fprintf(&b, "# platform: %s\n", quote.Clean(part.Name))
	}
	b.WriteString("@EXPLICIT\n")
	for _, one := range conda.SortPackages(part.Packages) {
		b.WriteString(withoutLogins(one.URL))
		if hash := cmp.Or(one.SHA256.Hex(), one.MD5); hash != "" {
			b.WriteString("#" + hash)
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

var platformComment = lazyregexp.New(`^#\s*platform:\s*([a-z0-9_-]+)\s*$`)

// parseExplicit reads an @EXPLICIT file.
func parseExplicit(file string, text []byte) (*Lock, error) {
	l := &Lock{Format: "@EXPLICIT"}
	part := &Platform{}
	var problems []error
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if m := platformComment.FindStringSubmatch(line); m != nil {
			part.Name = m[1]
		}
		if line == "" || strings.HasPrefix(line, "#") || line == "@EXPLICIT" {
			continue
		}
		p, err := explicitPackage(line)
		if err == nil {
			err = part.add(p, lockHash{MD5: p.MD5, SHA256: p.SHA256.Hex()})
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s:%d:1: %w", file, i+1, err))
			continue
		}
		if p.Subdir != "noarch" {
			part.Name = cmp.Or(part.Name, p.Subdir)
			if part.Name != p.Subdir {
				problems = append(problems, fmt.Errorf("%s:%d:1: %s is for %s, and the file is for %s", file, i+1, p.File, p.Subdir, part.Name))
			}
		}
		if !slices.Contains(l.Channels, p.Channel) {
			l.Channels = append(l.Channels, p.Channel)
		}
	}
	order := part.Packages
	l.Platforms = []Platform{*part}
	if _, err := l.finish(file, problems); err != nil {
		return nil, err
	}
	l.Platforms[0].Packages = order // the file's, which knows of dependencies
	return l, nil
}

// explicitPackage reads a line: an address or a path, then #md5 or #sha256.
func explicitPackage(line string) (conda.Package, error) {
	address, hash, _ := strings.Cut(line, "#")
	if path.IsAbs(address) {
		address = (&url.URL{Scheme: "file", Path: address}).String()
	}
	p, err := fromURL(address)
	if err != nil {
		return p.Package, err
	}
	hash = strings.TrimPrefix(strings.ToLower(hash), "sha256:")
	switch len(hash) {
	case 0:
	case 32:
		p.MD5 = hash
	default:
		if p.SHA256, err = store.ParseDigest("sha256:" + hash); err != nil {
			return p.Package, fmt.Errorf("%q is neither an MD5 nor a SHA-256", hash)
		}
	}
	return p.Package, nil
}
