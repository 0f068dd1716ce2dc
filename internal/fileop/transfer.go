// Package fileop copies files into an image.
//
// What COPY, ADD and WORKDIR of a Containerfile do, and what a recipe's copy and patch do, becomes one layer each. Nothing of the
// image runs: the layer follows from the files and from the image's merged tree.
//
// The rules are those of Docker's build reference and of BuildKit where they leave something open:
//
//   - Of a directory its content is copied, not the directory. A destination that is missing is made, and so is everything above
//     it, with the permissions that are asked for as a number, 0755 else; all that belongs to whom the files are given to, root else.
//   - What an archive is unpacked into keeps its attributes. Its names are below it, also absolute ones and those with "..".
//   - Where a pattern matches several files and the destination is no directory, the last one is it, and a warning says so.
//   - A directory that the image has keeps its attributes when it is the destination. One in it that a source has too gets the
//     source's.
//   - Symlinks on the way to a source are followed inside the source, and so is one that is named as a source. Symlinks below a
//     copied directory are copied. A destination is followed inside the image.
//   - A file does not replace a directory, nor a directory anything else.
//   - A pattern that matches nothing copies nothing; a name that does not exist is an error.
package fileop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// Copy is one COPY or ADD.
type Copy struct {
	Sources []string     // paths and patterns (path.Match), relative to the root of the Files
	Inline  []InlineFile // heredocs
	URLs    []URL        // of ADD
	Dest    string       // absolute; ends in "/" or "/." when a directory is meant
	Chown   string       // USER[:GROUP], names of the image or numbers; "" is root, or the owner in the image that files come from
	Chmod   string       // octal or symbolic; "" is as the source has it
	Parents bool         // sources keep the directories above them; "/./" in a source says from where on
	Exclude []string     // patterns of what is left out of the sources, by the rules of ignore files
	Link    bool         // the layer does not depend on the image: the destination is not followed
	Nest    bool         `json:",omitempty"` // a directory is copied as cp -r does: with its own name into a directory that is there
	Extract bool         // archives among the sources are unpacked: tar, plain or compressed by gzip, bzip2, xz or zstd
}

// InlineFile is a file whose content stands in the Containerfile itself (a heredoc).
type InlineFile struct {
	Name    string
	Content []byte
}

// URL is a remote source of ADD.
type URL struct {
	Address string
	Digest  store.Digest // what the bytes must have; "" when not given
}

// Open opens a remote source and says what name its file has.
type Open = func(ctx context.Context, u URL) (content io.ReadCloser, name string, err error)

// Layer copies files of from, which may be nil when there are no Sources, into the image onto; open may be nil when there are no
// URLs. The layer has no entries when there was nothing to copy. With Link, onto is not looked at.
//
// Files of a context, remote and inline files have the time of o, or that of the file in their place if its bytes are the same;
// those of an image or an archive keep theirs.
func (c Copy) Layer(ctx context.Context, st *store.Store, from Files, onto *image.Tree, o layer.Options, open Open) (layer.Descriptor, error) {
	if c.Link {
		onto = nil
	}
	j, err := c.newJob(ctx, st, onto)
	if err != nil {
		return layer.Descriptor{}, err
	}
	defer j.cleanup()
	if err := j.run(from, open); err != nil {
		return layer.Descriptor{}, fmt.Errorf("copy to %s: %w", quote(c.Dest), err)
	}
	return j.stage.layer(ctx, st, o)
}

// layer makes a layer of what has changed.
func (s *stage) layer(ctx context.Context, st *store.Store, o layer.Options) (layer.Descriptor, error) {
	w, err := layer.NewWriter(ctx, st, o)
	if err != nil {
		return layer.Descriptor{}, err
	}
	defer w.Abort()
	if err := s.write(w); err != nil {
		return layer.Descriptor{}, err
	}
	return w.Close()
}

// changes is the layer of what has changed, none when nothing has.
func (s *stage) changes(ctx context.Context, st *store.Store, o layer.Options) (layer.Descriptor, error) {
	if !s.root.touched {
		return layer.Descriptor{}, nil
	}
	return s.layer(ctx, st, o)
}

// job is a Copy under way.
type job struct {
	Copy
	ctx     context.Context
	st      *store.Store
	stage   *stage
	owner   *owner // nil: as the source has it
	chmod   chmod
	exclude *patterns
	temp    string      // directory for what arrives, "" before it is needed
	number  int         // of the source that is being copied
	files   []io.Closer // open as long as contents may be read
}

func (c Copy) newJob(ctx context.Context, st *store.Store, onto *image.Tree) (*job, error) {
	j := &job{Copy: c, ctx: ctx, st: st, stage: newStage(onto)}
	var err error
	if j.owner, err = findOwner(c.Chown, onto); err != nil {
		return nil, err
	}
	if j.chmod, err = parseChmod(c.Chmod); err != nil {
		return nil, err
	}
	if j.exclude, err = newPatterns(c.Exclude); err != nil {
		return nil, fault.Usage(fmt.Errorf("exclude %w", err))
	}
	return j, nil
}

func (j *job) cleanup() {
	for _, f := range j.files {
		f.Close()
	}
	if j.temp != "" {
		store.RemoveAll(j.temp)
	}
}

func (j *job) run(from Files, open Open) error {
	list, err := j.pick(j.ctx, from)
	if err != nil {
		return err
	}
	for _, f := range j.Inline {
		list = append(list, inlineNode(f))
	}
	for _, u := range j.URLs {
		p, err := j.download(u, open)
		if err != nil {
			return err
		}
		list = append(list, p)
	}
	asked := len(j.Sources) + len(j.Inline) + len(j.URLs)
	intoDir := asked > 1 || j.Parents || strings.HasSuffix(j.Dest, "/") || strings.HasSuffix(j.Dest, "/.")
	var files []string
	for i, p := range list {
		j.number = i
		put, err := j.place(p, intoDir)
		if err != nil {
			return err
		}
		if put {
			files = append(files, p.name)
		}
	}
	j.warnOfNames(files)
	return nil
}

// warnOfNames warns when several files have become one. files are the sources' own names of those that got the destination's name,
// one after the other.
func (j *job) warnOfNames(files []string) {
	if len(files) < 2 {
		return
	}
	last := files[len(files)-1]
	progress.Warn(j.ctx, fmt.Sprintf("%s matches %d files, and all of them become %s: of the last one, %s", quote(j.Sources[0]), len(files), quote(j.Dest), quote(last)),
		fmt.Sprintf("end the destination in / to copy them into a directory: %s/", j.Dest))
}

// place puts one source where it belongs, and reports whether it got the destination's name.
func (j *job) place(p picked, intoDir bool) (named bool, err error) {
	n, err := p.without(j.exclude)
	if n == nil || err != nil {
		return false, err
	}
	if j.Extract && !p.arrived && n.Type == layer.Regular {
		if done, err := j.extract(n); done || err != nil {
			return false, err
		}
	}
	switch {
	case j.Parents:
		return false, j.placeBelow(p, n)
	case n.Type == dirType && (!j.Nest || p.name == "."):
		dir, err := j.stage.enter(j.Dest, j.maker())
		if err != nil {
			return false, err
		}
		return false, j.merge(dir, n)
	}
	return j.placeFile(n, p.name, intoDir)
}

func (j *job) placeFile(n *node, name string, intoDir bool) (named bool, err error) {
	if intoDir {
		dir, err := j.stage.enter(j.Dest, j.maker())
		if err != nil {
			return false, err
		}
		return false, j.put(dir, name, n)
	}
	dir, base, err := j.stage.reach(j.Dest, true, j.maker())
	if err != nil {
		return false, err
	}
	at := j.stage.root
	if dir != nil {
		at = j.stage.below(dir, base)
	}
	if at != nil && at.Type == layer.Dir {
		return false, j.put(at, name, n)
	}
	return true, j.put(dir, base, n)
}

// placeBelow puts a source under the directories that it had.
func (j *job) placeBelow(p picked, n *node) error {
	dir, err := j.stage.enter(j.Dest, j.maker())
	if err != nil {
		return err
	}
	if p.rel == "" {
		if n.Type == dirType {
			return j.merge(dir, n)
		}
		return j.put(dir, n.name, n)
	}
	for _, above := range layer.Parents(p.rel) {
		next := j.stage.below(dir, path.Base(above))
		if next == nil {
			from, err := p.base.find(above, true)
			if err != nil {
				return err
			}
			if next, err = j.stage.put(dir, path.Base(above), j.entry(from), nil, nil); err != nil {
				return err
			}
		}
		if next.Type != layer.Dir {
			return notDir(next)
		}
		dir = next
	}
	return j.put(dir, path.Base(p.rel), n)
}

// sourceFile names a file that a source has under several names. Each source is copied on its own.
type sourceFile struct {
	source int
	file   any
}

// maker makes the directories on the way to the destination. Like BuildKit, it gives them permissions that are asked for as a
// number; permissions that are changes apply to copied files alone. In a layer of its own a directory on the way may stand for one of
// the image, such as /etc, which must not be closed.
func (j *job) maker() *maker {
	mk := j.unpacker()
	if j.chmod != nil && isOctal(j.Chmod) && !j.Link {
		mk.mode = j.chmod(layer.Dir, 0) & 0o777
	}
	return mk
}

// unpacker makes the directories on the way to what an archive holds, for which nobody can ask for permissions.
func (j *job) unpacker() *maker {
	return newMaker(j.owner)
}

// entry is what a file of the source becomes, but for its path.
func (j *job) entry(n *node) layer.Entry {
	e := n.Entry
	if j.owner != nil {
		e.UID, e.GID = j.owner.uid, j.owner.gid
	}
	if j.chmod != nil && e.Type != layer.Symlink {
		e.Mode = j.chmod(e.Type, e.Mode)
	}
	return e
}

// put gives a name in a directory to a file or directory of the source, with everything that this holds.
func (j *job) put(dir *place, name string, n *node) error {
	if j.ctx.Err() != nil {
		return context.Cause(j.ctx)
	}
	if name == "" {
		return fault.Hint(errors.New("the source gives the file no name"), "give the destination a name that does not end in /")
	}
	old := j.stage.below(dir, name)
	switch {
	case n.refused != nil:
		return n.refused
	case n.Type != layer.Dir && old != nil && old.Type == layer.Dir:
		return fault.Hint(fmt.Errorf("%s is a directory in the image and cannot become a file", quote("/"+old.Path)),
			"remove it in a step before, or copy to another place")
	case n.Type == layer.Dir && old != nil && old.Type != layer.Dir:
		return notDir(old)
	case n.Type == layer.Dir:
		e := j.entry(n)
		if old == nil {
			var err error
			if old, err = j.stage.put(dir, name, e, nil, nil); err != nil {
				return err
			}
		} else {
			e.Path = old.Path
			old.Entry = e
			old.change()
		}
		return j.merge(old, n)
	}
	var file any
	if n.file != nil {
		file = sourceFile{j.number, n.file}
	}
	e := j.entry(n)
	if e.ModTime.IsZero() && file == nil { // all names of a file have one time
		same, err := n.sameContent(j.ctx, old)
		if err != nil {
			return err
		}
		if same {
			e.ModTime = old.ModTime
		}
	}
	_, err := j.stage.put(dir, name, e, n.open, file)
	return err
}

// sameContent reports whether a file of the source and what the image has in its place are regular files of the same bytes.
func (n *node) sameContent(ctx context.Context, old *place) (bool, error) {
	if old == nil || old.content == nil || old.Type != layer.Regular || n.Type != layer.Regular || old.Size != n.Size {
		return false, nil
	}
	was := node{open: old.content}
	if err := was.sum(ctx); err != nil {
		return false, err
	}
	err := n.sum(ctx)
	return err == nil && n.hash == was.hash, err
}

// merge puts into a directory what a directory of the source holds.
func (j *job) merge(dir *place, n *node) error {
	all, err := n.children()
	if err != nil {
		return err
	}
	for _, c := range all {
		if err := j.put(dir, c.name, c); err != nil {
			return err
		}
	}
	return nil
}
