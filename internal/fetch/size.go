package fetch

import (
	"context"
	"fmt"
	"net/http"
	"os"
)

// Size asks how large the file at r.URL is, in bytes, without downloading it. 0 means that its server does not say.
func (c *Client) Size(ctx context.Context, r Request) (int64, error) {
	if path, ok := localPath(r.URL); ok {
		info, err := os.Stat(path)
		if err != nil {
			return 0, fmt.Errorf("ask for the size of %s: %w", r.label(), err)
		}
		return info.Size(), nil
	}
	req, err := newRequest(ctx, http.MethodHead, r.URL)
	if err != nil {
		return 0, explain("ask for the size of", r, err)
	}
	for k, v := range r.Header {
		req.Header[k] = v
	}
	// Go undoes a compression that it asked for itself, and then does not know the size.
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := c.Do(c.clientFor(r), req)
	if err != nil {
		return 0, explain("ask for the size of", r, err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusMethodNotAllowed || resp.StatusCode == http.StatusNotImplemented:
		return 0, nil
	case resp.StatusCode != http.StatusOK:
		return 0, explain("ask for the size of", r, NewStatusError(resp))
	}
	return max(0, resp.ContentLength), nil
}
