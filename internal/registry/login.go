package registry

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/quote"
)

// ParseLogin returns where to log in at: HOST[:PORT], or HOST[:PORT]/NAMESPACE for registries whose logins hold for a part of them.
// A scheme before it, as people copy it from a browser, is left out.
func ParseLogin(name string) (Endpoint, error) {
	rest := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(name, "https://"), "http://"), "/")
	host, path, _ := strings.Cut(rest, "/")
	if host == "" || strings.ContainsAny(rest, " @?#\\") {
		return Endpoint{}, fault.Usage(fault.Hint(fmt.Errorf("%q is no registry", name), "write its name: registry.example.org, or registry.example.org:5000"))
	}
	return Endpoint{Host: CanonicalHost(host), Path: path}, nil
}

// Login proves c to the registry and keeps it where docker's and podman's users keep theirs, readable by this user alone. It
// returns the file's name. asked is false when the registry lets everybody in, with whatever login, so that nothing could be proved. What a
// registry does not take, or cannot say for now, is not kept.
func Login(ctx context.Context, at Endpoint, c Credential, client *fetch.Client) (file string, asked bool, err error) {
	if strings.Contains(c.User, ":") {
		return "", false, fault.Usage(errors.New("a user's name has no colon")) // RFC 7617 section 2
	}
	file, err = loginFile(at)
	if err != nil {
		return "", false, err
	}
	asked, err = prove(ctx, at, c, client)
	if err != nil {
		return "", asked, fmt.Errorf("log in at %s: %w", at.key(), err)
	}
	err = changeLogins(file, func(auths map[string]json.RawMessage) error {
		entry, err := json.Marshal(authEntry{Auth: base64.StdEncoding.EncodeToString([]byte(c.User + ":" + c.Password))})
		forgetEntry(auths, at)
		auths[at.key()] = entry
		return err
	})
	if err == nil {
		err = wins(ctx, at, c, file)
	}
	return file, asked, err
}

// wins makes sure that the login that was kept is the one that will be found: another file or a credential helper may come first.
func wins(ctx context.Context, at Endpoint, c Credential, file string) error {
	found, err := FindCredential(ctx, at.Host, at.Path, "")
	if err != nil || found == c {
		return err
	}
	return fault.Hint(fmt.Errorf("the login is in %s, but another one for %s is found first, that of user %q", file, at.key(), found.User),
		"it is in Docker's config.json, or in the credential helper that file names: `sconce logout "+quote.Word(at.key())+"` or `docker logout "+quote.Word(at.Host)+"` removes it")
}

// Logout forgets the logins at a registry in every file that is looked into for them, and returns those files' names.
func Logout(at Endpoint) (files []string, err error) {
	for _, name := range authFiles() {
		file, err := readAuthFile(name)
		if err != nil {
			return files, err
		}
		if !file.names(at) {
			continue
		}
		err = changeLogins(name, func(auths map[string]json.RawMessage) error {
			forgetEntry(auths, at)
			return nil
		})
		if err != nil {
			return files, err
		}
		files = append(files, name)
	}
	return files, nil
}

// key is the name under which a login is kept. Docker Hub has the one that Docker gave it.
func (e Endpoint) key() string {
	switch {
	case e.Path != "":
		return e.Host + "/" + e.Path
	case e.Host == hubName:
		return hubKey
	}
	return e.Host
}

// prove asks the registry's front door (distribution specification, "Determining Support") with a login, and reports whether it
// wanted one.
func prove(ctx context.Context, at Endpoint, c Credential, client *fetch.Client) (asked bool, err error) {
	config, err := ReadConfig()
	if err != nil {
		return false, err
	}
	server, err := config.PushEndpoint(at.Host, at.Path)
	if err != nil {
		return false, err
	}
	r := New(server, Options{Fetch: client})
	r.auth.login, r.auth.scopes = &c, nil
	base, err := r.base(ctx)
	if err != nil {
		return false, err
	}
	front := strings.TrimSuffix(base, server.Path+"/")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, front, nil)
	if err != nil {
		return false, err
	}
	if err := admits(client, r, req); err != nil || r.auth.current().header != "" {
		return true, err
	}
	// Who is asked for nothing may be told all the same that what comes unasked is wrong.
	unasked := "Basic " + basic(c.User, c.Password)
	r.auth.carry(unasked)
	err = admits(client, r, req)
	return err != nil || r.auth.current().header != unasked, err
}

// admits sends a request to the registry's front door, and is nil when that is open.
func admits(client *fetch.Client, r *Repository, req *http.Request) error {
	resp, err := client.Do(r.calls, req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		if strings.Contains(resp.Header.Get("Content-Type"), "html") {
			return fault.Hint(fmt.Errorf("%s answered with a page for browsers, as no registry does", resp.Request.URL.Host), noRegistryHint)
		}
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return fault.Hint(newStatusError(resp), "user or password is wrong; many registries want an access token in the password's place")
	case http.StatusNotFound:
		return fault.Hint(newStatusError(resp), noRegistryHint)
	}
	return newStatusError(resp)
}

// noRegistryHint is for servers that are none (distribution specification, "Determining Support").
const noRegistryHint = "no registry is there: is the name right, and has the registry a port or a name of its own, such as registry.example.org:5000?"

// loginFile chooses where a login is kept: in the file that has one for this registry, else in $REGISTRY_AUTH_FILE or podman's file
// that stays when the session ends and that all nodes see.
func loginFile(at Endpoint) (string, error) {
	for _, name := range authFiles() {
		file, err := readAuthFile(name)
		if err != nil {
			return "", err
		}
		if helper := file.helper(at.Host); helper != "" {
			return "", fault.Hint(fmt.Errorf("%s keeps logins at %s with docker-credential-%s", name, at.Host, helper),
				"`docker login "+quote.Word(at.Host)+"` asks that program; or take the entry out of the file")
		}
		if file.names(at) {
			return name, nil
		}
	}
	if name := os.Getenv("REGISTRY_AUTH_FILE"); name != "" {
		return name, nil
	}
	dir := configHome()
	if dir == "" {
		return "", fault.Hint(errors.New("there is no home directory to keep a login in"), "set REGISTRY_AUTH_FILE to the name of a file")
	}
	return filepath.Join(dir, "containers", "auth.json"), nil
}

func readAuthFile(name string) (authFile, error) {
	var file authFile
	data, err := readLimited(name, maxAuthFile)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return file, nil
	}
	if err == nil && len(bytes.TrimSpace(data)) > 0 {
		err = json.Unmarshal(data, &file)
	}
	if err != nil {
		return file, fmt.Errorf("read credentials from %s: %w", name, err)
	}
	return file, nil
}

// helper is the program that this file has logins at host asked from, "" if there is none.
func (f *authFile) helper(host string) string {
	for key, helper := range f.CredHelpers {
		if canonicalKey(key) == host {
			return helper
		}
	}
	return ""
}

// names reports whether the file has a login under this very name.
func (f *authFile) names(at Endpoint) bool {
	for key := range f.Auths {
		if canonicalKey(key) == canonicalKey(at.key()) {
			return true
		}
	}
	return false
}

func forgetEntry(auths map[string]json.RawMessage, at Endpoint) {
	for key := range auths {
		if canonicalKey(key) == canonicalKey(at.key()) {
			delete(auths, key)
		}
	}
}

// changeLogins changes the auths of a file in the format of Docker's config.json, and leaves all else in it as it is. The file is
// replaced at once, by one that only its owner reads; a link to it stays one.
func changeLogins(name string, change func(auths map[string]json.RawMessage) error) error {
	if real, err := filepath.EvalSymlinks(name); err == nil {
		name = real
	}
	doc, auths := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	data, err := readLimited(name, maxAuthFile)
	if err == nil && len(bytes.TrimSpace(data)) > 0 {
		err = json.Unmarshal(data, &doc)
	}
	if err == nil && len(doc["auths"]) > 0 {
		err = json.Unmarshal(doc["auths"], &auths)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read credentials from %s: %w", name, err)
	}
	if auths == nil { // "auths": null
		auths = map[string]json.RawMessage{}
	}
	if err := change(auths); err != nil {
		return err
	}
	if doc["auths"], err = json.Marshal(auths); err != nil {
		return err
	}
	if data, err = json.MarshalIndent(doc, "", "\t"); err != nil {
		return err
	}
	return replaceSecret(name, append(data, '\n'))
}

// replaceSecret writes a file that only its owner may read; it appears as a whole or not at all.
func replaceSecret(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	if err := atomicfile.Write(name, data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
