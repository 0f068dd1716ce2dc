// Package reach says which files of this machine a recipe, a Containerfile, a definition file or a lock may name. Any of these may be
// somebody else's: it may name what lies in its own directory, and anything else only when whoever builds has said so, by a flag, in
// config.toml or in the environment.
package reach

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/pathwalk"
	"sconce.dev/sconce/internal/quote"
)

// Variable is that of the environment which names files and directories that may be reached, with colons between them.
const Variable = "SCONCE_ALLOW_PATHS"

// Bounds are what a file may name. The zero value has nothing in it.
type Bounds struct {
	whose    string   // "the build context"
	paths    []string // files and directories, absolute
	anywhere bool
}

// Anywhere has every file in it: it is for a recipe of which the user has said all on the command line.
func Anywhere() Bounds { return Bounds{anywhere: true} }

// said is what the user of this process has named.
var said []string

// Allow lets everything reach files and directories that the user has named for this process. It is called once, before any bounds are made.
func Allow(paths []string) { said = paths }

// In returns the bounds of a file whose own files are all below dir; whose is what messages call dir.
func In(whose, dir string) Bounds {
	return Bounds{whose: whose}.With(dir).With(said...).With(filepath.SplitList(os.Getenv(Variable))...)
}

// InRepository is [In] for a file, such as "the recipe", whose own files are those of its directory and of the repository that it is in.
func InRepository(file, dir string) Bounds {
	b := In(file+"'s directory", dir)
	dir = real(absolute(dir))
	if top := repository(dir); top != "" && top != dir {
		b = b.With(top)
		b.whose = file + "'s repository"
	}
	return b
}

// With returns b with further files, and directories with all below them.
func (b Bounds) With(paths ...string) Bounds {
	b.paths = slices.Clone(b.paths)
	for _, path := range paths {
		if path != "" {
			b.paths = append(b.paths, absolute(path))
		}
	}
	return b
}

// OutsideError is about a file that may not be reached.
type OutsideError struct {
	Path  string // absolute
	Leads string // where links in it lead; "" where none counts
	whose string
}

func (e *OutsideError) Error() string {
	if e.Leads != "" {
		return fmt.Sprintf("%s leads to %s, outside of %s", quote.Word(e.Path), quote.Word(e.Leads), e.whose)
	}
	return fmt.Sprintf("%s is outside of %s", quote.Word(e.Path), e.whose)
}

// Hint says how a user who trusts the file lets it have this one.
func (e *OutsideError) Hint() string {
	return "if you trust this file, add --allow-path " + quote.Word(cmp.Or(e.Leads, e.Path)) + ", or name the path, or one above it, in allow-paths of config.toml"
}

// ExitCode says that the user's input is wrong.
func (e *OutsideError) ExitCode() int { return fault.CodeUsage }

// Check returns an [OutsideError] when path, which need not exist, is outside of b. Symbolic links are followed first. Behind a link, ".."
// means one thing to the kernel and another to those who clean a path before they open it: both must be within b.
func (b Bounds) Check(path string) error {
	if b.anywhere {
		return nil
	}
	clean := absolute(path)
	if !filepath.IsAbs(path) {
		path = absolute(".") + "/" + path
	}
	if err := b.check(clean, real(path)); err != nil {
		return err
	}
	return b.check(clean, real(clean))
}

func (b Bounds) check(path, found string) error {
	err := &OutsideError{Path: path, whose: cmp.Or(b.whose, "what it may read")}
	for _, p := range b.paths {
		if within(real(p), found) {
			return nil
		}
		if within(p, path) {
			err.Leads = found
		}
	}
	return err
}

// CheckAddress is Check of an address that may be a file of this machine, see [Local].
func (b Bounds) CheckAddress(address, dir string) error {
	for _, path := range Local(address, dir) {
		if err := b.Check(path); err != nil {
			return err
		}
	}
	return nil
}

// remote is how addresses of other machines begin: with a scheme, or as git and scp write HOST:PATH.
var remote = lazyregexp.New(`^([A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+:|[A-Za-z0-9_.-]{2,}:[^/\s])`)

// Local returns which file of this machine an address means: one of file://, or a path, which starts at dir when it is relative. For that
// of a repository, git+file:///x@main, there are two answers where "@" is in the name of a file, too. None: it is elsewhere.
func Local(address, dir string) []string {
	address, isRepository := strings.CutPrefix(strings.TrimSpace(address), "git+")
	if address == "" {
		return nil
	}
	path := address
	if scheme, _, ok := strings.Cut(address, ":"); ok && strings.EqualFold(scheme, "file") {
		u, err := url.Parse(address)
		switch {
		case err != nil:
			path = address[len("file:"):]
		case u.Opaque != "":
			path = u.Opaque
		case u.Host != "" && u.Host != "localhost":
			path = "/" + u.Host + u.Path
		default:
			path = u.Path
		}
	} else if remote.MatchString(address) {
		return nil
	} else {
		path, _, _ = strings.Cut(path, "#")
	}
	if rest, ok := strings.CutPrefix(path, "~"); ok && (rest == "" || rest[0] == '/') {
		if home, err := os.UserHomeDir(); err == nil {
			path = home + rest
		}
	}
	if !filepath.IsAbs(path) {
		path = strings.TrimSuffix(cmp.Or(dir, "."), "/") + "/" + path
	}
	if i := strings.LastIndexByte(path, '@'); isRepository && i > 0 {
		if _, err := os.Lstat(path); err == nil {
			return []string{path[:i], path}
		}
		return []string{path[:i]}
	}
	return []string{path}
}

// repository returns the top of the repository that dir, links resolved, is in: the nearest directory with a .git, else with a
// pipeline.toml. It is "" where there is none. A home is never one, nor is what lies above it: the repository of somebody's settings must
// not open all of it. Nor is one that somebody has made in a directory of somebody else's, as in /tmp.
func repository(dir string) string {
	home, _ := os.UserHomeDir()
	if home != "" {
		home = real(home)
	}
	for _, marker := range []string{".git", "pipeline.toml"} {
		for at := dir; at != "/" && (home == "" || !within(at, home)); at = filepath.Dir(at) {
			if _, err := os.Lstat(filepath.Join(at, marker)); err == nil && sameOwner(at, filepath.Join(at, marker)) {
				return at
			}
		}
	}
	return ""
}

func sameOwner(a, b string) bool {
	var x, y syscall.Stat_t
	return syscall.Stat(a, &x) == nil && syscall.Lstat(b, &y) == nil && x.Uid == y.Uid
}

// within reports whether path is dir or below it. Both are clean and absolute.
func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// real follows the links in an absolute path as the kernel does, also in one that does not exist. It is "" where there are too many.
func real(path string) string {
	at := "/"
	for walk := pathwalk.Begin(path); ; {
		part, more := walk.Next()
		if !more {
			return at
		}
		next := filepath.Join(at, part) // no link is in at: ".." is what is above it
		target, err := os.Readlink(next)
		if err != nil {
			at = next
			continue
		}
		fromRoot, err := walk.Follow(target)
		if err != nil {
			return ""
		}
		if fromRoot {
			at = "/"
		}
	}
}

func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil { // there is no current directory
		return filepath.Clean(path)
	}
	return abs
}
