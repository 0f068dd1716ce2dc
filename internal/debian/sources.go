package debian

import (
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
)

// Source is where packages come from: a line of sources.list(5).
type Source struct {
	Type       string // "deb" or "deb-src"
	Options    string // as they stand between the brackets, "" for none
	URL        string
	Suite      string
	Components []string
}

// String returns the line, without its end.
func (s Source) String() string {
	words := []string{s.Type}
	if s.Options != "" {
		words = append(words, "["+s.Options+"]")
	}
	return strings.Join(slices.Concat(words, []string{s.URL, s.Suite}, s.Components), " ")
}

// SourcesExtension is that of a file of sources in paragraphs; all others have lines.
const SourcesExtension = ".sources"

var sourceLine = lazyregexp.New(`^\s*(deb|deb-src)\s+(?:\[([^\]]*)\]\s*)?(\S+)\s+(\S+)([^#\n]*)`)

// ParseSources reads a file of sources in its form of lines or of paragraphs, of which it gives no options. What is switched off or has
// another form is left out.
func ParseSources(text string, paragraphs bool) []Source {
	if paragraphs {
		return parseParagraphs(text)
	}
	var all []Source
	for line := range strings.Lines(text) {
		if m := sourceLine.FindStringSubmatch(line); m != nil {
			all = append(all, Source{Type: m[1], Options: strings.TrimSpace(m[2]), URL: m[3], Suite: m[4], Components: strings.Fields(m[5])})
		}
	}
	return all
}

func parseParagraphs(text string) []Source {
	r := NewReader(strings.NewReader(text))
	var all []Source
	for {
		p, err := r.Next()
		if err != nil {
			return all
		}
		if strings.EqualFold(p.Get("Enabled"), "no") {
			continue
		}
		for _, kind := range strings.Fields(p.Get("Types")) {
			for _, address := range strings.Fields(p.Get("URIs")) {
				for _, suite := range strings.Fields(p.Get("Suites")) {
					all = append(all, Source{Type: kind, URL: address, Suite: suite, Components: strings.Fields(p.Get("Components"))})
				}
			}
		}
	}
}

// The archives that [Source.Archive] knows, by the names that [Mirrors] have them under. Security updates are another archive.
const (
	debianArchive = "debian"
	ubuntuArchive = "ubuntu"
	security      = "-security"
)

// Archive names the archive of Debian or Ubuntu that a source is a mirror of: "debian", "debian-security", "ubuntu" or
// "ubuntu-security"; "" is none. It goes by the path, as all their mirrors are laid out alike, and by the component that they all have.
func (s Source) Archive() string {
	u, err := url.Parse(s.URL)
	if err != nil || u.User != nil || !slices.Contains([]string{"http", "https", "file"}, u.Scheme) || !slices.Contains(s.Components, "main") {
		return ""
	}
	dir := strings.TrimRight(u.Path, "/")
	secure := strings.HasSuffix(s.Suite, security)
	switch {
	case strings.HasSuffix(dir, "/debian"+security) && secure:
		return debianArchive + security
	case strings.HasSuffix(dir, "/debian"):
		return withSecurity(debianArchive, secure)
	case strings.HasSuffix(dir, "/ubuntu"), strings.HasSuffix(dir, UbuntuPorts):
		return withSecurity(ubuntuArchive, secure)
	}
	return ""
}

func withSecurity(archive string, secure bool) string {
	if secure {
		return archive + security
	}
	return archive
}

// UbuntuPorts ends the path of Ubuntu's mirrors of all architectures but amd64 and i386.
const UbuntuPorts = "/ubuntu-ports"

// Mirrors are addresses of mirrors, by the archive.
type Mirrors map[string]string

// Of returns the mirror of an archive, "" when there is none. Security updates that have no mirror of their own are beside the rest, with
// Debian, or among it, with Ubuntu.
func (m Mirrors) Of(archive string) string {
	if m[archive] != "" {
		return m[archive]
	}
	switch archive {
	case debianArchive + security:
		if m[debianArchive] != "" {
			return strings.TrimSuffix(m[debianArchive], "/") + security
		}
	case ubuntuArchive + security:
		return m[ubuntuArchive]
	}
	return ""
}

// For returns the address that a source has with its mirror: its own when there is none.
func (m Mirrors) For(s Source) string {
	to := m.Of(s.Archive())
	isPorts := func(address string) bool { return strings.HasSuffix(strings.TrimRight(address, "/"), UbuntuPorts) }
	if to == "" || isPorts(to) != isPorts(s.URL) {
		return s.URL
	}
	return to
}

// maxSources bounds a file of sources, in bytes.
const maxSources = 1 << 20

// AptDir is where a Debian or Ubuntu says where its own packages come from.
const AptDir = "/etc/apt"

// OwnMirrors finds the mirrors among the sources of a machine, whose configuration of apt is in dir.
func OwnMirrors(dir string) Mirrors {
	m := Mirrors{}
	for _, name := range sourceFiles(dir) {
		info, err := os.Stat(name)
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxSources {
			continue // what cannot be read names nothing
		}
		data, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for _, s := range ParseSources(string(data), strings.HasSuffix(name, SourcesExtension)) {
			if a := s.Archive(); a != "" && s.Type == "deb" && m[a] == "" {
				m[a] = s.URL
			}
		}
	}
	return m
}

func sourceFiles(dir string) []string {
	files := []string{filepath.Join(dir, "sources.list")}
	for _, pattern := range []string{"*.list", "*" + SourcesExtension} {
		more, err := filepath.Glob(filepath.Join(dir, "sources.list.d", pattern))
		if err == nil {
			files = append(files, more...)
		}
	}
	return files
}
