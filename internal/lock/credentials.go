package lock

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/recipe"
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
// UV_INDEX_NAME_USERNAME and UV_INDEX_NAME_PASSWORD. Files that cannot be read hold none.
func LoginsOf(r *recipe.Recipe) Logins {
	var all Logins
	for _, address := range indexAddresses(r) {
		name := ""
		if before, after, ok := strings.Cut(address, "="); ok && !strings.ContainsAny(before, ":/") {
			name, address = before, after // uv names an index as in UV_INDEX=name=https://…
		}
		all = all.add(name, address)
	}
	return all
}

// Authorizer returns a function that gives the headers with which an address may be read. It collects the logins when it is
// first asked.
func Authorizer(r *recipe.Recipe) func(address string) http.Header {
	logins := sync.OnceValue(func() Logins { return LoginsOf(r) })
	return func(address string) http.Header { return logins().Header(address) }
}

// indexAddresses lists every address that may hold a login or have one by its name.
func indexAddresses(r *recipe.Recipe) []string {
	var all []string
	for _, name := range append([]string{"UV_FIND_LINKS"}, uvIndexes...) {
		all = append(all, strings.FieldsFunc(os.Getenv(name), func(c rune) bool { return c == ' ' || c == ',' || c == '\n' })...)
	}
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
		all = append(all, directAddresses([]string{expand(p)})...)
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
	if err != nil || u.Host == "" {
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
