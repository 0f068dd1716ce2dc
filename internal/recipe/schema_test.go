package recipe

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/tooltest"
)

const (
	schemaPath = "../../schema/" + SchemaFile
	docPath    = "../../docs/recipe.md"

	pipelineSchemaPath = "../../schema/" + PipelineSchemaFile
	pipelineDocPath    = "../../docs/guide/pipeline.md"

	profileSchemaPath = "../../schema/" + ProfileSchemaFile
	profileDocPath    = "../../docs/clusters.md"
)

// Every field has a description and every description a field.
func TestKeys(t *testing.T) {
	var fromTypes []string
	visit := func(s *shape) {
		if s.path == "" {
			return
		}
		if s.kind == kindTable && s.path == pipelinePath {
			fromTypes = append(fromTypes, s.path)
			return
		}
		fromTypes = append(fromTypes, s.path)
		if s.key.Doc == "" {
			t.Errorf("%s has no description", s.path)
		}
		if isLeaf(s) && s.key.Example == "" {
			t.Errorf("%s has no example", s.path)
		}
		if s.key.Form != nil && s.key.FormName == "" || s.key.NameForm != nil && s.key.NameFormName == "" {
			t.Errorf("%s has a form without words for it", s.path)
		}
	}
	root().walk(visit)
	profile().walk(visit)
	pipelineShape().walk(visit)
	slices.Sort(fromTypes)
	if diff := gocmp.Diff(fromTypes, slices.Sorted(maps.Keys(keys))); diff != "" {
		t.Errorf("keys of the types (-) and of keys_*.go (+):\n%s", diff)
	}
}

func isLeaf(s *shape) bool { return !s.isTable() }

// Every example is accepted by the reader itself.
func TestExamplesAreGood(t *testing.T) {
	root().walk(func(s *shape) {
		if s.path == "" || !isLeaf(s) {
			return
		}
		c := &checker{top: root(), source: []byte(s.home + "\n" + s.name + " = " + s.key.Example)}
		if !c.isTOML() {
			t.Errorf("%s: %v", s.path, c.err())
			return
		}
		c.checkTable(readDocument(c.source), root())
		if err := c.err(); err != nil {
			t.Errorf("%s: %v", s.path, err)
		}
	})
}

// Every expression is anchored, and free of what Go and ECMA-262 read differently.
func TestFormsArePortable(t *testing.T) {
	root().walk(func(s *shape) {
		for _, re := range []*lazyregexp.Regexp{s.key.Form, s.key.NameForm} {
			if re == nil {
				continue
			}
			text := re.String()
			if !strings.HasPrefix(text, "^") || strings.Contains(text, "(?") || strings.Contains(text, `\z`) || strings.Contains(text, "[[:") {
				t.Errorf("%s: %s", s.path, text)
			}
		}
	})
}

func TestSchemaFile(t *testing.T) {
	got, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	checkGolden(t, schemaPath, string(got))
}

// The schema knows exactly the keys that the reader knows, and allows no others.
func TestSchemaHasEveryKey(t *testing.T) {
	data, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	checkSchema(t, schema, root())
}

func checkSchema(t *testing.T, p map[string]any, s *shape) {
	t.Helper()
	if p == nil {
		t.Errorf("%s is not in the schema", s.path)
		return
	}
	if s.kind == kindTables {
		p, _ = p["items"].(map[string]any)
	}
	switch {
	case isLeaf(s):
		return
	case s.element != nil:
		element, _ := p["additionalProperties"].(map[string]any)
		checkSchema(t, element, s.element)
		return
	case p["additionalProperties"] != false:
		t.Errorf("%s: additionalProperties is %v", s.path, p["additionalProperties"])
	}
	properties, _ := p["properties"].(map[string]any)
	if s.overlay {
		if got := slices.Sorted(maps.Keys(properties)); !slices.Equal(got, slices.Sorted(slices.Values(variantShape().names))) {
			t.Errorf("%s: the properties are %q", s.path, got)
		}
		return
	}
	if len(properties) != len(s.names) {
		t.Errorf("%s: %d properties, want %d", s.path, len(properties), len(s.names))
	}
	for _, name := range s.names {
		field, _ := properties[name].(map[string]any)
		checkSchema(t, field, s.fields[name])
	}
}

// An independent validator agrees with the reader: what the reader accepts is valid, and what it refuses for a reason
// that a schema can express is not.
func TestSchemaJudge(t *testing.T) {
	python := validator(t)
	good := append(examples(t), "starter.toml", "testdata/everything.toml", "testdata/errors/extras.toml", "testdata/errors/step-mounts.toml", "testdata/errors/compile-twice.toml")
	var bad []string
	for _, name := range []string{
		"unknown-key", "unknown-table", "wrong-type", "values", "base-both", "base-none", "bootstrap-suite", "bootstrap-dnf", "bootstrap-release", "empty",
		"step-brackets", "step-keys", "step-types", "step-inline", "step-scripts", "compile", "system", "slim-remove", "job", "test",
	} {
		bad = append(bad, "testdata/errors/"+name+".toml")
	}
	problems := judge(t, python, slices.Concat(good, bad))
	for _, file := range good {
		if len(problems[file]) > 0 {
			t.Errorf("%s: %s", file, problems[file])
		}
	}
	for _, file := range bad {
		if len(problems[file]) == 0 {
			t.Errorf("%s is valid", file)
		}
	}
}

// validator returns a Python that has the jsonschema module (Debian package python3-jsonschema).
func validator(t *testing.T) string {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(python, "-c", "import jsonschema").Run() == nil {
			return python
		}
	}
	tooltest.Missing(t, "no python3 with the jsonschema module")
	return ""
}

// judge returns what the validator says against each recipe.
func judge(t *testing.T, python string, files []string) map[string][]string {
	t.Helper()
	schema, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	instances := map[string]any{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		doc := map[string]any{}
		if err := toml.Unmarshal(data, &doc); err != nil {
			t.Fatal(err)
		}
		instances[file] = doc
	}
	input, err := json.Marshal([]any{json.RawMessage(schema), instances})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-c", `import json, sys, jsonschema
schema, instances = json.load(sys.stdin)
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema)
json.dump({file: [str(e) for e in validator.iter_errors(instance)] for file, instance in instances.items()}, sys.stdout)`)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var problems map[string][]string
	if err := json.Unmarshal(out, &problems); err != nil {
		t.Fatal(err)
	}
	return problems
}

// The tables of docs/recipe.md are generated from keys_*.go.
func TestDocumentationTables(t *testing.T) {
	doc, err := os.ReadFile(docPath)
	if err != nil {
		t.Fatal(err)
	}
	got := doc
	root().walk(func(s *shape) {
		if len(s.names) > 0 {
			got = replaceTable(t, got, s)
		}
	})
	got = replaceMarked(t, got, "caches", markdownOfCaches())
	checkGolden(t, docPath, string(got))
}

// The table of a profile's keys is generated, too.
func TestProfileDocumentation(t *testing.T) {
	doc, err := os.ReadFile(profileDocPath)
	if err != nil {
		t.Fatal(err)
	}
	profile().walk(func(s *shape) {
		if len(s.names) > 0 {
			doc = replaceTable(t, doc, s)
		}
	})
	checkGolden(t, profileDocPath, string(doc))
}

// The table of a pipeline's keys is generated, too, and its examples are good.
func TestPipelineDocumentation(t *testing.T) {
	doc, err := os.ReadFile(pipelineDocPath)
	if err != nil {
		t.Fatal(err)
	}
	pipelineShape().walk(func(s *shape) {
		if len(s.names) > 0 && s.path != "pipeline.ci" {
			doc = replaceTable(t, doc, s)
		}
		if !isLeaf(s) || s.path == pipelinePath {
			return
		}
		c := newChecker([]byte(s.home+"\n"+s.name+" = "+s.key.Example), "pipeline.toml", "")
		if c.top = pipelineShape(); !c.isTOML() {
			t.Errorf("%s: %v", s.path, c.err())
			return
		}
		c.checkTable(readDocument(c.source), c.top)
		if err := c.err(); err != nil {
			t.Errorf("%s: %v", s.path, err)
		}
	})
	checkGolden(t, pipelineDocPath, string(doc))
	schema, err := PipelineSchema()
	if err != nil {
		t.Fatal(err)
	}
	checkGolden(t, pipelineSchemaPath, string(schema))
}

func TestProfileSchemaFile(t *testing.T) {
	got, err := ProfileSchema()
	if err != nil {
		t.Fatal(err)
	}
	checkGolden(t, profileSchemaPath, string(got))
}

// replaceTable writes the table of s between its two marks.
func replaceTable(t *testing.T, doc []byte, s *shape) []byte {
	t.Helper()
	return replaceMarked(t, doc, "keys of "+cmp.Or(s.path, "top"), markdown(s))
}

func replaceMarked(t *testing.T, doc []byte, mark, text string) []byte {
	t.Helper()
	start := []byte("<!-- " + mark + " -->\n")
	before, rest, found := bytes.Cut(doc, start)
	_, after, closed := bytes.Cut(rest, []byte("<!-- end -->\n"))
	if !found || !closed {
		t.Errorf("the page has no place for the %s", mark)
		return doc
	}
	return slices.Concat(before, start, []byte(text+"<!-- end -->\n"), after)
}

// markdownOfCaches is the table of caches.
func markdownOfCaches() string {
	var b strings.Builder
	b.WriteString("| cache | where | what is set |\n|---|---|---|\n")
	for _, name := range knownCacheNames() {
		c := knownCaches[name]
		target := slices.Sorted(maps.Values(c.targets))
		set := make([]string, len(c.variables))
		for i, v := range c.variables {
			set[i] = "`" + strings.ReplaceAll(v, "@", target[0]) + "`"
		}
		if c.locked {
			set = append(set, "`locked`")
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", name, strings.Join(target, "`, `"), strings.Join(set, ", "))
	}
	return b.String()
}

func markdown(s *shape) string {
	var b strings.Builder
	b.WriteString("| key | type | default | what it does |\n|---|---|---|---|\n")
	for _, name := range s.names {
		f := s.fields[name]
		if !isLeaf(f) {
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s %s |\n", name, f.expected(), f.key.Default, f.key.Doc, takes(f))
	}
	return b.String()
}

// takes is the sentences about the values of a key.
func takes(f *shape) string {
	example := fmt.Sprintf("Example: `%s = %s`.", f.name, f.key.Example)
	switch {
	case f.key.Enum != nil:
		return "One of `" + strings.Join(f.key.Enum, "`, `") + "`. " + example
	case f.key.Max > 0:
		return fmt.Sprintf("From %d to %d. %s", f.key.Min, f.key.Max, example)
	case f.key.NameForm != nil:
		return fmt.Sprintf("A name is %s. %s", f.key.NameFormName, example)
	default:
		return example
	}
}
