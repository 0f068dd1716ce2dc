package fileop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/bluekeyes/go-gitdiff/gitdiff"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Patch is a row of unified diffs, as diff -u and git write them. It is applied strictly: every hunk must find its lines, context
// included, at the line that it names.
type Patch struct {
	Text  []byte
	Dir   string // of the image, what the names in Text are relative to
	Strip int    // how many leading components of names are dropped, as with patch -p; 0: 1, as git writes them; -1: none

	// Offset lets a hunk apply at another line than it names, where all of its lines stand: the nearest such place. Patches of
	// distributions are written for the file as the patches before them leave it, mostly.
	Offset bool
}

// maxPatched is the most bytes of a file that is patched, and of all files that a patch makes together: they are in memory until
// the layer is written.
var maxPatched int64 = 256 << 20

// Layer applies the patch to the image onto. Files keep their owners and attributes, and get the time of o; new ones belong to
// root. Only regular files below Dir are changed, and no symlink is followed there.
func (p Patch) Layer(ctx context.Context, st *store.Store, onto *image.Tree, o layer.Options) (layer.Descriptor, error) {
	s := newStage(onto)
	if err := p.apply(ctx, s); err != nil {
		return layer.Descriptor{}, fmt.Errorf("patch: %w", err)
	}
	return s.layer(ctx, st, o)
}

func (p Patch) apply(ctx context.Context, s *stage) error {
	dir, err := s.enter(p.Dir, nil)
	if err != nil {
		return fault.Hint(err, "the directory to patch must be in the image")
	}
	changes, err := p.parse()
	if err != nil {
		return err
	}
	if len(changes) == 0 {
		return fault.Hint(errors.New("it holds no diff"), "a patch is what diff -u or git diff writes")
	}
	var made int64
	for _, c := range changes {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		size, err := s.patch(ctx, dir, c)
		if made += size; err == nil && made > maxPatched {
			err = fmt.Errorf("the patch makes files of more than %d bytes", maxPatched)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", quote(c.name()), err)
		}
	}
	return nil
}

// fileChange is what a patch does to one file. Names are relative to the patch's directory, and "" where there is no file.
type fileChange struct {
	*gitdiff.File
	from, to string
	offset   bool // see Patch.Offset
}

func (c fileChange) name() string {
	if c.to != "" {
		return c.to
	}
	return c.from
}

func (p Patch) strip() int {
	switch {
	case p.Strip == 0:
		return 1
	case p.Strip < 0:
		return 0
	}
	return p.Strip
}

// parse reads the patch. The parser drops one component of the names after "diff --git" and of those in the lines --- and +++ that
// follow, and none of others.
func (p Patch) parse() ([]fileChange, error) {
	var list []fileChange
	line := 0
	for _, section := range sections(p.Text) {
		git := bytes.HasPrefix(section, []byte(gitHeader))
		text := section
		if git && p.strip() == 0 {
			text = withPrefixes(text)
		}
		files, _, err := gitdiff.Parse(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("after line %d: %w", line, err)
		}
		for i, f := range files {
			drop := p.strip()
			if git && i == 0 {
				drop = max(0, drop-1)
			}
			c := fileChange{File: f, offset: p.Offset}
			if !f.IsNew {
				if c.from, err = stripped(f.OldName, drop); err != nil {
					return nil, err
				}
			}
			if !f.IsDelete {
				if c.to, err = stripped(f.NewName, drop); err != nil {
					return nil, err
				}
			}
			list = append(list, c)
		}
		line += bytes.Count(section, []byte("\n"))
	}
	return list, nil
}

const gitHeader = "diff --git "

// sections cuts a patch before each header of git, which no line of a hunk can look like.
func sections(text []byte) [][]byte {
	var list [][]byte
	start := 0
	for at := 0; at < len(text); {
		if bytes.HasPrefix(text[at:], []byte(gitHeader)) && at > start {
			list = append(list, text[start:at])
			start = at
		}
		next := bytes.IndexByte(text[at:], '\n')
		if next < 0 {
			break
		}
		at += next + 1
	}
	return append(list, text[start:])
}

// withPrefixes gives the names in a header of git, which has none, the prefix that the parser drops.
func withPrefixes(section []byte) []byte {
	var b bytes.Buffer
	header := true
	for line := range bytes.Lines(section) {
		switch {
		case !header:
		case bytes.HasPrefix(line, []byte("@@ ")), bytes.HasPrefix(line, []byte("GIT binary patch")):
			header = false
		case bytes.HasPrefix(line, []byte(gitHeader)):
			line = []byte(prefixBoth(string(line)))
		case bytes.HasPrefix(line, []byte("--- ")), bytes.HasPrefix(line, []byte("+++ ")):
			if !bytes.HasPrefix(line[4:], []byte("/dev/null")) {
				line = []byte(string(line[:4]) + prefixed(string(line[4:])))
			}
		}
		b.Write(line)
	}
	return b.Bytes()
}

func prefixed(name string) string {
	if rest, ok := strings.CutPrefix(name, `"`); ok {
		return `"a/` + rest
	}
	return "a/" + name
}

// prefixBoth works where the two names are equal, which are the only ones that the parser takes from this line.
func prefixBoth(line string) string {
	names := strings.TrimSuffix(strings.TrimPrefix(line, gitHeader), "\n")
	half := len(names) / 2
	if len(names)%2 == 0 || names[half] != ' ' || names[:half] != names[half+1:] {
		return line
	}
	return gitHeader + prefixed(names[:half]) + " " + prefixed(names[half+1:]) + "\n"
}

// stripped drops leading components of a name in a patch and makes sure that it stays below its directory.
func stripped(name string, drop int) (string, error) {
	rest := name
	for range drop {
		_, after, ok := strings.Cut(rest, "/")
		if !ok {
			return "", fault.Hint(fmt.Errorf("the patch names the file %s, which has fewer than %d components to drop", quote(name), drop),
				"say how many to drop, as with patch -p")
		}
		rest = strings.TrimLeft(after, "/")
	}
	for part := range strings.SplitSeq(rest, "/") {
		if part == ".." || strings.HasPrefix(part, layer.WhiteoutPrefix) {
			return "", fmt.Errorf("the patch names the file %s, which it must not", quote(name))
		}
	}
	if strings.HasPrefix(rest, "/") || strings.Contains(rest, "\x00") || path.Clean(rest) == "." {
		return "", fmt.Errorf("the patch names the file %s, which it must not", quote(name))
	}
	return path.Clean(rest), nil
}

// patch makes one change, and returns how large the file is now, in bytes.
func (s *stage) patch(ctx context.Context, dir *place, c fileChange) (int64, error) {
	var old *place
	var before []byte
	if c.from != "" {
		var err error
		if old, err = s.patched(dir, c.from); err != nil {
			return 0, err
		}
		if before, err = readPlace(ctx, old); err != nil {
			return 0, err
		}
	}
	if c.offset {
		c.relocate(before)
	}
	after, err := applied(c, before)
	if err != nil {
		return 0, err
	}
	if c.to == "" {
		if len(after) > 0 {
			return 0, errors.New("the patch deletes it, but it has more lines than that")
		}
		s.remove(old.dir, path.Base(old.Path))
		return 0, nil
	}
	mode, err := patchedMode(c, old)
	if err != nil {
		return 0, err
	}
	above, err := s.aboveTarget(dir, c)
	if err != nil {
		return 0, err
	}
	e := layer.Entry{Mode: mode, Size: int64(len(after))}
	if old != nil {
		e.UID, e.GID, e.Xattrs = old.UID, old.GID, keptXattrs(old.Xattrs)
	}
	if old != nil && !c.IsCopy && c.from != c.to {
		s.remove(old.dir, path.Base(old.Path))
	}
	_, err = s.put(above, path.Base(c.to), e, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(after)), nil }, nil)
	return e.Size, err
}

// keptXattrs leaves out capabilities, which a file loses when it is written.
func keptXattrs(xattrs map[string]string) map[string]string {
	var kept map[string]string
	for k, v := range xattrs {
		if k == "security.capability" {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[k] = v
	}
	return kept
}

// patched finds a file that is to be changed.
func (s *stage) patched(dir *place, name string) (*place, error) {
	at, err := s.step(dir, path.Dir(name), nil)
	if err != nil {
		return nil, err
	}
	p := s.below(at, path.Base(name))
	switch {
	case p == nil:
		return nil, fault.Hint(fmt.Errorf("the image has no file %s", quote("/"+path.Join(dir.Path, name))),
			"see that the directory is the right one, and how many components of names are dropped")
	case p.Type != layer.Regular:
		return nil, fmt.Errorf("%s is not a regular file in the image", quote("/"+p.Path))
	}
	return p, nil
}

// step goes down from a directory without following symlinks. What is missing is made for mk, unless that is nil.
func (s *stage) step(dir *place, name string, mk *maker) (*place, error) {
	if name == "." {
		return dir, nil
	}
	for part := range strings.SplitSeq(name, "/") {
		next := s.below(dir, part)
		if next == nil {
			var err error
			if next, err = s.makeDir(dir, part, mk); err != nil {
				return nil, err
			}
		}
		if next.Type == layer.Symlink {
			return nil, fmt.Errorf("%s is a symlink in the image, which a patch does not follow", quote("/"+next.Path))
		}
		if next.Type != layer.Dir {
			return nil, notDir(next)
		}
		dir = next
	}
	return dir, nil
}

// aboveTarget returns the directory that gets the changed file.
func (s *stage) aboveTarget(dir *place, c fileChange) (*place, error) {
	above, err := s.step(dir, path.Dir(c.to), &maker{mode: 0o755})
	if err != nil {
		return nil, err
	}
	if c.from != c.to && s.below(above, path.Base(c.to)) != nil {
		return nil, fault.Hint(fmt.Errorf("the patch makes it: %w", fs.ErrExist), "perhaps the patch is applied already")
	}
	return above, nil
}

// patchedMode returns the permissions of the changed file. Git speaks of no more than whether it can be executed.
func patchedMode(c fileChange, old *place) (uint32, error) {
	const (
		typeMask = 0o170000
		regular  = 0o100000
	)
	if c.NewMode != 0 && uint32(c.NewMode)&typeMask != regular || c.OldMode != 0 && uint32(c.OldMode)&typeMask != regular {
		return 0, errors.New("the patch is about a symlink or another repository; only regular files can be patched")
	}
	executable := c.NewMode&0o111 != 0
	switch {
	case old == nil && executable:
		return 0o755, nil
	case old == nil:
		return 0o644, nil
	case c.NewMode == 0 || executable == (old.Mode&0o100 != 0):
		return old.Mode, nil
	case executable:
		return old.Mode | old.Mode&0o444>>2, nil
	}
	return old.Mode &^ 0o111, nil
}

func readPlace(ctx context.Context, p *place) ([]byte, error) {
	if p.Size > maxPatched {
		return nil, fmt.Errorf("it has %d bytes; files of up to %d can be patched", p.Size, maxPatched)
	}
	r, err := p.content()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(ctxio.Reader(ctx, r))
}

// applied returns what a file becomes.
func applied(c fileChange, before []byte) ([]byte, error) {
	if c.IsBinary && c.BinaryFragment == nil {
		return nil, fault.Hint(errors.New("the patch says that binary content differs, and not how"), "make it with git diff --binary")
	}
	var after bytes.Buffer
	err := gitdiff.Apply(&after, bytes.NewReader(before), c.File, gitdiff.WithMaxBinaryFragmentBytes(maxPatched))
	if err == nil {
		return after.Bytes(), nil
	}
	const hint = "the patch is for another version of the file"
	var at *gitdiff.ApplyError
	if !errors.As(err, &at) || at.Fragment == 0 || at.Fragment > len(c.TextFragments) {
		return nil, fault.Hint(fmt.Errorf("it does not apply: %w", err), hint)
	}
	f := c.TextFragments[at.Fragment-1]
	err = fmt.Errorf("hunk %d of %d (%s) does not apply at line %d: %w", at.Fragment, len(c.TextFragments), strings.TrimSpace(f.Header()),
		max(at.Line, f.OldPosition), err)
	if line := elsewhere(f, before); line > 0 {
		return nil, fault.Hint(err, fmt.Sprintf("its lines stand at line %d: %s", line, hint))
	}
	return nil, fault.Hint(err, hint)
}

// elsewhere returns at which line what a hunk expects stands, when that is so at one place only, else 0.
func elsewhere(f *gitdiff.TextFragment, content []byte) int {
	var want []byte
	for _, l := range f.Lines {
		if l.Old() {
			want = append(want, l.Line...)
		}
	}
	if len(want) == 0 || bytes.Count(content, want) != 1 {
		return 0
	}
	at := bytes.Index(content, want)
	if at > 0 && content[at-1] != '\n' {
		return 0
	}
	return 1 + bytes.Count(content[:at], []byte("\n"))
}

// relocate moves hunks to the places where their lines stand, each to the nearest below the one before it. What stands nowhere stays,
// and does not apply.
func (c fileChange) relocate(before []byte) {
	var lines []string
	for line := range strings.Lines(string(before)) {
		lines = append(lines, line)
	}
	first, shift := 0, 0
	for _, f := range c.TextFragments {
		var want []string
		for _, l := range f.Lines {
			if l.Old() {
				want = append(want, l.Line)
			}
		}
		at := int(f.OldPosition) - 1 + shift
		if len(want) == 0 || at < 0 {
			continue
		}
		found := nearest(lines, want, first, at)
		if found < 0 {
			return
		}
		f.OldPosition = int64(found) + 1
		shift += found - at
		first = found + len(want)
	}
}

// nearest returns the place of want in lines that is nearest to at and not before first, -1 if there is none.
func nearest(lines, want []string, first, at int) int {
	last := len(lines) - len(want)
	for away := 0; at-away >= first || at+away <= last; away++ {
		for _, i := range []int{at - away, at + away} {
			if i >= first && i <= last && slices.Equal(lines[i:i+len(want)], want) {
				return i
			}
		}
	}
	return -1
}
