package fetch

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// Unpinned brings a file of which nobody knows the hash into the store, and says what it turned out to be: for addresses
// whose content is whatever they have today. The digest of r is not used. Nothing can be resumed or checked, so whoever can
// name a digest uses [Client.Blob].
func (c *Client) Unpinned(ctx context.Context, r Request) (store.Digest, error) {
	if c.Offline() {
		return "", fmt.Errorf("download %s: %w", r.label(), ErrOffline)
	}
	task := progress.Begin(ctx, "download", r.label(), 0)
	var digest store.Digest
	err := c.Retry(ctx, func(ctx context.Context, _ bool) (progress bool, err error) {
		digest, err = c.unpinned(ctx, r, task)
		if err == nil {
			err = ErrDone
		}
		return false, err
	})
	return digest, task.End(err)
}

func (c *Client) unpinned(ctx context.Context, r Request, task *progress.Task) (store.Digest, error) {
	req, err := newRequest(ctx, http.MethodGet, r.URL)
	if err != nil {
		return "", explain("download", r, err)
	}
	for k, v := range r.Header {
		req.Header[k] = v
	}
	resp, err := c.Do(c.clientFor(r), req)
	if err != nil {
		return "", explain("download", r, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", explain("download", r, NewStatusError(resp))
	}
	task.SetTotal(max(0, resp.ContentLength))
	task.SetCurrent(0)
	w, err := c.store.NewBlob()
	if err != nil {
		return "", err
	}
	defer w.Close()
	if _, err := io.Copy(io.MultiWriter(w, task), resp.Body); err != nil {
		return "", explain("download", r, err)
	}
	return w.Commit("")
}
