package wheelbuild

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/reach"
)

// A repository of this machine may be somebody else's, and lead to another one: by a .git that is a file, by directories that it shares or
// borrows objects from, by links, by its submodules. Git follows all of them; here they are looked at first.

// suffixes are what git tries behind the path of a repository.
var suffixes = []string{"/.git", "", ".git/.git", ".git"}

// maxPointer bounds a file that names a directory, in bytes.
const maxPointer = 64 << 10

// reachRepository refuses a repository of this machine that leads out of s.Reach.
func (s Sources) reachRepository(ctx context.Context, url string) error {
	l := look{ctx: ctx, bounds: s.Reach, seen: make(map[string]bool)}
	for _, path := range reach.Local(url, "") {
		for _, suffix := range suffixes {
			if err := l.at(path + suffix); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxDirectories is how many directories a repository and those that it leads to may have.
const maxDirectories = 100_000

// look is a walk through a repository and all that it leads to, each once.
type look struct {
	ctx    context.Context
	bounds reach.Bounds
	seen   map[string]bool // directories, and files that name some; paths without links
}

// at looks at what may be a directory of a repository, or a file that names one. What is not there, or what git cannot read either, is fine.
func (l look) at(path string) error {
	found, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil //nolint:nilerr // git follows it no further
	}
	if err := l.bounds.Check(path); err != nil {
		return err
	}
	info, err := os.Stat(found)
	switch {
	case err != nil || l.seen[found]:
		return nil //nolint:nilerr // the same
	case info.Mode().IsRegular():
		l.seen[found] = true
		return l.pointer(found, "gitdir: ", filepath.Dir(found))
	case !info.IsDir():
		return nil
	}
	if _, err := os.Stat(filepath.Join(found, "HEAD")); err != nil {
		return nil //nolint:nilerr // a working tree
	}
	return l.directory(found)
}

// directory looks at all of a directory of a repository, links below it included.
func (l look) directory(top string) error {
	return filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		switch {
		case l.ctx.Err() != nil:
			return context.Cause(l.ctx)
		case err != nil:
			return nil //nolint:nilerr // what cannot be listed cannot be read
		case d.Type()&fs.ModeSymlink != 0:
			return l.link(name)
		case !d.IsDir():
			return l.file(name)
		case l.seen[name]:
			return fs.SkipDir
		case len(l.seen) >= maxDirectories:
			return fmt.Errorf("%s leads to more than %d directories", quote.Word(top), maxDirectories)
		}
		l.seen[name] = true
		return nil
	})
}

// link looks at where a link in a directory of a repository leads.
func (l look) link(name string) error {
	if err := l.bounds.Check(name); err != nil {
		return err
	}
	found, err := filepath.EvalSymlinks(name)
	if err != nil {
		return nil //nolint:nilerr // it leads nowhere
	}
	if info, err := os.Stat(found); err == nil && info.IsDir() {
		return errors.Join(l.file(filepath.Join(name, "alternates")), l.directory(found))
	}
	return l.file(name)
}

// file looks at a file in a directory of a repository.
func (l look) file(name string) error {
	dir := filepath.Dir(name)
	switch filepath.Base(name) {
	case "commondir":
		if _, err := os.Stat(filepath.Join(dir, "HEAD")); err == nil { // and not what is called like a branch
			return l.pointer(name, "", dir)
		}
	case "alternates":
		if filepath.Base(dir) == "info" {
			return l.alternates(name)
		}
	}
	return nil
}

// pointer looks at what a file of one line names.
func (l look) pointer(file, prefix, from string) error {
	text, err := readPointer(file)
	if to, found := strings.CutPrefix(strings.TrimRight(text, "\r\n"), prefix); err == nil && found {
		err = l.named(file, to, from)
	}
	return err
}

// alternates looks at the directories of objects that a repository borrows from.
func (l look) alternates(file string) error {
	if l.seen[file] {
		return nil
	}
	l.seen[file] = true
	text, err := readPointer(file)
	if err != nil {
		return err
	}
	objects := filepath.Dir(filepath.Dir(file)) // it is objects/info/alternates
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if err := l.named(file, line, objects); err != nil {
			return err
		}
	}
	return nil
}

// named looks at a directory that a file names. Git cleans the paths of some files, and undoes quotes: nobody needs any of that.
func (l look) named(file, to, from string) error {
	if to == "" {
		return nil
	}
	if strings.ContainsFunc(to, func(r rune) bool { return r == '"' || unicode.IsControl(r) }) || strings.TrimSpace(to) != to {
		return fmt.Errorf("%s names a directory with quotes, control characters or blanks at its ends", quote.Word(file))
	}
	if !filepath.IsAbs(to) {
		to = from + "/" + to
	}
	for _, path := range []string{to, filepath.Clean(to)} {
		if err := l.bounds.Check(path); err != nil {
			return err
		}
		found, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue
		}
		if info, err := os.Stat(found); err != nil || !info.IsDir() {
			continue
		}
		if err := l.directory(found); err != nil {
			return err
		}
	}
	return nil
}

// readPointer reads a file that names directories.
func readPointer(file string) (string, error) {
	text, err := ctxio.ReadRegular(file, maxPointer)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return string(text), err
}

// submodules brings those of a repository of this machine, each after a look at where it comes from.
func (s Sources) submodules(ctx context.Context, g git, origin ...string) error {
	if _, err := os.Lstat(filepath.Join(g.dir, ".gitmodules")); err != nil {
		return nil // it has none
	}
	if err := g.run(ctx, append(origin, "submodule", "--quiet", "init")...); err != nil {
		return err
	}
	said, err := g.output(ctx, "config", "-z", "--get-regexp", `^submodule\..*\.url$`)
	if err != nil {
		return err
	}
	for entry := range strings.SplitSeq(said, "\x00") {
		_, url, _ := strings.Cut(entry, "\n") // no name has one
		if err := errors.Join(s.Reach.CheckAddress(url, g.dir), s.reachRepository(ctx, url)); err != nil {
			return err
		}
	}
	if err := g.run(ctx, "submodule", "--quiet", "update", "--depth=1"); err != nil {
		return err
	}
	listed, err := g.output(ctx, "ls-files", "--stage", "-z")
	if err != nil {
		return err
	}
	for entry := range strings.SplitSeq(listed, "\x00") {
		mode, path, _ := strings.Cut(entry, "\t")
		if !strings.HasPrefix(mode, "160000 ") {
			continue
		}
		inner := git{g.program, filepath.Join(g.dir, path), true}
		if err := s.submodules(ctx, inner); err != nil {
			return err
		}
	}
	return nil
}
