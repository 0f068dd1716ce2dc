package engine

import (
	"context"

	"sconce.dev/sconce/internal/registry"
)

// LoggedIn is a login that a registry has taken.
type LoggedIn struct {
	Host  string
	File  string // that keeps it
	Tried bool   // false: the registry lets everybody in, whatever the login, so that nothing could be proved
}

// LogIn tries a login at a registry, HOST[:PORT][/NAMESPACE], and keeps it. ask is called once it is plain that name is one.
func LogIn(ctx context.Context, name string, ask func() (user, password string, err error), open Opener) (LoggedIn, error) {
	at, err := registry.ParseLogin(name)
	if err != nil {
		return LoggedIn{}, err
	}
	user, password, err := ask()
	if err != nil {
		return LoggedIn{}, err
	}
	s, err := open(ctx)
	if err != nil {
		return LoggedIn{}, err
	}
	in := LoggedIn{Host: at.Host}
	in.File, in.Tried, err = registry.Login(ctx, at, registry.Credential{User: user, Password: password}, s.Fetch)
	return in, err
}

// LogOut forgets the logins at a registry, and returns its host and the files that had one, also beside an error.
func LogOut(name string) (host string, files []string, err error) {
	at, err := registry.ParseLogin(name)
	if err != nil {
		return "", nil, err
	}
	files, err = registry.Logout(at)
	return at.Host, files, err
}
