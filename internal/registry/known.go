package registry

import (
	"cmp"
	"slices"
	"strings"
)

// Known is a registry that there is a login at.
type Known struct {
	Name string `json:"name"` // HOST, or HOST/NAMESPACE for a part of one
	From string `json:"from"` // the file that has the login, or names the program that keeps it
}

// Logins lists where the user is logged in: in files like Docker's config.json and in enroot's .credentials. What helpers are asked for
// without being told a registry is not among them, nor is netrc, which is for all servers. Files that cannot be read count as empty.
func Logins() []Known {
	known := []Known{} // [] rather than null
	add := func(name, from string) {
		if !slices.ContainsFunc(known, func(k Known) bool { return k.Name == name }) {
			known = append(known, Known{name, from})
		}
	}
	for _, from := range authFiles() {
		file, err := readAuthFile(from)
		if err != nil {
			continue
		}
		for key := range file.Auths {
			add(canonicalKey(key), from)
		}
		for key := range file.CredHelpers {
			add(canonicalKey(key), from)
		}
	}
	logins, _ := readEnroot() // as above
	for _, l := range logins {
		if l.Machine != "" && !strings.HasPrefix(l.Machine, "auth.") { // where docker.io gives its tokens
			add(CanonicalHost(l.Machine), enrootCredentials())
		}
	}
	slices.SortFunc(known, func(a, b Known) int { return cmp.Compare(a.Name, b.Name) })
	return known
}

// Servers lists the servers that images of a registry are read from, as registries.conf has it: its mirrors, and its own last.
func Servers(host string) ([]string, error) {
	config, err := ReadConfig()
	if err != nil {
		return nil, err
	}
	all, err := config.Endpoints(host, "", false)
	servers := make([]string, len(all))
	for i, e := range all {
		servers[i] = e.server()
	}
	return servers, err
}
