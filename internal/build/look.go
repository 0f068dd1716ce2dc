package build

import (
	"context"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/store"
)

// Where says where the result of a step is.
type Where string

// The places.
const (
	Here     Where = "here"     // in the store
	Shared   Where = "registry" // in the cache of steps of a registry
	ToMake   Where = "to make"
	NotAsked Where = "not needed" // files of its stage are wanted by no step that is to be made

	// IfChanged: to make, unless what it is based on comes out as it was. Who compares with the last build says so.
	IfChanged Where = "if changed"
)

// Look is what is known of a step's result before anything is made.
type Look struct {
	Where    Where
	Download int64 // bytes that making it brings from the network, as far as the lock says; -1: not known
}

// LookAround says of each step of a plan, by its key, where its result is. It makes and downloads nothing; of a registry's cache it
// asks whether there is an entry.
func LookAround(ctx context.Context, p *plan.Plan, o Options) (map[plan.Key]Look, error) {
	b := newBuilder(p, o)
	looks := make(map[plan.Key]Look)
	var digest store.Digest
	built, err := o.Store.GetRecord(store.KindImageStep, string(p.Image.Key), &digest)
	if err != nil {
		return nil, err
	}
	needed := make(map[*plan.Stage]bool)
	b.wanted(ctx, p.Stage, needed)
	looks[p.Image.Key] = Look{Where: ToMake}
	if built {
		looks[p.Image.Key] = Look{Where: Here}
	}
	return looks, p.EachStage(func(s *plan.Stage) error {
		for _, t := range s.Steps {
			if t.Op == nil {
				continue
			}
			look, err := b.look(ctx, t)
			if err != nil {
				return err
			}
			switch {
			case look.Where != ToMake:
			case built && p.StandsOn(s):
				look = Look{Where: Here} // as a part of the image
			case built || !needed[s]:
				look = Look{Where: NotAsked}
			}
			looks[t.Key] = look
		}
		return nil
	})
}

func (b *builder) look(ctx context.Context, t *plan.Step) (Look, error) {
	kind := store.KindStep
	download := fetch.Needed(b.opts.Store, downloads(t.Op))
	switch op := t.Op.(type) {
	case *plan.Base:
		return b.lookForBase(ctx, op, download), nil
	case *plan.OSPackages:
		kind = store.KindSystem
	case *plan.CondaPackages:
		kind = store.KindCondaLayer
	case *plan.CondaActivation:
		kind = store.KindActivation
	case *plan.Wheels:
		kind = store.KindWheelLayer
	case *plan.Compile:
		download = -1
	}
	var ignored any
	found, err := b.opts.Store.GetRecord(kind, string(t.Key), &ignored)
	switch {
	case err != nil:
		return Look{}, err
	case found && !b.opts.Again:
		return Look{Where: Here}, nil
	case !b.opts.Again && b.opts.Shared.Has(ctx, kind, string(t.Key)):
		return Look{Where: Shared}, nil
	}
	return Look{Where: ToMake, Download: download}, nil
}

// downloads lists the files that making a step brings, as far as the lock says.
func downloads(op plan.Op) (files []fetch.Request) {
	add := func(d store.Digest, size int64) { files = append(files, fetch.Request{Digest: d, Size: size}) }
	switch op := op.(type) {
	case *plan.Base:
		if op.Pinned.Bootstrap != nil {
			for _, p := range op.Pinned.Bootstrap.Packages {
				add(p.SHA256, p.Size)
			}
		}
	case *plan.OSPackages:
		for _, p := range op.Pinned.Packages {
			add(p.SHA256, p.Size)
		}
	case *plan.CondaPackages:
		for _, p := range op.Group.Packages {
			add(p.SHA256, p.Size)
		}
	case *plan.Wheels:
		for _, it := range op.Group.Items {
			add(it.Digest, it.Size)
		}
	}
	return files
}

// Packages returns the bytes of all packages that an image consists of, as far as the lock says: as they are downloaded, whatever has been.
func Packages(p *plan.Plan) (bytes int64) {
	for s := p.Stage; s != nil; s = s.From {
		for _, t := range s.Steps {
			for _, f := range downloads(t.Op) {
				bytes += f.Size
			}
		}
	}
	return bytes
}

func (b *builder) lookForBase(ctx context.Context, op *plan.Base, download int64) Look {
	var digest store.Digest
	switch p := op.Pinned; {
	case len(p.Remove) > 0:
		if found, err := b.opts.Store.GetRecord(store.KindBase, p.Key(), &digest); found && err == nil {
			return Look{Where: Here}
		}
		return Look{Where: ToMake, Download: -1}
	case p.Recipe != "":
		if found, err := b.opts.Store.GetRecord(store.KindImageStep, p.ImageKey, &digest); found && err == nil {
			return Look{Where: Here}
		}
		return Look{Where: ToMake}
	case p.Bootstrap != nil:
		if found, err := b.opts.Store.GetRecord(store.KindBootstrap, p.Key(), &digest); found && err == nil {
			return Look{Where: Here}
		}
		return Look{Where: ToMake, Download: download}
	}
	if _, err := image.Load(ctx, b.opts.Store, op.Pinned.Digest); err == nil {
		return Look{Where: Here}
	}
	look := Look{Where: ToMake}
	if op.Pinned.Name != "" { // it comes from a registry
		look.Download = -1
	}
	return look
}

// checkRoom returns an error when the store has no room for all that the steps to be made download. Layers of a base that comes from a
// registry do not count here, nor does what is made: how large that gets nobody knows.
func (b *builder) checkRoom(ctx context.Context) error {
	var steps []*plan.Step
	var most []fetch.Request
	for _, s := range b.wanted(ctx, b.plan.Stage, make(map[*plan.Stage]bool)) {
		for _, t := range s.Steps {
			if files := downloads(t.Op); len(files) > 0 {
				steps, most = append(steps, t), append(most, files...)
			}
		}
	}
	if fetch.CheckRoom(b.opts.Store, most) == nil { // whatever has been made already
		return nil
	}
	var files []fetch.Request
	for _, t := range steps {
		look, err := b.look(ctx, t)
		if err != nil {
			return err
		}
		if look.Where == ToMake {
			files = append(files, downloads(t.Op)...)
		}
	}
	return fetch.CheckRoom(b.opts.Store, files)
}
