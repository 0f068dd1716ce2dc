package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/store"
)

// keyType is the type of the statement that an image is what the plan of a key makes. Several plans may make the same image, so that there
// is one for each.
const keyType = "https://sconce.dev/key/v1"

// keyStatement is what it says.
type keyStatement struct {
	Key plan.Key `json:"key"`
}

// keyKindDigits is how many digits of a key are in the kind of its statement: more than anybody can find another key for.
const keyKindDigits = 24

func keyKind(key plan.Key) string { return "key-" + string(key)[:keyKindDigits] }

// attachKey says that an image is what the plan of a key makes.
func attachKey(ctx context.Context, book *evidence.Book, image store.Digest, key plan.Key) error {
	if err := book.Attach(ctx, image, keyKind(key), keyType, keyStatement{key}, nil); err != nil {
		return fmt.Errorf("attach the key: %w", err)
	}
	return nil
}

// StrangeError says that what stands under a canonical reference is not known to belong there: no key that is trusted has signed that the
// plan of that key makes it.
type StrangeError struct {
	Ref      string       // HOST/PATH:TAG
	Digest   store.Digest // of what is there
	Unsigned bool         // nobody trusted has signed anything about it; false: that something else was made of
}

func (e *StrangeError) Error() string {
	if e.Unsigned {
		return fmt.Sprintf("%s is not known to be what its name says: no trusted key has signed %s", e.Ref, e.Digest.Short())
	}
	return fmt.Sprintf("%s is not what its name says: %s was made from something else", e.Ref, e.Digest.Short())
}

// Hint says what to do.
func (*StrangeError) Hint() string {
	return "find out who has written it, and run `sconce pipeline run`: it builds the image, and signs what is there if that is the same"
}

// ExitCode is that of a problem that was found.
func (*StrangeError) ExitCode() int { return fault.CodeProblem }

// CheckKey refuses an image under the canonical reference of a key, with a [StrangeError], unless a key of trust has signed that the plan of
// that key makes it. That nothing is signed says nothing for an image: whoever may write to the repository can put one there. Without trust
// nobody signs, and nothing is judged.
func (s *Session) CheckKey(ctx context.Context, im InRegistry, key plan.Key, trust []*attest.PublicKey) error {
	if len(trust) == 0 {
		return nil
	}
	book, err := s.Evidence(im.Repository, nil, trust)
	if err != nil {
		return err
	}
	said, err := signed(ctx, book, im.Digest, keyKind(key))
	if err != nil {
		return err
	}
	var own keyStatement
	if said != nil && said.PredicateType == keyType && json.Unmarshal(said.Predicate, &own) == nil && own.Key == key {
		return nil
	}
	made, err := signed(ctx, book, im.Digest, Provenance)
	if err != nil {
		return err
	}
	var p provenance
	if made != nil && made.PredicateType == provenanceType && json.Unmarshal(made.Predicate, &p) == nil && p.key() == key { // where keys are not signed one by one
		return nil
	}
	return &StrangeError{Ref: im.Repository + ":" + im.Tag, Digest: im.Digest, Unsigned: made == nil}
}

// signed is the document of a kind about an image, nil where there is none that somebody trusted has signed.
func signed(ctx context.Context, book *evidence.Book, image store.Digest, kind string) (*attest.Statement, error) {
	s, err := book.Attachment(ctx, image, kind)
	var others *evidence.MovedError
	if errors.As(err, &others) {
		return nil, nil
	}
	return s, err
}
