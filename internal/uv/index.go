package uv

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lazyregexp"
)

// maxPage bounds an index's page about one project, in bytes. That of uv has some megabytes.
const maxPage = 64 << 20

// pageTypes are the two forms of a page (PEP 691, PEP 503).
const pageTypes = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"

// addressOf asks an index where the wheel of a release is.
func (f Finder) addressOf(ctx context.Context, version, index string) (string, error) {
	page := strings.TrimSuffix(index, "/") + "/uv/"
	text, at, err := f.page(ctx, page)
	if err != nil {
		return "", fmt.Errorf("ask %s for uv: %w", fetch.Redact(page), err)
	}
	link := findLink(text, func(file string) bool { return isWheel(file, version) })
	if link == "" {
		return "", fmt.Errorf("%s does not have uv %s for musl on %s", fetch.Redact(page), version, machines[runtime.GOARCH])
	}
	u, err := at.Parse(link)
	if err != nil {
		return "", fmt.Errorf("%s: %q is no address", fetch.Redact(page), link)
	}
	u.Fragment = ""
	return u.String(), nil
}

// isWheel reports whether a file is the wheel of a release of uv for musl on this machine's architecture (PEP 427, PEP 656).
func isWheel(file, version string) bool {
	platforms, ok := strings.CutPrefix(file, "uv-"+version+"-py3-none-")
	platforms, wheel := strings.CutSuffix(platforms, ".whl")
	return ok && wheel && slices.ContainsFunc(strings.Split(platforms, "."), func(platform string) bool {
		return strings.HasPrefix(platform, "musllinux_") && strings.HasSuffix(platform, "_"+machines[runtime.GOARCH])
	})
}

// page reads a page, and says where it was in the end.
func (f Finder) page(ctx context.Context, address string) (text []byte, at *url.URL, err error) {
	err = f.Fetch.Retry(ctx, func(ctx context.Context, _ bool) (progress bool, err error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return false, err
		}
		for k, v := range f.header(address) {
			req.Header[k] = v
		}
		req.Header.Set("Accept", pageTypes)
		resp, err := f.Fetch.Do(nil, req)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return false, fetch.NewStatusError(resp)
		}
		at = resp.Request.URL
		if text, err = io.ReadAll(io.LimitReader(resp.Body, maxPage)); err == nil {
			err = fetch.ErrDone
		}
		return false, err
	})
	return text, at, err
}

// anchor is a link of a page in HTML, as far as PEP 503 decides it.
var anchor = lazyregexp.New(`(?is)<a\s[^>]*?href\s*=\s*["']([^"']*)["'][^>]*>\s*([^<]*?)\s*</a>`)

// findLink returns the link to the first file on a page of either form that is wanted, "" when there is none.
func findLink(page []byte, wanted func(file string) bool) string {
	var listed struct {
		Files []struct {
			Filename string `json:"filename"`
			URL      string `json:"url"`
		} `json:"files"`
	}
	if json.Unmarshal(page, &listed) == nil {
		for _, f := range listed.Files {
			if wanted(f.Filename) {
				return f.URL
			}
		}
		return ""
	}
	for _, m := range anchor.Regexp().FindAllSubmatch(page, -1) {
		if wanted(html.UnescapeString(string(m[2]))) {
			return html.UnescapeString(string(m[1]))
		}
	}
	return ""
}
