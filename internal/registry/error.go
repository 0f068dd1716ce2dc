package registry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/quote"
)

// newStatusError reads the error document of the distribution specification (section "Error codes") where there is one.
func newStatusError(resp *http.Response) error {
	status := fetch.NewStatusError(resp)
	var doc struct {
		Errors []struct{ Code, Message string }
	}
	if json.Unmarshal(status.Body, &doc) != nil || len(doc.Errors) == 0 {
		return status
	}
	e := &Error{StatusError: status}
	var said []string
	for _, one := range doc.Errors {
		e.Codes = append(e.Codes, one.Code)
		said = append(said, strings.TrimSpace(one.Message+" ("+one.Code+")"))
	}
	status.Detail = fetch.Printable(strings.Join(said, "; "))
	return e
}

// loginHint says where credentials come from.
func loginHint(at Endpoint) string {
	return fmt.Sprintf("log in with `sconce login %s`; docker's and podman's logins hold as well: credentials are looked for in $REGISTRY_AUTH_FILE, Docker's config.json, "+
		"containers/auth.json, enroot's .credentials and netrc", quote.Word(at.Host))
}
