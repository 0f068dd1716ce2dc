package wheelbuild

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/store"
)

// Sources brings what packages are built from into the store. Nothing of it is run.
type Sources struct {
	Store  *store.Store
	Fetch  *fetch.Client
	Header func(url string) http.Header // logins for package indexes; nil: none
	Login  string                       // where they are looked for, for errors

	Reach reach.Bounds // which repositories of this machine a repository of it may lead to
}

// Blob is a source in the store: an archive with one directory at its top.
type Blob struct {
	File   string // the archive's name, by which its form is known
	Digest store.Digest
}

// Bring brings the source of the package called name. An archive is checked against its hash, a repository has the commit that
// was asked for, submodules included; a directory is taken as it is now.
func (s Sources) Bring(ctx context.Context, name string, src python.Source) (Blob, error) {
	var b Blob
	var err error
	switch src.Kind {
	case python.SourceGit:
		b, err = s.repository(ctx, name, src)
	case python.SourceDirectory:
		b, err = s.directory(src.Path)
	default:
		b, err = s.archive(ctx, name, src)
	}
	if err != nil {
		return b, fmt.Errorf("source of %s: %w", name, err)
	}
	return b, nil
}

// Info reads what a source that was brought says about itself.
func (s Sources) Info(b Blob, subdirectory string) (python.SourceInfo, error) {
	f, err := s.Store.OpenBlob(b.Digest)
	if err != nil {
		return python.SourceInfo{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return python.SourceInfo{}, err
	}
	return python.ReadSdist(f, st.Size(), b.File, subdirectory)
}

func (s Sources) archive(ctx context.Context, name string, src python.Source) (Blob, error) {
	r := fetch.Request{
		URL: cmp.Or(src.URL, src.Path), Digest: src.Digest, Size: src.Size, Name: "source of " + name, Login: s.Login,
	}
	if s.Header != nil {
		r.Header = s.Header(r.URL)
	}
	return Blob{File: src.File, Digest: src.Digest}, s.Fetch.Blob(ctx, r)
}

// packedFile is the name of an archive that was packed here.
const packedFile = "source.tar"

func (s Sources) repository(ctx context.Context, name string, src python.Source) (Blob, error) {
	sum := sha256.Sum256([]byte("1 " + src.URL + " " + src.Commit))
	once := store.Once[store.Digest]{
		Kind: store.KindRepository, Key: hex.EncodeToString(sum[:]),
		Refs: func(packed store.Digest) []store.Digest { return []store.Digest{packed} },
	}
	digest, _, err := once.Do(ctx, s.Store, func(ctx context.Context) (store.Digest, error) { return s.packCommit(ctx, name, src) })
	return Blob{packedFile, digest}, err
}

// packCommit fetches a commit and packs its files.
func (s Sources) packCommit(ctx context.Context, name string, src python.Source) (store.Digest, error) {
	if s.Fetch.Offline() && !isLocal(src.URL) {
		return "", fmt.Errorf("%s: %w", fetch.Redact(src.URL), fetch.ErrOffline)
	}
	dir, err := s.Store.TempDir("repository-*")
	if err != nil {
		return "", err
	}
	defer store.RemoveAll(dir)
	task := progress.Begin(ctx, "fetch", name+" at "+src.Commit[:12], 0)
	if err := task.End(s.checkout(ctx, dir, src)); err != nil {
		return "", err
	}
	return pack(s.Store, dir)
}

func (s Sources) directory(dir string) (Blob, error) {
	if info, err := os.Stat(dir); err != nil {
		return Blob{}, err
	} else if !info.IsDir() {
		return Blob{}, fmt.Errorf("%s is no directory", dir)
	}
	digest, err := pack(s.Store, dir)
	return Blob{packedFile, digest}, err
}

// passedOver are directories that are no part of a source.
var passedOver = []string{".git", ".hg", ".svn", "__pycache__", ".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache"}

// pack writes the files below dir as a tar that depends on nothing but their names, content and whether they may be run.
func pack(st *store.Store, dir string) (store.Digest, error) {
	out, err := st.NewBlob()
	if err != nil {
		return "", err
	}
	defer out.Close()
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		if d.IsDir() && rel != "." && (slices.Contains(passedOver, d.Name()) || isVenv(name)) {
			return filepath.SkipDir
		}
		if d.Name() == ".git" || madeHere.MatchString(d.Name()) { // the former as a file in a submodule
			return nil
		}
		return packEntry(w, name, path.Join("source", filepath.ToSlash(rel)), d)
	})
	if err := errors.Join(err, w.Close()); err != nil {
		return "", err
	}
	return out.Commit("")
}

// madeHere are names of locks and of images, which lie beside a recipe: a project that has one in its directory would be built again
// whenever its image was.
var madeHere = lazyregexp.New(`^(?:.*sconce.*\.lock|pylock(?:\..+)?\.toml|.+\.(?:sqsh|sif|squashfs))$`)

func isVenv(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, "pyvenv.cfg"))
	return err == nil
}

func packEntry(w *tar.Writer, name, as string, d fs.DirEntry) error {
	h := tar.Header{Name: as, ModTime: layer.DefaultModTime, Format: tar.FormatPAX}
	switch {
	case d.IsDir():
		h.Typeflag, h.Mode, h.Name = tar.TypeDir, 0o755, as+"/"
		return w.WriteHeader(&h)
	case d.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(name)
		if err != nil {
			return err
		}
		h.Typeflag, h.Mode, h.Linkname = tar.TypeSymlink, 0o777, target
		return w.WriteHeader(&h)
	case !d.Type().IsRegular():
		return nil // a socket or pipe
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h.Typeflag, h.Mode, h.Size = tar.TypeReg, 0o644, info.Size()
	if info.Mode()&0o111 != 0 {
		h.Mode = 0o755
	}
	if err := w.WriteHeader(&h); err != nil {
		return err
	}
	if _, err := io.Copy(w, f); err != nil {
		return fmt.Errorf("%s: %w", as, err)
	}
	return nil
}

// sourceBlob is a source and what the key says of it.
type sourceBlob struct {
	Blob
	info python.SourceInfo
	id   string
}

func (b *Builder) sources() Sources {
	return Sources{Store: b.store(), Fetch: b.Fetch, Header: b.Header, Login: b.Login, Reach: b.Reach}
}

// bring brings the source of p and its build requirements.
func (b *Builder) bring(ctx context.Context, p Package) (sourceBlob, error) {
	blob, err := b.sources().Bring(ctx, p.Name, p.Source)
	if err != nil {
		return sourceBlob{}, err
	}
	info, err := b.sources().Info(blob, p.Source.Subdirectory)
	if err != nil {
		return sourceBlob{}, fmt.Errorf("source of %s: %w", p.Name, err)
	}
	id := string(blob.Digest)
	if p.Source.Kind == python.SourceGit {
		id = "git " + p.Source.Commit
	}
	return sourceBlob{blob, info, id}, b.Fetch.Blobs(ctx, b.requests(p))
}

func (b *Builder) requests(p Package) []fetch.Request {
	var all []fetch.Request
	for _, w := range p.Requires {
		r := fetch.Request{URL: w.URL, Digest: w.Digest, Size: w.Size, Name: w.Name + " " + w.Version, Login: b.Login}
		if b.Header != nil {
			r.Header = b.Header(w.URL)
		}
		all = append(all, r)
	}
	return all
}
