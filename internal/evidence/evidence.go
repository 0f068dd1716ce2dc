// Package evidence keeps what is known of an image beside it in a registry, signed: which test passed on which cluster, how the image
// was made, and what is in it.
//
// Each piece is an artifact whose subject is the image, under a tag of its own, because of everything that registries offer tags alone
// are not lost when several write at once:
//
//	t.<12 of the image's digest>.<16 of the test's hash>.<cluster>   the verdict of a test, and what it measured
//	log.<the same>                                                   its log
//	att.<12 of the image's digest>.<kind>                            "provenance", "sbom"
//	  manifest  artifactType: that of a Sigstore bundle, so that `cosign verify-attestation` finds it among the image's referrers
//	    config  empty
//	    layers  the bundle alone
//
// A tag can be moved by everybody who may write, and what it says is short. So nothing but what a key has signed about exactly this
// image, test and cluster is believed, and a tag that leads to anything else is an error, which nobody repairs silently.
package evidence

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/store"
)

// Key is what a verdict is about.
type Key struct {
	Image   store.Digest // of its manifest
	Test    string       // the test's hash: 64 hexadecimal digits
	Cluster string
}

// Result is a verdict.
type Result string

// The verdicts, as the test-result predicate has them.
const (
	Passed Result = "PASSED"
	Warned Result = "WARNED" // it passed on other nodes than those where it failed
	Failed Result = "FAILED"
)

// Good reports whether an image may be promoted with it.
func (r Result) Good() bool { return r == Passed || r == Warned }

// Evidence is the verdict of one test of one image on one cluster.
type Evidence struct {
	Key
	Name     string          // of the test
	Result   Result          // the verdict
	Details  json.RawMessage // what was measured; nil: nothing
	Finished time.Time       // zero: not known

	// FailedBefore is how often the test had failed before with the same key: a verdict that was asked for until it was good tells so.
	FailedBefore int

	Manifest store.Digest // of the artifact; set by who reads it
	log      logEntry
}

// countFailures takes over how often the test had failed, from the verdict that this one takes the place of; nil: there is none.
func (e *Evidence) countFailures(before *Evidence) {
	e.FailedBefore = 0
	if before == nil {
		return
	}
	if e.FailedBefore = before.FailedBefore; before.Result == Failed {
		e.FailedBefore++
	}
}

// Origin is where something was done that is signed: the sources that decided what, and the job that did. It names no user and no path of a machine.
type Origin struct {
	Repository string `json:"repository,omitempty"` // its address, without a login
	Commit     string `json:"commit,omitempty"`
	Changed    bool   `json:"changed,omitempty"`   // files were not those of the commit
	Unchecked  bool   `json:"unchecked,omitempty"` // nobody knows whether they were
	CI         string `json:"ci,omitempty"`        // the system
	Job        string `json:"job,omitempty"`       // its address
}

// The parts of tags.
const (
	testPrefix = "t."
	logPrefix  = "log."
	attPrefix  = "att."
	digestPart = 12
	testPart   = 16
)

// clusterForm is what the name of a cluster must look like to be part of a tag, which has at most 128 characters.
var clusterForm = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)

var hashForm = lazyregexp.New(`^[0-9a-f]{64}$`)

// Tag is where the verdict is found.
func (k Key) Tag() (string, error) {
	if _, err := store.ParseDigest(string(k.Image)); err != nil {
		return "", err
	}
	if !hashForm.MatchString(k.Test) {
		return "", fmt.Errorf("%q is no hash of a test: 64 hexadecimal digits are", k.Test)
	}
	if !clusterForm.MatchString(k.Cluster) {
		err := fmt.Errorf("the cluster's name %q cannot be part of a tag", k.Cluster)
		return "", fault.Hint(err, "letters, digits, '_', '.' and '-' can, 64 of them at most")
	}
	return TestTags(k.Image) + k.Test[:testPart] + "." + k.Cluster, nil
}

// logTag is where its log is found.
func (k Key) logTag() (string, error) {
	tag, err := k.Tag()
	return logPrefix + strings.TrimPrefix(tag, testPrefix), err
}

// Tags are how the tags of all that is known of an image begin.
func Tags(image store.Digest) []string {
	return []string{TestTags(image), logPrefix + image.Hex()[:digestPart] + ".", AttachmentTags(image)}
}

// TestTags is how the tags of all verdicts about an image begin.
func TestTags(image store.Digest) string { return testPrefix + image.Hex()[:digestPart] + "." }

// AttachmentTags is how the tags of everything else that is known of an image begin.
func AttachmentTags(image store.Digest) string { return attPrefix + image.Hex()[:digestPart] + "." }

// tagForm are the tags of all kinds.
var tagForm = lazyregexp.New(`^(?:(?:t|log)\.([0-9a-f]{12})\.[0-9a-f]{16}\.[A-Za-z0-9_][A-Za-z0-9_.-]*|att\.([0-9a-f]{12})\.[a-z0-9-]+)$`)

// ImageOf returns the first digits of the digest of the image that a tag says something about: twelve of them. ok is false for all tags
// that are not made here.
func ImageOf(tag string) (digits string, ok bool) {
	m := tagForm.FindStringSubmatch(tag)
	if m == nil {
		return "", false
	}
	return m[1] + m[2], true
}

// MovedError says that a tag leads to something else than what belongs there.
type MovedError struct {
	Tag  string // HOST/PATH:TAG
	Says string // what is there
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("%s is not what its name says: %s", e.Tag, e.Says)
}

// Hint says what to do.
func (*MovedError) Hint() string {
	return "somebody wrote it by other means: find out who, and delete it before the test runs again"
}

// StrangerError says that a key which is not trusted has signed what is under a tag.
type StrangerError struct {
	Tag string // HOST/PATH:TAG
	Key string // its fingerprint, as what is there says it; "": it says none
}

func (e *StrangerError) Error() string { return e.moved().Error() }

func (e *StrangerError) moved() *MovedError {
	by := cmp.Or(e.Key, "another key")
	return &MovedError{e.Tag, fmt.Sprintf("%s, but by %s", attest.ErrSignature, by)}
}

// Unwrap makes of it what it is to all who do not care whose key it was.
func (e *StrangerError) Unwrap() error { return e.moved() }

// Hint says what to do. A key that was changed is the usual cause, and deleting what it has signed is no cure.
func (*StrangerError) Hint() string {
	return "if it was your key before: list its public half under [[trust]] in pipeline.toml, or under keys in config.toml, and run " +
		"`sconce pipeline resign`; if it was stolen: list it with revoked = true; else find out who wrote this"
}

// predicate is a test-result predicate, v0.1 (in-toto/attestation, spec/predicates/test-result.md), with fields of our own, which others
// do not look at.
type predicate struct {
	Result        Result       `json:"result"`
	Configuration []descriptor `json:"configuration"`
	PassedTests   []string     `json:"passedTests,omitempty"`
	WarnedTests   []string     `json:"warnedTests,omitempty"`
	FailedTests   []string     `json:"failedTests,omitempty"`
	Sconce        details      `json:"sconce"`
}

// descriptor names what decided what was tested.
type descriptor struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

type details struct {
	Test     string          `json:"test"`
	Hash     string          `json:"hash"`
	Cluster  string          `json:"cluster"`
	Finished string          `json:"finished,omitempty"` // RFC 3339
	Failed   int             `json:"failedBefore,omitempty"`
	Measured json.RawMessage `json:"measured,omitempty"`
	Log      *logEntry       `json:"log,omitempty"`
}

type logEntry struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"` // bytes
}

// MaxDetails bounds what was measured, in bytes of JSON.
const MaxDetails = 4 << 20

func (e *Evidence) predicate() (*predicate, error) {
	if e.Name == "" || len(e.Details) > MaxDetails {
		return nil, fmt.Errorf("evidence of test %q with %d bytes of measurements cannot be kept", e.Name, len(e.Details))
	}
	p := &predicate{
		Result: e.Result, Configuration: []descriptor{{e.Name, map[string]string{"sha256": e.Test}}},
		Sconce: details{Test: e.Name, Hash: e.Test, Cluster: e.Cluster, Measured: e.Details, Failed: e.FailedBefore},
	}
	if e.log.Digest != "" {
		p.Sconce.Log = &e.log
	}
	if !e.Finished.IsZero() {
		p.Sconce.Finished = e.Finished.UTC().Format(time.RFC3339)
	}
	switch e.Result {
	case Passed:
		p.PassedTests = []string{e.Name}
	case Warned:
		p.WarnedTests = []string{e.Name}
	case Failed:
		p.FailedTests = []string{e.Name}
	default:
		return nil, fmt.Errorf("%q is no verdict", e.Result)
	}
	return p, nil
}

// read takes a verdict about image from a statement whose signature was checked.
func read(s *attest.Statement, image store.Digest) (*Evidence, error) {
	if !s.IsAbout(image) {
		return nil, errors.New("it is about another image")
	}
	if s.PredicateType != attest.TestResult {
		return nil, fmt.Errorf("it is no verdict of a test but %s", s.PredicateType)
	}
	var p predicate
	if err := json.Unmarshal(s.Predicate, &p); err != nil {
		return nil, fmt.Errorf("its verdict is damaged: %w", err)
	}
	e := &Evidence{
		Key:  Key{Image: image, Test: p.Sconce.Hash, Cluster: p.Sconce.Cluster},
		Name: p.Sconce.Test, Result: p.Result, Details: p.Sconce.Measured, FailedBefore: p.Sconce.Failed,
	}
	if p.Sconce.Log != nil {
		e.log = *p.Sconce.Log
	}
	if _, err := e.predicate(); err != nil {
		return nil, err
	}
	if p.Sconce.Finished != "" {
		e.Finished, _ = time.Parse(time.RFC3339, p.Sconce.Finished) // "" and what is damaged are no time
	}
	return e, nil
}

// isTestTag reports whether a tag is that of a verdict about an image.
func isTestTag(tag string, image store.Digest) bool { return strings.HasPrefix(tag, TestTags(image)) }
