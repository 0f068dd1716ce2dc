package recipe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/containerfile"
)

// examples returns the recipes of the examples.
func examples(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../../examples/*/" + FileName)
	if err != nil || len(files) < 4 {
		t.Fatal("no examples", files, err)
	}
	return files
}

// Recipes and Containerfiles that stand beside the recipe of an example can be read, too.
func TestExamplesBeside(t *testing.T) {
	recipes, _ := filepath.Glob("../../examples/*/*/" + FileName)
	for _, file := range recipes {
		if _, err := Load(file); err != nil {
			t.Errorf("%s:\n%s", file, render(err))
		}
	}
	files, _ := filepath.Glob("../../examples/*/Containerfile")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := containerfile.Parse(file, data); err != nil {
			t.Error(err)
		}
	}
	if len(recipes) == 0 || len(files) == 0 {
		t.Error("none found")
	}
}

// Every example of a pipeline, and each variant of its recipes, is good.
func TestExamplePipelines(t *testing.T) {
	files, _ := filepath.Glob("../../examples/*/" + PipelineFile)
	for _, file := range files {
		p, err := LoadPipeline(file)
		if err != nil {
			t.Fatalf("%s:\n%s", file, render(err))
		}
		paths, err := p.Paths()
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			path = filepath.Join(p.Dir, path)
			variants, err := Variants(path)
			if err != nil {
				t.Errorf("%s:\n%s", path, render(err))
			}
			refs := []string{path}
			if len(variants) > 0 {
				refs = refs[:0]
			}
			for _, v := range variants {
				refs = append(refs, path+":"+v)
			}
			for _, ref := range refs {
				if _, err := Load(ref); err != nil {
					t.Errorf("%s:\n%s", ref, render(err))
				}
			}
		}
	}
	if len(files) == 0 {
		t.Error("none found")
	}
}

// Every example is a good recipe, with a page that says what it does, and is named for its directory.
func TestExamples(t *testing.T) {
	for _, file := range examples(t) {
		r, err := Load(file)
		if err != nil {
			t.Errorf("%s:\n%s", file, render(err))
			continue
		}
		dir := filepath.Base(filepath.Dir(file))
		if r.Name != dir {
			t.Errorf("%s names its image %q", file, r.Name)
		}
		page, err := os.ReadFile(filepath.Join(filepath.Dir(file), "README.md"))
		if err != nil {
			t.Error(err)
		} else if !strings.Contains(string(page), "sconce build examples/"+dir) {
			t.Errorf("the page of %s does not say how to build it", dir)
		}
	}
}
