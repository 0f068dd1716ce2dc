package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/event"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
)

// PushOptions say how an image is sent.
type PushOptions struct {
	Store *store.Store
	Fetch *fetch.Client // nil: a new one
	Jobs  int           // blobs sent at once; 0 means DefaultPushJobs
	Chunk int64         // bytes sent in one request; 0 means DefaultChunk
}

// DefaultPushJobs is how many blobs are sent at once. Registries write to slow storage and answer 429 to more.
const DefaultPushJobs = 4

// DefaultChunk is how much of a blob one request carries, in bytes: what a broken connection costs at most.
const DefaultChunk = 32 << 20

// Push sends an image to a registry. Blobs that are there are not sent; those that another repository of the same
// registry was seen to have are taken from there. The manifest goes last, so that nobody sees half an image.
func Push(ctx context.Context, im *image.Image, reference string, o PushOptions) error {
	ref, err := pushRef(reference)
	if err != nil {
		return err
	}
	if o.Fetch == nil {
		o.Fetch = fetch.New(o.Store, fetch.Options{})
	}
	if o.Jobs <= 0 {
		o.Jobs = DefaultPushJobs
	}
	if o.Chunk <= 0 {
		o.Chunk = DefaultChunk
	}
	p, err := newPusher(im, ref, o)
	if err != nil {
		return fmt.Errorf("push %s: %w", ref, err)
	}
	task := event.Begin(ctx, "push", ref.String(), 0)
	done, err := p.push(ctx)
	if done {
		task.EndCached()
		return nil
	}
	if err != nil {
		err = keepHint(fmt.Errorf("push %s: %w", ref, err))
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

func pushRef(reference string) (source.Ref, error) {
	if !strings.HasPrefix(reference, "docker://") {
		reference = "docker://" + reference
	}
	ref, err := source.Parse(reference)
	if err == nil && ref.Digest != "" {
		err = fault.Usage(fmt.Errorf("image %q: an image is pushed to a tag, not to a digest", reference))
	}
	return ref, err
}

// pusher sends one image to one repository.
type pusher struct {
	im   *image.Image
	ref  source.Ref
	repo *registry.Repository
	opts PushOptions
	from map[store.Digest]string // repository of the same registry that has the blob
}

func newPusher(im *image.Image, ref source.Ref, o PushOptions) (*pusher, error) {
	config, err := registry.ReadConfig()
	if err != nil {
		return nil, err
	}
	host, path, _ := strings.Cut(ref.Value, "/")
	at, err := config.PushEndpoint(host, path)
	if err != nil {
		return nil, err
	}
	p := &pusher{im: im, ref: ref, opts: o, from: map[store.Digest]string{}}
	sources := p.findSources(at)
	p.repo = registry.New(at, registry.Options{Fetch: o.Fetch, Push: true, From: sources, User: ref.User})
	return p, nil
}

// maxSources is how many other repositories a push asks to read: each makes the token's request longer.
const maxSources = 8

// findSources looks up, for each blob, a repository of the same registry to take it from.
func (p *pusher) findSources(at registry.Endpoint) []string {
	var sources []string
	for _, b := range blobsOf(p.im) {
		for _, name := range slices.Backward(registry.Origins(p.opts.Store, b.digest)) {
			repository, ok := strings.CutPrefix(name, at.Host+"/")
			if !ok || repository == at.Path || (len(sources) >= maxSources && !slices.Contains(sources, repository)) {
				continue
			}
			p.from[b.digest] = repository
			if !slices.Contains(sources, repository) {
				sources = append(sources, repository)
			}
			break
		}
	}
	return sources
}

// push reports done when the registry has the image under the tag already.
func (p *pusher) push(ctx context.Context) (done bool, err error) {
	there, err := p.repo.HasManifest(ctx, p.ref.Tag)
	if err != nil {
		return false, err
	}
	if there == p.im.Digest {
		return true, nil
	}
	g, groupCtx := errgroup.WithContext(ctx)
	g.SetLimit(p.opts.Jobs)
	for _, b := range blobsOf(p.im) {
		if b.digest == p.im.Digest {
			continue // the manifest is no blob to a registry
		}
		g.Go(func() error { return p.blob(groupCtx, b) })
	}
	if err := g.Wait(); err != nil {
		return false, err
	}
	return false, p.manifest(ctx)
}

func (p *pusher) manifest(ctx context.Context) error {
	data, err := p.opts.Store.ReadBlob(p.im.Digest, registry.MaxManifest)
	if err != nil {
		return err
	}
	req, err := p.request(ctx, http.MethodPut, "manifests/"+p.ref.Tag, data)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", p.im.MediaType)
	resp, err := p.repo.Do(req, http.StatusCreated, http.StatusOK, http.StatusAccepted)
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	resp.Body.Close()
	if got := resp.Header.Get("Docker-Content-Digest"); got != "" && got != string(p.im.Digest) {
		return fmt.Errorf("manifest: the registry stored it as %s, not as %s", got, p.im.Digest)
	}
	return nil
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
func (p *pusher) blob(ctx context.Context, b blob) error {
	err := p.ensureBlob(ctx, b)
	if err == nil {
		return registry.RememberOrigin(p.opts.Store, b.digest, p.repo.Name())
	}
	return fmt.Errorf("blob %s: %w", b.digest.Short(), err)
}

func (p *pusher) ensureBlob(ctx context.Context, b blob) error {
	if there, err := p.hasBlob(ctx, b.digest); there || err != nil {
		return err
	}
	session, err := p.start(ctx, b)
	if err != nil || session == "" {
		return err
	}
	task := event.Begin(ctx, "upload", b.digest.Short(), b.size)
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
func (p *pusher) start(ctx context.Context, b blob) (string, error) {
	if from := p.from[b.digest]; from != "" {
		session, mounted, err := p.post(ctx, "blobs/uploads/?mount="+string(b.digest)+"&from="+from)
		if mounted || (err == nil && session != "") {
			return session, err
		}
		if err != nil && !refused(err) {
			return "", err
		}
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
