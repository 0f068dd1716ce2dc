package clusterfile

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/runtimefiles"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
)

// newStore opens an empty store.
func newStore(t testing.TB) *store.Store {
	t.Helper()
	t.Setenv("SCONCE_SHARED_STORES", "")
	return openStore(t, t.TempDir())
}

func openStore(t testing.TB, dir string) *store.Store {
	t.Helper()
	st, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// object is something in a layer.
type object struct {
	layer.Entry
	data []byte
}

var modTime = time.Unix(1_600_000_000, 0)

func file(path string, data []byte) object {
	return object{layer.Entry{Path: path, Mode: 0o644, Size: int64(len(data)), ModTime: modTime}, data}
}

func dir(path string) object {
	return object{layer.Entry{Path: path, Type: layer.Dir, Mode: 0o755, ModTime: modTime}, nil}
}

func symlink(path, target string) object {
	return object{layer.Entry{Path: path, Type: layer.Symlink, Link: target, Mode: 0o777, ModTime: modTime}, nil}
}

func hardLink(path, to string) object {
	return object{layer.Entry{Path: path, Type: layer.HardLink, Link: to, Mode: 0o644, ModTime: modTime}, nil}
}

func whiteout(path string) object {
	return file(filepath.Join(filepath.Dir(path), layer.WhiteoutPrefix+filepath.Base(path)), nil)
}

func opaque(path string) object { return file(path+"/"+layer.WhiteoutOpaque, nil) }

// noise is data that no compressor makes smaller: it can be found in the file that it was written to.
func noise(seed uint64, n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	p := make([]byte, n)
	_, _ = r.Read(p) // never fails
	return p
}

// prose is data that compresses well.
func prose(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	var b bytes.Buffer
	for b.Len() < n {
		fmt.Fprintf(&b, "%d bottles of %x on the wall, ", r.IntN(100), seed)
	}
	return b.Bytes()[:n]
}

// ownLayer makes a layer as sconce does.
func ownLayer(t testing.TB, st *store.Store, c layer.Compression, objects ...object) layer.Descriptor {
	t.Helper()
	objects = slices.Clone(objects)
	slices.SortFunc(objects, func(a, b object) int {
		if layer.Less(a.Path, b.Path) {
			return -1
		}
		return 1
	})
	w, err := layer.NewWriter(t.Context(), st, layer.Options{Compression: c, ModTime: layer.KeepTimes})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for _, o := range objects {
		err := w.Add(o.Entry, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(o.data)), nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	d, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var tarTypes = map[layer.Type]byte{
	layer.Regular: tar.TypeReg, layer.Dir: tar.TypeDir, layer.Symlink: tar.TypeSymlink, layer.HardLink: tar.TypeLink,
	layer.Char: tar.TypeChar, layer.Block: tar.TypeBlock, layer.Fifo: tar.TypeFifo,
}

// tarOf writes objects as somebody else would, in any order.
func tarOf(t testing.TB, objects ...object) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, o := range objects {
		h := &tar.Header{
			Typeflag: tarTypes[o.Type], Name: o.Path, Linkname: o.Link, Mode: int64(o.Mode), Uid: o.UID, Gid: o.GID, Size: o.Size,
			ModTime: o.ModTime, Devmajor: int64(o.Major), Devminor: int64(o.Minor), Format: tar.FormatPAX, PAXRecords: map[string]string{},
		}
		for name, value := range o.Xattrs {
			h.PAXRecords["SCHILY.xattr."+name] = value
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(o.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// foreignLayer puts a tar that somebody else made into the store, compressed with gzip. The store knows no index of it.
func foreignLayer(t testing.TB, st *store.Store, tarred []byte) layer.Descriptor {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err := z.Write(tarred)
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	digest, err := st.PutBlob(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return layer.Descriptor{
		Digest: digest, DiffID: store.DigestOf(tarred), Size: int64(out.Len()),
		MediaType: "application/vnd.oci.image.layer.v1.tar+gzip",
	}
}

// recorder is a layer that notes what of it is read.
type recorder struct {
	layer.Source
	opened *[]string
}

func (r recorder) Walk(ctx context.Context, visit func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error) error {
	return r.Source.Walk(ctx, func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error {
		return visit(e, func() (io.ReadCloser, error) {
			*r.opened = append(*r.opened, e.Path)
			return open()
		})
	})
}

var config = v1.ConfigFile{
	OS: "linux", Architecture: "amd64", Created: v1.Time{Time: modTime},
	Config: v1.Config{Cmd: []string{"/bin/sh"}, Env: []string{"A=B"}},
}

// inputOf is an image of layers in the store. What is read of the layers on the walk is noted in opened.
func inputOf(st *store.Store, opened *[]string, layers ...layer.Descriptor) Input {
	in := Input{Config: config, Digest: store.DigestOf([]byte(fmt.Sprint(layers)))}
	for _, d := range layers {
		in.Layers = append(in.Layers, Layer{Source: recorder{layer.Stored(st, d), opened}, Digest: d.Digest, Name: d.Digest.Short(), Size: d.RawSize})
	}
	return in
}

// written is a file that was written.
type written struct {
	name   string
	data   []byte
	opened []string // what was read on the walk, in its order
}

func (w written) sum() string { return fmt.Sprintf("%x", sha256.Sum256(w.data)) }

// writeTo writes an image, which must work.
func writeTo(t testing.TB, st *store.Store, o Options, layers ...layer.Descriptor) written {
	t.Helper()
	w, err := tryWrite(t, st, o, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func tryWrite(t testing.TB, st *store.Store, o Options, layers ...layer.Descriptor) (written, error) {
	t.Helper()
	w := written{name: filepath.Join(t.TempDir(), "image.sqsh")}
	f, err := os.Create(w.name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	o.Store = st
	if o.Squashfs.Compression == squashfs.Stored && o.Squashfs.BlockSize == 0 {
		o.Squashfs = squashfs.DefaultOptions()
	}
	if err := WriteSquashfs(t.Context(), f, inputOf(st, &w.opened, layers...), o); err != nil {
		return w, err
	}
	w.data, err = os.ReadFile(w.name)
	if err != nil {
		t.Fatal(err)
	}
	return w, nil
}

// reader opens a file that was written, after checking every block of it.
func (w written) reader(t testing.TB) *squashfs.Reader {
	t.Helper()
	r, err := squashfs.New(bytes.NewReader(w.data), int64(len(w.data)))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.CheckData(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// tree describes everything in a file system but the directories and files of the personality, path by path. Other names
// of a file are described by its first name.
func (w written) tree(t testing.TB) map[string]string {
	t.Helper()
	own := map[string]bool{".": true, ".singularity.d": true}
	for _, p := range runtimefiles.Paths() {
		own[strings.TrimPrefix(p, "/")] = true
	}
	tree := map[string]string{}
	first := map[uint32]string{}
	err := w.reader(t).Walk(func(path string, f *squashfs.File) error {
		if own[path] || strings.HasPrefix(path, ".singularity.d/") {
			return nil
		}
		if name, ok := first[f.Number]; ok {
			tree[path] = "= " + name
			return nil
		}
		first[f.Number] = path
		text, err := describe(f)
		tree[path] = text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// describe says everything about a file in one line.
func describe(f *squashfs.File) (string, error) {
	text := fmt.Sprintf("%o %d:%d", f.Mode, f.UID, f.GID)
	switch f.Type {
	case squashfs.Dir:
		text = "dir " + text
	case squashfs.Symlink:
		text = "-> " + f.Target
	case squashfs.Char, squashfs.Block:
		text = fmt.Sprintf("%s %s %d,%d", map[squashfs.Type]string{squashfs.Char: "char", squashfs.Block: "block"}[f.Type], text, f.Major, f.Minor)
	case squashfs.Fifo:
		text = "fifo " + text
	case squashfs.Regular:
		data, err := io.ReadAll(f.Content())
		if err != nil {
			return "", err
		}
		text = fmt.Sprintf("file %s x%d %s", text, f.Links, sumOf(data))
	}
	if !f.ModTime.Equal(modTime) {
		text += " at " + f.ModTime.UTC().Format(time.RFC3339)
	}
	xattrs, err := f.Xattrs()
	if len(xattrs) > 0 {
		text += fmt.Sprintf(" %q", xattrs) // fmt sorts the keys
	}
	return text, err
}

// sumOf describes data shortly.
func sumOf(data []byte) string { return fmt.Sprintf("%d %x", len(data), sha256.Sum256(data))[:24] }
