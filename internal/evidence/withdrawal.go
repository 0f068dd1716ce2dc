package evidence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
)

// WithdrawalType is the type of the statement that an image is withdrawn, or is so no longer.
const WithdrawalType = "https://sconce.dev/withdrawal/v1"

// Withdrawn is the kind of the attachment that says so: there is one beside an image, in each repository where it was withdrawn.
const Withdrawn = "withdrawn"

// The states of an image in a withdrawal.
const (
	stateWithdrawn = "withdrawn"
	stateLifted    = "lifted"
)

// Limits on what a withdrawal says.
const (
	MaxBecause  = 1000 // characters of a reason
	maxChanges  = 100  // the last of which are kept
	timeOfNotes = time.RFC3339
)

// withdrawal is the predicate: what was said about an image, the last of which counts.
type withdrawal struct {
	Changes []change `json:"changes"`
}

type change struct {
	State   string `json:"state"`
	Because string `json:"because"`
	At      string `json:"at"` // RFC 3339

	Tags []string `json:"tags,omitempty"` // that led to the image in this repository, and may be gone now
}

// IsWithdrawal reports whether a tag is that of a withdrawal.
func IsWithdrawal(tag string) bool {
	_, ok := ImageOf(tag)
	return ok && strings.HasPrefix(tag, attPrefix) && strings.HasSuffix(tag, "."+Withdrawn)
}

// Note is what a repository says about whether an image is withdrawn.
type Note struct {
	Repository string       `json:"repository"` // HOST/PATH
	Image      store.Digest `json:"image"`
	Withdrawn  bool         `json:"withdrawn"` // otherwise that it is so no longer
	Because    string       `json:"because"`   // in one line
	At         time.Time    `json:"at"`
	Trusted    bool         `json:"trusted"` // a key that counts has signed it

	// Doubtful is one of which nobody knows what it said: somebody has written over it, or its key is revoked. It counts as withdrawn until a
	// trusted key says otherwise.
	Doubtful bool `json:"doubtful,omitempty"`

	changes []change
}

// Note reads what is said about an image, whoever has said it; nil: nothing is. That costs one small request where nothing is. With keys, what one of
// them has signed later counts whatever the tag leads to: whoever may write can move it.
func (b *Book) Note(ctx context.Context, image store.Digest) (*Note, error) {
	data, _, err := b.repo.Manifest(ctx, AttachmentTags(image)+Withdrawn)
	if registry.IsAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s, key, err := b.whoever(ctx, data)
	if err != nil {
		return nil, err
	}
	n := b.noteIn(s, image)
	if n != nil {
		n.Trusted = key == Counts
	}
	if len(b.trust) > 0 {
		signed, err := b.Referring(ctx, image, WithdrawalType)
		if err != nil {
			return nil, err
		}
		if listed := b.noteIn(signed, image); listed != nil && (n == nil || !n.Trusted || listed.At.After(n.At)) {
			listed.Trusted = true
			return listed, nil
		}
	}
	switch {
	case n == nil:
		n = &Note{Repository: b.name, Image: image, Doubtful: true}
	case key == Uncounted, len(b.trust) > 0 && !n.Trusted && !n.Withdrawn:
		n.Doubtful = true
	}
	if n.Doubtful && !n.Withdrawn {
		n.Withdrawn, n.Because = true, "somebody has written over the note about this image, and no trusted key has signed what is there"
	}
	return n, nil
}

// noteIn is the note that a statement is, nil where it is none about the image.
func (b *Book) noteIn(s *attest.Statement, image store.Digest) *Note {
	if s == nil || !s.IsAbout(image) || s.PredicateType != WithdrawalType {
		return nil
	}
	var said withdrawal
	if json.Unmarshal(s.Predicate, &said) != nil || len(said.Changes) == 0 {
		return nil
	}
	last := said.Changes[len(said.Changes)-1]
	n := &Note{Repository: b.name, Image: image, Withdrawn: last.State != stateLifted, Because: OneLine(last.Because), changes: said.Changes}
	n.At, _ = time.Parse(timeOfNotes, last.At) // what is damaged is old
	return n
}

// whoever reads the statement of a manifest, and says how the key counts that has signed it: [Uncounted] is one that is revoked. nil: it holds none.
func (b *Book) whoever(ctx context.Context, manifest []byte) (s *attest.Statement, key Standing, err error) {
	var text []byte
	key = Stranger
	if document, unsigned := unsignedDocument(manifest); unsigned {
		text, err = b.document(ctx, document)
	} else if text, err = b.bundle(ctx, manifest); err == nil && text != nil {
		if s, err := b.verify(text); err == nil {
			return s, Counts, nil
		}
		if _, err := attest.Verify(text, b.trust...); errors.Is(err, attest.ErrUncounted) {
			key = Uncounted
		}
		text = attest.Payload(text)
	}
	if err != nil || json.Unmarshal(text, &s) != nil {
		return nil, Stranger, err
	}
	return s, key, nil
}

// OneLine makes a text of somebody else's fit for a line, whatever prints it: without control characters, and no longer than a reason may be.
func OneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > MaxBecause {
		text = string(runes[:MaxBecause]) + "…"
	}
	return text
}

// NoteOfTag reads what is said about the image that a tag led to before it was withdrawn; nil: nothing is.
func (b *Book) NoteOfTag(ctx context.Context, tag string) (*Note, error) {
	tags, err := b.repo.Tags(ctx)
	if err != nil {
		return nil, err
	}
	for _, at := range tags {
		if !IsWithdrawal(at) {
			continue
		}
		data, _, err := b.repo.Manifest(ctx, at)
		if registry.IsAbsent(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var m struct {
			Subject v1.Descriptor `json:"subject"`
		}
		if json.Unmarshal(data, &m) != nil {
			continue
		}
		image, err := store.ParseDigest(m.Subject.Digest.String())
		if err != nil {
			continue
		}
		n, err := b.Note(ctx, image)
		if err != nil {
			return nil, err
		}
		if n != nil && slices.ContainsFunc(n.changes, func(c change) bool { return slices.Contains(c.Tags, tag) }) {
			return n, nil
		}
	}
	return nil, nil
}

// Withdraw writes beside an image that it is withdrawn, or with lift that it is so no longer, after what was said before. tags lead to it here. What
// is said already is not said again. It reports whether it has written.
func (b *Book) Withdraw(ctx context.Context, image store.Digest, because string, lift bool, tags []string, at time.Time) (bool, error) {
	before, err := b.Note(ctx, image)
	if err != nil {
		return false, err
	}
	var said withdrawal
	if before != nil && !before.Doubtful && before.Trusted == (b.opts.Key != nil) {
		if before.Withdrawn == !lift && before.Because == because {
			return false, nil
		}
		said.Changes = before.changes[max(0, len(before.changes)-maxChanges+1):]
	}
	if lift && (before == nil || !before.Withdrawn || !before.Doubtful && before.Trusted != (b.opts.Key != nil)) {
		return false, nil // there is nothing, or it is not ours to lift
	}
	state := stateWithdrawn
	if lift {
		state = stateLifted
	}
	said.Changes = append(said.Changes, change{State: state, Because: because, At: at.UTC().Format(timeOfNotes), Tags: tags})
	notes := map[string]string{"dev.sconce.withdrawn": state}
	if b.opts.Key == nil {
		return true, b.Attach(ctx, image, Withdrawn, WithdrawalType, said, notes)
	}
	s, err := attest.New(image, b.name, WithdrawalType, said)
	if err != nil {
		return false, err
	}
	return true, b.write(ctx, AttachmentTags(image)+Withdrawn, s, notes) // also over what a stranger says, which counts for nothing
}

// Judge says which of the notes about an image counts. With keys it is the newest that a key which counts has signed: the image was withdrawn, and
// perhaps that was lifted, in several repositories one after the other. Without any, that one repository says so is enough. Notes of others that
// say that it is withdrawn are told beside it.
func Judge(notes []*Note, keys []*attest.PublicKey) (counts *Note, others []*Note) {
	var doubtful *Note
	for _, n := range notes {
		switch {
		case n == nil:
		case n.Doubtful:
			doubtful = n
		case len(keys) > 0 && !n.Trusted:
			if n.Withdrawn {
				others = append(others, n)
			}
		case len(keys) == 0 && !n.Withdrawn:
		case counts == nil || n.At.After(counts.At) || n.At.Equal(counts.At) && n.Withdrawn:
			counts = n
		}
	}
	if counts == nil || !counts.Withdrawn {
		counts = doubtful
	}
	return counts, others
}

// WithdrawnError says that an image, or what it is based on, is withdrawn.
type WithdrawnError struct {
	Image string // as people know it
	Note  *Note
	How   string // what it is to the image: "is based on", "lists"; "": the image itself
}

func (e *WithdrawnError) Error() string {
	if e.How != "" {
		return fmt.Sprintf("%s %s %s@%s, which is withdrawn: %s", e.Image, e.How, e.Note.Repository, e.Note.Image.Short(), e.Note.Because)
	}
	return fmt.Sprintf("%s is withdrawn: %s", e.Image, e.Note.Because)
}

// Hint says what to do.
func (e *WithdrawnError) Hint() string {
	if e.How != "" {
		return "build it anew, on another image"
	}
	return fmt.Sprintf("build another image; if it was withdrawn by mistake: `sconce withdraw %s@%s --undo --because TEXT`", quote.Word(e.Note.Repository), e.Note.Image)
}

// ExitCode is that of a problem that was found.
func (*WithdrawnError) ExitCode() int { return fault.CodeProblem }
