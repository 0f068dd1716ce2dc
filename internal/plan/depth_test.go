package plan

import (
	"context"
	"fmt"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/containerfile"
	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fault"
)

// planContainerfile plans a Containerfile whose base images have that many layers.
func planContainerfile(t *testing.T, text string, layers int, o ContainerfileOptions) (*Plan, error) {
	t.Helper()
	return planWithArguments(t, text, nil, layers, o)
}

func planWithArguments(t *testing.T, text string, args map[string]string, layers int, o ContainerfileOptions) (*Plan, error) {
	t.Helper()
	parsed, err := containerfile.Parse("Containerfile", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	noConfig := func(context.Context, string, v1.Platform) (*v1.ConfigFile, error) { return &v1.ConfigFile{}, nil }
	b, err := parsed.Evaluate(t.Context(), containerfile.Options{BuildArgs: args}, noConfig)
	if err != nil {
		t.Fatal(err)
	}
	o.File = "Containerfile"
	o.Pin = func(_ context.Context, reference string, _ v1.Platform) (*base.Pinned, error) {
		return &base.Pinned{Reference: reference, Digest: digest(reference), Layers: layers}, nil
	}
	return NewContainerfile(t.Context(), b, o)
}

// TestDepth: a command that would stand on too many layers is refused before anything runs, and nothing else is.
func TestDepth(t *testing.T) {
	const inline = "COPY <<a /a\n1\na\n"
	room := execop.MaxLayers - 10 // beside a base of 10
	for name, c := range map[string]struct {
		text  string
		fails string
	}{
		"just enough":           {"FROM a\n" + strings.Repeat("RUN x\n", room+1), ""},
		"one too many":          {"FROM a\n" + strings.Repeat("RUN x\n", room+2), fmt.Sprintf("Containerfile:%d: RUN x: it is based on 500 layers", room+3)},
		"copies count":          {"FROM a\n" + strings.Repeat(inline, room+1) + "RUN x\n", "is based on 500 layers"},
		"nothing runs":          {"FROM a\n" + strings.Repeat(inline, room+10), ""},
		"nothing runs on it":    {"FROM a AS b\n" + strings.Repeat(inline, room+10) + "FROM a\nCOPY --from=b /a /a\nRUN x\n", ""},
		"in a stage below":      {"FROM a AS b\n" + strings.Repeat(inline, room) + "FROM b\nRUN x\nRUN x\n", "is based on 500 layers"},
		"lines of no layer":     {"FROM a\n" + strings.Repeat("ENV A=1\nWORKDIR /x\n", room+10) + "RUN x\n", ""},
		"in a stage not wanted": {"FROM a AS b\n" + strings.Repeat("RUN x\n", room+10) + "FROM a\nRUN x\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := planContainerfile(t, c.text, 10, ContainerfileOptions{})
			if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails) || fault.HintOf(err) == "") {
				t.Errorf("got %v, want %q", err, c.fails)
			}
		})
	}
}
