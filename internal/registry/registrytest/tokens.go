package registrytest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
)

// Tokens are what a registry wants to see that has a token server, at /token: [Tokens.Trouble] is for [NewProxy]. A token holds the scopes
// that it was asked for.
type Tokens struct {
	User, Password string                                  // whom it takes requests on as, "" for nobody
	Issued         atomic.Int64                            // tokens
	Grant          func(scopes []string) ([]string, error) // which of several scopes a token is for, or why it is for none; nil: all
	Hidden         int                                     // the status for who has a token for something else; 0: 401, as for who has none
}

// Trouble issues tokens, and lets requests to repositories pass that have one for them.
func (s *Tokens) Trouble(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Path == "/token" {
		s.issue(w, r.URL.Query()["scope"])
		return true
	}
	text, _ := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")) // what is none has no scopes
	scopes := strings.Fields(string(text))
	if !slices.ContainsFunc(scopes, func(scope string) bool { return allows(scope, r.URL.Path) }) {
		status := http.StatusUnauthorized
		if s.Hidden != 0 && len(scopes) > 0 {
			status = s.Hidden
		} else {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="test"`, r.Host))
		}
		w.WriteHeader(status)
		return true
	}
	r.Header.Del("Authorization")
	if s.User != "" {
		r.SetBasicAuth(s.User, s.Password)
	}
	return false
}

// allows reports whether a scope, repository:PATH:ACTIONS, is for a path below /v2/.
func allows(scope, path string) bool {
	parts := strings.Split(scope, ":")
	return len(parts) == 3 && strings.HasPrefix(path, "/v2/"+parts[1]+"/")
}

func (s *Tokens) issue(w http.ResponseWriter, scopes []string) {
	if s.Grant != nil && len(scopes) > 1 {
		var err error
		if scopes, err = s.Grant(scopes); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
	}
	s.Issued.Add(1)
	_ = json.NewEncoder(w).Encode(map[string]string{"token": base64.RawURLEncoding.EncodeToString([]byte(strings.Join(scopes, " ")))}) // who does not wait has no need of it
}
