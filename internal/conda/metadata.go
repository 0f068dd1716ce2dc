package conda

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// contents is what a package says of itself in info/ (CEP 34).
type contents struct {
	index      map[string]any // index.json
	paths      []pathEntry    // paths.json, or the files that old packages have in its place
	listed     bool           // by paths.json: hashes and sizes are known
	entrypoint []string       // link.json: commands of a package for any Python
}

// pathEntry is a file of a package (CEP 34, "info/paths.json").
type pathEntry struct {
	Path        string `json:"_path"`
	Type        string `json:"path_type"` // "hardlink", "softlink" or "directory"
	Placeholder string `json:"prefix_placeholder"`
	FileMode    string `json:"file_mode"` // "text" or "binary": how the placeholder is replaced
	NoLink      bool   `json:"no_link"`
	SHA256      string `json:"sha256"`
	Size        *int64 `json:"size_in_bytes"`
}

// The kinds of path.
const (
	typeHardlink  = "hardlink"
	typeSoftlink  = "softlink"
	typeDirectory = "directory"
)

// The files of info/ that are read. Packages from before 2017 have the last two in the place of paths.json.
var infoFiles = []string{"index.json", "paths.json", "link.json", "files", "has_prefix"}

// readContents reads info/.
func (a *archive) readContents(ctx context.Context) (*contents, error) {
	found := map[string][]byte{}
	err := a.walk(ctx, "info", func(h *tar.Header, r io.Reader) error {
		for _, name := range infoFiles {
			if h.Name != "info/"+name {
				continue
			}
			if found[name] != nil {
				return errors.New("it is there twice")
			}
			data, err := readMember(h, r)
			found[name] = append([]byte{}, data...)
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return a.parseContents(found)
}

func (a *archive) parseContents(found map[string][]byte) (*contents, error) {
	c := &contents{}
	if found["index.json"] == nil {
		return nil, a.bad("info/index.json", "it is missing")
	}
	d := json.NewDecoder(bytes.NewReader(found["index.json"]))
	d.UseNumber()
	if err := d.Decode(&c.index); err != nil {
		return nil, a.bad("info/index.json", "%w", err)
	}
	if c.index == nil {
		return nil, a.bad("info/index.json", "it is empty")
	}
	if err := c.parseLink(found["link.json"]); err != nil {
		return nil, a.bad("info/link.json", "%w", err)
	}
	if data := found["paths.json"]; data != nil {
		if err := c.parsePaths(data); err != nil {
			return nil, a.bad("info/paths.json", "%w", err)
		}
	} else if err := c.parseOld(found["files"], found["has_prefix"]); err != nil {
		return nil, a.bad("info/files", "%w", err)
	}
	if len(c.paths) > maxMembers {
		return nil, a.bad("", "it lists %d files; more than %d are not believed", len(c.paths), maxMembers)
	}
	seen := make(map[string]bool, len(c.paths))
	for _, p := range c.paths {
		if err := p.check(seen[p.Path]); err != nil {
			return nil, a.bad(p.Path, "%w", err)
		}
		seen[p.Path] = true
	}
	return c, nil
}

func (c *contents) parsePaths(data []byte) error {
	var list struct {
		Version int         `json:"paths_version"`
		Paths   []pathEntry `json:"paths"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	if list.Paths == nil {
		return errors.New("it has no list of files")
	}
	if list.Version > 1 {
		return fmt.Errorf("it has version %d; this program reads 1", list.Version)
	}
	c.paths, c.listed = list.Paths, true
	for i := range c.paths {
		p := &c.paths[i]
		if p.Type == "" {
			p.Type = typeHardlink
		}
		if p.Placeholder != "" && p.FileMode == "" {
			p.FileMode = modeText
		}
	}
	return nil
}

// check refuses an entry that could not be laid down.
func (p *pathEntry) check(twice bool) error {
	if err := checkPath(p.Path); err != nil {
		return err
	}
	switch {
	case twice:
		return errors.New("it is listed twice")
	case p.Type != "" && p.Type != typeHardlink && p.Type != typeSoftlink && p.Type != typeDirectory:
		return fmt.Errorf("it is listed as a %q, which is no kind of file", p.Type)
	case p.Placeholder != "" && p.FileMode != modeText && p.FileMode != modeBinary:
		return fmt.Errorf("its placeholder is to be replaced as in a %q, which is no kind of file", p.FileMode)
	case strings.Contains(p.Placeholder, "\x00") || len(p.Placeholder) > maxPath:
		return errors.New("its placeholder cannot be a path")
	case p.SHA256 != "" && !isSHA256(p.SHA256):
		return fmt.Errorf("its hash is listed as %.80q", p.SHA256)
	case p.Size != nil && *p.Size < 0:
		return errors.New("its size is listed as a negative number")
	}
	return nil
}

func isSHA256(s string) bool {
	sum, err := hex.DecodeString(s)
	return err == nil && len(sum) == 32 && s == strings.ToLower(s)
}

func (c *contents) parseLink(data []byte) error {
	if data == nil {
		return nil
	}
	var link struct {
		Noarch struct {
			EntryPoints []string `json:"entry_points"`
		} `json:"noarch"`
	}
	err := json.Unmarshal(data, &link)
	c.entrypoint = link.Noarch.EntryPoints
	return err
}

// oldPlaceholder is what files have whose line in has_prefix does not say what they have (CEP 34).
const oldPlaceholder = "/opt/anaconda1anaconda2anaconda3"

// parseOld makes of the lists of old packages what paths.json would say, without kinds, hashes and sizes.
func (c *contents) parseOld(files, hasPrefix []byte) error {
	if files == nil {
		return errors.New("neither it nor paths.json is there")
	}
	at := map[string]int{}
	for line := range strings.Lines(string(files)) {
		if name := strings.TrimRight(line, "\r\n"); name != "" {
			at[name] = len(c.paths)
			c.paths = append(c.paths, pathEntry{Path: name})
		}
	}
	for line := range strings.Lines(string(hasPrefix)) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		placeholder, mode, name := splitHasPrefix(line)
		if i, ok := at[name]; ok {
			c.paths[i].Placeholder, c.paths[i].FileMode = placeholder, mode
		}
	}
	return nil
}

// splitHasPrefix reads a line of has_prefix: a path, or a placeholder, a mode and a path, each of which may be in quotes.
func splitHasPrefix(line string) (placeholder, mode, name string) {
	word, rest := cutWord(line)
	if rest == "" {
		return oldPlaceholder, modeText, word
	}
	mode, name = cutWord(rest)
	if mode != modeText && mode != modeBinary || name == "" {
		return oldPlaceholder, modeText, line // a path with blanks
	}
	if strings.HasPrefix(name, `"`) {
		name, _ = cutWord(name)
	}
	return word, mode, name
}

func cutWord(s string) (word, rest string) {
	if quoted, ok := strings.CutPrefix(s, `"`); ok {
		word, rest, _ = strings.Cut(quoted, `"`)
	} else {
		word, rest, _ = strings.Cut(s, " ")
	}
	return word, strings.TrimLeft(rest, " ")
}

func (c *contents) text(key string) string {
	s, _ := c.index[key].(string)
	return s
}

// noarch is the kind of a package for any machine: "", "generic" or "python". Old ones for any Python say so in link.json alone,
// and old generic ones by true.
func (c *contents) noarch() string {
	if b, ok := c.index["noarch"].(bool); ok && b {
		return "generic"
	}
	return c.text("noarch")
}

// checkIdentity compares what the package says it is with what the lock says.
func (a *archive) checkIdentity(c *contents, p Package) error {
	for _, x := range []struct{ what, is, want string }{
		{"name", strings.ToLower(c.text("name")), p.Name}, {"version", c.text("version"), p.Version}, {"build", c.text("build"), p.Build},
	} {
		if x.is != x.want {
			return a.bad("info/index.json", "the package's %s is %q, and %q was to be there", x.what, x.is, x.want)
		}
	}
	return nil
}
