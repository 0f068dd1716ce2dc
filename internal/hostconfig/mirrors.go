package hostconfig

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/lazyregexp"
)

// addMirrors adds the mirrors that are named, and where none is, those of the machine's own packages.
func (c *Config) addMirrors(root string, named map[string]string) {
	c.Mirrors = debian.OwnMirrors(filepath.Join(root, "etc/apt"))
	for _, archive := range []string{"debian", "ubuntu"} {
		if named[archive] != "" {
			delete(c.Mirrors, archive+"-security") // which goes with the machine's
		}
	}
	maps.Copy(c.Mirrors, named)
	if len(c.Mirrors) > 0 {
		c.add(apt)
	}
}

// WithSources returns c for an image whose files of package sources are sources, by name: "debian.sources". What apt would fetch from an
// archive that has a mirror comes from there. The image's files stay as they are, and a command can change them: it is apt's way of
// fetching that is another one.
//
// An archive and its mirror are both at http addresses, or both at https ones, as apt has a program for each.
func (c *Config) WithSources(sources map[string]string) *Config {
	with := *c
	with.Files, with.Env = slices.Clone(c.Files), slices.Clone(c.Env)
	moved := c.moved(sources)
	for _, scheme := range []string{"http", "https"} {
		var there, back strings.Builder
		for _, from := range slices.Sorted(maps.Keys(moved)) {
			to := moved[from]
			if strings.HasPrefix(from, scheme+"://") && strings.HasPrefix(to, scheme+"://") {
				fmt.Fprintf(&there, "s|^URI: %s|URI: %s|;", regexp.QuoteMeta(from), to)
				fmt.Fprintf(&back, "s|^URI: %s|URI: %s|;", regexp.QuoteMeta(to), from)
			}
		}
		if there.Len() == 0 {
			continue
		}
		program := path.Join(Dir, "apt-"+scheme)
		with.Files = append(with.Files, File{Target: program, Content: fmt.Appendf(nil, method, there.String(), scheme, back.String()), Program: true})
		with.addAptLines(fmt.Sprintf("Dir::Bin::Methods::%s %q;", scheme, program))
	}
	return &with
}

// method is a program by which apt fetches, apt's own with other addresses: it is asked by "URI: …", and answers with it.
const method = `#!/bin/sh
sed -u '%s' | /usr/lib/apt/methods/%s | sed -u '%s'
`

// plain are addresses that stand for themselves in a script of sed's.
var plain = lazyregexp.New(`^[A-Za-z0-9:/._~%+-]+$`)

// moved returns where archives of the sources are, and where their mirrors. Both end with a slash.
func (c *Config) moved(sources map[string]string) map[string]string {
	all := map[string]string{}
	for name, text := range sources {
		for _, s := range debian.ParseSources(text, path.Ext(name) == debian.SourcesExtension) {
			from, to := strings.TrimRight(s.URL, "/")+"/", strings.TrimRight(c.Mirrors.For(s), "/")+"/"
			if from != to && plain.MatchString(from) && plain.MatchString(to) {
				all[from] = to
			}
		}
	}
	return all
}
