package engine

import (
	"context"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/promote"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
)

// withdrawalPatience is how long a command waits, once it is done, to learn whether an image is withdrawn.
const withdrawalPatience = 2 * time.Second

// lookout looks whether an image of a registry is withdrawn while something else happens with it. It asks for no layer, and shows nothing.
type lookout struct {
	session *Session
	trust   []*attest.PublicKey
	own     promote.Place // Image is "" where there is none; known once top is closed
	said    []string      // likewise
	top     chan struct{}
}

// WarnIfWithdrawn looks, beside what else happens with an image of a registry, whether it is withdrawn. The function that it returns warns when it
// is, or what it is based on, once that is over: image is the digest of its manifest in the store, of an index that of the one that was chosen; "" where
// it did not come. A registry that does not answer in time, or has no notes, keeps nobody from anything.
func (s *Session) WarnIfWithdrawn(ctx context.Context, subject *Subject, trust []*attest.PublicKey) (tell func(image store.Digest)) {
	if subject.Ref.Transport != source.Docker || s.Offline {
		return func(store.Digest) {}
	}
	inner, cancel := context.WithCancel(progress.With(ctx, nil))
	l := &lookout{session: s, trust: trust, top: make(chan struct{})}
	go l.lookAtTop(inner, subject.Ref)
	return func(image store.Digest) {
		defer cancel()
		found := make(chan []string, 1)
		go func() { found <- l.lookBelow(inner, image) }()
		hint := "use another image"
		if len(trust) == 0 {
			hint += "; `sconce verify` with the public key says who has signed this"
		}
		select {
		case said := <-found:
			for _, text := range said {
				progress.Warn(ctx, text, hint)
			}
		case <-time.After(withdrawalPatience):
		case <-ctx.Done():
		}
	}
}

// lookAtTop looks at what a reference leads to, or led to before its tag was taken away.
func (l *lookout) lookAtTop(ctx context.Context, ref source.Ref) {
	defer close(l.top)
	im, err := l.session.Find(ctx, ref.String())
	if err != nil && im.Tag != "" {
		im.Digest, _ = l.session.withdrawnTag(ctx, im.Repository+":"+im.Tag)
	}
	if im.Digest != "" {
		l.own = promote.Place{Name: im.shown(), Image: im.Digest, Repositories: []string{im.Repository}}
		l.look(ctx, l.own)
	}
}

// lookBelow looks, after that, at the image that was chosen, and at what it is based on by its labels, and returns all that was found.
func (l *lookout) lookBelow(ctx context.Context, image store.Digest) []string {
	<-l.top
	if l.own.Image == "" || image == "" {
		return l.said
	}
	if image != l.own.Image {
		l.look(ctx, promote.Place{Image: image, Repositories: l.own.Repositories, How: lists})
	}
	manifest, err := l.session.Store.ReadBlob(image, registry.MaxManifest)
	if err != nil {
		return l.said
	}
	labels, _ := l.session.labelsOf(ctx, l.own.Repositories[0], manifest)
	if name := labels[labelBaseName]; name == "" || strings.Contains(name, "/") && baseAt(l.own.Repositories[0], name, l.own.Image) == nil {
		return l.said // it is of another registry, and nothing more is asked
	}
	below := &tower{session: l.session, trust: l.trust}
	_ = below.addBelow(ctx, l.own.Repositories[0], manifest) // as far as it can be read
	for _, p := range below.all {
		l.look(ctx, p)
	}
	return l.said
}

func (l *lookout) look(ctx context.Context, p promote.Place) {
	note, others, err := promote.Withdrawal(ctx, p, promote.Options{Store: l.session.Store, Fetch: l.session.Fetch, Trust: l.trust})
	if err != nil {
		return
	}
	say := func(n *evidence.Note, more string) {
		text := (&evidence.WithdrawnError{Image: l.own.Name, Note: n, How: p.How}).Error() + more
		if !slices.Contains(l.said, text) {
			l.said = append(l.said, text)
		}
	}
	if note != nil {
		say(note, "")
	}
	for _, n := range others {
		say(n, ", as somebody says whose key is not trusted")
	}
}
