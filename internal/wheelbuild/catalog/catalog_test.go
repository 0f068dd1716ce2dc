package catalog

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/python"
)

// TestTable: every package of the table is named as it is looked up, and its requirements can be read.
func TestTable(t *testing.T) {
	if len(All()) < 15 {
		t.Errorf("%d packages", len(All()))
	}
	for _, p := range All() {
		if p.Name != python.NormalizeName(p.Name) || p.Seen == "" || p.MemoryPerJob == "" {
			t.Errorf("%+v", p)
		}
		requires := p.Requires
		if p.Depends != nil {
			requires = append(slices.Clone(requires), *p.Depends...)
		}
		for _, text := range requires {
			if _, err := python.ParseRequirement(text); err != nil {
				t.Errorf("%s: %v", p.Name, err)
			}
		}
		if !p.Isolation && !slices.Contains(p.Requires, "torch") {
			t.Errorf("%s is built against what the image has, and does not say that torch is", p.Name)
		}
	}
	for _, name := range []string{"mpi4py", "petsc4py", "h5py", "kenlm", "pesq"} { // what is compiled on clusters without torch
		if p, ok := Lookup(name); !ok || !p.Isolation || p.Note == "" {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if _, ok := Lookup("numpy"); ok {
		t.Error("numpy has no facts")
	}
}

func TestEnvironment(t *testing.T) {
	for _, c := range []struct {
		name string
		gpu  []string
		want map[string]string
	}{
		{"flash-attn", nil, map[string]string{"FLASH_ATTENTION_FORCE_BUILD": "TRUE"}},
		{"flash-attn", []string{"8.0", "8.6", "9.0a", "10.3"}, map[string]string{"FLASH_ATTENTION_FORCE_BUILD": "TRUE", "FLASH_ATTN_CUDA_ARCHS": "80;90;100"}},
		{"flash-attn", []string{"7.0"}, map[string]string{"FLASH_ATTENTION_FORCE_BUILD": "TRUE"}},
		{"torch-scatter", nil, map[string]string{}},
		{"torch-scatter", []string{"9.0"}, map[string]string{"FORCE_CUDA": "1"}},
		{"transformer-engine", []string{"9.0a", "12.0+PTX"}, map[string]string{"NVTE_FRAMEWORK": "pytorch", "NVTE_CUDA_ARCHS": "90a;120"}},
	} {
		p, ok := Lookup(c.name)
		if !ok {
			t.Fatalf("%s is not known", c.name)
		}
		if diff := cmp.Diff(c.want, p.Environment(c.gpu)); diff != "" {
			t.Errorf("%s for %v (-want +got)\n%s", c.name, c.gpu, diff)
		}
	}
}
