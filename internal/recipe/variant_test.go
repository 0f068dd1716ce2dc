package recipe

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// writeRecipe writes a recipe to a directory and returns the directory.
func writeRecipe(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, FileName), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

const family = `name = "pytorch"
version = "7"
[base]
image = "example.org/pytorch:1"
[system]
packages = ["git"]
[image]
env = { A = "1", B = "2" }
[[step]]
run = "first"
[variant.plain]
[variant."26.02-py3"]
base.image = "example.org/pytorch:2"
system.packages = ["curl", "jq"]
image.env = { B = "3" }
[[variant."26.02-py3".step]]
run = "second"
[variant.scratch]
base.bootstrap = { suite = "trixie" }
`

// A variant is the recipe with its own keys laid over it: tables are merged, values and lists replaced, lists of tables appended.
func TestVariant(t *testing.T) {
	dir := writeRecipe(t, family)
	names, err := Variants(dir)
	if want := []string{"plain", "26.02-py3", "scratch"}; err != nil || !slices.Equal(names, want) {
		t.Fatalf("%q, %v", names, err)
	}
	r, err := Load(dir + ":26.02-py3")
	if err != nil {
		t.Fatal(err)
	}
	if r.Variant != "26.02-py3" || r.Version != "7-26.02-py3" || r.Base.Image != "example.org/pytorch:2" {
		t.Errorf("%+v", r)
	}
	if !slices.Equal(r.System.Packages, []string{"curl", "jq"}) || r.Image.Env["A"] != "1" || r.Image.Env["B"] != "3" {
		t.Errorf("%+v, %+v", r.System, r.Image.Env)
	}
	if len(r.Steps) != 2 || r.Steps[0].Run != "first" || r.Steps[1].Run != "second" || r.Steps[1].Line != 16 {
		t.Errorf("%+v", r.Steps)
	}
	if r, err = Load(dir + ":plain"); err != nil || r.Version != "7-plain" || len(r.Steps) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err = Load(dir + ":scratch"); err != nil || r.Base.Image != "" || r.Base.Bootstrap == nil {
		t.Errorf("another kind of base: %+v, %v", r, err)
	}
	for ref, want := range map[string]string{
		dir:           "has variants: plain, 26.02-py3, scratch",
		dir + ":plan": `has no variant "plan"`,
	} {
		if _, err := Load(ref); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	alone := writeRecipe(t, "name = \"x\"\n[variant.one]\nbase.image = \"y\"\n")
	if r, err := Load(alone); err != nil || r.Variant != "one" || r.Version != "one" {
		t.Errorf("the only variant: %+v, %v", r, err)
	}
	none := writeRecipe(t, "name = \"x\"\nbase.image = \"y\"\n")
	if _, err := Load(none + ":one"); err == nil || !strings.Contains(err.Error(), "has no variants") {
		t.Errorf("a recipe without variants: %v", err)
	}
}

func TestMatrix(t *testing.T) {
	const text = `name = "x"
base.image = "y"
[matrix]
cuda = ["cu128", "cu130"]
arch = ["amd64", "arm64"]
exclude = ["cu128-arm64"]
[variant]
cu128 = { python.torch-backend = "cu128", python.packages = ["torch"] }
cu130 = { python.torch-backend = "cu130", python.packages = ["torch"] }
amd64 = { target.platform = "linux/amd64" }
arm64 = { target.platform = "linux/arm64" }
debug = { image.env = { DEBUG = "1" } }
`
	dir := writeRecipe(t, text)
	names, err := Variants(dir)
	if want := []string{"debug", "cu128-amd64", "cu130-amd64", "cu130-arm64"}; err != nil || !slices.Equal(names, want) {
		t.Fatalf("%q, %v", names, err)
	}
	r, err := Load(dir + ":cu130-arm64")
	if err != nil || r.Python.TorchBackend != "cu130" || r.Target.Platform != "linux/arm64" {
		t.Errorf("%+v, %v", r, err)
	}
}

// What is wrong in a variant is told with its place, whichever variant is asked for.
func TestVariantErrors(t *testing.T) {
	const head = "name = \"x\"\nbase.image = \"y\"\n"
	for text, want := range map[string]string{
		"[variant.a]\nimge.env = {}\n":                                  "sconce.toml:4:1: unknown key",
		"[variant.a]\nname = \"z\"\n":                                   `sconce.toml:4:1: unknown key "name" in [variant.a]`,
		"[variant.a]\nbase.image = 3\n":                                 "sconce.toml:4:14: base.image must be a string",
		"[variant.a]\nimage.user = 3\npython.requirements = [\"no\"]\n": "sconce.toml:5:24: python.requirements: there is no file",
		"[variant]\na = 3\n":                                            "sconce.toml:4:5: variant.a must be a table",
		"[variant.\"a b\"]\n":                                           `the name "a b" must be letters`,
		"[variant.\"a.b\"]\n[variant.a-b]\n":                            "too alike",
		"[variant.a]\n[[variant.a.step]]\nname = \"nothing\"\n":         "sconce.toml:4:13: step 1",
		"[matrix]\nx = [\"a\", \"b\"]\n[variant.a]\n":                   `sconce.toml:4:11: matrix.x: there is no variant "b"`,
		"[matrix]\nx = [\"a\"]\nexclude = [\"c\"]\n[variant.a]\n":       `matrix.exclude: "c" is no combination`,
		"[matrix]\nx = []\n":                                            "matrix.x is empty",
		"[matrix]\nexclude = []\n":                                      "[matrix] has no axis",
		"[matrix]\nx = \"a\"\n":                                         "matrix.x must be a list",
		"[variant.a]\nbase.recipe = \"./none\"\n":                       "sconce.toml:4:15: base.recipe: there is no recipe",
		"[variant.a]\nbase.remove = [\"/**\"]\n":                        "base.remove: \"/**\" would remove everything",
		"[variant.a]\nbase = { recipe = \".\", image = \"example\" }\n": "keep one of them",
	} {
		_, err := parseVariant([]byte(head+text), FileName, t.TempDir(), "")
		if err == nil {
			t.Errorf("%q is right", text)
			continue
		}
		said := err.Error()
		for _, p := range mistakes(err) {
			said += " " + p.Hint()
		}
		if !strings.Contains(said, want) {
			t.Errorf("%q: %v, want %q", text, said, want)
		}
	}
}
