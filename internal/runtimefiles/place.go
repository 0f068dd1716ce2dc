package runtimefiles

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/pathwalk"
)

// item is an entry of the layer with its content.
type item struct {
	layer.Entry
	data []byte
}

// builder collects the layer. Paths given to it are those a process in the image would use; the layer's are where those lead.
type builder struct {
	tree  *image.Tree
	items map[string]item
}

func newBuilder(tree *image.Tree) *builder { return &builder{tree: tree, items: map[string]item{}} }

// lstat returns what lies at a path none of whose parents is a symlink: in this layer, else in the image.
func (b *builder) lstat(real string) (layer.Entry, bool) {
	if i, ok := b.items[real]; ok {
		return i.Entry, true
	}
	n, err := b.tree.Lstat(real)
	if err != nil {
		return layer.Entry{}, false
	}
	return n.Entry, true
}

// enter returns where the directory dir really is, and makes it when it is missing. Every directory on the way gets an entry
// with the attributes it has in the image: a layer that left them out would leave it to its reader which ones a directory has.
func (b *builder) enter(dir string) (string, error) {
	var at []string
	w := pathwalk.Begin(dir)
	for part, ok := w.Next(); ok; part, ok = w.Next() {
		switch part {
		case ".":
			continue
		case "..":
			at = at[:max(0, len(at)-1)]
			continue
		}
		next := path.Join(strings.Join(at, "/"), part)
		e, found := b.lstat(next)
		switch {
		case !found:
			b.add(layer.Entry{Path: next, Type: layer.Dir, Mode: 0o755}, nil)
		case e.Type == layer.Dir:
			b.keepDir(next, e)
		case e.Type == layer.Symlink:
			fromRoot, err := w.Follow(e.Link)
			if err != nil {
				return "", &fs.PathError{Op: "follow", Path: "/" + next, Err: err}
			}
			if fromRoot {
				at = nil
			}
			continue
		default:
			return "", fmt.Errorf("/%s must be a directory, but the image has something else there", next)
		}
		at = append(slices.Clip(at), part)
	}
	return strings.Join(at, "/"), nil
}

func (b *builder) keepDir(real string, e layer.Entry) {
	if _, ok := b.items[real]; ok {
		return
	}
	e.Path = real
	b.items[real] = item{Entry: e}
}

func (b *builder) add(e layer.Entry, data []byte) {
	e.ModTime = layer.DefaultModTime
	e.Size = int64(len(data))
	b.items[e.Path] = item{e, data}
}

// place returns where a new entry for p belongs, and what is there.
func (b *builder) place(p string) (string, layer.Entry, bool, error) {
	dir, err := b.enter(path.Dir(p))
	if err != nil {
		return "", layer.Entry{}, false, err
	}
	real := path.Join(dir, path.Base(p))
	e, found := b.lstat(real)
	return real, e, found, nil
}

// has reports whether the image has a regular file at p, itself and not by a symlink. Nothing is made.
func (b *builder) has(p string) bool { return hasFile(b.tree, p) }

func hasFile(tree *image.Tree, p string) bool {
	n, err := tree.Lstat(p)
	return err == nil && n.Type == layer.Regular
}

// file adds a file. A symlink in its place goes: where it leads may be a place that a runtime mounts over, or, seen from
// enroot's side of the root file system, a place of the host.
func (b *builder) file(p string, mode uint32, data []byte) error {
	real, e, found, err := b.place(p)
	if err != nil {
		return err
	}
	if found && e.Type == layer.Dir {
		return fmt.Errorf("/%s must be a file, but it is a directory in the image", real)
	}
	b.add(layer.Entry{Path: real, Type: layer.Regular, Mode: mode}, data)
	return nil
}

// link adds a symlink, but leaves alone what is no symlink.
func (b *builder) link(p, to string) error {
	real, e, found, err := b.place(p)
	if err != nil || found && (e.Type != layer.Symlink || e.Link == to) {
		return err
	}
	b.add(layer.Entry{Path: real, Type: layer.Symlink, Mode: 0o777, Link: to}, nil)
	return nil
}

// baseDir adds a directory unless something is there already, even if it is a symlink to nowhere.
func (b *builder) baseDir(p string, mode uint32) error {
	real, _, found, err := b.place(p)
	if err != nil || found {
		return err
	}
	b.add(layer.Entry{Path: real, Type: layer.Dir, Mode: mode}, nil)
	return nil
}
