package lock

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/known"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/wheelbuild"
)

// How packages without wheels are resolved.
//
// uv is told to take wheels only. When it says of a package that it has none, that package alone may come as its source, and
// uv is asked again. So that nobody has to run the source to know what it depends on, uv is told that as well (uv's reference,
// "dependency-metadata"): first that it depends on nothing, then, when uv has chosen a version, what that version's source
// says, until what uv chose is what it was told of.
//
// Wheels come first in this: an older version with a wheel is taken before a newer one without, as for any who installs wheels
// only. A table [python.compile.NAME] takes the wheels of that package away.

// dependencyMetadata is what uv is told of one source.
type dependencyMetadata struct {
	Name           string   `toml:"name"`
	Version        string   `toml:"version,omitempty"`
	RequiresDist   []string `toml:"requires-dist"`
	RequiresPython string   `toml:"requires-python,omitempty"`
	ProvidesExtra  []string `toml:"provides-extra,omitempty"`
}

// sources are the packages that come as their source.
type sources struct {
	byName map[string]*sourcePackage // by normalised name
}

// sourcePackage is what is known of one of them.
type sourcePackage struct {
	direct   bool                          // it is asked for by address
	versions map[string]dependencyMetadata // that were looked at
	blobs    map[string]python.SourceInfo  // by the source's place, see placeOf
}

// unknownVersion stands for the version of a source asked for by address until it was looked at.
const unknownVersion = "0"

func newSources() *sources { return &sources{byName: make(map[string]*sourcePackage)} }

// add notes that the package comes as its source. It returns false when that is known.
func (s *sources) add(name string, direct bool) bool {
	name = python.NormalizeName(name)
	if p, ok := s.byName[name]; ok {
		changed := direct && !p.direct
		p.direct = p.direct || direct
		return changed
	}
	s.byName[name] = &sourcePackage{direct: direct, versions: make(map[string]dependencyMetadata), blobs: make(map[string]python.SourceInfo)}
	return true
}

func (s *sources) names() []string {
	if s == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(s.byName))
}

// metadata is what uv is told. Of a source asked for by address it takes what is said of a version, and only when there is
// one; of those from an index also what is said of all versions.
func (s *sources) metadata() []dependencyMetadata {
	var all []dependencyMetadata
	for _, name := range s.names() {
		p := s.byName[name]
		for _, version := range slices.Sorted(maps.Keys(p.versions)) {
			all = append(all, p.versions[version])
		}
		switch {
		case !p.direct:
			all = append(all, dependencyMetadata{Name: name, RequiresDist: []string{}})
		case len(p.versions) == 0:
			all = append(all, dependencyMetadata{Name: name, Version: unknownVersion, RequiresDist: []string{}})
		}
	}
	return all
}

// withMetadata adds metadata to the text of a uv.toml. The user's own go before them.
func withMetadata(text []byte, metadata []dependencyMetadata) []byte {
	if len(metadata) == 0 {
		return text
	}
	settings := make(map[string]any)
	if toml.Unmarshal(text, &settings) != nil {
		return text // uv says what is wrong
	}
	list, _ := settings["dependency-metadata"].([]any)
	for _, m := range metadata {
		list = append(list, m)
	}
	settings["dependency-metadata"] = list
	out, err := toml.Marshal(settings)
	if err != nil {
		return text
	}
	return out
}

// projectOnly are the settings of uv that count in a pyproject.toml alone, and that a uv.toml must not have.
var projectOnly = []string{
	"sources", "workspace", "managed", "package", "default-groups", "dependency-groups", "dev-dependencies", "build-backend", "conflicts",
}

// ofProject returns the settings for uv in a pyproject.toml as a uv.toml.
func ofProject(text []byte) []byte {
	var file struct {
		Tool struct {
			UV map[string]any `toml:"uv"`
		} `toml:"tool"`
	}
	if toml.Unmarshal(text, &file) != nil {
		return nil // uv says what is wrong with the file when it reads it
	}
	for _, key := range projectOnly {
		delete(file.Tool.UV, key)
	}
	out, err := toml.Marshal(file.Tool.UV)
	if err != nil {
		return nil
	}
	return out
}

// maxRounds bounds how often uv is asked: each round adds a package or a version that was not known.
const maxRounds = 200

// askWithSources asks uv until all that it chose is known.
func (k *locker) askWithSources(ctx context.Context, dir, out string) ([]byte, error) {
	k.sources = newSources()
	for name := range k.recipe.Python.Compile {
		k.sources.add(name, false)
	}
	asked, err := requested(k.recipe)
	if err != nil {
		return nil, err
	}
	for _, text := range asked {
		if r, err := python.ParseRequirement(text); err == nil && r.URL != "" && !strings.HasSuffix(withoutFragment(r.URL), ".whl") {
			k.sources.add(r.Name, true)
		}
	}
	var refused error // why a package may come as its source
	for range maxRounds {
		text, err := k.askOnce(ctx, dir, out)
		if err != nil {
			if refused != nil && k.hasNoSource(err) {
				return nil, refused
			}
			if k.addRefused(err) {
				refused = err
				continue
			}
			return nil, withoutTrace(err)
		}
		again, err := k.learn(ctx, text)
		if err != nil || !again {
			return text, err
		}
	}
	return nil, errors.New("the Python packages without wheels change with each other without end")
}

// withoutTrace replaces what uv says when it would have had to run the code of a source, which is a long account of how that
// failed and would lead astray.
func withoutTrace(err error) error {
	var refusal *ResolutionError
	if errors.As(err, &refusal) && strings.Contains(refusal.Text, nowhere) {
		if m := notBuilt.FindStringSubmatch(refusal.Text); m != nil {
			return undeclared(m[1])
		}
	}
	return err
}

// undeclared is the error of a source that has to be run to know what it depends on.
func undeclared(name string) error {
	return fault.Hint(fmt.Errorf("the source of %s does not say what it depends on: it says so only when its code is run, which locking does not do", name),
		fmt.Sprintf("name it under [python.compile.%s]: depends = [\"…\"], or depends = [] for nothing", python.NormalizeName(name)))
}

func withoutFragment(address string) string {
	address, _, _ = strings.Cut(address, "#")
	address, _, _ = strings.Cut(address, "?")
	return address
}

var (
	wheelsRequired = regexp.MustCompile("Wheels are required for `([A-Za-z0-9._-]+)`")
	// What uv says of one that is asked for by address, of which it would not build the metadata.
	directRefused = regexp.MustCompile("(?:Failed to (?:build|prepare|resolve metadata for|generate package metadata for)|Building source distributions for|Wheels are required for) `([A-Za-z0-9._-]+)(?:==[^ `]+)? @ ")
)

// sourceRequired is what uv says of a package that has wheels for others and no source.
var sourceRequired = regexp.MustCompile("A source distribution is required for `([A-Za-z0-9._-]+)`")

// hasNoSource reports whether uv failed because of a package that has no source, and of which nobody asked for one.
func (k *locker) hasNoSource(err error) bool {
	var refusal *ResolutionError
	if !errors.As(err, &refusal) {
		return false
	}
	for _, m := range sourceRequired.FindAllStringSubmatch(refusal.Text, -1) {
		if _, own := k.recipe.Python.Compile[python.NormalizeName(m[1])]; !own {
			return true
		}
	}
	return false
}

// addRefused lets the packages come as their sources that uv refused for having no wheel.
func (k *locker) addRefused(err error) bool {
	var refusal *ResolutionError
	if !errors.As(err, &refusal) {
		return false
	}
	added := false
	for _, m := range directRefused.FindAllStringSubmatch(refusal.Text, -1) {
		added = k.sources.add(m[1], true) || added
	}
	for _, m := range wheelsRequired.FindAllStringSubmatch(refusal.Text, -1) {
		added = k.sources.add(m[1], false) || added
	}
	for _, m := range noWheel.FindAllStringSubmatch(refusal.Text, -1) {
		added = k.sources.add(m[1]+m[2], false) || added
	}
	return added
}

// learn looks at the sources that uv chose. It returns true when uv was not told what they say.
func (k *locker) learn(ctx context.Context, text []byte) (bool, error) {
	packages, err := k.python.read(k.recipe, text)
	if err != nil {
		return false, err
	}
	again := false
	for _, p := range packages {
		s := k.sources.byName[python.NormalizeName(p.Name)]
		if p.Source == nil || s == nil {
			continue
		}
		if p.Source.Direct {
			again = k.sources.add(p.Name, true) || again
		}
		info, err := k.sourceInfo(ctx, p)
		if err != nil {
			return false, err
		}
		m, err := k.metadataOf(p, info)
		if err != nil {
			return false, err
		}
		told, ok := s.versions[m.Version]
		if s.direct && (!ok || len(s.versions) > 1) {
			clear(s.versions)
		}
		s.versions[m.Version] = m
		again = again || !ok || !slices.Equal(told.RequiresDist, m.RequiresDist)
	}
	return again, nil
}

// placeOf says which source it is.
func placeOf(s *python.Source) string {
	return strings.Join([]string{string(s.Kind), s.Path, string(s.Digest), s.Commit, s.Subdirectory}, " ")
}

// sourceInfo brings the source of p and reads what it says, once.
func (k *locker) sourceInfo(ctx context.Context, p python.Package) (python.SourceInfo, error) {
	name := python.NormalizeName(p.Name)
	if k.sources == nil {
		k.sources = newSources() // the package lock is the user's own
	}
	k.sources.add(name, p.Source.Direct)
	place := placeOf(p.Source)
	if info, ok := k.sources.byName[name].blobs[place]; ok {
		return info, nil
	}
	bring := wheelbuild.Sources{Store: k.opts.Store, Fetch: k.opts.Fetch, Header: k.logins.Header, Login: LoginHint}
	blob, err := bring.Bring(ctx, p.Name, *p.Source)
	if err != nil {
		return python.SourceInfo{}, err
	}
	info, err := bring.Info(blob, p.Source.Subdirectory)
	if err != nil {
		return info, fmt.Errorf("source of %s: %w", p.Name, err)
	}
	if info.Name != "" && python.NormalizeName(info.Name) != name {
		return info, fmt.Errorf("the source that was asked for as %s is of %s", p.Name, info.Name)
	}
	k.sources.byName[name].blobs[place] = info
	return info, nil
}

// metadataOf puts together what uv is told of p: what the recipe says of its dependencies, else what its source promises, else
// what is known, else what its author's machine recorded.
func (k *locker) metadataOf(p python.Package, info python.SourceInfo) (dependencyMetadata, error) {
	name := python.NormalizeName(p.Name)
	m := dependencyMetadata{
		Name: name, Version: p.Version, RequiresPython: info.RequiresPython, RequiresDist: info.Requires, ProvidesExtra: info.Extras,
	}
	if p.Source.Direct {
		m.Version = cmp.Or(info.Version, unknownVersion)
	}
	facts, _ := known.Lookup(name)
	switch own := k.recipe.Python.Compile[name].Depends; {
	case own != nil:
		m.RequiresDist = own
	case info.Certainty == python.Static:
	case info.Certainty == python.Unknown && facts.Depends != nil:
		m.RequiresDist = *facts.Depends
	case info.Certainty == python.Unknown:
		return m, undeclared(p.Name)
	}
	if m.RequiresDist == nil {
		m.RequiresDist = []string{}
	}
	return m, nil
}

// compileInputs are the lines that a recipe's [python.compile] adds to what a lock was made for.
func compileInputs(r *recipe.Recipe) []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(r.Python.Compile)) {
		c := r.Python.Compile[name]
		line := name
		if c.Isolation != nil {
			line += fmt.Sprintf(" isolation %t", *c.Isolation)
		}
		if c.CUDA != nil {
			line += fmt.Sprintf(" cuda %t", *c.CUDA)
		}
		if len(c.Requires) > 0 {
			line += " requires " + strings.Join(c.Requires, ", ")
		}
		if c.Base != "" {
			line += " base " + c.Base
		}
		if c.Depends != nil {
			line += " depends [" + strings.Join(c.Depends, ", ") + "]"
		}
		lines = append(lines, line)
	}
	return lines
}

// selectWheels reads a PEP 751 lock of wheels alone.
func (k *locker) selectWheels(text []byte) ([]python.Package, error) {
	pylock, err := python.ReadLock(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	pylock.Dir = filepath.Dir(pylockPath(k.recipe))
	i := k.python.Interpreter()
	return pylock.Select(python.EnvironmentOf(i), i.Tags(), nil, nil)
}

// BuildRequirement is a wheel that is there while a package is built, and in no image.
type BuildRequirement struct {
	Name    string       `toml:"name"`
	Version string       `toml:"version"`
	File    string       `toml:"file"`
	URL     string       `toml:"url"` // or a path of this machine
	Digest  store.Digest `toml:"digest"`
	Size    int64        `toml:"size,omitempty"` // in bytes
}
