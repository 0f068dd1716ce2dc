package config

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"
)

var update = flag.Bool("update", false, "write the schema")

// The schema has the keys that are read, and each example is what it asks for and is read. The file in the tree is this schema.
func TestSchema(t *testing.T) {
	got, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	const path = "../../schema/" + SchemaFile
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || string(want) != string(got) {
		t.Errorf("%s is another one (%v); -update writes it", path, err)
	}
	var s property
	if err := json.Unmarshal(got, &s); err != nil {
		t.Fatal(err)
	}
	if known := slices.Sorted(maps.Keys(s.Properties)); !slices.Equal(known, slices.Sorted(slices.Values(keys))) {
		t.Errorf("the schema has the keys %q, want %q", known, keys)
	}
	t.Setenv("USER", "ada")
	for key, p := range s.Properties {
		for _, example := range p.Examples {
			text, ok := example.(string)
			if ok && !regexp.MustCompile(p.Pattern).MatchString(text) {
				t.Errorf("%s: the example %q is not %s", key, text, p.Pattern)
			}
			value, err := json.Marshal(example) // which is TOML too
			if err != nil {
				t.Fatal(err)
			}
			if _, err := load(t, key+" = "+string(value)); err != nil {
				t.Errorf("%s: %v", key, err)
			}
		}
	}
	for key, values := range map[string][]string{"store-size": {"none", "1GB", "12.5%", "3 TiB", "5g"}, "patience": {"90s", "1h30m"}, "store": {"~/x", "$X/y"}} {
		for _, value := range values {
			if !regexp.MustCompile(s.Properties[key].Pattern).MatchString(value) {
				t.Errorf("%s = %q is read, and not %s", key, value, s.Properties[key].Pattern)
			}
		}
	}
}
