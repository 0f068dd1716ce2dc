package export

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/filelock"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// Names of the OCI image layout (image-spec, image-layout and annotations).
const (
	layoutFile = "oci-layout"
	indexFile  = "index.json"
	refNameKey = "org.opencontainers.image.ref.name"
)

// layoutVersion is the whole of the oci-layout file.
const layoutVersion = `{"imageLayoutVersion":"1.0.0"}`

// writerKey marks an index that sconce has written, so that an image that was given no tag may be replaced by a later build.
const (
	writerKey    = "dev.sconce.layout"
	writerTagged = "1"
	writerAlone  = "alone" // the layout is that image's, whose tag is its own
)

// maxIndex bounds an index that is read, in bytes.
const maxIndex = 4 << 20

// entry is the image's line in the layout's index.
func (w *writer) entry() v1.Descriptor {
	p := w.im.Platform()
	return v1.Descriptor{
		MediaType: types.MediaType(w.im.MediaType), Size: w.im.Size, Digest: hash(w.im.Digest), Annotations: w.label.annotations(),
		Platform: &v1.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant},
	}
}

func hash(d store.Digest) v1.Hash { return v1.Hash{Algorithm: "sha256", Hex: d.Hex()} }

// newIndex is an index that sconce writes. alone says that it holds the one image that was written without giving it a tag.
func newIndex(entries []v1.Descriptor, alone bool) v1.IndexManifest {
	by := writerTagged
	if alone {
		by = writerAlone
	}
	return v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: entries, Annotations: map[string]string{writerKey: by}}
}

// layoutHolds reports whether the layout has the image under its label, with all its blobs.
func (w *writer) layoutHolds() bool {
	index, err := readIndex(w.target.Path)
	if err != nil || index == nil {
		return false
	}
	listed, own := false, w.entry()
	for _, m := range index.Manifests {
		listed = listed || (m.Digest == own.Digest && maps.Equal(m.Annotations, own.Annotations))
	}
	if w.target.Tag == "" && len(index.Manifests) != 1 {
		return false
	}
	for _, b := range blobsOf(w.im) {
		st, err := os.Stat(blobFile(w.target.Path, b.digest))
		listed = listed && err == nil && st.Size() == b.size
	}
	return listed
}

// blob is a blob of an image.
type blob struct {
	digest store.Digest
	size   int64
}

// blobsOf lists the image's blobs, each once: layers first, so that what refers to others comes after them.
func blobsOf(im *image.Image) []blob {
	var out []blob
	seen := map[store.Digest]bool{}
	add := func(d store.Digest, size int64) {
		if !seen[d] {
			seen[d] = true
			out = append(out, blob{d, size})
		}
	}
	for _, l := range im.Layers {
		add(l.Digest, l.Size)
	}
	add(configDigest(im), im.Manifest.Config.Size)
	add(im.Digest, im.Size)
	return out
}

func configDigest(im *image.Image) store.Digest {
	return store.Digest(im.Manifest.Config.Digest.String())
}

func blobFile(dir string, d store.Digest) string {
	return filepath.Join(dir, "blobs", "sha256", d.Hex())
}

// readIndex reads a layout's index; nil when there is none.
func readIndex(dir string) (*v1.IndexManifest, error) {
	name := filepath.Join(dir, indexFile)
	st, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxIndex {
		return nil, fmt.Errorf("%s is not an index", name)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	index := &v1.IndexManifest{}
	if err := json.Unmarshal(data, index); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return index, nil
}

// layout writes an OCI layout: a new one beside its name and then moved, an existing one by adding blobs and then
// replacing the index, under a lock on the directory.
func (w *writer) layout() error {
	st, err := os.Lstat(w.target.Path)
	if errors.Is(err, fs.ErrNotExist) {
		err := w.newLayout()
		if !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
		return w.updateLayout() // another process was faster
	}
	if err != nil {
		return err
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		if st, err = os.Stat(w.target.Path); err != nil {
			return err
		}
	}
	if !st.IsDir() {
		return errIsFile()
	}
	return w.updateLayout()
}

func (w *writer) newLayout() error {
	tmp, err := os.MkdirTemp(filepath.Dir(w.target.Path), tempPattern(w.target.Path))
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755&^umask()); err != nil {
		return err
	}
	if err := w.fillLayout(tmp, []v1.Descriptor{w.entry()}); err != nil {
		return err
	}
	return moveDir(tmp, w.target.Path)
}

func (w *writer) updateLayout() error {
	lock, err := lockDir(w.ctx, w.target.Path)
	if err != nil {
		return err
	}
	defer lock.Close()
	index, err := readIndex(w.target.Path)
	if err != nil && !w.force {
		return err
	}
	if index == nil {
		if err := mayFill(w.target.Path, w.force); err != nil {
			return err
		}
		index = &v1.IndexManifest{}
	}
	entries, err := w.merge(index)
	if err != nil {
		return err
	}
	return w.fillLayout(w.target.Path, entries)
}

// mayFill refuses a directory that holds something else than the beginning of a layout.
func mayFill(dir string, force bool) error {
	found, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range found {
		if name := e.Name(); name != "blobs" && name != layoutFile && !force {
			return fault.Hint(fmt.Errorf("the directory holds %q and is no OCI layout", name), "choose another name, or write into it with --force")
		}
	}
	return nil
}

// merge puts the image into the index under its tag. An image without a tag is all there is, so it replaces only what
// sconce has written so, or everything by force.
func (w *writer) merge(index *v1.IndexManifest) ([]v1.Descriptor, error) {
	own := w.entry()
	if w.target.Tag == "" {
		if !writtenAlone(index) && !w.force {
			return nil, errOtherImages()
		}
		return []v1.Descriptor{own}, nil
	}
	var out []v1.Descriptor
	for _, m := range index.Manifests {
		if m.Annotations[refNameKey] != w.target.Tag {
			out = append(out, m)
		}
	}
	return append(out, own), nil
}

// writtenAlone reports whether an index holds nothing, or one image that sconce wrote without being given a tag.
func writtenAlone(index *v1.IndexManifest) bool {
	if len(index.Manifests) != 1 {
		return len(index.Manifests) == 0
	}
	by := index.Annotations[writerKey]
	return by == writerAlone || by != "" && index.Manifests[0].Annotations[refNameKey] == ""
}

// fillLayout puts the blobs into dir, then what makes it a layout.
func (w *writer) fillLayout(dir string, entries []v1.Descriptor) error {
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
		return err
	}
	for _, b := range blobsOf(w.im) {
		if err := w.ctx.Err(); err != nil {
			return context.Cause(w.ctx)
		}
		if err := w.putBlob(dir, b); err != nil {
			return fmt.Errorf("blob %s: %w", b.digest, err)
		}
		w.task.Add(b.size)
	}
	if err := atomicfile.Write(filepath.Join(dir, layoutFile), []byte(layoutVersion), 0o644); err != nil {
		return err
	}
	index, err := json.Marshal(newIndex(entries, w.target.Tag == ""))
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, indexFile), index, 0o644)
}

func (w *writer) putBlob(dir string, b blob) error {
	to := blobFile(dir, b.digest)
	if st, err := os.Stat(to); err == nil && st.Size() == b.size {
		return nil
	}
	from, err := w.st.BlobPath(b.digest)
	if err != nil {
		return err
	}
	tmp := to + ".sconce-" + fmt.Sprint(os.Getpid())
	os.Remove(tmp)       // left by a process of the same number that was killed
	defer os.Remove(tmp) // does nothing after the rename
	if err := clone(from, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, to)
}

// lockDir takes an exclusive lock on a directory itself, which leaves no file behind and holds across stores.
func lockDir(ctx context.Context, dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	var waiting filelock.Wait
	for {
		err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return d, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			d.Close()
			if errors.Is(err, unix.ENOLCK) || errors.Is(err, unix.ENOTSUP) { // some network file systems have no locks
				return os.Open(dir)
			}
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		if note := waiting.NoteOn(d, "writes "+dir); note != "" {
			progress.Wait(ctx, note, waiting.Waited())
		}
		select {
		case <-ctx.Done():
			d.Close()
			return nil, context.Cause(ctx)
		case <-time.After(lockPoll):
		}
	}
}

// lockPoll is how often a lock that another process holds is asked for.
const lockPoll = 50 * time.Millisecond
