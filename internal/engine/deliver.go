package engine

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/build"
	"sconce.dev/sconce/internal/clusterfile"
	"sconce.dev/sconce/internal/export"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
)

// dockerPrefix begins references to registries.
const dockerPrefix = "docker://"

// Writing says how files of images are written.
type Writing struct {
	Force    bool             // replace what is there, whatever it is
	Squashfs squashfs.Options // of squashfs and SIF files; zero: squashfs.DefaultOptions
	NoReuse  bool             // of those: compress everything anew
	Exactly  bool             // of those: Squashfs was asked for, so that copying a file as it is will not do
	Uenv     Uenv             // of uenvs

	// Start are commands, for a shell, that a user's start of the image consists of. They are run, and the files that they read are
	// written one after the other, so that a start reads squashfs and SIF files in few pieces.
	Start []string
}

// Uenv says which part of an image becomes a uenv.
type Uenv = export.UenvOptions

func (s *Session) writing(w Writing) export.Options {
	if w.Squashfs == (squashfs.Options{}) {
		w.Squashfs = squashfs.DefaultOptions()
	}
	return export.Options{Store: s.Store, Force: w.Force, Squashfs: w.Squashfs, NoReuse: w.NoReuse, Uenv: w.Uenv}
}

// CheckPush finds a mistake in a reference to a registry before anything is made for it.
func CheckPush(to string) error { return export.CheckPush(to) }

// CheckDestination finds a mistake in a destination of [Session.Copy] before anything is made for it.
func CheckDestination(to string, force bool) error {
	if strings.HasPrefix(to, dockerPrefix) {
		return CheckPush(to)
	}
	return CheckOutput(to, force)
}

// CheckOutput finds a mistake in a destination that is no registry before anything is made for it, and refuses one that may not be
// replaced, whatever image it will be.
func CheckOutput(to string, force bool) error {
	t, err := export.ParseTarget(to)
	if err != nil {
		return err
	}
	return export.CheckTarget(t, "", force)
}

// checkOutputs refuses outputs that hold another image before one of this name is made.
func checkOutputs(outputs []string, name string, force bool) error {
	own, _ := store.SplitImageName(name)
	for _, out := range outputs {
		t, err := export.ParseTarget(out)
		if err == nil {
			err = export.CheckTarget(t, own, force)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// packagesShare is what the size of an image's packages is divided by for the least that a squashfs or SIF file of it takes. They are compressed
// better than blocks are, and leave a part of what is in them out.
const packagesShare = 2

// checkOutputRoom returns an error when an image's packages alone are more than a squashfs or SIF file has room for. Of what is slimmed nobody knows
// how much is left.
func (s *Session) checkOutputRoom(p *Plan, outputs []string) error {
	if p.Image.Slim != nil {
		return nil
	}
	for _, out := range outputs {
		t, err := export.ParseTarget(out)
		if err != nil {
			return err
		}
		if !t.IsClusterFile() || t.Transport == export.Uenv { // which is a part of the image
			continue
		}
		if err := export.CheckRoom(t, s.Store, build.Packages(p.Plan)/packagesShare, 0); err != nil {
			return err
		}
	}
	return nil
}

// OutputPath is the file or directory that an output is written to.
func OutputPath(to string) (string, error) {
	t, err := export.ParseTarget(to)
	return t.Path, err
}

// Push sends an image of the store to a registry, "[docker://]HOST/NAME:TAG", and returns what it is called there.
func (s *Session) Push(ctx context.Context, im *image.Image, to string) (string, error) {
	to = strings.TrimPrefix(to, dockerPrefix)
	if err := export.Push(ctx, im, to, registry.PushOptions{Store: s.Store, Fetch: s.Fetch}); err != nil {
		return "", err
	}
	return to + "@" + string(im.Digest), nil
}

// PushUntagged sends an image to a repository, HOST/PATH, under its digest alone.
func (s *Session) PushUntagged(ctx context.Context, im *image.Image, repository string) error {
	return export.PushUntagged(ctx, im, repository, registry.PushOptions{Store: s.Store, Fetch: s.Fetch})
}

// PushSubject sends an image to a registry, under its own tag where the reference has none, and returns what it is called there. With a
// key the image's facts are signed and lie beside it.
func (s *Session) PushSubject(ctx context.Context, from *Subject, to string, sign *attest.PrivateKey) (string, error) {
	if err := CheckPush(to); err != nil {
		return "", err
	}
	im, err := from.Import(ctx)
	if err != nil {
		return "", err
	}
	_, tag := from.ownName()
	to = withTag(to, tag)
	pushed, err := s.Push(ctx, im, to)
	if err != nil || sign == nil {
		return pushed, err
	}
	ref, err := parseRemote(to)
	if err == nil {
		err = s.AttachFacts(ctx, ref.Value, im, sign)
	}
	return pushed, err
}

// withTag adds a tag to a registry's reference that has none.
func withTag(ref, tag string) string {
	_, own := store.SplitImageName(strings.TrimPrefix(ref, dockerPrefix))
	if own != "" || strings.Contains(ref, "@") {
		return ref
	}
	return ref + ":" + tag
}

// Pull brings an image into the store and names it; an empty name is the subject's own.
func (s *Session) Pull(ctx context.Context, from *Subject, name string) (store.ImageRef, error) {
	im, err := from.Import(ctx)
	if err != nil {
		return store.ImageRef{}, err
	}
	if name == "" {
		name = from.OwnName()
	}
	return s.Name(im, name)
}

// Copy brings an image from anywhere to anywhere. pushed is what it is called in a registry, when it went to one.
func (s *Session) Copy(ctx context.Context, from *Subject, to string, w Writing) (pushed string, err error) {
	if strings.HasPrefix(to, dockerPrefix) {
		return s.PushSubject(ctx, from, to, nil)
	}
	t, err := export.ParseTarget(to)
	if err != nil {
		return "", err
	}
	if err := export.CheckTarget(t, "", w.Force); err != nil {
		return "", err
	}
	if t.Transport == export.Plain || t.Transport == export.Uenv { // which say nothing about a platform
		from.how.Otherwise = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	}
	ordered := t.IsClusterFile() && len(w.Start) > 0
	if !ordered {
		if done, err := s.copyDirectly(ctx, from, t, w); done || err != nil {
			return "", err
		}
	}
	how := s.writing(w)
	how.Name = from.knownName()
	if t.IsClusterFile() && !ordered && t.Transport != export.Uenv { // which is described before it is written
		err := writeArriving(ctx, from, t, how)
		if !errors.Is(err, unix.ENOSPC) {
			return "", err
		}
		// What was thrown away by now took room too. One after the other may do, and says best what is missing.
	}
	im, err := from.Import(ctx)
	if err != nil {
		return "", err
	}
	return "", s.write(ctx, im, t, how, w.Start)
}

func writeTo(ctx context.Context, im *image.Image, to string, how export.Options) error {
	t, err := export.ParseTarget(to)
	if err != nil {
		return err
	}
	return export.Write(ctx, im, t, how)
}

// write writes an image to a destination, with what the commands of a start read in one place where the destination has such an order.
func (s *Session) write(ctx context.Context, im *image.Image, to export.Target, how export.Options, start []string) error {
	if to.IsClusterFile() {
		var err error
		if how.Start, err = s.startOrder(ctx, im, start); err != nil {
			return err
		}
	}
	return export.Write(ctx, im, to, how)
}

// writeArriving writes an image while its layers come into the store.
func writeArriving(ctx context.Context, from *Subject, to export.Target, how export.Options) error {
	a, err := from.Arrive(ctx)
	if err != nil {
		return err
	}
	defer a.Close()
	how.Layer = a.Layer
	err = export.Write(ctx, a.Image, to, how)
	if missing := a.Err(); err != nil && missing != nil {
		return source.Explain(missing, from.Name, from.Ref, from.session.Store)
	}
	return err
}

// copyDirectly copies to a squashfs or SIF file what does not have to pass through the store: the file system of another
// such file, and a root file system in a tar. It reports whether this was such a copy.
func (s *Session) copyDirectly(ctx context.Context, from *Subject, t export.Target, w Writing) (bool, error) {
	if !t.IsClusterFile() || t.Transport == export.Uenv { // which is a part of the image
		return false, nil
	}
	switch {
	case from.IsClusterFile() && !w.Exactly:
		return copyPartition(ctx, from, t, s.writing(w))
	case from.Ref.Transport == source.Tar:
		return copyTar(ctx, from, t, s.writing(w))
	}
	return false, nil
}

// copyPartition copies a file system as it is. One that the runtime of the target does not know how to start has to be
// written anew.
func copyPartition(ctx context.Context, from *Subject, to export.Target, how export.Options) (bool, error) {
	c, err := from.ClusterFile()
	if err != nil {
		return false, err
	}
	if to.Transport != export.Plain && !clusterfile.RunsUnder(c.FS, to.Transport == source.SIF) {
		return false, nil
	}
	return true, export.CopyClusterFile(ctx, c, to, how)
}

func copyTar(ctx context.Context, from *Subject, to export.Target, how export.Options) (bool, error) {
	t, err := source.OpenTarRoot(ctx, from.Ref, from.how)
	if t == nil || err != nil {
		return false, err
	}
	defer t.Close()
	in := clusterfile.FromTar(t, filepath.Base(from.Ref.Value))
	in.Plain = to.Transport == export.Plain
	return true, export.WriteClusterFile(ctx, in, to, how)
}
