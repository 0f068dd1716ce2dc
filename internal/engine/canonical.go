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

// CheckKey refuses an image under the canonical reference of a key when it is signed that another key has made it: somebody has moved the
// tag. Signatures by trust count. An image that nobody has signed anything about is not judged.
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
	if err != nil || made == nil {
		return err
	}
	var p provenance
	if json.Unmarshal(made.Predicate, &p) != nil || p.key() == key { // the only one where keys are not signed one by one
		return nil
	}
	err = fmt.Errorf("%s is not what its name says: %s was made from something else", im.Repository+":"+im.Tag, im.Digest.Short())
	return fault.Hint(err, "somebody has moved the tag: find out who, delete it, and run `sconce pipeline run`")
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
