package condalock

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lazyregexp"
)

// Logins are how channels let this user in, by host: from the addresses of channels, from where rattler's tools keep theirs
// (RATTLER_AUTH_FILE, its configuration, ~/.rattler/credentials.json). netrc is not among them: the solver and every download know
// it. They are for requests alone, and never written anywhere but in a file for the solver that is gone when it ends.
type Logins struct {
	entries map[string]entry // by host, or "*.example.org"
}

// entry is a login as rattler writes it: an object with one of these names.
type entry struct {
	raw json.RawMessage // all of it, for the solver

	BearerToken string `json:"BearerToken"`
	CondaToken  string `json:"CondaToken"`
	BasicHTTP   *struct {
		Username string `json:"username"`
		Password string `json:"password"`
	} `json:"BasicHTTP"`

	fromAddress bool // and not from a file, which an address goes before
}

// read reads the files of logins. The first that names a host counts.
func (l *Logins) read(c *Config) error {
	files := []string{c.variable("RATTLER_AUTH_FILE")}
	if file, ok := c.rattler["authentication-override-file"].(string); ok {
		files = append(files, file)
	}
	if home := c.variable("HOME"); home != "" {
		files = append(files, filepath.Join(home, ".rattler", "credentials.json"))
	}
	for _, file := range files {
		if file == "" {
			continue
		}
		if err := l.readFile(file); err != nil {
			return err
		}
	}
	return nil
}

func (l *Logins) readFile(file string) error {
	text, err := ctxio.ReadFile(file, maxFile)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("logins of channels: %w", err)
	}
	var found map[string]json.RawMessage
	if json.Unmarshal(text, &found) != nil { // its error might quote a secret
		return fmt.Errorf("logins of channels: %s is not what rattler writes there", file)
	}
	for host, raw := range found {
		e := entry{raw: raw}
		if json.Unmarshal(raw, &e) != nil {
			return fmt.Errorf("logins of channels: %s: the login of %s is not what rattler writes there", file, host)
		}
		if _, ok := l.entries[host]; !ok {
			l.entries[host] = e
		}
	}
	return nil
}

var tokenPath = lazyregexp.New(`^/t/([^/]+)`)

// take keeps the login of an address, and takes it out: a user with a password, or conda's /t/TOKEN at the beginning of the path.
func (l *Logins) take(u *url.URL) error {
	host := u.Hostname()
	if user := u.User; user != nil {
		u.User = nil
		password, _ := user.Password()
		if err := l.add(host, map[string]any{"BasicHTTP": map[string]string{"username": user.Username(), "password": password}}); err != nil {
			return err
		}
	}
	if m := tokenPath.FindStringSubmatch(u.Path); m != nil {
		u.Path, u.RawPath = strings.TrimPrefix(u.Path, m[0]), ""
		return l.add(host, map[string]any{"CondaToken": m[1]})
	}
	return nil
}

func (l *Logins) add(host string, login map[string]any) error {
	raw, err := json.Marshal(login)
	if err != nil {
		return err
	}
	e := entry{raw: raw, fromAddress: true}
	if err := json.Unmarshal(raw, &e); err != nil {
		return err
	}
	if there, ok := l.entries[host]; ok && there.fromAddress && string(there.raw) != string(raw) {
		return fmt.Errorf("%s has two different logins in addresses of channels, and takes one", host)
	}
	l.entries[host] = e
	return nil
}

// file is the content of a RATTLER_AUTH_FILE.
func (l *Logins) file() ([]byte, error) {
	all := map[string]json.RawMessage{}
	for host, e := range l.entries {
		all[host] = e.raw
	}
	return json.Marshal(all)
}

// find returns the login of a host: its own, or that of a domain above it.
func (l *Logins) find(host string) (entry, bool) {
	if e, ok := l.entries[host]; ok {
		return e, true
	}
	for domain := host; domain != ""; {
		if e, ok := l.entries["*."+domain]; ok {
			return e, true
		}
		_, domain, _ = strings.Cut(domain, ".")
	}
	return entry{}, false
}

// Authorize returns the address and the headers with which a file of a channel is asked for: the token of conda goes into the
// path, all others into a header. Both are secret.
func (l *Logins) Authorize(address string) (string, http.Header) {
	u, err := url.Parse(address)
	if err != nil || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return address, nil
	}
	e, ok := l.find(u.Hostname())
	switch {
	case !ok:
		return address, nil
	case e.CondaToken != "":
		u.Path, u.RawPath = "/t/"+e.CondaToken+u.Path, ""
		return u.String(), nil
	case e.BearerToken != "":
		return address, http.Header{"Authorization": {"Bearer " + e.BearerToken}}
	case e.BasicHTTP != nil:
		login := base64.StdEncoding.EncodeToString([]byte(e.BasicHTTP.Username + ":" + e.BasicHTTP.Password))
		return address, http.Header{"Authorization": {"Basic " + login}}
	}
	return address, nil
}

// token is the part of an address that holds a token of conda's.
var token = lazyregexp.New(`([A-Za-z][A-Za-z0-9+.-]*://[^/?#\s"'` + "`" + `]+)/t/[^/\s"'` + "`" + `]+`)

// withoutLogins takes users, passwords and tokens out of all addresses in a text.
func withoutLogins(text string) string {
	return token.ReplaceAllString(fetch.WithoutLogins(text), "$1")
}

// redact takes out what is secret from a text that another program wrote.
func (l *Logins) redact(text string) string {
	var secrets []string
	for _, e := range l.entries {
		secrets = append(secrets, e.CondaToken, e.BearerToken)
		if e.BasicHTTP != nil {
			secrets = append(secrets, e.BasicHTTP.Password)
		}
	}
	return fetch.HideSecrets(withoutLogins(text), secrets)
}
