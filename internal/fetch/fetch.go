// Package fetch brings files whose hash is known beforehand into the store: wheels, image layers, packages.
//
// A [Client] downloads each blob once, however many goroutines and processes ask for it, goes on where a broken
// download ended (in a later process too), waits and tries again when a server is overloaded, and believes nothing
// before its hash is checked. Credentials come from the URL, the request or netrc and never reach an error or an event.
package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// ErrOffline is wrapped by every error that says that something is not in the store and may not be downloaded.
var ErrOffline = errors.New("not in the store, and downloading is switched off (--offline)")

// Options say how a [Client] behaves. The zero value is what a user wants.
type Options struct {
	Offline   bool              // download nothing; local files may still be read
	Jobs      int               // downloads at once; 0 means DefaultJobs
	Transport http.RoundTripper // nil: DefaultTransport()
	UserAgent string            // "" means "sconce"

	LoginHosts []string // HOST or HOST:PORT that may see netrc's logins although only a recipe names them, see Request.OfRecipe

	Patience    time.Duration // how long it is tried again while nothing arrives; 0 means usualPatience and firstPatience
	Attempts    int           // attempts in a row that bring nothing before a download fails; 0 means as many as Patience allows
	Backoff     time.Duration // wait after the first failure, doubled after each further one; 0 means defaultBackoff
	MaxWait     time.Duration // longest single wait, a server's Retry-After included; 0 means defaultMaxWait
	IdleTimeout time.Duration // a connection that brings no byte for so long counts as cut; 0 means defaultIdleTimeout
	SpeedTime   time.Duration // what downloads bring in this time is compared, to see which crawl; 0 means defaultSpeedTime
}

// DefaultJobs is how many downloads run at once: enough to fill a fast line from servers that limit each connection,
// few enough not to be taken for an attack.
const DefaultJobs = 8

// The retry policy's defaults. A server that restarts is back in minutes. One that never answered may be a slip of the
// recipe's, of which a user wants to know soon.
const (
	usualPatience      = 5 * time.Minute
	firstPatience      = 30 * time.Second
	defaultBackoff     = 500 * time.Millisecond
	defaultMaxWait     = 2 * time.Minute
	defaultIdleTimeout = time.Minute
	defaultSpeedTime   = 15 * time.Second
)

// Client downloads into one store. Its methods may be called from many goroutines.
type Client struct {
	store *store.Store
	opts  Options
	slots chan struct{} // one token per running download
	http  *http.Client  // for requests that bring no client of their own
	plain *http.Client  // likewise, of a recipe
	base  http.RoundTripper

	best     atomic.Int64 // bytes that any download has brought in SpeedTime
	answered sync.Map     // hosts that answered something, as keys
	said     sayings

	netrcOnce sync.Once
	netrc     Netrc
	netrcErr  error
}

// New returns a client that downloads into st.
func New(st *store.Store, o Options) *Client {
	o.Jobs = cmp.Or(max(o.Jobs, 0), DefaultJobs)
	o.Backoff = cmp.Or(o.Backoff, defaultBackoff)
	o.MaxWait = cmp.Or(o.MaxWait, defaultMaxWait)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, defaultIdleTimeout)
	o.SpeedTime = cmp.Or(o.SpeedTime, defaultSpeedTime)
	o.UserAgent = cmp.Or(o.UserAgent, "sconce")
	if o.Transport == nil {
		o.Transport = DefaultTransport()
	}
	c := &Client{store: st, opts: o, slots: make(chan struct{}, o.Jobs)}
	c.base = userAgent{o.Transport, o.UserAgent}
	c.http = &http.Client{Transport: basicAuth{client: c, inner: c.base}, CheckRedirect: CheckRedirect}
	c.plain = &http.Client{Transport: basicAuth{client: c, inner: c.base, listed: true}, CheckRedirect: CheckRedirect}
	return c
}

// clientFor is the client that a request goes by.
func (c *Client) clientFor(r Request) *http.Client {
	if r.Client == nil && r.OfRecipe {
		return c.plain
	}
	return r.Client
}

// Request names one file.
type Request struct {
	URL    string       // http, https or file; or the path of a local file
	Digest store.Digest // of the file's bytes; required
	Size   int64        // in bytes; 0 when not known
	Name   string       // label for progress and errors; "" means the URL without its secrets
	Header http.Header  // added to every attempt
	Client *http.Client // nil: a client that knows netrc; a registry passes its authenticated one
	Login  string       // where credentials for this server are looked for, for the error when it refuses

	// OfRecipe says that only a recipe names the server. What comes is for its steps, which may be a stranger's and have a network: netrc's
	// login is for hosts in Options.LoginHosts alone. Nothing else is decided by it, and a Client of the request goes before it.
	OfRecipe bool

	// Follow, unless nil, is called when the download begins, and not when the blob is there already or another process brings
	// it. It must return at once, and see to it that r is closed. See [store.Partial.Follow].
	Follow func(r io.ReadCloser)
}

// label is what a person sees of the request.
func (r Request) label() string { return cmp.Or(r.Name, Redact(r.URL)) }

// Offline reports whether the client may not use the network.
func (c *Client) Offline() bool { return c.opts.Offline }

// Jobs returns how many downloads the client runs at once.
func (c *Client) Jobs() int { return c.opts.Jobs }

// Blob brings the requested file into the store. It does nothing when the store has it, and waits when another process
// is downloading it. Statuses 401, 403 and 404 are final; a wrong hash is tried once more from the beginning and then is
// a [*store.MismatchError].
func (c *Client) Blob(ctx context.Context, r Request) error {
	if _, err := store.ParseDigest(string(r.Digest)); err != nil {
		return fmt.Errorf("download %s: %w", r.label(), err)
	}
	if c.store.HasBlob(r.Digest) {
		return nil
	}
	local, isLocal := localPath(r.URL)
	if c.opts.Offline && !isLocal {
		return fmt.Errorf("download %s (%s): %w", r.label(), r.Digest, ErrOffline)
	}
	lock, err := c.store.LockBlob(ctx, "fetch "+string(r.Digest), "downloads "+r.label())
	if err != nil {
		return fmt.Errorf("download %s: %w", r.label(), err)
	}
	defer lock.Unlock()
	if c.store.HasBlob(r.Digest) { // another process was faster
		return nil
	}
	// The slot comes after the lock: whoever holds a slot never waits for a lock, so nobody can wait in a circle.
	if err := c.takeSlot(ctx); err != nil {
		return err
	}
	defer func() { <-c.slots }()
	if isLocal {
		return c.copyLocal(ctx, r, local)
	}
	return c.download(ctx, r)
}

func (c *Client) takeSlot(ctx context.Context) error {
	select {
	case c.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Blobs brings all requested files into the store, several at once and the largest first. The first error stops the rest; if there is not
// enough room for them, none comes.
func (c *Client) Blobs(ctx context.Context, rs []Request) error {
	if err := CheckRoom(c.store, rs); err != nil {
		return err
	}
	rs = slices.Clone(rs)
	slices.SortStableFunc(rs, func(a, b Request) int { return cmp.Compare(b.Size, a.Size) })
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(c.opts.Jobs)
	for _, r := range rs {
		g.Go(func() error { return c.Blob(ctx, r) })
	}
	return g.Wait()
}

// download makes attempts until the blob is in the store or there is no sense in another attempt. The caller holds the
// blob's lock.
func (c *Client) download(ctx context.Context, r Request) error {
	part, err := c.store.OpenPartial(r.Digest)
	if err != nil {
		return explain("download", r, err)
	}
	defer part.Close()
	if r.Follow != nil {
		follower, err := part.Follow()
		if err != nil {
			return explain("download", r, err)
		}
		r.Follow(follower)
	}
	task := progress.Begin(ctx, "download", r.label(), r.Size)
	d := &download{client: c, request: r, part: part, task: task}
	return task.End(explain("download", r, c.withRoom(d.run(ctx))))
}

// withRoom says what to do when the store's disk is full.
func (c *Client) withRoom(err error) error {
	what := host.NoRoom(err, c.store.Dir())
	if what == "" {
		return err
	}
	return fault.Hint(err, what+"; run `sconce cache prune`, or set SCONCE_STORE to a directory with more room and run again: the download goes on where it stopped")
}
