package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/progress"
)

// upload sends one blob: in chunks, each of which a broken connection may cost, or at once to a registry that knows no
// chunks (distribution-spec, "Pushing blobs"). After trouble the registry is asked how much it has.
type upload struct {
	pusher   *pusher
	blob     Blob
	task     *progress.Task
	f        *os.File
	location string // where the next request goes
	sent     int64  // what the registry has, in bytes
	whole    bool   // no chunks
}

func (u *upload) run(ctx context.Context) error {
	f, err := u.pusher.opts.Store.OpenBlob(u.blob.Digest)
	if err != nil {
		return err
	}
	defer f.Close()
	u.f = f
	u.whole = u.blob.Size <= u.pusher.opts.Chunk
	return u.pusher.repo.client.Retry(ctx, u.step)
}

// step carries the upload as far as it goes. progress says that the registry has more than before the step.
func (u *upload) step(ctx context.Context, again bool) (progress bool, err error) {
	if again {
		if err := u.resume(ctx); err != nil {
			return false, err
		}
	}
	before := u.sent
	for !u.whole && u.sent < u.blob.Size {
		if err := u.chunk(ctx); err != nil {
			return u.sent > before, err
		}
	}
	return u.sent > before, u.finish(ctx)
}

// chunk sends the next chunk. A registry that refuses the first one is sent the whole.
func (u *upload) chunk(ctx context.Context) error {
	n := min(u.pusher.opts.Chunk, u.blob.Size-u.sent)
	req, err := u.request(ctx, http.MethodPatch, u.location, u.sent, n)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Range", fmt.Sprintf("%d-%d", u.sent, u.sent+n-1))
	resp, err := u.pusher.repo.Send(req, 0)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusAccepted || resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusCreated:
		return u.accept(resp, u.sent+n)
	case u.sent == 0 && noChunks(resp.StatusCode):
		u.whole = true
		return u.restart(ctx)
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable || resp.StatusCode == http.StatusNotFound:
		return &lostError{u.pusher.repo.Status(resp)}
	}
	return u.pusher.repo.Status(resp)
}

func noChunks(code int) bool {
	switch code {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusLengthRequired, http.StatusNotImplemented,
		http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType:
		return true
	}
	return false
}

// accept notes what the registry says it has.
func (u *upload) accept(resp *http.Response, expected int64) error {
	next, err := location(resp)
	if err != nil {
		return err
	}
	u.location = next
	if have, ok := rangeEnd(resp); ok && have < expected {
		expected = have // it took less than it was sent
	}
	u.setSent(expected)
	return nil
}

func (u *upload) setSent(n int64) {
	u.sent = n
	u.task.SetCurrent(n)
}

// finish closes the upload with the blob's digest, sending what is not there yet.
func (u *upload) finish(ctx context.Context) error {
	at, err := url.Parse(u.location)
	if err != nil {
		return errors.New("the registry gave an address for the upload that is not an URL")
	}
	query := at.Query()
	query.Set("digest", string(u.blob.Digest))
	at.RawQuery = query.Encode()
	req, err := u.request(ctx, http.MethodPut, at.String(), u.sent, u.blob.Size-u.sent)
	if err != nil {
		return err
	}
	resp, err := u.pusher.repo.Send(req, hashingTime(u.blob.Size))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusCreated, http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		u.setSent(u.blob.Size)
		return nil
	case http.StatusNotFound, http.StatusRequestedRangeNotSatisfiable, http.StatusBadRequest: // the upload is gone, or its bytes are wrong
		return &lostError{u.pusher.repo.Status(resp)}
	}
	return u.pusher.repo.Status(resp)
}

// hashRate is what every registry can read and hash at least of a blob that it has, in bytes per second.
const hashRate = 16 << 20

// hashingTime is how much longer than usual a registry may take to answer when it has to check a blob of so many bytes.
func hashingTime(size int64) time.Duration {
	return time.Duration(size/hashRate) * time.Second
}

// lostError says that an upload cannot go on and must begin again.
type lostError struct{ err error }

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// Transient tells package fetch that another attempt makes sense: it begins with a new upload.
func (e *lostError) Transient() bool { return true }

// request makes a request whose body is n bytes of the blob.
func (u *upload) request(ctx context.Context, method, to string, at, n int64) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, to, nil)
	if err != nil {
		return nil, err
	}
	if n > 0 {
		body := content(u.f, at, n)
		req.GetBody = func() (io.ReadCloser, error) {
			u.task.SetCurrent(at)
			rc, err := body()
			return &progressBody{rc, u.task}, err
		}
		if req.Body, err = req.GetBody(); err != nil {
			return nil, err
		}
	}
	req.ContentLength = n
	req.Header.Set("Content-Type", "application/octet-stream")
	return req, nil
}

// progressBody counts what is taken of a request's body.
type progressBody struct {
	io.ReadCloser
	task *progress.Task
}

func (b *progressBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.task.Add(int64(n))
	return n, err
}

// resume asks the registry how much it has (distribution-spec, "Getting upload status"), and begins again when it has
// forgotten the upload, or cannot go on in the middle.
func (u *upload) resume(ctx context.Context) error {
	there, err := u.pusher.hasBlob(ctx, u.blob.Digest)
	if err != nil && fetch.Transient(err) { // one silence is enough for one attempt
		return err
	}
	if there { // only the answer was lost
		u.whole = true
		u.setSent(u.blob.Size)
		return errDone
	}
	if u.whole {
		return u.restart(ctx)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.location, nil)
	if err != nil {
		return err
	}
	resp, err := u.pusher.repo.Send(req, 0)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	have, ok := rangeEnd(resp)
	if (resp.StatusCode != http.StatusNoContent && resp.StatusCode != http.StatusOK) || !ok || have > u.blob.Size {
		return u.restart(ctx)
	}
	if next, err := location(resp); err == nil {
		u.location = next
	}
	u.setSent(have)
	return nil
}

// errDone ends the attempts: the registry has the blob.
var errDone = fetch.ErrDone

func (u *upload) restart(ctx context.Context) error {
	session, _, err := u.pusher.post(ctx, "blobs/uploads/")
	if err != nil {
		return err
	}
	u.location = session
	u.setSent(0)
	return nil
}

// rangeEnd reads how many bytes a registry has: "0-N" is N+1. "0-0" means none: nobody sends a single byte.
func rangeEnd(resp *http.Response) (int64, bool) {
	value := strings.TrimPrefix(resp.Header.Get("Range"), "bytes=")
	first, last, ok := strings.Cut(value, "-")
	if !ok || first != "0" {
		return 0, false
	}
	n, err := strconv.ParseInt(last, 10, 64)
	if err != nil || n < 0 {
		return 0, false
	}
	if n == 0 {
		return 0, true
	}
	return n + 1, true
}
