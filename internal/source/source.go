// Package source opens images wherever they are: a registry, an OCI layout or archive, a docker archive, a squashfs or SIF
// file, a root file system as a tar or a directory, or the store itself.
//
// [Open] gives a lazy view: the manifest and config are read, the layers are brought only when they are asked for.
// [Import] brings everything into the store.
package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// Options say where to and for whom an image is opened.
type Options struct {
	Store    *store.Store
	Fetch    *fetch.Client // nil: a new one
	Platform v1.Platform   // of the image wanted; zero: whatever there is, and this machine's where there is a choice
	Offline  bool

	// What a root file system is said to be for where Platform is zero and no program in it tells; zero: that is an error.
	Otherwise v1.Platform

	// Accept, unless nil, is asked by [Import] about the image's platform before any of its layers comes. Its error ends the import.
	Accept func(v1.Platform) error
}

func (o Options) withDefaults() Options {
	if o.Fetch == nil {
		o.Fetch = fetch.New(o.Store, fetch.Options{Offline: o.Offline})
	}
	return o
}

func (o Options) accept(config *v1.ConfigFile) error {
	p := config.Platform()
	if o.Accept == nil || p == nil {
		return nil
	}
	return o.Accept(*p)
}

// errNoSuch is wrapped by errors about a tag or digest that an image source does not hold.
var errNoSuch = errors.New("no such image")

// Open opens an image. Where there are several, the platform decides; the error lists those there are.
func Open(ctx context.Context, ref Ref, o Options) (v1.Image, error) {
	o = o.withDefaults()
	img, err := open(ctx, ref, o)
	if err != nil {
		err = fmt.Errorf("open %s: %w", ref, err)
		if near := nearPath(ref.Value); near != "" && errors.Is(err, fs.ErrNotExist) && ref.Transport != Docker && ref.Transport != Store {
			err = fault.Hint(err, near)
		}
		return nil, err
	}
	if err := checkImage(img, ref, o.Platform); err != nil {
		return nil, fmt.Errorf("open %s: %w", ref, err)
	}
	return img, nil
}

func open(ctx context.Context, ref Ref, o Options) (v1.Image, error) {
	switch ref.Transport {
	case Docker:
		return openRegistry(ctx, ref, o)
	case OCI:
		return openLayout(ctx, ref, o)
	case OCIArchive:
		return openOCIArchive(ctx, ref, o)
	case DockerArchive:
		return openDockerArchive(ctx, ref, o)
	case Tar, Dir, Squashfs, SIF:
		im, err := importRoot(ctx, ref, o)
		if err != nil {
			return nil, err
		}
		return im.V1(o.Store)
	case Store:
		return openStored(ctx, ref, o)
	}
	return nil, fault.Usage(fmt.Errorf("%q is not a kind of image source", ref.Transport))
}

// ChangedError says that a name no longer means the image that was pinned. Who has pinned it knows how to do so again.
type ChangedError struct{ Pinned, Now store.Digest }

func (e *ChangedError) Error() string {
	return fmt.Sprintf("it is not what was pinned: expected %s, got %s", e.Pinned, e.Now)
}

// checkImage refuses an image for another platform, or other than what was pinned.
func checkImage(img v1.Image, ref Ref, want v1.Platform) error {
	raw, err := img.RawManifest()
	if err != nil {
		return err
	}
	if got := store.DigestOf(raw); ref.Digest != "" && got != ref.Digest {
		return &ChangedError{Pinned: ref.Digest, Now: got}
	}
	if want.OS == "" && want.Architecture == "" {
		return nil
	}
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	have := v1.Platform{OS: config.OS, Architecture: config.Architecture, Variant: config.Variant}
	if !matches(have, want) {
		return &PlatformError{Want: want, Have: []v1.Platform{have}}
	}
	return nil
}

// Pin returns the reference to exactly the image with that digest.
func Pin(ref Ref, d store.Digest) (Ref, error) {
	if _, err := store.ParseDigest(string(d)); err != nil {
		return Ref{}, fmt.Errorf("pin %s: %w", ref, err)
	}
	ref.Digest = d
	return ref, nil
}

// Resolve finds out which image a reference means now, for a lock file: the digest is that of the image's manifest, not
// of the index that holds it. A root file system is imported for it.
func Resolve(ctx context.Context, ref Ref, o Options) (Ref, store.Digest, error) {
	img, err := Open(ctx, ref, o)
	if err != nil {
		return Ref{}, "", err
	}
	raw, err := img.RawManifest()
	if err != nil {
		return Ref{}, "", fmt.Errorf("resolve %s: %w", ref, err)
	}
	pinned, err := Pin(ref, store.DigestOf(raw))
	return pinned, pinned.Digest, err
}

// Import brings an image into the store, complete and checked. A pinned image that is there already is returned at once,
// without network.
func Import(ctx context.Context, ref Ref, o Options) (*image.Image, error) {
	o = o.withDefaults()
	if im, err := pinned(ctx, ref, o); im != nil || err != nil {
		return im, err
	}
	task := progress.Begin(ctx, "pull", ref.String(), 0)
	im, err := importOpened(ctx, ref, o)
	return im, task.End(err)
}

// pinned returns the image that is wanted by its digest, if all of it is in the store.
func pinned(ctx context.Context, ref Ref, o Options) (*image.Image, error) {
	if ref.Digest == "" {
		return nil, nil
	}
	im, err := image.Load(ctx, o.Store, ref.Digest)
	switch {
	case err == nil:
		return im, o.accept(&im.Config)
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	}
	return nil, fmt.Errorf("import %s: %w", ref, err)
}

func importOpened(ctx context.Context, ref Ref, o Options) (*image.Image, error) {
	img, err := openAccepted(ctx, ref, o)
	if err != nil {
		return nil, err
	}
	im, err := image.Import(ctx, o.Store, img, o.Fetch.Jobs())
	if err == nil {
		err = checkPlatform(platformOfConfig(&im.Config))
	}
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", ref, err)
	}
	return im, nil
}

// openAccepted opens an image whose platform will do.
func openAccepted(ctx context.Context, ref Ref, o Options) (v1.Image, error) {
	img, err := Open(ctx, ref, o)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", ref, err)
	}
	return img, o.accept(config)
}

// Arrive is [Import] for a caller who uses the upper layers while the lower ones come.
func Arrive(ctx context.Context, ref Ref, o Options) (*image.Arrival, error) {
	o = o.withDefaults()
	im, err := pinned(ctx, ref, o)
	if err != nil {
		return nil, err
	}
	if im != nil {
		img, err := im.V1(o.Store)
		if err != nil {
			return nil, err
		}
		return arrive(ctx, img, ref, o, func(error) {})
	}
	task := progress.Begin(ctx, "pull", ref.String(), 0)
	img, err := openAccepted(ctx, ref, o)
	if err != nil {
		return nil, task.End(err)
	}
	a, err := arrive(ctx, img, ref, o, func(err error) { _ = task.End(err) })
	if err != nil {
		return nil, task.End(err)
	}
	return a, nil
}

func arrive(ctx context.Context, img v1.Image, ref Ref, o Options, end func(error)) (*image.Arrival, error) {
	return image.Arrive(ctx, o.Store, img, o.Fetch.Jobs(), fmt.Sprintf("import %s: import image", ref), end)
}

// openStored opens an image of the store by its name or digest.
func openStored(ctx context.Context, ref Ref, o Options) (v1.Image, error) {
	d := ref.Digest
	if d == "" {
		found, err := o.Store.FindImage(ref.name())
		if err != nil {
			return nil, err
		}
		d = found.Digest
	}
	im, err := image.Load(ctx, o.Store, d)
	if err != nil {
		return nil, err
	}
	return im.V1(o.Store)
}

// wanted is the platform to choose by.
func (o Options) wanted() v1.Platform {
	p := o.Platform
	p.OS = cmp.Or(p.OS, "linux")
	p.Architecture = cmp.Or(p.Architecture, runtime.GOARCH)
	return p
}
