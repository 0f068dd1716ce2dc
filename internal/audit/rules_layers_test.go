package audit

import (
	"testing"

	"sconce.dev/sconce/internal/facts"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
)

func TestHiddenLayers(t *testing.T) {
	const mb = 1_000_000
	few := []image.Hidden{{Layer: 0, Files: 3, Size: 4 * mb}}
	much := []image.Hidden{
		{Layer: 0, Files: 1, Size: 4 * mb, Largest: []layer.Entry{{Path: "etc/x", Size: 4 * mb}}},
		{Layer: 2, Files: 2, Size: 300 * mb, Largest: []layer.Entry{{Path: "opt/cuda/lib.a", Size: 200 * mb}, {Path: "opt/cuda/doc", Size: 100 * mb}}},
	}
	for _, test := range []struct {
		hidden []image.Hidden
		want   []Finding
	}{
		{nil, nil},
		{few, nil},
		{much, []Finding{{
			Message: "304.0 MB in 3 files of lower layers are removed or replaced by layers above",
			Seen:    []string{"/opt/cuda/lib.a: 200.0 MB, layer 3", "/opt/cuda/doc: 100.0 MB, layer 3"},
		}}},
	} {
		var got []Finding
		s := &Subject{Facts: &facts.Facts{Hidden: test.hidden}, Target: cluster.Profile{}, Context: t.Context()}
		if err := lookHiddenLayers(s, func(f Finding) { got = append(got, f) }); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Error(diff)
		}
	}
}
