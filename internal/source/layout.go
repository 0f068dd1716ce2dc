package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
)

// Names of the OCI image layout (image-spec, image-layout).
const (
	layoutFile   = "oci-layout"
	layoutIndex  = "index.json"
	refNameKey   = "org.opencontainers.image.ref.name"
	fullNameKey  = "io.containerd.image.name" // what docker and containerd write beside it
	layoutSHA256 = "blobs/sha256/"
)

// files is what an OCI layout or a docker archive is made of.
type files interface {
	// open opens a file by its slash-separated name. The error wraps fs.ErrNotExist when there is none.
	open(name string) (io.ReadCloser, int64, error)
}

// readFile reads a small file.
func readFile(from files, name string, limit int64) ([]byte, error) {
	rc, size, err := from.open(name)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	if size > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, limit)
	}
	return io.ReadAll(io.LimitReader(rc, limit))
}

// layout is an image layout as a directory or in an archive.
type layout struct {
	opts  Options
	files files
}

func openLayout(ctx context.Context, ref Ref, o Options) (v1.Image, error) {
	return (&layout{o, dirFiles(ref.Value)}).image(ctx, ref)
}

func openOCIArchive(ctx context.Context, ref Ref, o Options) (v1.Image, error) {
	a, err := openArchive(ctx, ref.Value, o.Store)
	if err != nil {
		return nil, err
	}
	return (&layout{o, a}).image(ctx, ref)
}

func (l *layout) image(ctx context.Context, ref Ref) (v1.Image, error) {
	entries, err := l.entries(ref)
	if err != nil {
		return nil, err
	}
	c := &chooser{want: l.opts.wanted(), any: l.opts.Platform.Architecture == "", read: l.read}
	manifest, err := c.choose(ctx, entries)
	if err != nil {
		return nil, err
	}
	return newImage(ctx, l.opts.Store, manifest, l)
}

// entries returns what the reference may mean.
func (l *layout) entries(ref Ref) ([]v1.Descriptor, error) {
	data, err := readFile(l.files, layoutIndex, maxManifest)
	if err != nil {
		return nil, fmt.Errorf("it is no OCI layout: %w", err)
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("read %s: %w", layoutIndex, err)
	}
	if ref.Digest != "" {
		return l.byDigest(ref.Digest, index)
	}
	if ref.Tag != "" {
		return byTag(ref.Tag, index)
	}
	return untagged(index)
}

// byDigest finds a manifest or index that need not be listed: it may be in an index that is.
func (l *layout) byDigest(d store.Digest, index v1.IndexManifest) ([]v1.Descriptor, error) {
	for _, m := range index.Manifests {
		if m.Digest.String() == string(d) {
			m.Platform = nil // the caller named the image
			return []v1.Descriptor{m}, nil
		}
	}
	rc, size, err := l.files.open(layoutSHA256 + d.Hex())
	if err != nil {
		return nil, fmt.Errorf("%w: it holds nothing with the digest %s", errNoSuch, d)
	}
	rc.Close()
	return []v1.Descriptor{{Digest: v1.Hash{Algorithm: "sha256", Hex: d.Hex()}, Size: size}}, nil
}

func byTag(tag string, index v1.IndexManifest) ([]v1.Descriptor, error) {
	var found []v1.Descriptor
	for _, m := range index.Manifests {
		if m.Annotations[refNameKey] == tag || m.Annotations[fullNameKey] == tag {
			found = append(found, m)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: it holds no tag %q; %s", errNoSuch, tag, listTags(index))
	}
	return found, nil
}

// untagged returns all there is, when that is one image in one or several platforms.
func untagged(index v1.IndexManifest) ([]v1.Descriptor, error) {
	tags := tagsOf(index)
	if len(tags) > 1 {
		return nil, fault.Hint(fmt.Errorf("it holds several images; %s", listTags(index)), "put the tag behind the path: PATH:TAG")
	}
	if len(index.Manifests) == 0 {
		return nil, fmt.Errorf("%w: it is empty", errNoSuch)
	}
	return index.Manifests, nil
}

func tagsOf(index v1.IndexManifest) []string {
	var tags []string
	for _, m := range index.Manifests {
		if t := m.Annotations[refNameKey]; t != "" && !slices.Contains(tags, t) {
			tags = append(tags, t)
		}
	}
	slices.Sort(tags)
	return tags
}

func listTags(index v1.IndexManifest) string {
	tags := tagsOf(index)
	if len(tags) == 0 {
		return "none of its images has a tag"
	}
	const most = 20
	if len(tags) > most {
		tags = append(tags[:most:most], "…")
	}
	return "there is " + strings.Join(tags, ", ")
}

// read implements chooser.read.
func (l *layout) read(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	return readEnsured(ctx, l.opts.Store, l, d, maxConfig)
}

// bring implements blobs.
func (l *layout) bring(ctx context.Context, d v1.Descriptor, follow follow) error {
	return copyBlob(ctx, l.opts.Store, d, follow, func() (io.ReadCloser, error) {
		rc, _, err := l.files.open(layoutSHA256 + d.Digest.Hex)
		return rc, err
	})
}

// dirFiles are the files of a directory.
type dirFiles string

func (d dirFiles) open(name string) (io.ReadCloser, int64, error) {
	full := filepath.Join(string(d), filepath.FromSlash(name))
	st, err := os.Stat(full) // first: opening a pipe would wait for its writer
	if err != nil {
		return nil, 0, err
	}
	if !st.Mode().IsRegular() {
		return nil, 0, &fs.PathError{Op: "open", Path: full, Err: errors.New("not a regular file")}
	}
	f, err := os.Open(full)
	return f, st.Size(), err
}
