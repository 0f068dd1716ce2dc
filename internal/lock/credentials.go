package lock

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/tomltext"
)

// Logins are the users and passwords of package indexes, from where uv and pip keep them. netrc is not among them: every
// download knows it.
//
// They are for the Authorization header alone, and never written anywhere.
type Logins []login

// login is for the files of one index: those on its server, first of all those below its own path.
type login struct{ server, path, user, password string }

// LoginsOf collects the logins that count for r: in addresses (https://user:password@…) in uv's and pip's variables and
// files, in requirements files and in packages asked for by address; and those of named indexes in
// UV_INDEX_NAME_USERNAME and UV_INDEX_NAME_PASSWORD, for servers that the user names. Files that cannot be read hold none.
func LoginsOf(r *recipe.Recipe) Logins {
	all, _ := loginsOf(r)
	return all
}

// loginsOf is LoginsOf that also says which logins are kept from an index, since only the recipe names it.
func loginsOf(r *recipe.Recipe) (all Logins, kept []keptLogin) {
	own := ownHostsOf(r)
	for _, address := range indexAddresses(r, own) {
		name, address, named := cutIndexName(address)
		if named && !own.has(address) {
			kept = append(kept, keptLogins(name, address)...)
			name = ""
		}
		all = all.add(name, address)
	}
	return all, kept
}

// keptLogin is a login that an index does not get.
type keptLogin struct{ variable, host string }

func keptLogins(name, address string) (kept []keptLogin) {
	u, err := url.Parse(address)
	for _, kind := range []string{"_USERNAME", "_PASSWORD"} {
		if variable := "UV_INDEX_" + indexVariable(name) + kind; err == nil && os.Getenv(variable) != "" {
			kept = append(kept, keptLogin{variable, u.Host})
		}
	}
	return kept
}

// tellKept says which logins are not used.
func tellKept(ctx context.Context, kept []keptLogin) {
	for _, k := range kept {
		progress.Warn(ctx, fmt.Sprintf("%s is not sent to %s: only the recipe names that host", k.variable, k.host), AllowLoginHint(k.host))
	}
}

// cutIndexName takes the name from the address of an index, as in UV_INDEX=name=https://….
func cutIndexName(text string) (name, address string, named bool) {
	if before, after, ok := strings.Cut(text, "="); ok && before != "" && !strings.ContainsAny(before, ":/") {
		return before, after, true
	}
	return "", strings.TrimPrefix(text, "="), false
}

// Authorizer returns a function that gives the headers with which an address may be read. It collects the logins when it is
// first asked.
func Authorizer(r *recipe.Recipe) func(address string) http.Header {
	logins := sync.OnceValue(func() Logins { return LoginsOf(r) })
	return func(address string) http.Header { return logins().Header(address) }
}

// indexVariables lists the addresses of indexes in variables.
func indexVariables() []string {
	var all []string
	for _, name := range append([]string{"UV_FIND_LINKS"}, uvIndexes...) {
		all = append(all, strings.FieldsFunc(os.Getenv(name), func(c rune) bool { return c == ' ' || c == ',' || c == '\n' })...)
	}
	return all
}

// indexAddresses lists every address that may hold a login or have one by its name.
func indexAddresses(r *recipe.Recipe, own *ownHosts) []string {
	all := indexVariables()
	for _, s := range userSettings(r) {
		for _, index := range s.Index {
			all = append(all, index.Name+"="+index.URL)
		}
		all = append(all, s.addresses()...)
	}
	if files, err := readRequirements(r); err == nil {
		all = append(all, files.addresses...)
		all = append(all, directAddresses(files.lines)...)
	}
	for _, p := range r.Python.Packages {
		all = append(all, directAddresses([]string{own.expand(p)})...)
	}
	return append(all, readPip().addresses()...)
}

// directAddresses lists the addresses in requirements like "name @ https://…" or "https://…".
func directAddresses(lines []string) []string {
	var all []string
	for _, line := range lines {
		for word := range strings.FieldsSeq(line) {
			if i := strings.LastIndex(word, "@http"); i >= 0 {
				word = word[i+1:] // "name@https://…" needs no blanks
			}
			if strings.HasPrefix(word, "http://") || strings.HasPrefix(word, "https://") {
				all = append(all, word)
			}
		}
	}
	return all
}

// add adds the login of an index with this address, if it has one. name may be empty.
func (l Logins) add(name, address string) Logins {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || strings.Contains(address, "${") { // a variable that is not shown to that server
		return l
	}
	user, password := u.User.Username(), ""
	if u.User != nil {
		password, _ = u.User.Password()
	}
	if name != "" {
		variable := "UV_INDEX_" + indexVariable(name)
		if s := os.Getenv(variable + "_USERNAME"); s != "" {
			user = s
		}
		if s := os.Getenv(variable + "_PASSWORD"); s != "" {
			password = s
		}
	}
	if user == "" && password == "" {
		return l
	}
	if password == "" {
		if rc, err := fetch.ReadNetrc(); err == nil {
			found, _ := rc.Find(u.Hostname(), user)
			password = found.Password
		}
	}
	return append(l, login{server(u), u.Path, user, password})
}

// indexVariable spells an index's name as in variables: in capitals, with an underscore for what is no letter or digit
// (uv's documentation, "Package indexes").
func indexVariable(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		default:
			return '_'
		}
	}, name)
}

// server returns scheme, host and port: a login for https is not shown to plain http.
func server(u *url.URL) string {
	host, port := strings.ToLower(u.Hostname()), u.Port()
	scheme := strings.ToLower(u.Scheme)
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[scheme]
	}
	return scheme + "://" + host + ":" + port
}

// Header returns the header with which address is asked for, or nil: no login is for it, or it holds one itself.
func (l Logins) Header(address string) http.Header {
	u, err := url.Parse(address)
	if err != nil || u.User != nil {
		return nil
	}
	best, length := -1, -1
	for i, one := range l {
		if n := commonPath(one.path, u.Path); one.server == server(u) && n > length {
			best, length = i, n
		}
	}
	if best < 0 {
		return nil
	}
	token := base64.StdEncoding.EncodeToString([]byte(l[best].user + ":" + l[best].password))
	return http.Header{"Authorization": {"Basic " + token}}
}

// commonPath counts the directories that two paths begin with: servers hold several indexes, each with its logins.
func commonPath(a, b string) int {
	as, bs := strings.Split(a, "/"), strings.Split(b, "/")
	n := 0
	for n < len(as) && n < len(bs) && as[n] == bs[n] {
		n++
	}
	return n
}

// redact removes what is secret from a text that another program wrote.
func (l Logins) redact(text string) string {
	var secrets []string
	for _, one := range l {
		secrets = append(secrets, one.password)
	}
	return fetch.HideSecrets(text, secrets)
}

// forUV writes the logins into dir as uv keeps them (uv's documentation, "HTTP credentials"), beside those that the user keeps there, and returns
// the variables by which uv finds them. In variables of their own any address could name them.
//
// uv would ask netrc first, which has one login for all of a server: of the servers with a login here, netrc's does not count.
func (l Logins) forUV(dir string) ([]string, error) {
	if len(l) == 0 {
		return nil, nil
	}
	store := filepath.Join(dir, "credentials")
	text, _ := readFile(filepath.Join(credentialsDir(), credentialsFile)) // without one there is nothing to add to
	file := string(text)
	for _, one := range l {
		file += fmt.Sprintf("\n[[credential]]\nservice = %s\nusername = %s\nscheme = \"basic\"\npassword = %s\n",
			tomltext.String(one.server+strings.TrimSuffix(one.path, "/")), tomltext.String(one.user), tomltext.String(one.password))
	}
	err := os.MkdirAll(store, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(store, credentialsFile), []byte(file), 0o600)
	}
	if err != nil {
		return nil, err
	}
	env := []string{"UV_CREDENTIALS_DIR=" + store}
	netrc, err := fetch.ReadNetrc()
	if err != nil || !slices.ContainsFunc(netrc, l.replaces) {
		return env, nil //nolint:nilerr // uv says what is wrong with it
	}
	rest := filepath.Join(dir, "netrc")
	return append(env, "NETRC="+rest), os.WriteFile(rest, slices.DeleteFunc(netrc, l.replaces).Text(), 0o600)
}

// replaces reports whether there is a login for the server of one in netrc.
func (l Logins) replaces(in fetch.Login) bool {
	return slices.ContainsFunc(l, func(one login) bool {
		u, err := url.Parse(one.server)
		return err == nil && (in.Machine == "" || strings.EqualFold(u.Hostname(), in.Machine))
	})
}

// credentialsFile is the name of uv's file of logins.
const credentialsFile = "credentials.toml"

// credentialsDir is where the user's is.
func credentialsDir() string {
	if dir := os.Getenv("UV_CREDENTIALS_DIR"); dir != "" {
		return dir
	}
	home, _ := os.UserHomeDir()
	return filepath.Join(cmp.Or(os.Getenv("XDG_DATA_HOME"), filepath.Join(home, ".local", "share")), "uv", "credentials")
}
