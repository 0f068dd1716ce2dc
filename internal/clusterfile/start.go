package clusterfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
)

// What is read when an image is started lies all over a file system that is written in the order of its layers, and a parallel file
// system answers each of these thousands of reads by itself. So the files that are known to be read then are set aside while the layers
// are written, and come behind them, one after the other in the order in which they are read, next to the tables that every program
// reads too.

// startLargest is the size in bytes up to which a file is set aside. The blocks of larger ones lie together wherever they stand, and
// most of them are not read at the start; in their layer's place, the next image copies them.
const startLargest = 1 << 20

// startFiles are the files of an image that are read at its start.
type startFiles struct {
	number map[string]int // by path
	found  []startFile    // by number
	key    store.Digest   // of what lies in the segment, in place of a layer's digest; "": it is not kept
	spool  *os.File       // contents, as they came; nil: the store has the segment already
	size   int64          // of the spool
}

// startFile is a file that was set aside. It has no place when no layer showed it.
type startFile struct {
	entry  layer.IndexEntry
	layer  int
	offset int64 // in the spool
}

// newStartFiles begins with no more than their paths.
func (w *writer) newStartFiles() (*startFiles, error) {
	s := &startFiles{number: make(map[string]int, len(w.in.Start))}
	if len(w.in.Start) == 0 {
		return s, nil
	}
	for _, p := range w.in.Start {
		if _, twice := s.number[p]; !twice {
			s.number[p] = len(s.number)
		}
	}
	s.found = make([]startFile, len(s.number))
	s.key = w.startKey()
	if len(w.reuse.packs(s.key, 0)) > 0 {
		return s, nil
	}
	var err error
	s.spool, err = w.own.TempFile()
	return s, err
}

// startKey names what the segment holds: it is the same for the same layers and paths.
func (w *writer) startKey() store.Digest {
	var text strings.Builder
	for _, l := range w.in.Layers {
		if l.Digest == "" {
			return ""
		}
		fmt.Fprintln(&text, l.Digest)
	}
	fmt.Fprintf(&text, "start %q\n", w.in.Start)
	return store.DigestOf([]byte(text.String()))
}

func (s *startFiles) close() {
	if s.spool != nil {
		s.spool.Close()
	}
}

// takes reports whether a file of a layer is one to be set aside.
func (s *startFiles) takes(e layer.IndexEntry) bool {
	_, ok := s.number[e.Path]
	return ok && e.Size <= startLargest
}

// take sets a file aside.
func (s *startFiles) take(number int, e layer.IndexEntry, open opener) error {
	f := startFile{entry: e, layer: number, offset: s.size}
	if s.spool != nil {
		if err := s.fill(open); err != nil {
			return err
		}
	}
	s.found[s.number[e.Path]] = f
	return nil
}

// fill adds a content to the spool.
func (s *startFiles) fill(open opener) error {
	r, err := open()
	if err != nil {
		return err
	}
	n, err := io.Copy(io.NewOffsetWriter(s.spool, s.size), r)
	s.size += n
	return errors.Join(err, r.Close())
}

// open opens what was set aside.
func (f startFile) open(w *writer) (io.ReadCloser, error) {
	if w.start.spool != nil {
		return io.NopCloser(io.NewSectionReader(w.start.spool, f.offset, f.entry.Size)), nil
	}
	ix, err := w.in.Layers[f.layer].Source.Index(w.ctx)
	if err != nil {
		return nil, err
	}
	return ix.OpenContent(f.entry)
}

// startSegment places what was set aside, in the order in which it is read.
func (w *writer) startSegment() error {
	if len(w.start.found) == 0 {
		return nil
	}
	release, err := w.reuse.claim(w.ctx, Layer{Digest: w.start.key, Name: "the files of the start"})
	if err != nil {
		return err
	}
	seg, err := w.segment(w.reuse.packs(w.start.key, 0), w.addStartFiles)
	if err != nil {
		release()
		return err
	}
	kept := w.reuse.keeping(w.start.key, w.f)
	if seg.Fresh > 0 {
		kept.add(0, seg)
	}
	kept.finish(release)
	return nil
}

func (w *writer) addStartFiles() error {
	for i, f := range w.start.found {
		if f.entry.Size == 0 {
			continue
		}
		data, err := w.sq.Add(w.ctx, squashfs.Key{Offset: int64(i)}, f.entry.Size, func() (io.ReadCloser, error) { return f.open(w) })
		if err != nil {
			return fmt.Errorf("file %q: %w", f.entry.Path, err)
		}
		w.placed[placeOf(f.layer, f.entry)] = data
	}
	return nil
}

// StartDigest names the order of the files of the start in what a file system says about its image; "" without one.
func (in Input) StartDigest() store.Digest {
	if len(in.Start) == 0 {
		return ""
	}
	return store.DigestOf(fmt.Appendf(nil, "%q", in.Start))
}
