package pipeline

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/recipe"
)

// A key under [[trust]] that cannot be read may be one that is revoked: nothing is judged by the others alone.
func TestUnreadableTrust(t *testing.T) {
	_, _, public := evidencetest.Key(t)
	other, _, _ := evidencetest.Key(t)
	text, err := os.ReadFile(public)
	if err != nil {
		t.Fatal(err)
	}
	p := &Pipeline{Pipeline: &recipe.Pipeline{Trust: []attest.Trusted{{Key: "stolen.pub", Revoked: true}}}}
	p.Dir, p.Path = t.TempDir(), "pipeline.toml"
	more := []*attest.PublicKey{other.Public()}
	if keys, err := p.judges(more); len(keys) != 0 || fault.CodeOf(err) != fault.CodeUsage || !strings.Contains(err.Error(), "trust") {
		t.Errorf("judged by %d keys, %v", len(keys), err)
	}
	if keys, err := p.lookingBy(t.Context()); len(keys) != 0 || err == nil {
		t.Errorf("looked by %d keys, %v", len(keys), err)
	}
	if err := os.WriteFile(filepath.Join(p.Dir, "stolen.pub"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	if keys, err := p.judges(more); len(keys) != 2 || err != nil {
		t.Errorf("once it is there: %d keys, %v", len(keys), err)
	}
}
