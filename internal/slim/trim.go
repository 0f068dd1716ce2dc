package slim

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/layer"
)

// Trimming takes out of an image what nothing that runs has need of: symbols for debuggers, files that patterns name, and
// what package managers keep to be quicker the next time. It is done in the layers themselves, of the base too, so that
// the image really shrinks; the lists in which packages have their files follow.

// trims reports whether anything is to be trimmed.
func (o Options) trims() bool { return o.Strip || o.PackageCaches || len(o.Remove) > 0 }

// These change when the same options make other layers.
const (
	trimVersion     = 1 // of trimming alone
	togetherVersion = 2 // of trimming while device code goes; since 2 a layer is written once, and compressed in other pieces
)

// trimKey is the part of the key that trimming adds.
func (o Options) trimKey() string {
	if !o.trims() {
		return ""
	}
	key := fmt.Sprintf(" trim-v%d", trimVersion)
	if len(o.GPUs) > 0 {
		key = fmt.Sprintf(" trim-v%d", togetherVersion)
	}
	if o.Strip {
		key += " strip"
	}
	if o.PackageCaches {
		key += " package-caches"
	}
	for _, p := range slices.Compact(slices.Sorted(slices.Values(o.Remove))) {
		key += fmt.Sprintf(" remove=%q", p)
	}
	return key
}

// remover tells what goes.
type remover struct {
	patterns []pattern
	caches   bool
}

// pattern names files: by their base name, or, with a slash in it, by their path from the root. What lies below a directory
// that it names goes too.
type pattern struct {
	text string
	re   *regexp.Regexp
}

func newRemover(o Options) (*remover, error) {
	r := &remover{caches: o.PackageCaches}
	for _, text := range o.Remove {
		re, err := compilePattern(text)
		if err != nil {
			return nil, fmt.Errorf("pattern %q: %w", text, err)
		}
		r.patterns = append(r.patterns, pattern{text, re})
	}
	return r, nil
}

// compilePattern knows *, ?, [a-z], [!a-z] and **, which stands for any number of directories.
func compilePattern(text string) (*regexp.Regexp, error) {
	rest := strings.TrimSuffix(strings.TrimPrefix(text, "/"), "/")
	if strings.Trim(rest, "*/") == "" {
		return nil, errors.New("it names everything")
	}
	if slices.ContainsFunc(strings.Split(rest, "/"), func(s string) bool { return s == ".." || s == "." || s == "" }) {
		return nil, errors.New("it is not a clean path")
	}
	var b strings.Builder
	b.WriteString(`^`)
	if !strings.Contains(text, "/") {
		b.WriteString(`(?:.*/)?`)
	}
	for rest != "" {
		n := 1
		switch {
		case strings.HasPrefix(rest, "**/"):
			b.WriteString(`(?:.*/)?`)
			n = 3
		case strings.HasPrefix(rest, "**"):
			b.WriteString(`.*`)
			n = 2
		case rest[0] == '*':
			b.WriteString(`[^/]*`)
		case rest[0] == '?':
			b.WriteString(`[^/]`)
		case rest[0] == '[':
			n = strings.IndexByte(rest, ']') + 1
			if n < 3 || strings.ContainsAny(rest[1:n-1], `[\/`) {
				return nil, errors.New("a bracket in it is not closed, or holds what it cannot")
			}
			class := rest[1 : n-1]
			if class[0] == '!' {
				class = "^/" + class[1:]
			}
			b.WriteString("[" + class + "]")
		default:
			for n < len(rest) && !strings.ContainsRune("*?[", rune(rest[n])) {
				n++
			}
			// "**/" begins a component.
			if i := strings.LastIndexByte(rest[:n], '/'); i >= 0 && strings.HasPrefix(rest[n:], "**") {
				n = i + 1
			}
			b.WriteString(regexp.QuoteMeta(rest[:n]))
		}
		rest = rest[n:]
	}
	b.WriteString(`(?:/.*)?$`)
	return regexp.Compile(b.String())
}

// caches are the places, below which files are kept to be quicker the next time, by who keeps them.
var caches = map[string]string{
	"var/lib/apt/lists":     "apt",
	"var/cache/apt":         "apt",
	"var/cache/dnf":         "dnf",
	"var/cache/libdnf5":     "dnf",
	"var/cache/yum":         "yum",
	"var/cache/zypp":        "zypper",
	"var/cache/apk":         "apk",
	"etc/apk/cache":         "apk",
	"root/.cache/pip":       "pip",
	"root/.cache/uv":        "uv",
	"root/.cache/conda":     "conda",
	"root/micromamba/cache": "conda",
}

// CacheOf is whose cache a file is in, by its path without a slash in front: "apt", "pip"; "" when it is in none.
func CacheOf(name string) string {
	for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
		if who := caches[dir]; who != "" {
			return who
		}
	}
	return ""
}

// reason tells why an entry goes; "" when it stays. conda are the directories with packages of conda.
func (r *remover) reason(e *layer.Entry, conda map[string]bool) string {
	if strings.HasPrefix(path.Base(e.Path), layer.WhiteoutPrefix) || e.Path == "." {
		return ""
	}
	for i := range r.patterns {
		if r.patterns[i].re.MatchString(e.Path) {
			return "pattern " + r.patterns[i].text
		}
	}
	if !r.caches || e.Type == layer.Dir {
		return ""
	}
	if who := CacheOf(e.Path); who != "" {
		return "package cache of " + who
	}
	dir, name := path.Dir(e.Path), path.Base(e.Path)
	if path.Base(dir) == "cache" && conda[path.Dir(dir)] || conda[dir] && (strings.HasSuffix(name, ".conda") || strings.HasSuffix(name, ".tar.bz2")) {
		return "package cache of conda"
	}
	return ""
}

// condaDirs finds the directories in which conda keeps the archives of packages: it lists there where they come from.
func condaDirs(entries []layer.IndexEntry, into map[string]bool) {
	for i := range entries {
		if dir, name := path.Split(entries[i].Path); (name == "urls.txt" || name == "urls") && path.Base(path.Clean(dir)) == "pkgs" {
			into[path.Clean(dir)] = true
		}
	}
}

// unstrippable tells why a file is not stripped whatever it holds, by its name and those beside it. "" means that nothing is known.
func unstrippable(e *layer.Entry, exists func(string) bool) string {
	dir, base := path.Split(e.Path)
	for part := range strings.SplitSeq(dir, "/") {
		switch {
		case strings.HasSuffix(part, ".libs"):
			return "it belongs to a wheel that was repaired (*.libs)"
		case part == "valgrind":
			return "valgrind looks for its symbols"
		}
	}
	switch {
	case strings.HasPrefix(e.Path, "usr/lib/debug/"):
		return "it is there for debuggers"
	case strings.HasPrefix(base, "ld-linux"), strings.HasPrefix(base, "ld-musl"), strings.HasPrefix(base, "ld-2."), strings.HasPrefix(base, "libpthread"):
		return "debuggers look for its symbols"
	case strings.HasPrefix(base, "libnvidia-"), strings.HasPrefix(base, "libcuda.so"), strings.HasPrefix(base, "libcudadebugger."),
		strings.HasPrefix(base, "libnvcuvid."), strings.HasPrefix(base, "libnvoptix."):
		return "it belongs to NVIDIA's driver"
	case strings.Contains(base, "fips"), hasChecksum(dir, base, exists):
		return "it checks its own content"
	case e.Xattrs["security.ima"] != "" || e.Xattrs["security.evm"] != "":
		return "it is signed (extended attribute)"
	}
	return ""
}

// hasChecksum reports whether a checksum stands beside a library that is compared when it is loaded: those of libgcrypt, GnuTLS and
// OpenSSL's older FIPS modules, and of NSS.
func hasChecksum(dir, base string, exists func(string) bool) bool {
	stem, _, _ := strings.Cut(base, ".so")
	for _, name := range []string{"." + base + ".hmac", base + ".hmac", "fipscheck/" + base + ".hmac", "hmaccalc/" + base + ".hmac", stem + ".chk"} {
		if exists(dir + name) {
			return true
		}
	}
	return false
}

// Removed counts the files that are left out for one reason.
type Removed struct {
	Reason string `json:"reason"` // "pattern *.a", "package cache of apt"
	Files  int    `json:"files"`  // links and directories included
	Size   int64  `json:"size"`   // bytes of regular files
}

// StrippedFile is a file that lost what only debuggers see.
type StrippedFile struct {
	Path   string `json:"path"`
	Before int64  `json:"before"` // bytes
	After  int64  `json:"after"`  // bytes, without those that became zeros
}

// Unstripped counts files that keep all they have for one reason, those without anything to lose not among them.
type Unstripped struct {
	Reason string `json:"reason"`
	Files  int    `json:"files"`
	Size   int64  `json:"size"` // bytes
}

// Kept is a file that a pattern names and that stays.
type Kept struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// counts adds up files by reason.
type counts map[string]Removed

func (c counts) add(reason string, size int64) {
	n := c[reason]
	n.Reason, n.Files, n.Size = reason, n.Files+1, n.Size+size
	c[reason] = n
}

func (c counts) list() []Removed {
	var list []Removed
	for _, n := range c {
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b Removed) int { return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Reason, b.Reason)) })
	return list
}
