// Package remotecache keeps what build steps made in a registry, under their keys, so that one machine's two-hour compile is
// everyone's download.
//
// An entry is a small JSON value and blobs: the layers or the wheel that the value speaks of. In the registry it is an OCI
// artifact (image-spec, manifest.md, "Guidelines for Artifact Usage") under a tag made of kind and key:
//
//	manifest  artifactType application/vnd.sconce.step.v1
//	  config  application/vnd.sconce.step.config.v1+json: {"kind": …, "key": …, "value": …}, also inside the manifest
//	  layers  the blobs, as application/octet-stream
//
// The manifest is sent last, so nobody sees half an entry, and two who make the same at once both leave a whole one: that of
// the second counts. Who may write to the repository decides what others build with, so a recipe alone does not make anybody use one.
//
// A cache is no condition of a build. What does not work is said once, as an error to warn of; after that the part that
// does not work, reading or writing, is left alone.
package remotecache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
)

// Options say how a [Remote] is used.
type Options struct {
	Fetch *fetch.Client // downloads into the store that Get and Put are given
	Jobs  int           // blobs sent at once; 0 is that of package registry
	Chunk int64         // bytes sent in one request; 0 is that of package registry
}

// Remote is a cache in a repository of a registry. Its methods may be called from many goroutines.
type Remote struct {
	ref  source.Ref
	opts Options

	open    sync.Once
	repos   []*registry.Repository // to read from, mirrors first
	openErr error

	mu      sync.Mutex
	off     [2]bool         // by side: it did not work and is left alone
	damaged map[string]bool // tags whose entry could not be used
}

// side is one of the two things that may not work.
type side int

const (
	reading side = iota
	writing
)

func (s side) String() string { return [...]string{"read", "written"}[s] }

// New returns the cache in a repository, [USER@]HOST/PATH. Nothing is sent before something is asked for.
func New(repository string, o Options) (*Remote, error) {
	ref, err := source.Parse("docker://" + strings.TrimPrefix(repository, "docker://"))
	if err != nil {
		return nil, err
	}
	if _, path, _ := strings.Cut(ref.Value, "/"); strings.Trim(path, "/") == "" || ref.Digest != "" || strings.HasSuffix(repository, ":"+ref.Tag) {
		err := fault.Usage(fmt.Errorf("cache %q: it is not the name of a repository", repository))
		return nil, fault.Hint(err, "write it as HOST/PATH, without a tag: entries have tags of their own")
	}
	ref.Tag = ""
	return &Remote{ref: ref, opts: o, damaged: map[string]bool{}}, nil
}

// Name returns HOST/PATH.
func (r *Remote) Name() string { return r.ref.Value }

// kindForm is what a kind may look like, so that it can be part of a tag.
var kindForm = lazyregexp.New(`^[a-z][a-z0-9_-]{0,31}$`)

// tag is where the entry of a key is found. A key may be any text; one that is a hash is seen in the tag.
func tag(kind, key string) (string, error) {
	if !kindForm.MatchString(kind) {
		return "", fmt.Errorf("%q cannot be a kind of cache entry", kind)
	}
	if !isHash(key) {
		sum := sha256.Sum256([]byte(key))
		return kind + ".x-" + hex.EncodeToString(sum[:]), nil
	}
	return kind + "-" + key, nil
}

func isHash(s string) bool {
	return len(s) == hex.EncodedLen(sha256.Size) && strings.Trim(s, "0123456789abcdef") == ""
}

// repositories are where entries are read from.
func (r *Remote) repositories() ([]*registry.Repository, error) {
	r.open.Do(func() {
		config, err := registry.ReadConfig()
		if err != nil {
			r.openErr = err
			return
		}
		host, path, _ := strings.Cut(r.ref.Value, "/")
		endpoints, err := config.Endpoints(host, path, false)
		r.openErr = err
		for _, at := range endpoints {
			r.repos = append(r.repos, registry.New(at, registry.Options{Fetch: r.opts.Fetch, User: r.ref.User}))
		}
	})
	return r.repos, r.openErr
}

func (r *Remote) isOff(s side) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.off[s]
}

// switchOff leaves a side alone from now on and returns the error for the first who met it. The others, who were on their
// way at the same time, get nil.
func (r *Remote) switchOff(s side, err error) error {
	r.mu.Lock()
	first := !r.off[s]
	r.off[s] = true
	if unreachable(err) {
		r.off = [2]bool{true, true}
	}
	r.mu.Unlock()
	if !first {
		return nil
	}
	return withHint(fmt.Errorf("cache %s is not %s any more in this build: %w", r.Name(), s, err), err)
}

// unreachable reports whether no answer came, so that asking for anything else is in vain.
func unreachable(err error) bool {
	var status *fetch.StatusError
	return !errors.As(err, &status)
}

// withHint is err with the hint of the error it wraps.
func withHint(err, inner error) error {
	if hint := fault.HintOf(inner); hint != "" {
		return fault.Hint(err, hint)
	}
	return err
}

func statusOf(err error) int {
	var status *fetch.StatusError
	if errors.As(err, &status) {
		return status.Code
	}
	return 0
}

func notFound(err error) bool { return statusOf(err) == http.StatusNotFound }

// damage notes that an entry could not be used, so that the next Put makes it anew.
func (r *Remote) damage(tag string, err error) error {
	r.mu.Lock()
	r.damaged[tag] = true
	r.mu.Unlock()
	return fmt.Errorf("cache %s, entry %s: %w", r.Name(), tag, err)
}

func (r *Remote) isDamaged(tag string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.damaged[tag]
}

// Get looks for the entry of a key and, when there is one, reads its value into v and brings its blobs, checked, into st.
// That there is none, which costs one request, or that the cache does not work and was warned of before, is no error. An
// error is something to warn of; the caller then makes what it wanted, and Put replaces the entry.
//
// A value that names layers promises more than hashes can: see [sconce.dev/sconce/internal/layer.OpenIndex], which makes the
// index of a layer and compares its DiffID.
func (r *Remote) Get(ctx context.Context, st *store.Store, kind, key string, v any) (bool, error) {
	t, err := tag(kind, key)
	if err != nil {
		return false, err
	}
	if r.opts.Fetch.Offline() || r.isOff(reading) {
		return false, nil
	}
	repos, err := r.repositories()
	if err != nil {
		return false, r.switchOff(reading, err)
	}
	repo, data, err := find(ctx, repos, t)
	switch {
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case err != nil:
		return false, r.switchOff(reading, err)
	case repo == nil:
		return false, nil
	}
	return r.take(ctx, st, repo, data, entryName{Kind: kind, Key: key}, v)
}

// Has reports whether there is an entry of a key, which costs one request.
func (r *Remote) Has(ctx context.Context, kind, key string) (bool, error) {
	t, err := tag(kind, key)
	if err != nil || r.opts.Fetch.Offline() || r.isOff(reading) {
		return false, err
	}
	repos, err := r.repositories()
	if err != nil {
		return false, r.switchOff(reading, err)
	}
	repo, _, err := find(ctx, repos, t)
	if err != nil && ctx.Err() == nil {
		err = r.switchOff(reading, err)
	}
	return repo != nil, err
}

// find asks for a tag's manifest. Without one, repo is nil.
func find(ctx context.Context, repos []*registry.Repository, tag string) (repo *registry.Repository, data []byte, err error) {
	for _, repo := range repos {
		data, _, err = repo.Manifest(ctx, tag)
		if err == nil {
			return repo, data, nil
		}
		if ctx.Err() != nil {
			return nil, nil, err
		}
	}
	if notFound(err) {
		return nil, nil, nil
	}
	return nil, nil, err
}

// Put makes the entry of a key: a value, which becomes JSON, and the blobs of st that it speaks of. Blobs that the registry
// has are not sent. An error is something to warn of; a registry that cannot be written to gives it once.
func (r *Remote) Put(ctx context.Context, st *store.Store, kind, key string, v any, blobs []store.Digest) error {
	t, err := tag(kind, key)
	if err != nil {
		return err
	}
	if r.opts.Fetch.Offline() || r.isOff(writing) {
		return nil
	}
	a, err := r.makeEntry(st, t, entryName{Kind: kind, Key: key}, v, blobs)
	if err != nil {
		return fmt.Errorf("cache %s, entry %s: %w", r.Name(), t, err)
	}
	err = r.send(ctx, st, a, t)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case statusOf(err) == http.StatusRequestEntityTooLarge:
		return withHint(fmt.Errorf("cache %s, entry %s: %w", r.Name(), t, err), err)
	}
	return r.switchOff(writing, err)
}
