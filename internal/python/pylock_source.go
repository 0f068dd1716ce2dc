package python

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/store"
)

// SourceKind says in what form a source comes.
type SourceKind string

// The kinds of source, as the lock format tells them apart.
const (
	SourceArchive   SourceKind = "archive"   // a source distribution, from an index or an address
	SourceGit       SourceKind = "git"       // a commit of a repository
	SourceDirectory SourceKind = "directory" // a directory of this machine
)

// Source is what a package is built from when there is no wheel of it.
type Source struct {
	Kind         SourceKind
	File         string       // archive: the file's name
	URL          string       // archive: where to get it, "" when there is only a Path; git: the repository
	Path         string       // archive, directory: absolute, on this machine
	Digest       store.Digest // archive
	Size         int64        // archive: in bytes, 0 when not known
	Commit       string       // git: 40 or 64 hexadecimal digits
	Revision     string       // git: what was asked for, a branch or tag; may be ""
	Subdirectory string       // where the package is in it, relative; "" is its top
	Direct       bool         // it was asked for by address, not by name
}

// DirectURL is what the installed package says about where it came from, nil when that was an index (PEP 610). The directory
// of this machine is left out: it means nothing in an image.
func (s Source) DirectURL() *DirectURL {
	if !s.Direct {
		return nil
	}
	switch s.Kind {
	case SourceGit:
		return &DirectURL{
			URL: withoutCredentials(s.URL), Subdirectory: s.Subdirectory,
			VCSInfo: &VCSInfo{VCS: "git", RequestedRevision: s.Revision, CommitID: s.Commit},
		}
	case SourceDirectory:
		address := (&url.URL{Scheme: "file", Path: "/" + filepath.Base(s.Path)}).String()
		return &DirectURL{URL: address, Subdirectory: s.Subdirectory, DirInfo: map[string]any{}}
	default:
		address := withoutCredentials(s.URL)
		if s.URL == "" {
			address = (&url.URL{Scheme: "file", Path: "/" + s.File}).String()
		}
		return &DirectURL{
			URL: address, Subdirectory: s.Subdirectory,
			ArchiveInfo: &ArchiveInfo{Hashes: map[string]string{"sha256": s.Digest.Hex()}},
		}
	}
}

// SelectSources is [Lock.Select] for who can build packages: those that have no wheel for tags, or whose normalised name
// fromSource accepts, come with their Source and without a wheel. A nil fromSource accepts none.
func (l *Lock) SelectSources(env MarkerEnvironment, tags, extras, groups []string, fromSource func(name string) bool) ([]Package, error) {
	if fromSource == nil {
		fromSource = func(string) bool { return false }
	}
	return l.selectWith(env, tags, extras, groups, fromSource)
}

// source takes what the package is built from, if it has to be.
func (s selector) source(p lockedPackage) (*Source, error) {
	if s.fromSource == nil {
		return nil, nil
	}
	wanted := s.fromSource(NormalizeName(p.Name))
	switch {
	case p.VCS != nil:
		return s.repository(p, *p.VCS)
	case p.Directory != nil:
		return s.directory(p, *p.Directory)
	case p.Archive != nil:
		if strings.HasSuffix(p.Archive.fileName(), ".whl") {
			return nil, nil
		}
		return s.sourceArchive(p, *p.Archive, true)
	case p.Sdist == nil && wanted:
		return nil, fault.Hint(fmt.Errorf("%s: it shall be built, and the lock has no source distribution of it", p.label()),
			"lock again: `sconce lock`; or ask for its repository: "+p.Name+" @ git+https://…")
	case p.Sdist == nil || !wanted && s.fits(p):
		return nil, nil
	}
	return s.sourceArchive(p, *p.Sdist, false)
}

// fits reports whether any wheel does.
func (s selector) fits(p lockedPackage) bool {
	for _, a := range p.Wheels {
		if name, err := parseWheelName(a.fileName()); err == nil {
			if _, ok := s.rank(name); ok {
				return true
			}
		}
	}
	return false
}

func (s selector) sourceArchive(p lockedPackage, a lockArtifact, direct bool) (*Source, error) {
	ref, err := a.ref(s.dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.label(), err)
	}
	sub, err := subdirectory(a.Subdirectory)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.label(), err)
	}
	return &Source{
		Kind: SourceArchive, File: ref.Name, URL: ref.URL, Path: ref.Path, Digest: ref.Digest, Size: ref.Size,
		Subdirectory: sub, Direct: direct,
	}, nil
}

// commitID is the full name of a commit.
var commitID = lazyregexp.New(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)

func (s selector) repository(p lockedPackage, m map[string]any) (*Source, error) {
	made := &Source{Kind: SourceGit, Commit: text(m, "commit-id"), Revision: text(m, "requested-revision"), Direct: true}
	if kind := text(m, "type"); kind != "git" {
		return nil, onlySource(p, fmt.Sprintf("a %q repository", kind))
	}
	if !commitID.MatchString(made.Commit) {
		return nil, fmt.Errorf("%s: its commit-id %q is no full commit", p.label(), made.Commit)
	}
	var err error
	if made.URL = text(m, "url"); made.URL == "" {
		if made.URL, err = lockPath(s.dir, text(m, "path")); err != nil {
			return nil, fmt.Errorf("%s: %w", p.label(), err)
		}
	}
	if strings.HasPrefix(made.URL, "-") {
		return nil, fmt.Errorf("%s: its repository %q is no address", p.label(), made.URL)
	}
	made.Subdirectory, err = subdirectory(text(m, "subdirectory"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.label(), err)
	}
	return made, nil
}

func (s selector) directory(p lockedPackage, m map[string]any) (*Source, error) {
	dir, err := lockPath(s.dir, cmp.Or(text(m, "path"), "."))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.label(), err)
	}
	sub, err := subdirectory(text(m, "subdirectory"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.label(), err)
	}
	return &Source{Kind: SourceDirectory, Path: dir, Subdirectory: sub, Direct: true}, nil
}

// subdirectory checks that a directory lies below what it is relative to.
func subdirectory(dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	clean := path.Clean(strings.ReplaceAll(dir, `\`, "/"))
	if path.IsAbs(clean) || clean == ".." || strings.HasPrefix(clean, "../") || strings.ContainsRune(clean, 0) {
		return "", errors.New("its subdirectory leads out of the source")
	}
	if clean == "." {
		return "", nil
	}
	return clean, nil
}

// text returns the string under key, "" when there is none.
func text(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}
