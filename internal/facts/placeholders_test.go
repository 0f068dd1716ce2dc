package facts

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// A placeholder is found wherever it lies in a file, in layers of every kind, and what was found in a layer is known in another image.
func TestPlaceholders(t *testing.T) {
	placeholder := "/build/_h_env" + strings.Repeat("_placehold", 20)
	at := func(offset int) []byte { // in a file of several pieces
		b := bytes.Repeat([]byte("lib\x00"), 3*searchSize/4+1)
		copy(b[offset:], placeholder)
		return b
	}
	record := []byte(`{"name": "x", "version": "1", "paths_data": {"paths": [`)
	environment := []content{}
	for name, offset := range map[string]int{"across": searchSize - 10, "first": 0, "last": 3*searchSize - len(placeholder), "none": 4 * searchSize} {
		data := bytes.Repeat([]byte("lib\x00"), 3*searchSize/4+1)
		if offset < len(data) {
			data = at(offset)
		}
		environment = append(environment, content{path: "opt/conda/lib/lib" + name + ".so", data: data})
		record = append(record, `{"_path": "lib/lib`+name+`.so", "path_type": "hardlink", "prefix_placeholder": "`+placeholder+`", "file_mode": "binary"},`...)
	}
	record = append(bytes.TrimSuffix(record, []byte(",")), "]}}"...)
	environment = append(environment, content{path: "opt/conda/conda-meta/x-1-0.json", data: record})
	slices.SortFunc(environment, func(a, b content) int { return strings.Compare(a.path, b.path) })

	want := []string{"opt/conda/lib/libacross.so", "opt/conda/lib/libfirst.so", "opt/conda/lib/liblast.so"}
	found := func(f *Facts) []string {
		t.Helper()
		if len(f.Conda) != 1 || len(f.Conda[0].Packages) != 1 || f.Conda[0].Packages[0].Held.Count != len(f.Conda[0].Packages[0].Held.First) {
			t.Fatalf("conda: %+v", f.Conda)
		}
		return f.Conda[0].Packages[0].Held.First
	}
	st := storetest.Alone(t)
	own := chunked(t, st, environment)
	if got := found(gathered(t, st, imageOf(t, st, own))); !slices.Equal(got, want) {
		t.Errorf("in a layer of ours: %q", got)
	}
	strange := foreign(t, st, gzipped(t, tarOf(t, environment)), "application/vnd.oci.image.layer.v1.tar+gzip")
	if got := found(gathered(t, st, imageOf(t, st, strange))); !slices.Equal(got, want) {
		t.Errorf("in a layer of somebody else: %q", got)
	}

	// Whoever read the libraries again would not believe the store.
	s := placeholders{cache: cache{st}, known: map[store.Digest]map[heldAt]bool{}, fresh: map[store.Digest]bool{own.DiffID: true}}
	known := s.layer(own.DiffID)
	if len(known) != len(environment)-1 {
		t.Errorf("%d files of the layer are known", len(known))
	}
	for key := range known {
		known[key] = false
	}
	if err := s.keep(); err != nil {
		t.Fatal(err)
	}
	more := chunked(t, st, []content{{path: "etc/more", data: []byte("more")}})
	if got := found(gathered(t, st, imageOf(t, st, own, more))); len(got) != 0 {
		t.Errorf("below another layer the libraries are read again: %q", got)
	}
}
