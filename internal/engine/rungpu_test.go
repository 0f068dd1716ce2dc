package engine

import (
	"context"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/progress"
)

type eventList []progress.Event

func (l *eventList) Emit(e progress.Event) { *l = append(*l, e) }

func TestWarnSlimmed(t *testing.T) {
	for _, test := range []struct {
		label string
		gpus  []string
		warns int
	}{
		{"", []string{"8.0"}, 0},
		{"9.0", []string{"9.0"}, 0},
		{"8.0 9.0", []string{"8.6", "9.0"}, 0}, // code for 8.0 runs on 8.6
		{"9.0", []string{"8.0"}, 1},
		{"8.6", []string{"8.0"}, 1},
		{"9.0", []string{"10.0", "12.0"}, 2},
		{"8.7", []string{"8.9"}, 1}, // the GPU of an Orin has drivers of its own
		{"9.0", nil, 0},
	} {
		var seen eventList
		config := v1.Config{Labels: map[string]string{image.LabelSlim: test.label}}
		warnSlimmed(progress.With(context.Background(), &seen), config, test.gpus)
		if len(seen) != test.warns {
			t.Errorf("slimmed to %q, GPUs %v: %v", test.label, test.gpus, seen)
		}
	}
}

func TestSearchPath(t *testing.T) {
	if got := searchPath([]string{"/a", "/b"}, []string{"X=1", "LD_LIBRARY_PATH=/c:/d"}); got != "/a:/b:/c:/d" {
		t.Error(got)
	}
	if got := searchPath([]string{"/a"}, []string{"LD_LIBRARY_PATH="}); got != "/a" {
		t.Error(got)
	}
}
