package export

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// tarBlock is the unit of a tar file in bytes (POSIX.1-2017, pax, "ustar Interchange Format").
const tarBlock = 512

// stampKey is the key of the global header that carries the stamp. Every reader knows it as a comment and passes over it.
const stampKey = "comment"

// tarFile writes a deterministic tar whose big members are copied by the kernel. It begins with the stamp.
type tarFile struct {
	f   *os.File
	buf bytes.Buffer // a header on its way to f
}

func newTarFile(f *os.File, stamp string) (*tarFile, error) {
	t := &tarFile{f: f}
	return t, t.header(&tar.Header{
		Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{stampKey: stamp}, Format: tar.FormatPAX,
	})
}

// memberHeader is the header of a member whose name, mode and times say nothing.
func memberHeader(name string, size int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644, ModTime: layer.DefaultModTime, Format: tar.FormatGNU}
}

// header writes a header. Each has a tar writer of its own, since contents do not pass through it.
func (t *tarFile) header(h *tar.Header) error {
	t.buf.Reset()
	if err := tar.NewWriter(&t.buf).WriteHeader(h); err != nil {
		return err
	}
	if over := t.buf.Len() % tarBlock; over > 0 { // of a global header, whose content is part of it
		t.buf.Write(make([]byte, tarBlock-over))
	}
	_, err := t.buf.WriteTo(t.f)
	return err
}

// pad fills the last block of a member of size bytes.
func (t *tarFile) pad(size int64) error {
	_, err := t.f.Write(make([]byte, (tarBlock-size%tarBlock)%tarBlock))
	return err
}

// add writes a small member.
func (t *tarFile) add(name string, data []byte) error {
	if err := t.header(memberHeader(name, int64(len(data)))); err != nil {
		return err
	}
	_, err := t.f.Write(data)
	return errors.Join(err, t.pad(int64(len(data))))
}

// dir writes a directory. Programs of ordinary users that unpack archives fail on directories that are only implied:
// containers' own library gives those to root.
func (t *tarFile) dir(name string) error {
	return t.header(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: layer.DefaultModTime, Format: tar.FormatGNU})
}

// copy writes a member whose bytes are those of a file.
func (t *tarFile) copy(name string, from *os.File, size int64) error {
	if err := t.header(memberHeader(name, size)); err != nil {
		return err
	}
	n, err := t.f.ReadFrom(io.LimitReader(from, size)) // copy_file_range(2)
	if err == nil && n != size {
		err = fmt.Errorf("%s: %w", name, io.ErrUnexpectedEOF)
	}
	return errors.Join(err, t.pad(size))
}

// stream writes a member whose size is known only when it is written: its header is put right afterwards.
func (t *tarFile) stream(name string, from io.Reader) error {
	at, err := t.f.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if err := t.header(memberHeader(name, 0)); err != nil {
		return err
	}
	size, err := io.CopyBuffer(onlyWriter{t.f}, from, make([]byte, 1<<20))
	if err != nil {
		return err
	}
	if err := t.pad(size); err != nil {
		return err
	}
	// The GNU format holds any size in the one block of the header (base 256).
	if err := tar.NewWriter(&t.buf).WriteHeader(memberHeader(name, size)); err != nil {
		return err
	}
	_, err = t.f.WriteAt(t.buf.Bytes(), at)
	t.buf.Reset()
	return err
}

// onlyWriter keeps io.CopyBuffer to the buffer it is given.
type onlyWriter struct{ io.Writer }

// end writes the two empty blocks that end a tar.
func (t *tarFile) end() error {
	_, err := t.f.Write(make([]byte, 2*tarBlock))
	return err
}

// fileStamp reads the stamp of a tar that sconce wrote, "" for anything else. A file that does not end like a tar was
// cut and has none.
func fileStamp(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size()%tarBlock != 0 || st.Size() < 4*tarBlock {
		return ""
	}
	tail := make([]byte, 2*tarBlock)
	if _, err := f.ReadAt(tail, st.Size()-int64(len(tail))); err != nil || len(bytes.Trim(tail, "\x00")) > 0 {
		return ""
	}
	h, err := tar.NewReader(io.LimitReader(f, 4*tarBlock)).Next()
	if err != nil || h.Typeflag != tar.TypeXGlobalHeader || !strings.HasPrefix(h.PAXRecords[stampKey], stampPrefix) {
		return ""
	}
	return h.PAXRecords[stampKey]
}

// ociArchive writes the image layout as a tar, what is small first. Like the archives of docker, it has a manifest.json too, for
// versions of docker that read no layouts.
func (w *writer) ociArchive(f *os.File) error {
	t, err := newTarFile(f, w.stamp())
	if err != nil {
		return err
	}
	index, err := json.Marshal(newIndex([]v1.Descriptor{w.entry()}, w.target.Tag == ""))
	if err != nil {
		return err
	}
	manifest, err := w.dockerManifest(func(d layer.Descriptor) string { return blobMember(d.Digest) }, blobMember(configDigest(w.im)))
	if err != nil {
		return err
	}
	err = errors.Join(t.add(layoutFile, []byte(layoutVersion)), t.add(indexFile, index), t.add(dockerManifest, manifest), t.dir("blobs"), t.dir("blobs/sha256"))
	if err != nil {
		return err
	}
	blobs := blobsOf(w.im)
	slices.Reverse(blobs)
	for _, b := range blobs {
		if err := w.archiveBlob(t, blobMember(b.digest), b); err != nil {
			return err
		}
	}
	return t.end()
}

// blobMember is the name of a blob in an archive.
func blobMember(d store.Digest) string { return "blobs/sha256/" + d.Hex() }

func (w *writer) archiveBlob(t *tarFile, name string, b blob) error {
	if err := w.ctx.Err(); err != nil {
		return context.Cause(w.ctx)
	}
	from, err := w.st.OpenBlob(b.digest)
	if err != nil {
		return err
	}
	defer from.Close()
	w.task.Add(b.size)
	return t.copy(name, from, b.size)
}

// dockerEntry is an image in a docker archive's manifest.json.
type dockerEntry struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}

// dockerManifest is the file by which docker finds the image in an archive.
const dockerManifest = "manifest.json"

// dockerManifest returns the content of that file. member says where a layer is, and config where the configuration is.
func (w *writer) dockerManifest(member func(layer.Descriptor) string, config string) ([]byte, error) {
	e := dockerEntry{Config: config, RepoTags: dockerTags(w.target, w.label), Layers: []string{}}
	for _, l := range w.im.Layers {
		e.Layers = append(e.Layers, member(l))
	}
	return json.Marshal([]dockerEntry{e})
}

// dockerArchive writes what `docker save` does: manifest.json, the config, and the layers uncompressed under their
// diffIDs.
func (w *writer) dockerArchive(f *os.File) error {
	t, err := newTarFile(f, w.stamp())
	if err != nil {
		return err
	}
	config := configDigest(w.im)
	manifest, err := w.dockerManifest(func(l layer.Descriptor) string { return l.DiffID.Hex() + ".tar" }, config.Hex()+".json")
	if err != nil {
		return err
	}
	if err := t.add(dockerManifest, manifest); err != nil {
		return err
	}
	if err := w.archiveBlob(t, config.Hex()+".json", blob{config, w.im.Manifest.Config.Size}); err != nil {
		return err
	}
	seen := map[store.Digest]bool{}
	for _, l := range w.im.Layers {
		if seen[l.DiffID] {
			continue
		}
		seen[l.DiffID] = true
		if err := w.plainLayer(t, l); err != nil {
			return fmt.Errorf("layer %s: %w", l.Digest, err)
		}
	}
	return t.end()
}

// plainLayer writes a layer uncompressed, and checks on the way that it is the one the config names.
func (w *writer) plainLayer(t *tarFile, l layer.Descriptor) error {
	from, err := w.st.OpenBlob(l.Digest)
	if err != nil {
		return err
	}
	defer from.Close()
	plain, err := layer.Decompress(ctxio.Reader(w.ctx, io.TeeReader(from, w.task)))
	if err != nil {
		return err
	}
	defer plain.Close()
	sum := sha256.New()
	if err := t.stream(l.DiffID.Hex()+".tar", io.TeeReader(plain, sum)); err != nil {
		return err
	}
	if got := store.SumDigest(sum); got != l.DiffID {
		return &store.MismatchError{Want: l.DiffID, Got: got}
	}
	return nil
}
