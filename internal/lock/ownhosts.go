package lock

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"unicode"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/recipe"
)

// Which servers may see a login, or a variable of the environment, that only its user knows to be meant for them. A recipe may be a stranger's,
// and name an index by any name and put any variable into an address: so the user has to have named the server, in uv's or pip's
// configuration, a variable, or for sconce itself (recipe.Recipe.LoginHosts).
//
// netrc and the logins of registries need no such thing. They are kept by server, and no other one sees them.

// ownHosts are the servers that the user names.
type ownHosts struct {
	servers map[string]bool // as [server] writes them
	hosts   []string        // HOST or HOST:PORT
}

func ownHostsOf(r *recipe.Recipe) *ownHosts {
	o := &ownHosts{servers: map[string]bool{}, hosts: r.LoginHosts}
	for _, address := range slices.Concat(indexVariables(), ownAddresses(), readPip().addresses()) {
		if _, rest, named := cutIndexName(address); named {
			address = rest
		}
		if u, err := url.Parse(address); err == nil && u.Host != "" {
			o.servers[server(u)] = true
		}
	}
	return o
}

// ownAddresses lists the addresses of indexes in the user's and the machine's uv.toml.
func ownAddresses() []string {
	var all []string
	for _, s := range ownSettings() {
		all = append(all, s.addresses()...)
	}
	return all
}

// has reports whether the user names the server of an address.
func (o *ownHosts) has(address string) bool {
	u, err := url.Parse(strings.TrimPrefix(address, "git+"))
	if err != nil || u.Host == "" {
		return false
	}
	return o.servers[server(u)] || slices.ContainsFunc(o.hosts, func(host string) bool {
		return strings.EqualFold(host, u.Hostname()) || strings.EqualFold(host, u.Host)
	})
}

// variable is how requirements files name variables of the environment (pip's documentation, "Using environment
// variables").
var variable = lazyregexp.New(`\$\{[A-Z0-9_]+\}`)

// addressIn finds the addresses in a requirement.
var addressIn = lazyregexp.New(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"']*`)

// harmless are the variables that any server may see. uv, too, puts them in.
var harmless = []string{"HOME", "USER", "LOGNAME"}

// expand puts in the values of variables that are set. What would show one to a server that is not the user's own stays as it is.
func (o *ownHosts) expand(text string) string {
	if !strings.Contains(text, "${") {
		return text
	}
	if twoReadings(text) {
		return replaceVariables(text, harmless)
	}
	expanded := replaceVariables(text, nil)
	for _, address := range addressIn.Regexp().FindAllString(expanded, -1) {
		if !o.has(address) {
			return replaceVariables(text, harmless)
		}
	}
	return expanded
}

// twoReadings reports whether a text may hold an address that ends at white space to this program, and goes on behind it to uv: browsers and uv drop
// tabs and newlines of addresses (WHATWG, "URL", basic URL parser).
func twoReadings(text string) bool {
	_, behind, ok := strings.Cut(text, ":")
	return ok && strings.ContainsFunc(behind, unicode.IsControl)
}

// replaceVariables puts in the values of variables that are set and in a list; nil: of all.
func replaceVariables(text string, names []string) string {
	return variable.ReplaceAllStringFunc(text, func(use string) string {
		name := use[2 : len(use)-1]
		if value, ok := os.LookupEnv(name); ok && (names == nil || slices.Contains(names, name)) {
			return value
		}
		return use
	})
}

// check refuses a text from which expand kept a variable. place is where it stands.
func (o *ownHosts) check(place, text string) error {
	text = o.expand(text)
	for _, use := range variable.Regexp().FindAllString(text, -1) {
		name := use[2 : len(use)-1]
		if os.Getenv(name) == "" {
			continue
		}
		if twoReadings(text) {
			return fault.Hint(fmt.Errorf("%s: the variable %s stands in a line with a tab behind an address, which programs read in two ways", place, name), "write a blank in place of the tab")
		}
		host := "another server"
		for _, address := range addressIn.Regexp().FindAllString(text, -1) {
			if u, err := url.Parse(variable.ReplaceAllString(strings.TrimPrefix(address, "git+"), "x")); err == nil && strings.Contains(address, u.Host) {
				host = u.Host
			}
		}
		return fault.Hint(fmt.Errorf("%s: the variable %s is not put into an address of %s: only the recipe names that host", place, name, host), AllowLoginHint(host))
	}
	return nil
}

// AllowLoginHint says how to let a host see logins although only a recipe names it.
func AllowLoginHint(host string) string {
	if strings.Contains(host, " ") {
		host = "HOST"
	}
	return fmt.Sprintf("if the host may see it, add `--allow-login %s`, or logins = [%q] under [network] in config.toml", host, host)
}
