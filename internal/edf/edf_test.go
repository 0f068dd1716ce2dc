package edf

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
)

const example = `# an environment
image = "a#b:1" # here
mounts = ["/a:/b", '/c:/d:ro',
  """/e:/f"""]
writable = true
env = { A = "1", B = 'two' }

[annotations]
com.hooks.cxi.enabled = "true"
"com.pyxis.entrypoint_log" = "false"

[annotations.com.hooks.ssh]
port = 15263
`

// Every value is where the file has it, whatever it is written as.
func TestPlaces(t *testing.T) {
	f, err := Parse("x", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range f.Entries {
		got[strings.Join(e.Name, ".")] = example[e.Key.Offset:e.Key.Offset+e.Key.Length] + "=" + example[e.Value.At.Offset:e.Value.At.Offset+e.Value.At.Length]
	}
	want := map[string]string{
		"image": `image="a#b:1"`, "mounts": "mounts=", "writable": "writable=true", "env.A": `A="1"`, "env.B": `B='two'`,
		"annotations.com.hooks.cxi.enabled":    `com.hooks.cxi.enabled="true"`,
		"annotations.com.pyxis.entrypoint_log": `"com.pyxis.entrypoint_log"="false"`,
		"annotations.com.hooks.ssh.port":       "port=15263",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var mounts []string
	for _, v := range f.Strings(Mounts) {
		mounts = append(mounts, v.Text)
	}
	if diff := cmp.Diff([]string{"/a:/b", "/c:/d:ro", "/e:/f"}, mounts); diff != "" {
		t.Error(diff)
	}
	if line, column := Place(f.Data, strings.Index(example, "15263")); line != 13 || column != 8 {
		t.Errorf("15263 is at %d:%d", line, column)
	}
}

func TestSyntaxErrors(t *testing.T) {
	for text, line := range map[string]int{
		"a = [\n":                            1,
		"image = \"x\"\nimage = \"y\"\n":     2,
		"image = \"x\"\\n\\n\nb = 1\n":       1,
		strings.Repeat("#\n", 1+MaxSize/2):   1,
		"[env]\nA=\"1\"\n[env]\nB = \"2\"\n": 3,
	} {
		_, err := Parse("x", []byte(text))
		e, ok := err.(*SyntaxError) //nolint:errorlint // that is what Parse promises
		if !ok || e.Line != line || e.Message == "" {
			t.Errorf("%.20q: %v, want line %d", text, err, line)
		}
	}
}

func TestReferences(t *testing.T) {
	for text, want := range map[string]string{
		"${A}/$B":             "A B",
		"$${A} $$B ${C:-x:y}": "C",
		"$ 5$ ${} ${1}":       "",
		"${A-x}${A_1}":        "A A_1",
	} {
		var names []string
		for _, r := range References(text) {
			names = append(names, r.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestExpand(t *testing.T) {
	lookup := func(name string) (string, bool) {
		v, ok := map[string]string{"A": "a", "EMPTY": ""}[name]
		return v, ok
	}
	for text, want := range map[string]string{
		"${A}/x": "a/x", "$A": "$A", "${B:-b}": "b", "${B:-}": "", "${EMPTY:-e}": "e", "$${A}": "${A}", "${EMPTY}": "", "${B}": "?B",
	} {
		got, undefined := Expand(text, lookup)
		if len(undefined) > 0 {
			got = "?" + strings.Join(undefined, " ")
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestMounts(t *testing.T) {
	m := ParseMount("${A:-/x}/y:/b:ro+private")
	if m.Source() != "${A:-/x}/y" || m.Target() != "/b" || !slices.Equal(m.Flags(), []string{"ro", "private"}) {
		t.Errorf("%+v", m)
	}
	if m := ParseMount("/a"); m.Target() != "/a" || m.Flags() != nil {
		t.Errorf("%+v", m)
	}
}

// files writes files of a directory, which it returns.
func files(t *testing.T, texts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range texts {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Bases come first, in order; tables are merged, lists appended without duplicates, all else replaced.
func TestInheritance(t *testing.T) {
	dir := files(t, map[string]string{
		".edf/base.toml": "image = \"a:1\"\nmounts = [\"/a:/a\", \"/b:/b\"]\n[env]\nX = \"1\"\nY = \"1\"\n[annotations]\ncom.hooks.cxi.enabled = \"true\"\n",
		".edf/more.toml": "mounts = [\"/c:/c\"]\n[env]\nY = \"2\"\n",
		"top.toml":       "base_environment = [\"base\", \"more\"]\nimage = \"b:2\"\nmounts = [\"/a:/a\", \"/d:/d\"]\n[env]\nZ = \"3\"\n",
	})
	f, err := Read(filepath.Join(dir, "top.toml"))
	if err != nil {
		t.Fatal(err)
	}
	env, problems := Resolve(f, Search{Lookup: func(name string) (string, bool) { return dir, name == "HOME" }})
	var mounts []string
	for _, m := range env.Mounts {
		mounts = append(mounts, m.Value.Text)
	}
	got := []any{env.Text(Image), mounts, env.Env["X"].Value.Text, env.Env["Y"].Value.Text, env.Env["Z"].Value.Text, env.On("cxi"), len(problems), len(env.Files)}
	want := []any{"b:2", []string{"/a:/a", "/b:/b", "/c:/c", "/d:/d"}, "1", "2", "3", true, 0, 3}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s%v", diff, problems)
	}
}

// The Container Engine takes EDF_PATH for a list, and the Sarus Suite for one directory; neither complains where there is none.
func TestFind(t *testing.T) {
	dir := files(t, map[string]string{"one/a.toml": "", "two/b.toml": "", "here/c.toml": ""})
	list := filepath.Join(dir, "one") + ":" + filepath.Join(dir, "two")
	lookup := func(value string) Lookup {
		return func(name string) (string, bool) { return value, name == "EDF_PATH" && value != "" }
	}
	for _, c := range []struct {
		dialect    Dialect
		path, name string
		want       string // the file, or a word of the error
	}{
		{ContainerEngine, list, "b", "two/b.toml"},
		{Sarus, list, "b", "no directory"},
		{Sarus, filepath.Join(dir, "two"), "b", "two/b.toml"},
		{ContainerEngine, list, "d", "there is no environment"},
		{ContainerEngine, "", "d", "no directory"},
		{ContainerEngine, "", "./c.toml", "here/c.toml"},
		{ContainerEngine, "", "./d.toml", "there is no file"},
		{ContainerEngine, "", filepath.Join(dir, "one/a.toml"), "one/a.toml"},
	} {
		got, err := Search{Dialect: c.dialect, Lookup: lookup(c.path)}.Find(c.name, filepath.Join(dir, "here"))
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s in %q as %s: %s, want %s", c.name, c.path, c.dialect, got, c.want)
		}
	}
}

// What go-toml reads is read, with every value in its place; what it refuses is refused.
func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("[[mounts]]\na.b = {c = [1, {d = 2}]}\n"))
	f.Add([]byte("x = 1979-05-27T07:32:00Z\n\"\" = ''''''\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("x", data)
		var all map[string]any
		if whole := toml.Unmarshal(data, &all); (whole == nil) != (err == nil) && len(data) <= MaxSize {
			t.Fatalf("read: %v; go-toml: %v", err, whole)
		}
		if err != nil {
			return
		}
		for _, e := range file.Entries {
			for _, at := range []Span{e.Key, e.Value.At} {
				if at.Offset < 0 || at.Length < 0 || at.Offset+at.Length > len(data) {
					t.Fatalf("%v is at %+v of %d bytes", e.Name, at, len(data))
				}
			}
			References(e.Value.Text)
			ParseMount(e.Value.Text)
		}
		Resolve(file, Search{Lookup: func(string) (string, bool) { return "", false }})
	})
}
