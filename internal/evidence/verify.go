package evidence

import (
	"encoding/json"
	"fmt"
	"time"

	"sconce.dev/sconce/internal/attest"
)

// PromotionType is the type of the statement by what right an image was promoted.
const PromotionType = "https://sconce.dev/promotion/v1"

// verify reads a bundle that a trusted key has signed, at a time at which that key counts, where the document says of which time it is. The error is
// [attest.ErrUncounted] where it did not count.
func (b *Book) verify(bundle []byte) (*attest.Statement, error) {
	s, err := attest.Verify(bundle, b.trust...)
	if err != nil {
		return nil, err
	}
	if at, timed := signedAt(s); timed && !s.Signer().Counts(at) {
		return nil, fmt.Errorf("%s did not count at the time that the document says, %s: %w", s.Signer().Fingerprint(), at.Format(time.RFC3339), attest.ErrUncounted)
	}
	return s, nil
}

// signedAt is the time that a document says it is of: the end of a test, the last change of a withdrawal, a promotion. It is zero where that is
// damaged. timed is whether documents of its type say one.
func signedAt(s *attest.Statement) (at time.Time, timed bool) {
	var said struct {
		Sconce struct {
			Finished string `json:"finished"`
		} `json:"sconce"`
		Time    string   `json:"time"`
		Changes []change `json:"changes"`
	}
	_ = json.Unmarshal(s.Predicate, &said) // damaged, it is of no time
	text := ""
	switch s.PredicateType {
	case attest.TestResult:
		text = said.Sconce.Finished
	case PromotionType:
		text = said.Time
	case WithdrawalType:
		if n := len(said.Changes); n > 0 {
			text = said.Changes[n-1].At
		}
	default:
		return at, false
	}
	at, _ = time.Parse(time.RFC3339, text)
	return at, true
}
