package facts

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"

	"github.com/klauspost/compress/zstd"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Packed facts are what an audit reads of an image besides manifest and configuration, in a file that stands for the layers: a tar,
// compressed with zstd, of
//
//	index/N      what layer N holds, 0 being the lowest: its index in the stored form
//	facts.json   a packedImage
//
// They hold the pieces of files that the audit has read when they were made. One that reads others needs the layers.
type packedImage struct {
	Layers []packedLayer `json:"layers"`
	Image  imageFacts    `json:"image"`
	Pages  []keptPage    `json:"pages"`
}

type packedLayer struct {
	Digest  store.Digest `json:"digest"` // of the blob
	RawSize int64        `json:"rawSize"`
	Facts   layerFacts   `json:"facts"`
}

// PackedFormat is what packed facts depend on besides the image: they are read by those alone who would write the same.
var PackedFormat = fmt.Sprintf("%d; %s; pages of %d; %s", factsVersion, layer.IndexFormat, pageSize,
	store.DigestOf([]byte(shapeOf(reflect.TypeFor[packedImage]()))).Hex()[:16])

// Limits on packed facts, in bytes. An image with a million files has some 60 MB of them.
const (
	MaxPacked      = 512 << 20
	maxUnpacked    = 2 << 30
	packedFactsTar = "facts.json"
	packedIndexTar = "index/"
)

// Pack writes the packed facts of an image that is in a store. look reads what audits will read. The same image, store and look give
// the same bytes.
func Pack(ctx context.Context, st *store.Store, im *image.Image, look func(*Facts) error, w io.Writer) error {
	if st.ReadOnly() {
		return fmt.Errorf("pack what is known of %s: %w", im.Digest.Short(), store.ErrReadOnly)
	}
	p, err := gatherPacked(ctx, st, im, look)
	if err != nil {
		return err
	}
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	for i, d := range im.Layers {
		index, err := layer.ReadIndex(st, d)
		if err == nil {
			err = addMember(t, packedIndexTar+strconv.Itoa(i), index)
		}
		if err != nil {
			return errors.Join(err, z.Close())
		}
	}
	data, err := json.Marshal(p)
	if err == nil {
		err = addMember(t, packedFactsTar, data)
	}
	return errors.Join(err, t.Close(), z.Close())
}

func addMember(t *tar.Writer, name string, data []byte) error {
	if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), Format: tar.FormatUSTAR}); err != nil {
		return err
	}
	_, err := t.Write(data)
	return err
}

// gatherPacked gathers what is packed besides the indexes.
func gatherPacked(ctx context.Context, st *store.Store, im *image.Image, look func(*Facts) error) (p packedImage, err error) {
	l := newLayered(ctx, st, im, "")
	l.root.pages.all = true
	if l.root.tree, err = im.Tree(ctx, st); err != nil {
		return p, errors.Join(err, l.facts.Close())
	}
	f, err := l.gatherTree(ctx, st)
	if err != nil {
		return p, err
	}
	err = look(f)
	p.Image, p.Pages = imageFacts{f.Links, f.Pythons, f.Conda}, l.root.pages.wanted()
	if err = errors.Join(err, f.Close()); err != nil {
		return p, err
	}
	for _, d := range im.Layers {
		var known layerFacts // of a layer without any file that is worth a look, nothing is kept
		l.cache.get(store.KindAuditLayer, l.cache.key(string(d.DiffID)), &known)
		p.Layers = append(p.Layers, packedLayer{d.Digest, d.RawSize, known})
	}
	return p, nil
}

// OfPacked is [OfOutline] for an image of which no layer is known to the store but by what is packed: by who says so is for the caller
// to judge, and the store must be one that nobody else believes. What the packed facts do not hold is asked of the outline.
func OfPacked(ctx context.Context, st *store.Store, o *image.Outline, packed io.Reader, name string) (*Facts, error) {
	p, err := unpack(st, o.Image, packed)
	if err != nil {
		return nil, err
	}
	l := newLayered(ctx, st, o.Image, name)
	l.root.pages.all = true
	l.root.pages.load(pageRecord{p.Pages})
	if err := l.cache.put(store.KindAuditImage, l.togetherKey(), p.Image); err != nil {
		return nil, errors.Join(err, l.facts.Close())
	}
	return l.ofOutline(ctx, st, o)
}

// unpack makes the layers of an image known to a store.
func unpack(st *store.Store, im *image.Image, packed io.Reader) (p packedImage, err error) {
	indexes := map[string][]byte{}
	if p, err = readPacked(packed, indexes); err != nil {
		return p, fmt.Errorf("the packed facts are damaged: %w", err)
	}
	same := func(l packedLayer, d layer.Descriptor) bool { return l.Digest == d.Digest }
	if !slices.EqualFunc(p.Layers, im.Layers, same) {
		return p, errors.New("the packed facts are of other layers")
	}
	c := cache{st}
	for i, d := range im.Layers {
		d.RawSize = p.Layers[i].RawSize
		if err := layer.PutIndex(st, d, indexes[packedIndexTar+strconv.Itoa(i)]); err != nil {
			return p, err
		}
		if err := c.put(store.KindAuditLayer, c.key(string(d.DiffID)), p.Layers[i].Facts); err != nil {
			return p, err
		}
	}
	return p, nil
}

func readPacked(packed io.Reader, indexes map[string][]byte) (p packedImage, err error) {
	z, err := zstd.NewReader(io.LimitReader(packed, MaxPacked), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return p, err
	}
	defer z.Close()
	t := tar.NewReader(io.LimitReader(z, maxUnpacked))
	for {
		h, err := t.Next()
		if err != nil {
			return p, err // also when it ends before the facts
		}
		var data bytes.Buffer
		if _, err := io.Copy(&data, t); err != nil {
			return p, err
		}
		if h.Name == packedFactsTar {
			return p, json.Unmarshal(data.Bytes(), &p)
		}
		indexes[h.Name] = data.Bytes()
	}
}
