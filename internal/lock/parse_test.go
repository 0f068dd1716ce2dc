package lock

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
)

func TestSplitRequirementLines(t *testing.T) {
	const text = "# comment\n  \nalpha==1 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\nbeta # why\r\nhttps://host/x#egg=y\n-rfile.txt\n--requirement=a b.txt\n-c 'c.txt'\n--index-url  https://host\n--pre\n-e .\n"
	type pair struct{ Option, Value string }
	var got []pair
	for _, line := range requirementLines(text) {
		option, value := splitOption(line.text)
		got = append(got, pair{option, value})
	}
	want := []pair{
		{"", "alpha==1"},
		{"", "beta"},
		{"", "https://host/x#egg=y"},
		{"-r", "file.txt"},
		{"--requirement", "a b.txt"},
		{"-c", "c.txt"},
		{"--index-url", "https://host"},
		{"--pre", ""},
		{"-e", "."},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestIncludesEnd(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := &recipe.Recipe{Dir: dir, Reach: reach.Anywhere(), Python: recipe.Python{Requirements: []string{"0"}}}
	write("0", "-r 0\n-r 1\n")
	write("1", "-r ./0\nalpha\n")
	q, err := readRequirements(r)
	if err != nil || len(q.files) != 2 || len(q.lines) != 1 {
		t.Errorf("%+v, %v", q, err)
	}
	for i := range maxIncludeDepth + 1 {
		write(fmt.Sprint("chain", i), fmt.Sprint("-r chain", i+1, "\n"))
	}
	r.Python.Requirements = []string{"chain0"}
	if _, err := readRequirements(r); err == nil || !strings.Contains(err.Error(), "include each other") {
		t.Errorf("got %v", err)
	}
}

func TestParsePip(t *testing.T) {
	got := parsePip("; all\nx = 1\n[global]\nindex_url = https://a\nextra-index-url =\n    https://b\n\n    https://c # no\ntimeout=5\n[install]\nindex-url: no\nindex-url=https://d\n[list]\nindex-url=https://e\n")
	want := []string{"https://d"}
	if diff := cmp.Diff(want, got["index-url"]); diff != "" {
		t.Errorf("index (-want +got)\n%s", diff)
	}
	if len(got["extra-index-url"]) < 2 || got["extra-index-url"][0] != "https://b" || got["extra-index-url"][1] != "https://c" {
		t.Errorf("extra %q", got["extra-index-url"])
	}
}

func TestRedact(t *testing.T) {
	l := Logins{{password: "S3cret/word"}, {password: "abc"}}
	for text, want := range map[string]string{
		"at https://me:pw@host/x and ssh://git@host": "at https://****@host/x and ssh://****@host",
		"no https://host/a@b here":                   "no https://host/a@b here",
		"S3cret/word and S3cret%2Fword":              "**** and ****",
		"abc is too short to be found":               "abc is too short to be found",
	} {
		if got := l.redact(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	for _, login := range []string{"me:p%40w", "me:p@w", "me:@@"} {
		if got := fetch.WithoutLogins("x @ https://" + login + "@host:1/x.whl"); got != "x @ https://host:1/x.whl" {
			t.Errorf("of %s there is left %q", login, got)
		}
	}
}

func TestUVPlatform(t *testing.T) {
	for _, test := range []struct {
		p    Python
		want string
	}{
		{Python{Platform: "x86_64", Glibc: "2.36"}, "x86_64-manylinux_2_36"},
		{Python{Platform: "aarch64", Glibc: "2.30"}, "aarch64-manylinux_2_28"},
		{Python{Platform: "x86_64", Glibc: "2.99"}, "x86_64-manylinux_2_40"},
		{Python{Platform: "x86_64", Glibc: "2.12"}, "x86_64-manylinux_2_17"},
		{Python{Platform: "x86_64", Musl: "1.2"}, "x86_64-unknown-linux-musl"},
	} {
		if got := uvPlatform(&test.p); got != test.want {
			t.Errorf("%+v: %s, want %s", test.p, got, test.want)
		}
	}
}

func TestDidYouMean(t *testing.T) {
	names := map[string]bool{"transformers": true, "torch": true, "six": true}
	for name, want := range map[string]string{"transformer": `did you mean "transformers"?`, "trch": `did you mean "torch"?`, "something-else": "the packages are those of pylock.toml"} {
		if got := didYouMean(name, names); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// FuzzLock: any bytes are a lock, or an error; a lock has a key, and its packages can be chosen.
func FuzzLock(f *testing.F) {
	f.Add("version = 1\nplatform = 'linux/amd64'\n[base]\ndigest = 'sha256:" + strings.Repeat("0", 64) + "'\n[python]\nfile = 'pylock.toml'\nversion = '3.11.2'\nexecutable = '/usr/bin/python3.11'\nplatform = 'x86_64'\nglibc = '2.36'\n")
	f.Add("version = 1\n[base.bootstrap]\nsuite = 'x'\nepoch = 2020-01-01T00:00:00Z\n[[base.bootstrap.packages]]\nname = 'a'\n")
	f.Add("version = 2")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := parse([]byte(text))
		if err != nil {
			return
		}
		if key := l.Base.Key(); len(key) != 64 {
			t.Errorf("the base's key is %q", key)
		}
		if l.Python != nil {
			r := &recipe.Recipe{Dir: "/dir", Path: "/dir/" + recipe.FileName}
			_, _ = l.Python.choose(r, []byte("lock-version = \"1.0\"\ncreated-by = \"x\"\npackages = []\n"))
		}
	})
}

// FuzzRequirements: any text is read without harm, and the lines that come out are whole.
func FuzzRequirements(f *testing.F) {
	f.Add("-r x\nalpha==1 \\\n --hash=sha256:00\n--index-url=https://a:b@c/d\n${HOME}")
	f.Add("[global]\nindex-url = https://x\n [install]\n  y\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, line := range requirementLines(text) {
			if line.text == "" || strings.ContainsAny(line.text, "\n") {
				t.Errorf("line %q", line.text)
			}
			option, value := splitOption(line.text)
			if option == "" && value == "" {
				t.Errorf("nothing came of %q", line.text)
			}
			_ = requestedNames([]string{value})
			_ = directAddresses([]string{value})
		}
		_ = parsePip(text)
		if once := fetch.WithoutLogins(text); once != fetch.WithoutLogins(once) {
			t.Errorf("%q has a login in %q", text, once)
		}
		_ = Logins{}.add("", text).redact(text)
		_, _ = takeSettings(&recipeSettings{file: "/dir/uv.toml"}, []byte(text))
	})
}
