package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tempdir"
)

// Facts is the kind of the document that names an image's packed facts, and the file beside it holds them.
const (
	Facts         = "facts"
	factsFileKind = "facts-file"
	factsType     = "https://sconce.dev/facts/v1"
	factsFileType = "application/vnd.sconce.facts.v1.tar+zstd"
)

// packedFacts is what is signed of an image's facts.
type packedFacts struct {
	Format string       `json:"format"` // see [facts.PackedFormat]
	Digest store.Digest `json:"digest"` // of the file
	Size   int64        `json:"size"`   // in bytes
}

// AttachFacts keeps what an audit reads of an image beside it in a repository, HOST/PATH, signed: who believes the key need not download
// the layers for a check.
func (s *Session) AttachFacts(ctx context.Context, repository string, im *image.Image, key *attest.PrivateKey) error {
	if err := s.attachFacts(ctx, repository, im, key); err != nil {
		return fmt.Errorf("attach the facts: %w", err)
	}
	return nil
}

func (s *Session) attachFacts(ctx context.Context, repository string, im *image.Image, key *attest.PrivateKey) error {
	w, err := s.Store.NewBlob()
	if err != nil {
		return err
	}
	defer w.Close()
	b := bufio.NewWriterSize(w, 1<<20)
	look := func(f *facts.Facts) error { return readForAll(ctx, f) }
	if err := errors.Join(facts.Pack(ctx, s.Store, im, look, b), b.Flush()); err != nil {
		return err
	}
	d, err := w.Commit("")
	if err != nil {
		return err
	}
	size, err := s.Store.BlobSize(d)
	if err == nil && size > facts.MaxPacked {
		err = fmt.Errorf("they take %d bytes", size)
	}
	if err != nil {
		return err
	}
	book, err := s.Evidence(repository, key, nil)
	if err != nil {
		return err
	}
	if err := book.AttachFile(ctx, im.Digest, factsFileKind, factsFileType, d); err != nil {
		return err
	}
	return book.Attach(ctx, im.Digest, Facts, factsType, packedFacts{facts.PackedFormat, d, size}, nil)
}

// readForAll has the rules read all that they do for one target or another.
func readForAll(ctx context.Context, f *facts.Facts) error {
	for _, t := range allTargets() {
		if _, err := audit.Check(ctx, f, t); err != nil {
			return err
		}
	}
	return nil
}

// allTargets are the clusters that are known here, and one of each kind otherwise: which files a rule reads depends on what a target says.
func allTargets() []cluster.Profile {
	targets := []cluster.Profile{{}}
	found, _ := cluster.List("") // one that is wrong is none
	for _, f := range found {
		targets = append(targets, f.Profile)
	}
	whole := cluster.Profile{
		GPU: []string{"9.0"}, Driver: "550.54.15", Glibc: "2.31", PMI: "pmix", NCCLNet: "ofi", MPI: "mpich", CPULevel: 3,
		Injects: []string{"libcuda.so.1", "libfabric.so.1", "libmpi.so.12"},
	}
	add := func(change func(p *cluster.Profile)) {
		p := whole
		change(&p)
		targets = append(targets, p)
	}
	for _, r := range []cluster.Runtime{cluster.ContainerEngine, cluster.Pyxis, cluster.Enroot, cluster.Apptainer, cluster.Podman} {
		add(func(p *cluster.Profile) { p.Runtime = r })
	}
	for _, n := range []cluster.Fabric{cluster.Slingshot, cluster.InfiniBand, cluster.RoCE, cluster.EFA, cluster.Ethernet} {
		add(func(p *cluster.Profile) { p.Fabric, p.MPI = n, "openmpi" })
	}
	for level := 1; level <= 4; level++ {
		add(func(p *cluster.Profile) { p.CPULevel, p.Injects = level, nil })
	}
	return targets
}

// trusted is whose facts about an image are believed.
type trusted struct {
	keys       []*attest.PublicKey
	repository string // that holds the facts, HOST/PATH; "": the image's own
}

// Trust has [Session.Check] and [Session.GPU] believe facts about the image that one of the keys has signed, where the image is in a registry: then no
// layer is downloaded. repository holds the facts, HOST/PATH; "" is the image's own.
func (s *Subject) Trust(keys []*attest.PublicKey, repository string) error {
	if s.Ref.Transport != source.Docker {
		return fmt.Errorf("%s is in no registry: there is nothing signed beside it", s.Name)
	}
	s.trusted = &trusted{keys, repository}
	return nil
}

// errLayer is why no layer comes while packed facts are read.
var errLayer = errors.New("they do not hold all that this release of sconce reads of the image")

// withoutLayers is an image of which nothing is brought but manifest and configuration.
type withoutLayers struct{ v1.Image }

func (withoutLayers) LayerByDigest(v1.Hash) (v1.Layer, error) { return nil, errLayer }

// useTrusted has use look at facts about an image that somebody has signed who is believed, and close them, and reports whether there was
// nothing wrong with them. Otherwise that is told: then the layers tell.
func (s *Session) useTrusted(ctx context.Context, subject *Subject, use func(*facts.Facts) error) (used bool, err error) {
	if subject.trusted == nil {
		return false, nil
	}
	img, err := subject.View(ctx)
	if err != nil {
		return false, err
	}
	err = s.usePacked(ctx, subject, img, use)
	if err == nil || ctx.Err() != nil {
		return err == nil, err
	}
	progress.Warn(ctx, fmt.Sprintf("the facts about %s beside it are not used: %s", subject.Name, reasonOf(err)), "")
	return false, nil
}

// GPU lists the device code of an image: by facts that are believed, see [Subject.Trust], or by its files.
func (s *Session) GPU(ctx context.Context, subject *Subject) (report *facts.GPUReport, err error) {
	used, err := s.useTrusted(ctx, subject, func(f *facts.Facts) error {
		report = f.GPU
		return f.Close()
	})
	if used || err != nil {
		return report, err
	}
	files, err := subject.Files(ctx)
	if err != nil {
		return nil, err
	}
	return facts.GPU(ctx, files)
}

// reasonOf leaves out which layer was wanted first.
func reasonOf(err error) error {
	if errors.Is(err, errLayer) {
		return errLayer
	}
	return err
}

func (s *Session) usePacked(ctx context.Context, subject *Subject, img v1.Image, use func(*facts.Facts) error) error {
	f, err := s.openPacked(ctx, subject, img)
	if err != nil {
		return err
	}
	defer f.Close()
	st, done, err := s.sideStore(ctx)
	if err != nil {
		return err
	}
	defer done()
	o, err := image.ReadOutline(ctx, st, withoutLayers{img})
	if err != nil {
		return err
	}
	gathered, err := facts.OfPacked(ctx, st, o, f, subject.Name)
	if err != nil {
		return err
	}
	return use(gathered)
}

// openPacked opens the packed facts about an image that somebody has signed who is believed.
func (s *Session) openPacked(ctx context.Context, subject *Subject, img v1.Image) (*os.File, error) {
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	repository := subject.trusted.repository
	if repository == "" {
		repository = subject.Ref.Value
	}
	book, err := s.Evidence(repository, nil, subject.trusted.keys)
	if err != nil {
		return nil, err
	}
	statement, err := book.Find(ctx, store.Digest(digest.String()), Facts, factsType)
	if err != nil {
		return nil, err
	}
	var p packedFacts
	switch {
	case statement == nil:
		return nil, fmt.Errorf("there are none in %s that the key has signed", repository)
	case statement.PredicateType != factsType || json.Unmarshal(statement.Predicate, &p) != nil:
		return nil, fmt.Errorf("they are of another kind: %s", statement.PredicateType)
	case p.Format != facts.PackedFormat:
		return nil, errors.New("another release of sconce has gathered them, and they are not comparable")
	}
	if _, err := store.ParseDigest(string(p.Digest)); err != nil || p.Size <= 0 || p.Size > facts.MaxPacked {
		return nil, errors.New("their file has no digest or size that can be")
	}
	return book.OpenFile(ctx, p.Digest, p.Size, "facts")
}

// sideStore opens a store for what is believed for a moment only, and by nobody else. done removes it.
func (s *Session) sideStore(ctx context.Context) (st *store.Store, done func(), err error) {
	dir, remove, err := s.sideDir()
	if err != nil {
		return nil, nil, err
	}
	if st, err = store.OpenShared(ctx, dir, nil); err != nil {
		remove()
		return nil, nil, err
	}
	return st, func() {
		_ = st.Close()
		remove()
	}, nil
}

// sideDir makes a directory in the store, or where temporary files are if that cannot be written.
func (s *Session) sideDir() (dir string, remove func(), err error) {
	dir, err = s.Store.TempDir("facts-*")
	if errors.Is(err, store.ErrReadOnly) {
		return tempdir.Make("facts")
	}
	return dir, func() { _ = store.RemoveAll(dir) }, err
}
