package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// Content is what a reference in a registry leads to: a manifest, and the blobs that it speaks of. All of them are in a store.
type Content struct {
	Manifest  Blob
	MediaType string // of the manifest
	Blobs     []Blob // each once; without the manifest, which is no blob to a registry
}

// Blob is bytes in a store.
type Blob struct {
	Digest store.Digest
	Size   int64 // in bytes
}

// PushOptions say how something is sent.
type PushOptions struct {
	Store *store.Store
	Fetch *fetch.Client
	User  string // use the login of this user; "" means the first one found
	Jobs  int    // blobs sent at once; 0 means DefaultPushJobs
	Chunk int64  // bytes sent in one request; 0 means DefaultChunk
}

// DefaultPushJobs is how many blobs are sent at once. Registries write to slow storage and answer 429 to more.
const DefaultPushJobs = 4

// DefaultChunk is how much of a blob one request carries, in bytes: what a broken connection costs at most.
const DefaultChunk = 32 << 20

// Push sends c to the repository called name, HOST/PATH, under a tag, or under its own digest when tag is "". Blobs that are there
// are not sent; those that another repository of the same registry was seen to have are taken from there. The manifest goes last,
// so that nobody sees half of it.
func Push(ctx context.Context, c Content, name, tag string, o PushOptions) error {
	label := name + "@" + string(c.Manifest.Digest)
	if tag != "" {
		label = name + ":" + tag
	}
	p, err := newPusher(c, name, tag, o)
	if err != nil {
		return fmt.Errorf("push %s: %w", label, err)
	}
	task := progress.Begin(ctx, "push", label, 0)
	done, err := p.push(ctx)
	if done {
		task.EndCached()
		return nil
	}
	if err != nil {
		err = keepHint(fmt.Errorf("push %s: %w", label, err))
	}
	return task.End(err)
}

// keepHint brings a hint of a wrapped error to the outside, where fault.HintOf finds the outermost.
func keepHint(err error) error {
	if hint := fault.HintOf(err); hint != "" {
		return fault.Hint(err, hint)
	}
	return err
}

// cutHost splits HOST/PATH.
func cutHost(name string) (host, path string) {
	host, path, _ = strings.Cut(name, "/")
	return host, path
}

// pusher sends one thing to one repository.
type pusher struct {
	content   Content
	reference string // tag or digest
	repo      *Repository
	opts      PushOptions
	from      map[store.Digest]string           // repository of the same registry that has the blob
	bring     func(context.Context, Blob) error // brings a blob into the store that has to be sent; nil: all are there
}

func newPusher(c Content, name, tag string, o PushOptions) (*pusher, error) {
	if o.Jobs <= 0 {
		o.Jobs = DefaultPushJobs
	}
	if o.Chunk <= 0 {
		o.Chunk = DefaultChunk
	}
	config, err := ReadConfig()
	if err != nil {
		return nil, err
	}
	host, path := cutHost(name)
	at, err := config.PushEndpoint(host, path)
	if err != nil {
		return nil, err
	}
	p := &pusher{content: c, reference: tag, opts: o, from: map[store.Digest]string{}}
	if tag == "" {
		p.reference = string(c.Manifest.Digest)
	}
	sources := p.findSources(at)
	p.repo = New(at, Options{Fetch: o.Fetch, Push: true, From: sources, User: o.User})
	return p, nil
}

// maxSources is how many other repositories a push asks to read: each makes the token's request longer.
const maxSources = 8

// findSources looks up, for each blob, a repository of the same registry to take it from.
func (p *pusher) findSources(at Endpoint) []string {
	var sources []string
	for _, b := range p.content.Blobs {
		for _, name := range slices.Backward(Origins(p.opts.Store, b.Digest)) {
			repository, ok := strings.CutPrefix(name, at.Host+"/")
			if !ok || repository == at.Path || (len(sources) >= maxSources && !slices.Contains(sources, repository)) {
				continue
			}
			p.from[b.Digest] = repository
			if !slices.Contains(sources, repository) {
				sources = append(sources, repository)
			}
			break
		}
	}
	return sources
}

// push reports done when the registry has the content under the reference already.
func (p *pusher) push(ctx context.Context) (done bool, err error) {
	there, err := p.repo.HasManifest(ctx, p.reference)
	if err != nil {
		return false, err
	}
	if there == p.content.Manifest.Digest {
		return true, nil
	}
	for try := 1; ; try++ {
		err := p.all(ctx)
		if try == manifestTries || !lostBlob(err) {
			return false, err
		}
		if err := pause(ctx, rand.N(time.Duration(try)*100*time.Millisecond)); err != nil {
			return false, err
		}
	}
}

// manifestTries is how often a manifest is sent to a registry that does not know, or not yet, a blob that it said it has. It happens
// to those that keep files: while one client writes a blob again, another's manifest that names it is refused.
const manifestTries = 5

// lostBlob reports whether a manifest was refused for a blob that is not there.
func lostBlob(err error) bool {
	var answer *Error
	return errors.As(err, &answer) && (slices.Contains(answer.Codes, "MANIFEST_BLOB_UNKNOWN") || slices.Contains(answer.Codes, "BLOB_UNKNOWN"))
}

// all sends the blobs and then the manifest.
func (p *pusher) all(ctx context.Context) error {
	g, groupCtx := errgroup.WithContext(ctx)
	g.SetLimit(p.opts.Jobs)
	for _, b := range p.content.Blobs {
		g.Go(func() error { return p.blob(groupCtx, b) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return p.manifest(ctx)
}

func (p *pusher) manifest(ctx context.Context) error {
	want := p.content.Manifest.Digest
	data, err := p.opts.Store.ReadBlob(want, MaxManifest)
	if err != nil {
		return err
	}
	return p.repo.PutManifest(ctx, data, p.content.MediaType, p.reference)
}

// request makes a request with a small body to a part of the repository.
func (p *pusher) request(ctx context.Context, method, part string, body []byte) (*http.Request, error) {
	url, err := p.repo.URL(ctx, part)
	if err != nil {
		return nil, err
	}
	return http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
}

// blob makes sure that the registry has a blob.
func (p *pusher) blob(ctx context.Context, b Blob) error {
	err := p.ensureBlob(ctx, b)
	if err == nil {
		return RememberOrigin(p.opts.Store, b.Digest, p.repo.Name())
	}
	return fmt.Errorf("blob %s: %w", b.Digest.Short(), err)
}

func (p *pusher) ensureBlob(ctx context.Context, b Blob) error {
	if there, err := p.hasBlob(ctx, b.Digest); there || err != nil {
		return err
	}
	session, err := p.start(ctx, b)
	if err != nil || session == "" {
		return err
	}
	task := progress.Begin(ctx, "upload", b.Digest.Short(), b.Size)
	u := &upload{pusher: p, blob: b, task: task, location: session}
	return task.End(u.run(ctx))
}

func (p *pusher) hasBlob(ctx context.Context, d store.Digest) (bool, error) {
	req, err := p.request(ctx, http.MethodHead, "blobs/"+string(d), nil)
	if err != nil {
		return false, err
	}
	resp, err := p.repo.Do(req, http.StatusOK, http.StatusNotFound)
	if err != nil {
		return false, err
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK, nil
}

// start begins an upload and returns its address, or "" when the registry took the blob from another repository
// (distribution-spec, "Mounting a blob from another repository").
func (p *pusher) start(ctx context.Context, b Blob) (string, error) {
	session := ""
	if from := p.from[b.Digest]; from != "" {
		started, mounted, err := p.post(ctx, "blobs/uploads/?mount="+string(b.Digest)+"&from="+from)
		if mounted || (err != nil && !refused(err)) {
			return "", err
		}
		session = started // not mounted, but begun; "" when refused
	}
	if p.bring != nil {
		if err := p.bring(ctx, b); err != nil {
			return "", err
		}
	}
	if session != "" {
		return session, nil
	}
	session, _, err := p.post(ctx, "blobs/uploads/")
	return session, err
}

// refused reports whether a mount failed in a way that leaves sending the bytes: no right to read the other repository,
// or a registry that does not know mounts.
func refused(err error) bool {
	var status *fetch.StatusError
	return errors.As(err, &status) && status.Code >= 400 && status.Code < 500
}

func (p *pusher) post(ctx context.Context, part string) (session string, mounted bool, err error) {
	req, err := p.request(ctx, http.MethodPost, part, nil)
	if err != nil {
		return "", false, err
	}
	resp, err := p.repo.Do(req, http.StatusAccepted, http.StatusCreated)
	if err != nil {
		return "", false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusCreated {
		return "", true, nil
	}
	session, err = location(resp)
	return session, false, err
}

// location reads where an upload goes on. It may be relative, and may lead to another server.
func location(resp *http.Response) (string, error) {
	u, err := resp.Location()
	if err != nil {
		return "", errors.New("the registry does not say where the upload goes on")
	}
	return u.String(), nil
}

// content is a part of a blob as the body of a request, which can be sent again.
func content(f io.ReaderAt, at, n int64) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(f, at, n)), nil }
}
