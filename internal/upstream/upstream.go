// Package upstream brings what components are built from: archives, commits and source packages of a distribution.
//
// It works in two halves, as package ospackages does:
//
//   - [Pin] decides what a source means today: the hash of an archive, the commit of a branch, the files of a source package.
//     This is what a lock keeps. All of it is in the store then.
//   - [Layer] makes one layer of the files, patched. It needs the network only for what the store has not, all of known hashes.
//
// Of a source that comes from elsewhere nothing is run: archives are read here, with limits, and git is told to run no hook, to
// follow no other protocol than that of the recipe, and to let no file of the repository configure it.
package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/wheelbuild"
)

// Version is the version of the code that unpacks: it enters every key.
const Version = 1

// Request is what a recipe says of a source. Exactly one of URL, Git and Debian is given.
type Request struct {
	Name   string
	URL    string       // of an archive: http, https, file, or a path
	SHA256 store.Digest // of the archive; "": whatever is there
	Git    string       // a repository, as git names one
	Commit string       // of Git: 40 or 64 hexadecimal digits, or a tag or branch
	Debian string       // NAME or NAME=VERSION
}

// Pinned is a source as a lock keeps it.
type Pinned struct {
	Git    string `toml:"git,omitempty"`
	Commit string `toml:"commit,omitempty"`
	Debian string `toml:"debian,omitempty"` // NAME=VERSION
	Files  []File `toml:"file"`             // the archive; the packed files of a commit; those of a source package
}

// File is one file of a source.
type File struct {
	Name   string       `toml:"name"`          // by which its form is known
	URL    string       `toml:"url,omitempty"` // "" of the packed files of a commit
	Size   int64        `toml:"size"`          // bytes
	SHA256 store.Digest `toml:"sha256"`
}

// What says in a few words what the source is, for people.
func (p *Pinned) What() string {
	switch {
	case p.Debian != "":
		return p.Debian
	case p.Git != "":
		return fetch.Redact(p.Git) + " " + p.Commit[:min(12, len(p.Commit))]
	case len(p.Files) > 0:
		return p.Files[0].Name
	}
	return ""
}

// commitForm is the form of a commit's hash, by SHA-1 or SHA-256.
var commitForm = lazyregexp.New(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// Check finds what a lock that was changed by hand may lack.
func (p *Pinned) Check() error {
	if len(p.Files) == 0 {
		return errors.New("it has no files")
	}
	if p.Git != "" && !commitForm.MatchString(p.Commit) {
		return fmt.Errorf("%q is not the hash of a commit", p.Commit)
	}
	for _, f := range p.Files {
		if _, err := store.ParseDigest(string(f.SHA256)); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		if f.Name == "" || f.Name != path.Base(f.Name) || f.Name == ".." {
			return fmt.Errorf("%q is no name of a file", f.Name)
		}
	}
	return nil
}

// Asker names the files of a source package of the base's distribution, NAME or NAME=VERSION, and says which version that is.
type Asker = func(ctx context.Context, name string) (files []File, version string, err error)

// Options say with what sources are brought.
type Options struct {
	Store *store.Store
	Fetch *fetch.Client
	Dir   string       // absolute: where paths start
	Reach reach.Bounds // which repositories of this machine a repository of it may have as submodules
	Ask   Asker        // nil: there is nobody to ask for source packages
}

func (o Options) sources() wheelbuild.Sources {
	return wheelbuild.Sources{Store: o.Store, Fetch: o.Fetch, Reach: o.Reach}
}

// scpForm is how git and scp write HOST:PATH.
var scpForm = lazyregexp.New(`^[A-Za-z0-9_.@-]+:[^/\s]`)

// resolve returns an address with a relative path made absolute. A lock has them as the recipe does.
func (o Options) resolve(address string) string {
	if address == "" || strings.Contains(address, "://") || filepath.IsAbs(address) || scpForm.MatchString(address) {
		return address
	}
	return filepath.Join(o.Dir, address)
}

// Pin decides what a source is, and brings it into the store.
func Pin(ctx context.Context, r Request, o Options) (*Pinned, error) {
	p, err := pin(ctx, r, o)
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", r.Name, err)
	}
	return p, nil
}

func pin(ctx context.Context, r Request, o Options) (*Pinned, error) {
	switch {
	case r.Git != "":
		return pinCommit(ctx, r, o)
	case r.Debian != "":
		return pinPackage(ctx, r, o)
	}
	return pinArchive(ctx, r, o)
}

func pinArchive(ctx context.Context, r Request, o Options) (*Pinned, error) {
	f := File{Name: nameOf(r.URL), URL: r.URL, SHA256: r.SHA256}
	if f.SHA256 == "" {
		var err error
		if f.SHA256, err = unpinned(ctx, r, o); err != nil {
			return nil, err
		}
	}
	p := &Pinned{Files: []File{f}}
	if err := p.bring(ctx, r.Name, o); err != nil {
		return nil, err
	}
	var err error
	p.Files[0].Size, err = o.Store.BlobSize(f.SHA256)
	return p, err
}

// unpinned is the hash of what an address gives now.
func unpinned(ctx context.Context, r Request, o Options) (store.Digest, error) {
	address := o.resolve(r.URL)
	local, isLocal := strings.CutPrefix(address, "file://")
	if !isLocal && !filepath.IsAbs(address) {
		return o.Fetch.Unpinned(ctx, fetch.Request{URL: address, Name: "source " + r.Name, OfRecipe: true})
	}
	f, err := os.Open(local)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return digestOf(ctx, f)
}

// nameOf is the name of the file that an address leads to.
func nameOf(address string) string {
	if u, err := url.Parse(address); err == nil && u.Path != "" {
		address = u.Path
	}
	return cmp.Or(strings.Trim(path.Base(address), "/."), "archive")
}

func pinCommit(ctx context.Context, r Request, o Options) (*Pinned, error) {
	p := &Pinned{Git: r.Git}
	var err error
	if p.Commit, err = o.sources().Commit(ctx, o.resolve(r.Git), r.Commit); err != nil {
		return nil, err
	}
	blob, err := o.sources().Bring(ctx, r.Name, p.repository(o))
	if err != nil {
		return nil, errors.Unwrap(err) // without "source of"
	}
	size, err := o.Store.BlobSize(blob.Digest)
	p.Files = []File{{Name: blob.File, Size: size, SHA256: blob.Digest}}
	return p, err
}

func (p *Pinned) repository(o Options) python.Source {
	return python.Source{Kind: python.SourceGit, URL: o.resolve(p.Git), Commit: p.Commit}
}

func pinPackage(ctx context.Context, r Request, o Options) (*Pinned, error) {
	if o.Ask == nil {
		return nil, errors.New("the base has no package manager that could be asked for source packages")
	}
	files, version, err := o.Ask(ctx, r.Debian)
	if err != nil {
		return nil, err
	}
	name, _, _ := strings.Cut(r.Debian, "=")
	p := &Pinned{Debian: name + "=" + version, Files: files}
	if err := p.Check(); err != nil {
		return nil, err
	}
	return p, p.bring(ctx, r.Name, o)
}

// bring brings the files of a source into the store.
func (p *Pinned) bring(ctx context.Context, name string, o Options) error {
	if p.Git != "" {
		return p.bringCommit(ctx, name, o)
	}
	var all []fetch.Request
	for _, f := range p.Files {
		all = append(all, fetch.Request{
			URL: o.resolve(f.URL), Digest: f.SHA256, Size: f.Size, Name: "source " + name + " (" + f.Name + ")", OfRecipe: p.Debian == "",
		})
	}
	err := o.Fetch.Blobs(ctx, all)
	var mismatch *store.MismatchError
	if errors.As(err, &mismatch) {
		return fault.Hint(err, fmt.Sprintf("what is at the address has changed, or sha256 under [source.%s] is not its hash", name))
	}
	return err
}

// bringCommit fetches a commit unless its files are there.
func (p *Pinned) bringCommit(ctx context.Context, name string, o Options) error {
	want := p.Files[0].SHA256
	if o.Store.HasBlob(want) {
		return nil
	}
	blob, err := o.sources().Bring(ctx, name, p.repository(o))
	if err != nil {
		return errors.Unwrap(err)
	}
	if blob.Digest != want {
		return fault.Hint(fmt.Errorf("commit %s of %s has other files than when it was locked: %s, not %s", p.Commit, fetch.Redact(p.Git), blob.Digest.Short(), want.Short()),
			"a submodule's address may lead elsewhere now; `sconce lock --upgrade` takes what is there")
	}
	return nil
}
