package layer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// Edit is what becomes of one entry of a layer.
type Edit struct {
	At     int  // place in [Index.Entries]
	Remove bool // leave it out; what is below then counts for the hard link that becomes the file

	Size    int64                         // of the new content of a regular file, in bytes
	Content func(old io.Reader) io.Reader // the new content, which may be made of the old one while that is read; with Remove, nil: the old one
}

// ErrHoles says that a layer stores files with holes (GNU tar manual, "Storing Sparse Files"), between which no entry can be
// found.
var ErrHoles = errors.New("the layer stores files with holes")

// RewriteEntries is [Rewrite] for edits that change which entries there are, and the size of contents. All that is not edited is
// copied byte by byte, headers included. When the first name of a file goes, the next of its hard links becomes the file.
// Directories go alone: what lies below one needs edits of its own.
//
// The error wraps [ErrHoles] for a layer that cannot be taken apart.
func RewriteEntries(ctx context.Context, st *store.Store, d Descriptor, edits []Edit, o Options) (Descriptor, error) {
	return rewriteLayer(ctx, st, d, func(ix *Index, task *progress.Task) (Descriptor, error) {
		return ix.rewriteEntries(ctx, st, edits, o, task)
	})
}

func (ix *Index) rewriteEntries(ctx context.Context, st *store.Store, edits []Edit, o Options, task *progress.Task) (Descriptor, error) {
	work, err := ix.entryEdits(edits)
	if err != nil {
		return Descriptor{}, err
	}
	places, err := ix.extents(ctx)
	if err != nil {
		return Descriptor{}, err
	}
	return ix.rewriteWith(ctx, st, o, task, func(r *rewriting) ([]IndexEntry, error) { return r.runEntries(work, places) })
}

// entryEdit is an Edit together with what follows from others.
type entryEdit struct {
	Edit
	entry *Entry  // stands in its place, under a new header
	open  Content // the content of entry
}

// entryEdits puts edits in order and adds those for hard links to what goes.
func (ix *Index) entryEdits(edits []Edit) ([]entryEdit, error) {
	byPlace := map[int]*entryEdit{}
	for _, e := range edits {
		if e.At < 0 || e.At >= len(ix.Entries) || byPlace[e.At] != nil {
			return nil, fmt.Errorf("edit %d: it is for no entry, or one that has another", e.At)
		}
		if old := ix.Entries[e.At]; !e.Remove && (old.Type != Regular || e.Content == nil || e.Size < 0) {
			return nil, fmt.Errorf("%s: it cannot have another content", quotePath(old.Path))
		}
		byPlace[e.At] = &entryEdit{Edit: e}
	}
	ix.mendLinks(byPlace)
	work := make([]entryEdit, 0, len(byPlace))
	for _, e := range byPlace {
		work = append(work, *e)
	}
	slices.SortFunc(work, func(a, b entryEdit) int { return cmp.Compare(a.At, b.At) })
	return work, nil
}

// mendLinks sees to it that hard links lead to a name that stays.
func (ix *Index) mendLinks(edits map[int]*entryEdit) {
	files := map[string]int{}      // by each of its names, the entry that brings a file
	standIn := map[int]string{}    // the name that a file has now
	goneNames := map[string]bool{} // names whose last entry goes
	goes := func(i int) bool { return edits[i] != nil && edits[i].Remove }
	for i := range ix.Entries {
		e := &ix.Entries[i]
		file, known := files[e.Link]
		lost := goneNames[e.Link]
		goneNames[e.Path] = goes(i)
		switch {
		case e.Type == Regular:
			files[e.Path] = i
			if !goes(i) {
				standIn[i] = e.Path
			}
			continue
		case e.Type != HardLink || !known:
			delete(files, e.Path)
			continue
		}
		files[e.Path] = file
		if goes(i) || !lost {
			continue
		}
		entry := e.Entry
		if to, stays := standIn[file]; stays {
			entry.Link = to
			edits[i] = &entryEdit{Edit: Edit{At: i}, entry: &entry}
			continue
		}
		size, open := ix.content(ix.Entries[file], edits[file].Edit)
		entry.Type, entry.Link, entry.Size, entry.Xattrs = Regular, "", size, ix.Entries[file].Xattrs
		edits[i] = &entryEdit{Edit: Edit{At: i}, entry: &entry, open: open}
		standIn[file] = e.Path
	}
}

// content is that of a file with an edit.
func (ix *Index) content(file IndexEntry, e Edit) (size int64, open Content) {
	if e.Content == nil {
		return file.Size, func() (io.ReadCloser, error) { return ix.OpenContent(file) }
	}
	return e.Size, func() (io.ReadCloser, error) {
		old, err := ix.OpenContent(file)
		if err != nil {
			return nil, err
		}
		return struct {
			io.Reader
			io.Closer
		}{e.Content(old), old}, nil
	}
}

// extent is where an entry lies in the tar: from its first header, extended ones included, over its content to the next entry.
type extent struct{ start, content, end int64 }

// extents reads the headers of the layer.
func (ix *Index) extents(ctx context.Context) ([]extent, error) {
	tar, err := ix.readForward(ctx)
	if err != nil {
		return nil, err
	}
	defer tar.Close()
	t := newTarReader(tar)
	list := make([]extent, 0, len(ix.Entries))
	for {
		start := t.headerAt + padding(t.headerAt) // a global header is read without what fills its last block
		h, err := t.tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("after %d entries: %w", len(list), err)
		}
		if isSparse(h) {
			return nil, fmt.Errorf("entry %s: %w", quotePath(h.Name), ErrHoles)
		}
		content := t.in.n
		if _, err := t.entry(h); err != nil {
			return nil, err
		}
		if h.Typeflag == paxGlobalFlag || h.Typeflag == volumeLabel {
			continue // stays with what comes before
		}
		list = append(list, extent{start, content, min(t.headerAt, ix.RawSize)})
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	if len(list) != len(ix.Entries) {
		return nil, fmt.Errorf("it has %d entries, and its index %d", len(list), len(ix.Entries))
	}
	return list, nil
}

const paxGlobalFlag = 'g'

// maxHeaders bounds the headers of one entry, in bytes.
const maxHeaders = 4 * maxPaxHeader

// runEntries copies the tar with its edits, and returns the new entries.
func (r *rewriting) runEntries(work []entryEdit, places []extent) ([]IndexEntry, error) {
	entries := make([]IndexEntry, 0, len(r.ix.Entries))
	copied := 0
	keep := func(until int) {
		shift := r.w.chunks.total - r.pos
		for ; copied < until; copied++ {
			e := r.ix.Entries[copied]
			if e.Type == Regular {
				e.Offset += shift
			}
			entries = append(entries, e)
		}
	}
	for _, e := range work {
		place := places[e.At]
		if err := r.copyTo(place.start); err != nil {
			return nil, err
		}
		keep(e.At)
		copied = e.At + 1
		if e.Remove {
			if err := r.pass(place.end); err != nil {
				return nil, err
			}
			continue
		}
		made, err := r.replace(e, place)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", quotePath(r.ix.Entries[e.At].Path), err)
		}
		entries = append(entries, made)
	}
	if err := r.copyTo(r.ix.RawSize); err != nil {
		return nil, err
	}
	keep(len(r.ix.Entries))
	return entries, atEnd(r.tar)
}

// pass leaves out what lies before an offset.
func (r *rewriting) pass(to int64) error {
	n, err := io.Copy(io.Discard, r.old(to-r.pos))
	if err == nil && n != to-r.pos {
		err = io.ErrUnexpectedEOF
	}
	r.advance(to)
	return err
}

// replace writes the header and the content that take an entry's place.
func (r *rewriting) replace(e entryEdit, place extent) (IndexEntry, error) {
	if place.content-place.start > maxHeaders {
		return IndexEntry{}, fmt.Errorf("its headers take %d bytes", place.content-place.start)
	}
	header := make([]byte, place.content-place.start)
	if _, err := io.ReadFull(r.tar, header); err != nil {
		return IndexEntry{}, unexpected(err)
	}
	r.advance(place.content)
	made := r.ix.Entries[e.At]
	var err error
	if e.entry != nil {
		made = IndexEntry{Entry: *e.entry}
		header, err = appendHeader(nil, made.Entry)
	} else {
		made.Size = e.Size
		header, err = resized(header, made.Entry)
	}
	if err != nil {
		return made, err
	}
	if _, err := r.w.chunks.Write(header); err != nil {
		return made, err
	}
	made.Offset = 0
	if made.Type == Regular {
		made.Offset = r.w.chunks.total
		if err := r.replaceContent(e, place); err != nil {
			return made, err
		}
	}
	return made, r.pass(place.end)
}

func (r *rewriting) replaceContent(e entryEdit, place extent) error {
	if e.entry != nil {
		if err := r.w.copyContent(e.entry.Size, e.open, Deflated{}); err != nil {
			return err
		}
		return nil
	}
	size := r.ix.Entries[e.At].Size
	old := &announced{r.tar, size}
	if err := r.w.chunks.readExactly(r.ctx, e.Content(old), e.Size); err != nil {
		return err
	}
	if err := r.w.chunks.pad(); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, old); err != nil { // what the new content has no need of
		return err
	}
	r.advance(place.content + size)
	return nil
}

// resized is an entry's headers with another size. Only one block changes, unless the size stands in an extended header.
func resized(headers []byte, e Entry) ([]byte, error) {
	if len(headers) < blockSize || bytes.Contains(headers[:len(headers)-blockSize], []byte(" size=")) || e.Size >= 1<<(3*(fieldSize.len-1)) {
		return appendHeader(nil, e)
	}
	h := block(headers[len(headers)-blockSize:])
	clear(h[fieldSize.at : fieldSize.at+fieldSize.len])
	h.octal(fieldSize, e.Size)
	h.sum()
	return headers, nil
}

// sum writes the checksum.
func (h block) sum() {
	h.text(fieldChecksum, "        ")
	var sum int64
	for _, c := range h {
		sum += int64(c)
	}
	h.octal(field{fieldChecksum.at, 7}, sum)
	h[fieldChecksum.at+6], h[fieldChecksum.at+7] = 0, ' '
}
