package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/ctxio"
)

// Limits on a list of tags.
const (
	tagsPerPage = 1000    // asked for; registries may give fewer
	maxTagPage  = 8 << 20 // bytes of one page
	maxTags     = 1 << 20 // in one repository
)

// Tags lists the tags of the repository, in the registry's order. One that does not exist has none.
func (r *Repository) Tags(ctx context.Context) ([]string, error) {
	tags, err := r.tags(ctx)
	if IsAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, keepHint(fmt.Errorf("list the tags of %s: %w", r.Name(), err))
	}
	return tags, nil
}

func (r *Repository) tags(ctx context.Context) ([]string, error) {
	first, err := r.URL(ctx, fmt.Sprintf("tags/list?n=%d", tagsPerPage))
	if err != nil {
		return nil, err
	}
	var all []string
	seen := map[string]bool{}
	for at := first; at != ""; {
		if seen[at] || len(all) > maxTags {
			return nil, fmt.Errorf("the list does not end: %d tags so far", len(all))
		}
		seen[at] = true
		page, next, err := r.tagPage(ctx, at)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		at = next
	}
	return all, nil
}

// tagPage reads one page and the address of the next, "" after the last (distribution-spec, "Listing Tags"; RFC 8288).
func (r *Repository) tagPage(ctx context.Context, at string) (tags []string, next string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, "", err
	}
	resp, err := r.Do(req, http.StatusOK)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	var page struct {
		Tags []string `json:"tags"`
	}
	if err := decode(resp.Body, maxTagPage, &page); err != nil {
		return nil, "", fmt.Errorf("the registry's answer is damaged: %w", err)
	}
	next, err = nextPage(req.URL, resp.Header.Get("Link"))
	if next == "" && len(page.Tags) == tagsPerPage { // some registries end a page without saying so
		more := *req.URL
		more.RawQuery = url.Values{"n": {strconv.Itoa(tagsPerPage)}, "last": {page.Tags[tagsPerPage-1]}}.Encode()
		next = more.String()
	}
	return page.Tags, next, err
}

// nextPage reads a Link header: <URL>; rel="next". Credentials are sent there, so it must lead to the same server.
func nextPage(from *url.URL, link string) (string, error) {
	target, parameters, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(link), "<"), ">")
	if !ok || !strings.Contains(strings.ReplaceAll(parameters, `"`, ""), "rel=next") {
		return "", nil
	}
	to, err := from.Parse(target)
	if err != nil {
		return "", fmt.Errorf("the registry names the next page by something that is not an address: %w", err)
	}
	if to.Host != from.Host {
		return "", fmt.Errorf("the registry sends for the next page to another server, %s", to.Host)
	}
	to.Scheme = from.Scheme // behind a proxy registries believe that they speak plain http
	return to.String(), nil
}

// decode reads a JSON document of at most limit bytes.
func decode(r io.Reader, limit int64, v any) error {
	data, err := ctxio.ReadAtMost(r, limit)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}
