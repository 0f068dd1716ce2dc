package wheelbuild

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/reach"
)

// A repository of this machine may be somebody else's, and lead to another one: by a .git that is a file, by directories that it shares or
// borrows objects from, by links, by its submodules. Git follows all of them; here they are looked at first.

// suffixes are what git tries behind the path of a repository.
var suffixes = []string{"/.git", "", ".git/.git", ".git"}

// maxPointer bounds a file that names a directory, in bytes.
const maxPointer = 64 << 10

// reachRepository refuses a repository of this machine that leads out of b.
func (s Sources) reachRepository(url string) error {
	for _, path := range reach.Local(url, "") {
		for _, suffix := range suffixes {
			if err := reachGit(s.Reach, path+suffix, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxShared is how many repositories may lead to each other.
const maxShared = 5

// reachGit looks at one that may be the directory of a repository, or a file that names it.
func reachGit(b reach.Bounds, path string, depth int) error {
	info, err := os.Stat(path)
	if err != nil || depth > maxShared {
		return nil //nolint:nilerr // git cannot read it either, and follows no longer chains of its own
	}
	if err := b.Check(path); err != nil {
		return err
	}
	if !info.IsDir() {
		return reachPointer(b, path, "gitdir:", filepath.Dir(path), depth)
	}
	if _, err := os.Stat(filepath.Join(path, "HEAD")); err != nil {
		return nil //nolint:nilerr // a working tree
	}
	if err := reachPointer(b, filepath.Join(path, "commondir"), "", path, depth); err != nil {
		return err
	}
	objects := filepath.Join(path, "objects")
	if err := reachPointer(b, filepath.Join(objects, "info", "alternates"), "", objects, depth); err != nil {
		return err
	}
	return filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink == 0 {
			return nil //nolint:nilerr // what cannot be listed cannot be read
		}
		return b.Check(name)
	})
}

// reachPointer looks at the repositories, or their directories of objects, that the lines of a file name.
func reachPointer(b reach.Bounds, file, prefix, from string, depth int) error {
	text, err := ctxio.ReadFile(file, maxPointer)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	for line := range strings.Lines(string(text)) {
		to, found := strings.CutPrefix(strings.TrimSpace(line), prefix)
		if to = strings.TrimSpace(to); !found || to == "" || to[0] == '#' {
			continue
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(from, to)
		}
		if err := b.Check(to); err != nil {
			return err
		}
		if err := errors.Join(reachGit(b, to, depth+1), reachPointer(b, filepath.Join(to, "info", "alternates"), "", to, depth+1)); err != nil {
			return err
		}
	}
	return nil
}

// submodules brings those of a repository of this machine, each after a look at where it comes from.
func (s Sources) submodules(ctx context.Context, g git, origin ...string) error {
	if _, err := os.Lstat(filepath.Join(g.dir, ".gitmodules")); err != nil {
		return nil // it has none
	}
	if err := g.run(ctx, append(origin, "submodule", "--quiet", "init")...); err != nil {
		return err
	}
	said, err := g.output(ctx, "config", "--get-regexp", `^submodule\..*\.url$`)
	if err != nil {
		return err
	}
	for line := range strings.Lines(said) {
		_, url, _ := strings.Cut(strings.TrimRight(line, "\n"), ".url ")
		if err := errors.Join(s.Reach.CheckAddress(url, g.dir), s.reachRepository(url)); err != nil {
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
