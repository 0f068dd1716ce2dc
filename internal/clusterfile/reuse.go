package clusterfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
)

// packRecord lists the packs of a layer, the newest last: a [store.KindPacks], under the layer's digest and the compression. There
// may be several, since images show different parts of the layer.
type packRecord struct {
	Packs []storedPack `json:"packs"`
}

type storedPack struct {
	Index store.Digest `json:"index"`           // blob: where each file is in Data
	Data  store.Digest `json:"data"`            // blob: compressed blocks
	Size  int64        `json:"size"`            // of Data, in bytes
	Piece int64        `json:"piece,omitempty"` // of the layer, see pieceSize
	Blob  string       `json:"blob,omitempty"`  // the blobState under which it counts; "": the layer was read to its end
}

// maxPacks is how many packs of each piece of a layer are kept.
const maxPacks = 4

const verifyHint = "run `sconce cache verify --remove`"

// maxPackIndex bounds the index of a pack, in bytes.
const maxPackIndex = 1 << 30

// reuse keeps what was compressed for layers in the store, and finds it there.
//
// An index is only used when it has its hash. Compressed blocks are copied without being looked at, as the kernel does it
// fastest, so a bit of theirs that has flipped on the disk gets into the files that are made with them: `sconce cache
// verify` finds it, and --no-reuse avoids it. A block that has to be taken apart is checked.
type reuse struct {
	ctx    context.Context // of the one file that is written
	st     *store.Store
	key    string // of the compression
	off    bool
	anew   bool // use nothing of what the store has: it is damaged
	opened []*os.File
	known  map[store.Digest]map[int64][]*squashfs.Pack // by piece
	saving *errgroup.Group
}

func newReuse(ctx context.Context, o Options) *reuse {
	r := &reuse{ctx: ctx, st: o.Store, key: o.Squashfs.Key(), off: o.NoReuse, known: map[store.Digest]map[int64][]*squashfs.Pack{}}
	r.begin()
	return r
}

func (r *reuse) begin() {
	r.saving = new(errgroup.Group)
	r.saving.SetLimit(1) // it is the disk that is busy
}

// close lets go of the packs that were read.
func (r *reuse) close() {
	_ = r.wait()
	for _, f := range r.opened {
		f.Close()
	}
}

// wait waits until everything that is to be kept is in the store. The next image would do without, so what goes wrong is
// only a warning, unless the work was called off.
func (r *reuse) wait() error {
	err := r.saving.Wait()
	r.begin()
	if err != nil {
		progress.Warn(r.ctx, fmt.Sprintf("what was compressed could not be kept for the next image: %v", err), "see `sconce cache info`")
	}
	return r.ctx.Err()
}

func (r *reuse) recordKey(layer store.Digest) string {
	return store.DigestOf(fmt.Appendf(nil, "%s\n%s pieces=%d", layer, r.key, pieceSize)).Hex()
}

// packs returns what the store has of a piece of a layer. What cannot be read is as good as nothing: it is compressed again.
func (r *reuse) packs(layer store.Digest, piece int64) []*squashfs.Pack {
	return r.all(layer)[piece]
}

// all returns what the store has of a layer, by piece.
func (r *reuse) all(layer store.Digest) map[int64][]*squashfs.Pack {
	if r.off || r.anew || layer == "" {
		return nil
	}
	if known, ok := r.known[layer]; ok {
		return known
	}
	packs := map[int64][]*squashfs.Pack{}
	for _, stored := range r.recorded(layer) {
		p, err := r.open(stored)
		if err != nil {
			progress.Warn(r.ctx, fmt.Sprintf("what was compressed of layer %s before cannot be used: %v", layer.Short(), err), verifyHint)
			continue
		}
		packs[stored.Piece] = append(packs[stored.Piece], p)
	}
	if len(packs) > 0 { // else another process may bring some
		r.known[layer] = packs
	}
	return packs
}

// recorded lists the packs of a layer that count.
func (r *reuse) recorded(layer store.Digest) []storedPack {
	var record packRecord
	if ok, err := r.st.GetRecord(store.KindPacks, r.recordKey(layer), &record); err != nil || !ok {
		return nil
	}
	return counting(record.Packs, func() string { return blobState(r.st, layer) })
}

// counting returns those of a layer's packs that count now that its blob is in this state.
func counting(packs []storedPack, state func() string) []storedPack {
	now := ""
	if slices.ContainsFunc(packs, storedPack.provisional) {
		now = state()
	}
	return slices.DeleteFunc(packs, func(p storedPack) bool { return p.provisional() && p.Blob != now })
}

// provisional reports whether the layer has not been read to its end yet.
func (p storedPack) provisional() bool { return p.Blob != "" }

func (r *reuse) open(stored storedPack) (*squashfs.Pack, error) {
	index, err := r.st.ReadBlob(stored.Index, maxPackIndex)
	if err != nil {
		return nil, err
	}
	f, err := r.st.OpenBlob(stored.Data)
	if err != nil {
		return nil, err
	}
	r.opened = append(r.opened, f)
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() != stored.Size {
		return nil, fmt.Errorf("blob %s has %d bytes, not %d", stored.Data.Short(), st.Size(), stored.Size)
	}
	return squashfs.DecodePack(index, f, stored.Size)
}

// keeps reports whether what is compressed of a layer is kept.
func (r *reuse) keeps(layer store.Digest) bool { return !r.off && layer != "" && !r.st.ReadOnly() }

// claim lets one process at a time compress a layer of which the store has nothing: others that write it wait, and find it done.
// What is claimed is released when it is kept, or is not going to be.
//
// Nobody who has claimed a layer waits for another one before that: what was compressed is kept in the background, or by whoever
// compresses beside.
func (r *reuse) claim(ctx context.Context, l Layer) (release func(), err error) {
	release = func() {}
	if !r.keeps(l.Digest) || r.anew || r.has(l.Digest) {
		return release, nil
	}
	lock, err := r.st.Lock(ctx, "compress "+string(store.KindPacks)+" "+r.recordKey(l.Digest), "compresses "+l.Name)
	if err != nil {
		return release, err
	}
	if r.has(l.Digest) {
		return release, lock.Unlock()
	}
	return func() { _ = lock.Unlock() }, nil
}

// has reports whether the store has what was compressed of a layer when it was last read to its end, and may be used.
func (r *reuse) has(layer store.Digest) bool {
	if r.off || r.anew || layer == "" {
		return false
	}
	return slices.ContainsFunc(r.recorded(layer), func(p storedPack) bool { return !p.provisional() })
}

// keeping puts segments of f with something new of a layer into the store, in the background.
type keeping struct {
	r     *reuse
	layer store.Digest
	f     *os.File
	state string         // of the layer's blob when it began to be read; "": what is kept waits until that has come to its end
	later []func() error // what waits
}

func (r *reuse) keeping(layer store.Digest, f *os.File) *keeping {
	k := &keeping{r: r, layer: layer, f: f}
	if r.keeps(layer) {
		k.state = blobState(r.st, layer)
	}
	return k
}

// add keeps the segment of a piece.
func (k *keeping) add(piece int64, seg *squashfs.Segment) {
	if !k.r.keeps(k.layer) {
		return
	}
	save := func() error { return k.r.save(k.layer, k.f, seg, storedPack{Piece: piece, Blob: k.state}) }
	if k.state == "" {
		k.later = append(k.later, save)
		return
	}
	k.r.saving.Go(save)
}

// finish says that the layer has been read to its end, and releases it when everything is kept.
func (k *keeping) finish(release func()) {
	if !k.r.keeps(k.layer) {
		release()
		return
	}
	k.r.saving.Go(func() error {
		defer release()
		for _, save := range k.later {
			if err := save(); err != nil {
				return err
			}
		}
		return k.r.confirm(k.layer, k.state)
	})
}

func (r *reuse) save(layer store.Digest, f *os.File, seg *squashfs.Segment, stored storedPack) (err error) {
	stored.Size = seg.End - seg.Start
	if stored.Data, err = r.copyToStore(io.NewSectionReader(f, seg.Start, stored.Size)); err != nil {
		return err
	}
	if stored.Index, err = r.copyToStore(bytes.NewReader(seg.Pack.Encode())); err != nil {
		return err
	}
	return r.addPack(layer, seg.Pack, stored)
}

// copyToStore makes a blob, also where the store has it: what it has may be damaged.
func (r *reuse) copyToStore(from io.Reader) (store.Digest, error) {
	w, err := r.st.NewBlob()
	if err != nil {
		return "", err
	}
	defer w.Close()
	if _, err := io.CopyBuffer(w, ctxio.Reader(r.ctx, from), make([]byte, 1<<20)); err != nil {
		return "", err
	}
	return w.Commit("")
}

// addPack adds a pack to the record of its layer. Those of the same piece that have nothing more than the new one are dropped.
func (r *reuse) addPack(layer store.Digest, fresh *squashfs.Pack, stored storedPack) error {
	return r.change(layer, func(packs []storedPack) []storedPack {
		packs = slices.DeleteFunc(packs, func(old storedPack) bool {
			return old.Piece == stored.Piece && (old.Data == stored.Data && old.Index == stored.Index || r.covered(old, fresh))
		})
		packs = append(packs, stored)
		of := func(p storedPack) bool { return p.Piece == stored.Piece }
		if have := len(packs) - len(slices.DeleteFunc(slices.Clone(packs), of)); have > maxPacks {
			oldest := slices.IndexFunc(packs, of)
			packs = slices.Delete(packs, oldest, oldest+1)
		}
		return packs
	})
}

// confirm notes that a layer has been read to its end, from a blob in this state: what was kept on the way counts from now on, and what an
// earlier blob has left does not.
func (r *reuse) confirm(layer store.Digest, state string) error {
	var record packRecord
	if ok, err := r.st.GetRecord(store.KindPacks, r.recordKey(layer), &record); err != nil || !ok || !slices.ContainsFunc(record.Packs, storedPack.provisional) {
		return err
	}
	return r.change(layer, func(packs []storedPack) []storedPack {
		packs = counting(packs, func() string { return state })
		for i := range packs {
			packs[i].Blob = ""
		}
		return packs
	})
}

// change changes the record of a layer.
func (r *reuse) change(layer store.Digest, change func([]storedPack) []storedPack) error {
	key := r.recordKey(layer)
	lock, err := r.st.Lock(r.ctx, string(store.KindPacks)+" "+key, "keeps blocks for the next image")
	if err != nil {
		return err
	}
	defer lock.Unlock()
	var record packRecord
	if _, err := r.st.GetRecord(store.KindPacks, key, &record); err != nil {
		record = packRecord{}
	}
	record.Packs = change(record.Packs)
	var refs []store.Digest
	for _, p := range record.Packs {
		refs = append(refs, p.Index, p.Data)
	}
	return r.st.PutRecord(store.KindPacks, key, refs, record)
}

// covered reports whether everything of an old pack is in a new one.
func (r *reuse) covered(old storedPack, fresh *squashfs.Pack) bool {
	index, err := r.st.ReadBlob(old.Index, maxPackIndex)
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	p, err := squashfs.DecodePack(index, nil, old.Size)
	return err != nil || fresh.Covers(p)
}
