package source

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// dockerManifest is the member that lists the images of an archive of `docker save`.
const dockerManifest = "manifest.json"

// dockerImage is one entry of it.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// dockerArchive offers the members of a docker archive as the blobs of an OCI image whose manifest is made here.
type dockerArchive struct {
	opts    Options
	files   files
	members map[v1.Hash]string // blob to member
}

func openDockerArchive(ctx context.Context, ref Ref, o Options) (v1.Image, error) {
	a, err := openArchive(ctx, ref.Value, o.Store)
	if err != nil {
		return nil, err
	}
	data, err := readFile(a, dockerManifest, maxManifest)
	if err != nil {
		return nil, fmt.Errorf("it is no docker archive: %w", err)
	}
	var images []dockerImage
	if err := json.Unmarshal(data, &images); err != nil {
		return nil, fmt.Errorf("read %s: %w", dockerManifest, err)
	}
	entry, err := chooseDocker(images, ref.Tag)
	if err != nil {
		return nil, err
	}
	d := &dockerArchive{opts: o, files: a, members: map[v1.Hash]string{}}
	manifest, err := d.manifest(ctx, entry)
	if err != nil {
		return nil, err
	}
	return newImage(ctx, o.Store, manifest, d)
}

func chooseDocker(images []dockerImage, tag string) (dockerImage, error) {
	var tags []string
	for _, im := range images {
		if tag != "" && slices.ContainsFunc(im.RepoTags, func(t string) bool { return sameName(t, tag) }) {
			return im, nil
		}
		tags = append(tags, im.RepoTags...)
	}
	there := "there is " + strings.Join(tags, ", ")
	switch {
	case tag != "":
		return dockerImage{}, fmt.Errorf("%w: it holds no image %q; %s", errNoSuch, tag, there)
	case len(images) == 0:
		return dockerImage{}, fmt.Errorf("%w: it is empty", errNoSuch)
	case len(images) > 1:
		return dockerImage{}, fault.Hint(fmt.Errorf("it holds %d images; %s", len(images), there), "put the name behind the path: PATH:NAME:TAG")
	}
	return images[0], nil
}

// sameName compares names as docker writes them, with or without registry and default tag. A tag alone will do.
func sameName(have, want string) bool {
	full := func(s string) string {
		if name, tag := store.SplitImageName(s); tag == "" {
			return name + ":" + store.DefaultTag
		}
		return s
	}
	have, want = full(have), full(want)
	return have == want || strings.HasSuffix(have, "/"+want) || strings.HasSuffix(have, ":"+strings.TrimSuffix(want, ":"+store.DefaultTag))
}

// manifest makes the OCI manifest. The config stays as it is, and so do the layers: plain tars, whose digest is their
// diffID, except where a tool has put compressed ones in.
func (d *dockerArchive) manifest(ctx context.Context, entry dockerImage) ([]byte, error) {
	raw, err := readFile(d.files, entry.Config, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	var config v1.ConfigFile
	if err := json.Unmarshal(raw, &config); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if have := len(config.RootFS.DiffIDs); have != len(entry.Layers) {
		return nil, fmt.Errorf("%s lists %d layers, the config %d", dockerManifest, len(entry.Layers), have)
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Layers: []v1.Descriptor{}}
	m.Config = v1.Descriptor{MediaType: types.OCIConfigJSON, Size: int64(len(raw)), Digest: v1Hash(store.DigestOf(raw))}
	d.members[m.Config.Digest] = entry.Config
	for i, name := range entry.Layers {
		desc, err := d.layer(ctx, name, config.RootFS.DiffIDs[i])
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", name, err)
		}
		d.members[desc.Digest] = name
		m.Layers = append(m.Layers, desc)
	}
	return json.Marshal(m)
}

func v1Hash(d store.Digest) v1.Hash { return v1.Hash{Algorithm: "sha256", Hex: d.Hex()} }

// layer describes a member that holds a layer.
func (d *dockerArchive) layer(ctx context.Context, name string, diffID v1.Hash) (v1.Descriptor, error) {
	rc, size, err := d.files.open(name)
	if err != nil {
		return v1.Descriptor{}, err
	}
	defer rc.Close()
	head := make([]byte, 4)
	if _, err := io.ReadFull(rc, head); err != nil {
		return v1.Descriptor{}, err
	}
	mediaType := layerType(head)
	if mediaType == types.OCIUncompressedLayer {
		return v1.Descriptor{MediaType: mediaType, Size: size, Digest: diffID}, nil
	}
	digest, err := checkCompressed(ctx, io.MultiReader(bytes.NewReader(head), rc), diffID)
	return v1.Descriptor{MediaType: mediaType, Size: size, Digest: v1Hash(digest)}, err
}

// layerType tells a layer's compression by its magic number (RFC 1952 section 2.3.1, RFC 8878 section 3.1.1).
func layerType(head []byte) types.MediaType {
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return types.OCILayer
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return types.OCILayerZStd
	}
	return types.OCIUncompressedLayer
}

// checkCompressed returns the digest of a compressed layer after making sure that it unpacks to its diffID.
func checkCompressed(ctx context.Context, r io.Reader, diffID v1.Hash) (store.Digest, error) {
	outer, inner := sha256.New(), sha256.New()
	tee := io.TeeReader(ctxio.Reader(ctx, r), outer)
	plain, err := layer.Decompress(tee)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(inner, plain)
	if err = errors.Join(err, plain.Close()); err != nil {
		return "", err
	}
	if _, err := io.Copy(io.Discard, tee); err != nil { // what a decompressor leaves unread is hashed too
		return "", err
	}
	if got := store.SumDigest(inner); string(got) != diffID.String() {
		return "", &store.MismatchError{Want: store.Digest(diffID.String()), Got: got}
	}
	return store.SumDigest(outer), nil
}

// bring implements blobs.
func (d *dockerArchive) bring(ctx context.Context, desc v1.Descriptor, follow follow) error {
	return copyBlob(ctx, d.opts.Store, desc, follow, func() (io.ReadCloser, error) {
		rc, _, err := d.files.open(d.members[desc.Digest])
		return rc, err
	})
}
