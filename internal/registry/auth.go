package registry

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"sconce.dev/sconce/internal/fetch"
)

// authorizer answers a registry's challenges: Basic with the user's password, Bearer with a token fetched for it (the
// token protocol of the distribution project). What it learned it sends along with later requests, and only to the
// registry itself: a redirect to a storage server carries nothing.
type authorizer struct {
	at     Endpoint
	user   string
	inner  http.RoundTripper
	server *server
	scopes []string

	mu    sync.Mutex
	now   authorization
	login *Credential
	group *tokenGroup // whose token is asked for first; nil: only its own is
}

// authorization is what a request carries.
type authorization struct {
	header  string // Authorization, "" until a challenge was met
	renewal int    // counts changes of it
	shared  bool   // it is of the group's token
}

func newAuthorizer(at Endpoint, inner http.RoundTripper, s *server, o Options) *authorizer {
	action := "pull"
	if o.Push {
		action = "pull,push"
	}
	scopes := []string{"repository:" + at.Path + ":" + action}
	for _, from := range o.From {
		scopes = append(scopes, "repository:"+from+":pull")
	}
	return &authorizer{at: at, user: o.User, inner: inner, server: s, scopes: scopes}
}

// RoundTrip implements http.RoundTripper.
func (a *authorizer) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host != a.at.server() {
		return a.inner.RoundTrip(req)
	}
	carried := a.begin(req)
	resp, err := a.send(req, carried.header)
	// What was carried may be too old, or nothing; a shared token that is refused is followed by one of the repository's own.
	for first := true; err == nil && isRefusal(resp, carried.shared) && (first || carried.shared); first = false {
		if carried, err = a.answerTo(req, resp, carried); carried.header == "" {
			break // nothing to answer with: the refusal is the answer
		}
		var again *http.Request
		if again, err = repeat(req); err == nil {
			resp, err = a.send(again, carried.header)
		}
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// answerTo returns what to carry after a refusal, of which the body can be read again: nothing when the user has nothing to answer with.
func (a *authorizer) answerTo(req *http.Request, resp *http.Response, refused authorization) (authorization, error) {
	challenges := parseChallenges(resp.Header.Values("WWW-Authenticate"))
	if resp.StatusCode != http.StatusUnauthorized {
		challenges = a.server.known()
	}
	if !repeatable(req) || len(challenges) == 0 {
		return authorization{}, nil
	}
	a.server.learn(challenges)
	if err := keepBody(resp); err != nil {
		return authorization{}, err
	}
	if err := a.answer(req, challenges, refused.renewal); err != nil {
		return authorization{}, err
	}
	return a.current(), nil
}

// begin returns what to carry at first. One who has nothing yet, and whose server is known to ask for something, need not be refused first; if
// that comes to nothing, the refusal says why.
func (a *authorizer) begin(req *http.Request) authorization {
	now := a.current()
	if now.header != "" || now.renewal > 0 {
		return now
	}
	if known := a.server.known(); known != nil {
		_ = a.answer(req, known, now.renewal)
	}
	return a.current()
}

// learn keeps what the server challenged one of its repositories with. The scope is that one's alone.
func (s *server) learn(challenges []challenge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.challenges = nil
	for _, c := range challenges {
		params := maps.Clone(c.params)
		delete(params, "scope")
		s.challenges = append(s.challenges, challenge{c.scheme, params})
	}
}

func (s *server) known() []challenge {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.challenges
}

func (a *authorizer) current() authorization {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now
}

// carry sends a header along before anybody has asked for it.
func (a *authorizer) carry(header string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = authorization{header: header}
}

// isRefusal reports whether an answer asks for a login, or may be about a token that is shared: a server may issue it for some of the
// repositories only, and registries hide what somebody may not see.
func isRefusal(resp *http.Response, shared bool) bool {
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		return true
	case http.StatusForbidden, http.StatusNotFound:
		return shared
	}
	return false
}

func (a *authorizer) send(req *http.Request, header string) (*http.Response, error) {
	if header != "" {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", header)
	}
	return a.inner.RoundTrip(req)
}

func repeatable(req *http.Request) bool {
	return req.Body == nil || req.Body == http.NoBody || req.GetBody != nil
}

func repeat(req *http.Request) (*http.Request, error) {
	if req.GetBody == nil {
		return req, nil
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	req.Body = body
	return req, nil
}

// maxRefusal bounds how much of a refusal is kept for its message, in bytes.
const maxRefusal = 16 << 10

// keepBody takes the refusal off the connection, which can then be used again.
func keepBody(resp *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(data))
	return err
}

// answer finds the Authorization that answers the challenges, "" when the user has nothing to answer with. Many requests may be refused at
// once when a token ends; one of them gets the next.
func (a *authorizer) answer(req *http.Request, challenges []challenge, renewal int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.now.renewal != renewal {
		return nil
	}
	header, err := a.renew(req.Context(), req.URL.Scheme, challenges)
	if err != nil {
		return err
	}
	a.now.header = header
	a.now.renewal++
	return nil
}

func (a *authorizer) renew(ctx context.Context, scheme string, challenges []challenge) (string, error) {
	login, err := a.credential(ctx)
	if err != nil {
		return "", err
	}
	for _, c := range challenges {
		switch c.scheme {
		case "bearer":
			if login.RegistryToken != "" {
				return "Bearer " + login.RegistryToken, nil
			}
			token, err := a.sharedToken(ctx, scheme, c, login)
			if err == nil && token == "" {
				token, err = a.token(ctx, scheme, c, a.allScopes(c), login)
			}
			if err != nil {
				return "", err
			}
			return "Bearer " + token, nil
		case "basic":
			if login.User != "" || login.Password != "" {
				return "Basic " + basic(login.User, login.Password), nil
			}
		}
	}
	return "", nil
}

func basic(user, password string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
}

// credential looks for the user's login once.
func (a *authorizer) credential(ctx context.Context) (Credential, error) {
	if a.login == nil {
		login, err := FindCredential(ctx, a.at.Host, a.at.Path, a.user)
		if err != nil {
			return Credential{}, err
		}
		a.login = &login
	}
	return *a.login, nil
}

// maxToken bounds a token server's answer, in bytes.
const maxToken = 1 << 20

// token asks the server that the challenge names for a token.
func (a *authorizer) token(ctx context.Context, scheme string, c challenge, scopes []string, login Credential) (string, error) {
	realm, err := url.Parse(c.params["realm"])
	if err != nil || realm.Host == "" {
		return "", fmt.Errorf("registry %s names no token server", a.at.Host)
	}
	if realm.Scheme != "https" && (scheme == "https" || realm.Scheme != "http") {
		return "", fmt.Errorf("registry %s wants credentials sent to %s://%s without encryption: refused", a.at.Host, realm.Scheme, realm.Host)
	}
	req, err := tokenRequest(ctx, realm, c, scopes, login)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: a.inner, CheckRedirect: fetch.CheckRedirect}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", newStatusError(resp)
	}
	return readToken(resp.Body)
}

// allScopes are what this repository will need, and what the registry says is needed now.
func (a *authorizer) allScopes(c challenge) []string {
	scopes := slices.Clone(a.scopes)
	if s := c.params["scope"]; s != "" && !slices.Contains(scopes, s) {
		scopes = append(scopes, s)
	}
	return scopes
}

func tokenRequest(ctx context.Context, realm *url.URL, c challenge, scopes []string, login Credential) (*http.Request, error) {
	query := realm.Query()
	if s := c.params["service"]; s != "" {
		query.Set("service", s)
	}
	if login.IdentityToken != "" { // OAuth2, RFC 6749 section 6
		query.Set("grant_type", "refresh_token")
		query.Set("refresh_token", login.IdentityToken)
		query.Set("client_id", "sconce")
		query.Set("scope", strings.Join(scopes, " "))
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, realm.String(), strings.NewReader(query.Encode()))
		if err == nil {
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		return req, err
	}
	for _, s := range scopes {
		query.Add("scope", s)
	}
	if login.User != "" {
		query.Set("account", login.User)
	}
	at := *realm
	at.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err == nil && login.User != "" {
		req.SetBasicAuth(login.User, login.Password)
	}
	return req, err
}

func readToken(r io.Reader) (string, error) {
	var answer struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if err := json.NewDecoder(io.LimitReader(r, maxToken)).Decode(&answer); err != nil {
		return "", fmt.Errorf("read the token server's answer: %w", err)
	}
	if answer.Token == "" {
		answer.Token = answer.AccessToken
	}
	if answer.Token == "" || strings.ContainsAny(answer.Token, "\r\n") {
		return "", errors.New("the token server's answer holds no token")
	}
	return answer.Token, nil
}
