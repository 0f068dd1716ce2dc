package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
)

// A uenv in a registry is two artifacts (uenv 9, github.com/eth-cscs/uenv2, which leaves their form to oras): the squashfs file, and about
// it its directory meta, which uenv fetches first. oras writes a file under the title of its layer, and unpacks one that is marked so.
const (
	uenvType     = "application/x-squashfs"
	uenvMetaType = "uenv/meta"
	uenvFile     = "store.squashfs"

	orasFile      = "application/vnd.oci.image.layer.v1.tar" // what oras calls a file of which nothing else is said
	orasDirectory = "application/vnd.oci.image.layer.v1.tar+gzip"
	titleNote     = "org.opencontainers.image.title"
	unpackNote    = "io.deis.oras.content.unpack"
	contentNote   = "io.deis.oras.content.digest" // of the tar before it was compressed
	emptyJSON     = "application/vnd.oci.empty.v1+json"
)

// Limits of a uenv's description.
const (
	maxMetaBytes = 16 << 20
	maxMetaFiles = 10_000
)

// PushUenv sends a uenv file to a registry as the artifact that `uenv image pull` takes, and returns what it is called there. The
// reference is HOST/NAMESPACE/SYSTEM/UARCH/NAME/VERSION:TAG, by which uenv looks for it.
func (s *Session) PushUenv(ctx context.Context, file, to string) (string, error) {
	name, tag := store.SplitImageName(strings.TrimPrefix(to, dockerPrefix))
	if strings.Count(name, "/") < 5 || tag == "" || strings.Contains(to, "@") {
		return "", fault.Usage(fault.Hint(fmt.Errorf("%s is no name that uenv looks for", to), "write HOST/NAMESPACE/SYSTEM/UARCH/NAME/VERSION:TAG"))
	}
	meta, err := packUenvMeta(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	squash, err := s.uenvBlob(ctx, file)
	if err != nil {
		return "", err
	}
	o := registry.PushOptions{Store: s.Store, Fetch: s.Fetch}
	image := &registry.Artifact{Type: uenvType, ConfigType: emptyJSON, Config: []byte("{}"), Blobs: []v1.Descriptor{squash}}
	text, err := image.Manifest()
	if err != nil {
		return "", err
	}
	digest, err := registry.PushArtifact(ctx, image, name, tag, o)
	if err != nil {
		return "", err
	}
	about := descriptor(string(types.OCIManifestSchema1), digest, int64(len(text)))
	return name + ":" + tag + "@" + string(digest), s.pushUenvMeta(ctx, meta, name, about, o)
}

// uenvBlob puts a uenv file into the store.
func (s *Session) uenvBlob(ctx context.Context, file string) (v1.Descriptor, error) {
	f, err := os.Open(file)
	if err != nil {
		return v1.Descriptor{}, err
	}
	defer f.Close()
	task := progress.Begin(ctx, "read", file, 0)
	w, err := s.Store.NewBlob()
	if err != nil {
		return v1.Descriptor{}, task.End(err)
	}
	defer w.Close()
	if _, err := io.Copy(w, f); err != nil {
		return v1.Descriptor{}, task.End(err)
	}
	size := w.Size()
	digest, err := w.Commit("")
	d := descriptor(orasFile, digest, size)
	d.Annotations = map[string]string{titleNote: uenvFile}
	return d, task.End(err)
}

func descriptor(mediaType string, d store.Digest, size int64) v1.Descriptor {
	return v1.Descriptor{MediaType: types.MediaType(mediaType), Digest: v1.Hash{Algorithm: "sha256", Hex: d.Hex()}, Size: size}
}

// pushUenvMeta sends the directory meta of a uenv, and makes it be found by the uenv.
func (s *Session) pushUenvMeta(ctx context.Context, meta []byte, name string, about v1.Descriptor, o registry.PushOptions) error {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(meta); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	blob, err := s.Store.PutBlob(packed.Bytes())
	if err != nil {
		return err
	}
	d := descriptor(orasDirectory, blob, int64(packed.Len()))
	d.Annotations = map[string]string{titleNote: "meta", unpackNote: "true", contentNote: string(store.DigestOf(meta))}
	a := &registry.Artifact{Type: uenvMetaType, ConfigType: emptyJSON, Config: []byte("{}"), Blobs: []v1.Descriptor{d}, Subject: &about}
	text, err := a.Manifest()
	if err != nil {
		return err
	}
	digest, err := registry.PushArtifact(ctx, a, name, "", o)
	if err != nil {
		return err
	}
	repo, err := registry.OpenForWriting(name, registry.Options{Fetch: s.Fetch, Push: true})
	if err != nil {
		return err
	}
	entry := registry.Referrer{MediaType: types.OCIManifestSchema1, Digest: v1.Hash{Algorithm: "sha256", Hex: digest.Hex()}, Size: int64(len(text)), ArtifactType: a.Type}
	return repo.AddReferrer(ctx, store.Digest(about.Digest.String()), entry)
}

// packUenvMeta makes a tar of the directory meta in a uenv file.
func packUenvMeta(file string) ([]byte, error) {
	c, err := source.OpenClusterFile(file)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if c.SIF != nil {
		return nil, fault.Usage(errors.New("it is a SIF file, and a uenv is a squashfs"))
	}
	root, err := facts.RootOf(c)
	if err != nil {
		return nil, err
	}
	if _, err := root.Stat("/meta/env.json"); errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Usage(fault.Hint(errors.New("it is no uenv: there is no meta/env.json in it"), "`sconce export uenv` writes one"))
	}
	var out bytes.Buffer
	m := metaPacker{root: root, tar: tar.NewWriter(&out)}
	if err := m.add("meta"); err != nil {
		return nil, err
	}
	return out.Bytes(), m.tar.Close()
}

// metaPacker writes a directory to a tar, the same for the same files.
type metaPacker struct {
	root  facts.Root
	tar   *tar.Writer
	files int
	bytes int64
}

// add adds a file, or a directory with all that it holds. Links are left out: a description has no need of them.
func (m *metaPacker) add(name string) error {
	info, err := m.root.Stat("/" + name)
	if err != nil {
		return err
	}
	m.files++
	m.bytes += info.Size
	if m.files > maxMetaFiles || m.bytes > maxMetaBytes {
		return fmt.Errorf("its directory meta has more than %d files or %d MB", maxMetaFiles, maxMetaBytes>>20)
	}
	if info.Type != layer.Dir {
		return m.addFile(name, info)
	}
	if err := m.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}); err != nil {
		return err
	}
	entries, err := m.root.ReadDir("/" + name)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := m.add(path.Join(name, e)); err != nil {
			return err
		}
	}
	return nil
}

func (m *metaPacker) addFile(name string, info facts.Info) error {
	if info.Type != layer.Regular || strings.TrimPrefix(info.Path, "/") != name {
		m.bytes -= info.Size
		return nil
	}
	h, err := m.root.Open("/" + name)
	if err != nil {
		return err
	}
	defer h.Close()
	if err := m.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: h.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(m.tar, io.NewSectionReader(h, 0, h.Size()))
	return err
}
