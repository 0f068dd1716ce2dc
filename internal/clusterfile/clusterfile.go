// Package clusterfile writes images as the single files that clusters run: squashfs (.sqsh), for enroot, pyxis and the
// Container Engine, and SIF (.sif), for Apptainer and Singularity.
//
// The files are made straight from the layers. Nothing is unpacked: the layers are walked from the top down, what a layer
// above hides is passed over, and what is left is compressed in the order in which it lies in its layer. The merged tree,
// which says what the file system holds, is made of the indexes that walking the layers has left behind.
//
// What was compressed for a layer is kept in the store, so that the next image with that layer copies it. The bytes of a
// file are the same either way.
package clusterfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/runtimefiles"
	"sconce.dev/sconce/internal/sif"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tempdir"
)

// Options say how a file is written.
type Options struct {
	Store    *store.Store
	Squashfs squashfs.Options
	NoReuse  bool // compress everything, and keep nothing for the next image
}

// Input is an image to be written.
type Input struct {
	Layers []Layer // lowest first
	Config v1.ConfigFile
	Digest store.Digest // of the image's manifest; "" when it has none
	Name   string       // that the image goes by, without a tag; "" when it has none
	Plain  bool         // the tree and nothing else: without the files that runtimes look for

	// Start lists the files that are read when the image is started, in that order: their paths in the image without a slash in front.
	// They are written one after the other, so that few reads of the file system bring them.
	Start []string

	// Of a plain file:
	Root  string            // the directory that becomes the root, its real path without a slash in front; "": the image's root
	Files map[string][]byte // are added, by their paths in the image; their directories are made, and must be no links
}

// Layer is a layer of an image.
type Layer struct {
	Source layer.Source
	Digest store.Digest // of its blob, under which compressed files are kept; "" for one that is not worth it
	Name   string       // for people
	Size   int64        // of the uncompressed tar, in bytes; 0 when not known
	Packed int64        // of the blob, in bytes, when it is compressed; else 0
}

// FromImage is an image whose layers are in the store.
func FromImage(st *store.Store, im *image.Image) Input {
	in := Input{Config: im.Config, Digest: im.Digest}
	for _, d := range im.Layers {
		d, _ = layer.Known(st, d)
		l := Layer{Source: layer.Stored(st, d), Digest: d.Digest, Name: d.Digest.Short(), Size: d.RawSize}
		if strings.HasSuffix(d.MediaType, ".tar") { // neither OCI's nor Docker's types of compressed layers end so
			l.Size = d.Size
		} else if d.RawSize == 0 || d.Size < d.RawSize {
			l.Packed = d.Size
		}
		in.Layers = append(in.Layers, l)
	}
	return in
}

// FromTar is a root file system in a tar, read where it is. Nothing of it is kept for reuse.
func FromTar(t *source.TarRoot, name string) Input {
	return Input{Config: t.Config, Layers: []Layer{{Source: t.Layer, Name: name, Size: t.Size}}}
}

// WriteSquashfs writes an image into the empty file f as a squashfs file system.
func WriteSquashfs(ctx context.Context, f *os.File, in Input, o Options) error {
	_, err := write(ctx, f, 0, in, o)
	return err
}

// WriteSIF writes an image into the empty file f as a SIF.
func WriteSIF(ctx context.Context, f *os.File, in Input, o Options) error {
	spec, err := Spec(in.Config, in.Digest)
	if err != nil {
		return err
	}
	return sif.Write(f, spec, func(base int64) (int64, error) { return write(ctx, f, base, in, o) })
}

// writer writes one file system.
type writer struct {
	ctx context.Context // of the one call that the writer serves
	in  Input
	o   Options
	f   *os.File
	own *store.Store // has the personality

	sq     *squashfs.Writer
	reuse  *reuse
	inTurn bool // one layer after the other
	beside *beside
	start  *startFiles
	cover  image.Cover
	placed map[place]*squashfs.Data
}

// place names the content of a file: where it lies in which layer.
type place struct {
	layer int
	at    squashfs.Key
}

func placeOf(number int, e layer.IndexEntry) place {
	return place{number, squashfs.Key{Offset: e.Offset, Nth: e.Sparse}}
}

// write writes the file system at offset base of f. When what was compressed before turns out to be damaged on the way, it
// begins again without, when a layer came wrong at first, with what came then, and when one could not be compressed to its end beside
// others, with one layer after the other.
func write(ctx context.Context, f *os.File, base int64, in Input, o Options) (int64, error) {
	if o.Squashfs.ModTime.IsZero() {
		o.Squashfs.ModTime = created(in.Config)
	}
	for anew, inTurn := false, false; ; {
		r := newReuse(ctx, o)
		r.anew = anew
		size, err := writeWith(ctx, f, base, in, o, r, inTurn)
		switch {
		case errors.Is(err, squashfs.ErrPack) && !anew:
			anew = true
			progress.Warn(ctx, fmt.Sprintf("everything is compressed again: %v", err), verifyHint)
		case errors.Is(err, errPressed), errors.Is(err, layer.ErrAgain): // once, as it cannot be in turn; and once for each layer
			inTurn = inTurn || errors.Is(err, errPressed)
			progress.Warn(ctx, fmt.Sprintf("the file is begun again: %v", err), "")
		default:
			return size, err
		}
		if err := f.Truncate(base); err != nil {
			return 0, err
		}
	}
}

func writeWith(ctx context.Context, f *os.File, base int64, in Input, o Options, r *reuse, inTurn bool) (size int64, err error) {
	defer r.close()
	w := &writer{ctx: ctx, in: in, o: o, f: f, reuse: r, inTurn: inTurn, placed: map[place]*squashfs.Data{}}
	if w.own = o.Store; o.Store.ReadOnly() {
		var remove func()
		if w.own, remove, err = temporaryStore(ctx); err != nil {
			return 0, err
		}
		defer remove()
	}
	if w.start, err = w.newStartFiles(); err != nil {
		return 0, err
	}
	defer w.start.close()
	w.beside = w.startBeside()
	defer w.beside.close()
	if w.sq, err = squashfs.NewWriter(f, base, o.Squashfs); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.sq.Close()) }() // before the files are closed that it copies from
	return w.run()
}

// temporaryStore makes a store for the few files that are generated, where the real one cannot be written.
func temporaryStore(ctx context.Context) (st *store.Store, remove func(), err error) {
	dir, removeDir, err := tempdir.Make("store")
	if err != nil {
		return nil, nil, err
	}
	if st, err = store.Open(ctx, dir); err != nil {
		removeDir()
		return nil, nil, err
	}
	return st, func() {
		st.Close()
		removeDir()
	}, nil
}

func (w *writer) run() (int64, error) {
	if !w.in.Plain {
		w.coverPersonality()
	}
	for name := range w.in.Files {
		w.cover.Add(layer.Entry{Path: name, Type: layer.Regular})
	}
	for number := range slices.Backward(w.in.Layers) {
		if err := w.layer(number); err != nil {
			return 0, err
		}
	}
	if err := w.startSegment(); err != nil {
		return 0, err
	}
	indexes, err := w.indexes()
	if err != nil {
		return 0, err
	}
	tree, err := w.merge(indexes)
	if err != nil {
		return 0, err
	}
	if err := w.late(tree); err != nil {
		return 0, err
	}
	w.beside.giveUp()
	root, err := w.inodes(tree)
	if err != nil {
		return 0, err
	}
	if err := w.reuse.wait(); err != nil {
		return 0, err
	}
	return w.sq.Finish(root)
}

// coverPersonality hides what the files that runtimes look for replace.
func (w *writer) coverPersonality() {
	for _, p := range runtimefiles.Paths() {
		w.cover.Add(layer.Entry{Path: strings.TrimPrefix(p, "/"), Type: layer.Regular})
	}
}

// layer places the files of a layer that the layers above let see, in the order of its tar.
func (w *writer) layer(number int) error {
	l := w.in.Layers[number]
	task := progress.Begin(w.ctx, "squash", l.Name, l.Size)
	return task.End(w.inPieces(number, func(enter func(offset int64) error) error {
		err := w.files(number, func(e layer.IndexEntry, open opener) error {
			task.Add(e.Size)
			if e.Type != layer.Regular || e.Size == 0 || w.cover.Hides(e.Path) || !w.inRoot(e.Path) {
				return nil
			}
			if w.start.takes(e) {
				return w.start.take(number, e, open)
			}
			if err := enter(e.Offset); err != nil {
				return err
			}
			return w.add(placeOf(number, e), e.Size, e.Path, open)
		})
		if err != nil {
			return err
		}
		return w.hide(l.Source)
	}))
}

// files visits the files of a layer: those that are compressed beside others as they are done, else as they are read.
func (w *writer) files(number int, visit layer.Visitor) error {
	source := w.in.Layers[number].Source
	if p := w.beside.layer(number); p.begun() {
		w.beside.another() // this one is only copied
		return p.walk(w.ctx, source, visit)
	}
	return source.Walk(w.ctx, visit)
}

// hide adds the entries of a layer to what is hidden from those below.
func (w *writer) hide(s layer.Source) error {
	ix, err := s.Index(w.ctx)
	if err != nil {
		return err
	}
	for i := range ix.Entries {
		w.cover.Add(ix.Entries[i].Entry)
	}
	return nil
}

// inPieces writes files of one layer, and keeps them for the next image with that layer. fill calls enter before it adds a file that lies
// at an offset of the layer's tar; when it returns, the layer has been read to its end.
func (w *writer) inPieces(number int, fill func(enter func(offset int64) error) error) error {
	l := w.in.Layers[number]
	pressed := w.beside.layer(number)
	release := func() {}
	if !pressed.begun() {
		var err error
		if release, err = w.reuse.claim(w.ctx, l); err != nil {
			return err
		}
	}
	kept := w.reuse.keeping(l.Digest, w.f)
	p := piecewise{
		sq: w.sq,
		packs: func(piece int64) []*squashfs.Pack {
			return slices.Concat(w.reuse.packs(l.Digest, piece), pressed.packs(piece))
		},
		done: func(piece int64, seg *squashfs.Segment) error {
			if seg.Fresh > 0 {
				kept.add(piece, seg)
			}
			return nil
		},
	}
	err := fill(p.enter)
	if err == nil {
		err = p.end()
	}
	if err != nil {
		release()
		return err
	}
	kept.finish(release)
	return nil
}

// segment writes a segment of files that belong together for another reason than that they lie in one layer.
func (w *writer) segment(packs []*squashfs.Pack, fill func() error) (*squashfs.Segment, error) {
	if err := w.sq.StartSegment(packs...); err != nil {
		return nil, err
	}
	if err := fill(); err != nil {
		return nil, err
	}
	return w.sq.EndSegment()
}

// opener opens a file's content.
type opener = func() (io.ReadCloser, error)

func (w *writer) add(p place, size int64, name string, open opener) error {
	data, err := w.sq.Add(w.ctx, p.at, size, open)
	if err != nil {
		return fmt.Errorf("layer %s, file %q: %w", w.in.Layers[p.layer].Name, name, err)
	}
	w.placed[p] = data
	return nil
}

func (w *writer) indexes() ([]*layer.Index, error) {
	indexes := make([]*layer.Index, len(w.in.Layers))
	for i, l := range w.in.Layers {
		var err error
		if indexes[i], err = l.Source.Index(w.ctx); err != nil {
			return nil, err
		}
	}
	return indexes, nil
}

// merge puts the layers on top of each other, and on them what the file holds besides the image's own.
func (w *writer) merge(indexes []*layer.Index) (*image.Tree, error) {
	if w.in.Plain && len(w.in.Files) > 0 {
		return w.addFiles(indexes)
	}
	tree, err := image.TreeOf(indexes)
	if err != nil || w.in.Plain {
		return tree, err
	}
	return tree, w.addPersonality(tree)
}

// addPersonality puts the files that runtimes look for on top of the image, and warns of what they will not show.
func (w *writer) addPersonality(tree *image.Tree) error {
	for _, warning := range runtimefiles.Warnings(w.in.Config, tree) {
		progress.Warn(w.ctx, warning.Text, warning.Hint)
	}
	im := runtimefiles.Image{Config: w.in.Config, Digest: w.in.Digest, Name: w.in.Name, Start: w.in.StartDigest()}
	d, err := runtimefiles.Layer(w.ctx, w.own, im, tree)
	if errors.Is(err, unix.ENOSPC) { // taken by what is being kept for the next image, which gives it back if it does not fit
		if err := w.reuse.wait(); err != nil {
			return err
		}
		d, err = runtimefiles.Layer(w.ctx, w.own, im, tree)
	}
	if err != nil {
		return err
	}
	top, err := layer.OpenIndex(w.ctx, w.own, d)
	if err != nil {
		return err
	}
	w.in.Layers = append(slices.Clone(w.in.Layers), Layer{Name: "personality"})
	return tree.Put(top)
}

// late places contents that are seen although the walk passed them over: those of files that have another name than the one
// that a layer above hides, and of the personality. Upper layers come first here too.
func (w *writer) late(tree *image.Tree) error {
	missing, err := w.missing(tree)
	if err != nil {
		return err
	}
	for number := range slices.Backward(w.in.Layers) {
		nodes := missing[number]
		if len(nodes) == 0 {
			continue
		}
		err := w.inPieces(number, func(enter func(offset int64) error) error { return w.addNodes(tree, nodes, enter) })
		if err != nil {
			return err
		}
	}
	return nil
}

// missing returns the files whose contents have no place yet, by layer and in the order of their tar.
func (w *writer) missing(tree *image.Tree) (map[int][]*image.Node, error) {
	found := map[int][]*image.Node{}
	seen := map[place]bool{}
	err := w.walk(tree, func(n *image.Node) error {
		number, at := n.Content()
		p := placeOf(number, at)
		if n.Type != layer.Regular || n.Size == 0 || w.placed[p] != nil || seen[p] {
			return nil
		}
		seen[p] = true
		found[number] = append(found[number], n)
		return nil
	})
	for _, nodes := range found {
		slices.SortFunc(nodes, byContent)
	}
	return found, err
}

func (w *writer) addNodes(tree *image.Tree, nodes []*image.Node, enter func(offset int64) error) error {
	for _, n := range nodes {
		number, at := n.Content()
		if err := enter(at.Offset); err != nil {
			return err
		}
		if err := w.add(placeOf(number, at), n.Size, n.Path, func() (io.ReadCloser, error) { return tree.Open(n) }); err != nil {
			return err
		}
	}
	return nil
}
