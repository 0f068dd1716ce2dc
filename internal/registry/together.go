package registry

import (
	"context"
	"errors"
	"slices"
	"sync"

	"sconce.dev/sconce/internal/fetch"
)

// maxTogether is how many repositories share a token: it names all of them, and servers bound a line of a request's header, often to 8 KB.
const maxTogether = 20

// tokenGroup is repositories of a server that are read with one token, asked for when the first of them needs one.
type tokenGroup struct {
	scopes []string

	mu     sync.Mutex
	tokens map[Credential]string // by who asked; "": the server refused
}

// AskTogether has repositories share tokens, as far as they share a server: asking many of them then takes few requests to its token
// server. For whom a shared token is not good, its own is asked for. It is called before anything is asked.
func AskTogether(repos []*Repository) {
	open := map[*server]*tokenGroup{}
	for _, r := range repos {
		g := open[r.server]
		if g == nil || len(g.scopes) >= maxTogether {
			g = &tokenGroup{tokens: map[Credential]string{}}
			open[r.server] = g
		}
		r.auth.mu.Lock()
		if r.auth.group == nil {
			r.auth.group = g
			g.scopes = append(g.scopes, r.auth.scopes...)
		}
		r.auth.mu.Unlock()
	}
}

// sharedToken returns the token of the group, the first time: whoever needs another one had no luck with that. Without one it is "".
func (a *authorizer) sharedToken(ctx context.Context, scheme string, c challenge, login Credential) (string, error) {
	a.now.shared = false
	if a.group == nil || len(a.group.scopes) < 2 || a.now.renewal > 0 {
		return "", nil
	}
	token, err := a.group.token(login, func(scopes []string) (string, error) { return a.token(ctx, scheme, c, scopes, login) })
	a.now.shared = token != ""
	return token, err
}

// token asks for the token, once for each login.
func (g *tokenGroup) token(login Credential, ask func(scopes []string) (string, error)) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	token, asked := g.tokens[login]
	if asked {
		return token, nil
	}
	token, err := ask(slices.Clone(g.scopes))
	if refused := (*fetch.StatusError)(nil); errors.As(err, &refused) {
		err = nil
	}
	if err == nil {
		g.tokens[login] = token
	}
	return token, err
}
