package lock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/wheelbuild"
)

// How packages without wheels are resolved.
//
// uv takes the versions that it takes by itself: the newest that fit, as a wheel where one fits, else as its source. What a
// source depends on it learns without running it (sources_read.go).
//
// Three things are told to uv besides. A table [python.compile.NAME] takes the wheels of that package away, and may say what
// it depends on. What is asked for by the address of a source may have no version before it is built: uv is told one, and what
// the source says, and asked again until what it chose is what it was told of. And the recipe's only-binary takes sources away.
//
// A source may turn out to be of no use: it does not say what it depends on, or what it is built with cannot be had. Then it is taken
// away too, and uv asked again; the versions that come out instead are warned of (sources_fallback.go).

// dependencyMetadata is what uv is told of one source.
type dependencyMetadata struct {
	Name           string   `toml:"name"`
	Version        string   `toml:"version,omitempty"`
	RequiresDist   []string `toml:"requires-dist"`
	RequiresPython string   `toml:"requires-python,omitempty"`
	ProvidesExtra  []string `toml:"provides-extra,omitempty"`
}

// sources are the packages that uv is told something of, or must take as their source.
type sources struct {
	byName map[string]*sourcePackage // by normalised name

	mu       sync.Mutex
	unusable []unusableSource // that uv asked for
}

// sourcePackage is what is known of one of them.
type sourcePackage struct {
	direct   bool                          // it is asked for by address
	depends  []string                      // what the recipe says of every version
	versions map[string]dependencyMetadata // that were looked at
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
	s.byName[name] = &sourcePackage{direct: direct, versions: make(map[string]dependencyMetadata)}
	return true
}

func (s *sources) names() []string {
	if s == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(s.byName))
}

// metadata is what uv is told. Of a source asked for by address it takes what is said of a version, and only when there is
// one.
func (s *sources) metadata() []dependencyMetadata {
	var all []dependencyMetadata
	for _, name := range s.names() {
		p := s.byName[name]
		for _, version := range slices.Sorted(maps.Keys(p.versions)) {
			all = append(all, p.versions[version])
		}
		switch {
		case !p.direct && p.depends != nil:
			all = append(all, dependencyMetadata{Name: name, RequiresDist: p.depends})
		case p.direct && len(p.versions) == 0:
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

// maxRounds bounds how often uv is asked about sources that were asked for by address: each round adds one that was not known,
// or what it says.
const maxRounds = 30

// askWithSources asks uv until all that it chose is known.
func (k *locker) askWithSources(ctx context.Context, dir, out string) (text []byte, err error) {
	if err := k.newSources(); err != nil {
		return nil, err
	}
	if k.reader, err = newSourceReader(dir, k.answer); err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, k.reader.Close())
		k.reader = nil
	}()
	for range maxRounds {
		if err := k.keepVersions(out); err != nil { // and not those of the round before
			return nil, err
		}
		text, err := k.askOnce(ctx, dir, out)
		if err != nil {
			if k.addRefused(err) {
				continue
			}
			return nil, k.explained(err)
		}
		again, err := k.learn(ctx, text)
		if err != nil || !again {
			return text, err
		}
	}
	return nil, fault.Hint(errors.New("the Python packages that are asked for by address change with each other without end"),
		"ask for them by version, or by the address of a wheel")
}

// newSources begins with what the recipe says of sources.
func (k *locker) newSources() error {
	k.sources = newSources()
	for name, own := range k.recipe.Python.Compile {
		k.sources.add(name, false)
		k.sources.byName[python.NormalizeName(name)].depends = own.Depends
	}
	asked, err := requested(k.recipe)
	if err != nil {
		return err
	}
	for _, text := range asked {
		if r, err := python.ParseRequirement(text); err == nil && r.URL != "" && !strings.HasSuffix(withoutFragment(r.URL), ".whl") {
			k.sources.add(r.Name, true)
		}
	}
	return nil
}

// explained replaces what uv says when it got no answer about a source, which is a long account that would lead astray.
func (k *locker) explained(err error) error {
	var refusal *ResolutionError
	if !errors.As(err, &refusal) {
		return err
	}
	if u := k.sources.unusable; len(u) > 0 {
		return &unusableError{u}
	}
	m := notBuilt.FindStringSubmatch(refusal.Text)
	if m == nil || strings.Contains(refusal.Text, notAnswered) {
		return err
	}
	if m[2] == "" { // asked for by address: there is no other version
		return undeclared(m[1])
	}
	return &unusableError{[]unusableSource{{python.NormalizeName(m[1]), m[2], undeclared(m[1])}}}
}

// notAnswered begins what our own module says when it does not understand uv.
const notAnswered = "sconce cannot answer this uv"

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

// What uv says of one that is asked for by address, of which it would not build the metadata.
var directRefused = lazyregexp.New("(?:Failed to (?:build|prepare|resolve metadata for|generate package metadata for)|Building source distributions for|Wheels are required for) `([A-Za-z0-9._-]+)(?:==[^ `]+)? @ ")

// addRefused notes the packages asked for by address that uv knew nothing of.
func (k *locker) addRefused(err error) bool {
	var refusal *ResolutionError
	if !errors.As(err, &refusal) {
		return false
	}
	added := false
	for _, m := range directRefused.FindAllStringSubmatch(refusal.Text, -1) {
		added = k.sources.add(m[1], true) || added
	}
	return added
}

// learn looks at the sources that uv chose by address. It returns true when uv was not told what they say.
func (k *locker) learn(ctx context.Context, text []byte) (bool, error) {
	packages, err := k.python.read(k.recipe, text)
	if err != nil {
		return false, err
	}
	again := false
	for _, p := range packages {
		s := k.sources.byName[python.NormalizeName(p.Name)]
		if p.Source == nil || !p.Source.Direct || s == nil {
			continue
		}
		again = k.sources.add(p.Name, true) || again
		info, err := k.sourceInfo(ctx, p)
		if err != nil {
			return false, err
		}
		m, err := k.declared(p.Name, info)
		if err != nil {
			return false, err
		}
		told, ok := s.versions[m.Version]
		if !ok || len(s.versions) > 1 {
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
	place := placeOf(p.Source)
	if info, ok := k.infos.Load(place); ok {
		return info.(python.SourceInfo), nil
	}
	bring := wheelbuild.Sources{Store: k.opts.Store, Fetch: k.opts.Fetch, Reach: k.recipe.Reach, Header: k.logins.Header, Login: LoginHint}
	blob, err := bring.Bring(ctx, p.Name, *p.Source)
	if err != nil {
		return python.SourceInfo{}, err
	}
	info, err := bring.Info(blob, p.Source.Subdirectory)
	if err != nil {
		return info, fmt.Errorf("source of %s: %w", p.Name, err)
	}
	if info.Name != "" && python.NormalizeName(info.Name) != python.NormalizeName(p.Name) {
		return info, fmt.Errorf("the source that was asked for as %s is of %s", p.Name, info.Name)
	}
	k.infos.Store(place, info)
	return info, nil
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
		if c.Network {
			line += " network"
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
	packages, err := pylock.Select(python.EnvironmentOf(i), i.Tags(), nil, nil)
	if err != nil {
		return nil, err
	}
	return packages, reachPackages(k.recipe, packages)
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
