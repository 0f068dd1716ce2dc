package plan

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fileop"
)

// TestMissingSources: all files that lines name and the context lacks are reported together.
func TestMissingSources(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "here"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := fileop.OpenContext(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	o := ContainerfileOptions{Context: dir, Open: func(string) (*fileop.Context, error) { return files, nil }}
	_, err = planContainerfile(t, `FROM a AS b
COPY here first second /to/
RUN --mount=type=bind,source=third,target=/t x
COPY *.none here /to/
FROM a
COPY --from=b /fourth /to/
ADD --exclude=x fifth /to/
`, 1, o)
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("got %v", err)
	}
	want := []string{"Containerfile:2: COPY here first second /to/: ", `first`, "Containerfile:2: ", `second`, "Containerfile:3: RUN ", `third`, "Containerfile:7: ADD ", `fifth`}
	all := joined.Unwrap()
	if len(all) != len(want)/2 {
		t.Fatalf("got %v", err)
	}
	for i, e := range all {
		if text := e.Error(); !strings.HasPrefix(text, want[2*i]) || !strings.Contains(text, "has no "+want[2*i+1]) || fault.HintOf(e) == "" {
			t.Errorf("got %q, want %q and %q", text, want[2*i], want[2*i+1])
		}
	}
}
