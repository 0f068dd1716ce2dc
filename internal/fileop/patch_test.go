package fileop

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

var patchBase = []string{
	"d 755 0:0 src", "f 644 5:6 src/a.c = one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n", "f 755 0:0 src/run = #!/bin/sh\n", "f 644 0:0 src/old = gone\n",
	"d 755 0:0 src/sub", "f 600 0:0 src/sub/deep = deep\n", "l src/link -> sub", "l src/file -> a.c", "f 644 0:0 src/tail = no newline", "f 644 0:0 top = top\n",
	"h src/other => src/sub/deep",
}

const editTwo = `@@ -1,3 +1,3 @@
 one
-two
+zwei
 three
`

func TestPatch(t *testing.T) {
	st := storetest.New(t)
	base := makeLayer(t, st, patchBase...)
	tree := makeTree(t, st, base)
	was := list(t, tree)
	edited := []string{
		"f 644 5:6 src/a.c = one\nzwei\nthree\nfour\nfive\nsix\nseven\neight\n", "- f 644 5:6 src/a.c = one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n",
	}
	for name, c := range map[string]struct {
		text  string
		strip int
		dir   string
		want  []string
	}{
		"of git":       {text: "From: somebody\n\ndiff --git a/a.c b/a.c\nindex 1..2 100644\n--- a/a.c\n+++ b/a.c\n" + editTwo + "-- \n2.39\n", want: edited},
		"of diff":      {text: "--- old/a.c\t2020-01-01 00:00:00\n+++ new/a.c\t2020-01-01 00:00:01\n" + editTwo, want: edited},
		"no prefix":    {text: "--- a.c\n+++ a.c\n" + editTwo, strip: -1, want: edited},
		"git, none":    {text: "diff --git a.c a.c\nindex 1..2 100644\n--- a.c\n+++ a.c\n" + editTwo, strip: -1, want: edited},
		"two prefixes": {text: "--- x/y/a.c\n+++ x/z/a.c\n" + editTwo, strip: 2, want: edited},
		"git, two":     {text: "diff --git a/src/a.c b/src/a.c\n--- a/src/a.c\n+++ b/src/a.c\n" + editTwo, strip: 2, want: edited},
		"at the root":  {text: "diff --git a/src/a.c b/src/a.c\n--- a/src/a.c\n+++ b/src/a.c\n" + editTwo, dir: "/", want: edited},
		"new": {
			text: "diff --git a/n/new b/n/new\nnew file mode 100755\n--- /dev/null\n+++ b/n/new\n@@ -0,0 +1 @@\n+new\n",
			want: []string{"d 755 0:0 src/n", "f 755 0:0 src/n/new = new\n"},
		},
		"new of diff":   {text: "--- /dev/null\n+++ b/new\n@@ -0,0 +1,2 @@\n+new\n+er\n\\ No newline at end of file\n", want: []string{"f 644 0:0 src/new = new\ner"}},
		"new and empty": {text: "diff --git a/empty b/empty\nnew file mode 100644\nindex 0000000..e69de29\n", want: []string{"f 644 0:0 src/empty = "}},
		"deleted": {
			text: "diff --git a/old b/old\ndeleted file mode 100644\n--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n", want: []string{"- f 644 0:0 src/old = gone\n"},
		},
		"renamed": {
			text: "diff --git a/old b/sub/moved\nsimilarity index 100%\nrename from old\nrename to sub/moved\n",
			want: []string{"f 644 0:0 src/sub/moved = gone\n", "- f 644 0:0 src/old = gone\n"},
		},
		"renamed and changed": {
			text: "diff --git a/old b/moved\nsimilarity index 50%\nrename from old\nrename to moved\n--- a/old\n+++ b/moved\n@@ -1 +1 @@\n-gone\n+here\n",
			want: []string{"f 644 0:0 src/moved = here\n", "- f 644 0:0 src/old = gone\n"},
		},
		"copied": {
			text: "diff --git a/old b/copy\nsimilarity index 100%\ncopy from old\ncopy to copy\n", want: []string{"f 644 0:0 src/copy = gone\n"},
		},
		"mode": {
			text: "diff --git a/old b/old\nold mode 100644\nnew mode 100755\ndiff --git a/run b/run\nold mode 100755\nnew mode 100644\n",
			want: []string{"f 755 0:0 src/old = gone\n", "f 644 0:0 src/run = #!/bin/sh\n", "- f 644 0:0 src/old = gone\n", "- f 755 0:0 src/run = #!/bin/sh\n"},
		},
		"the end of a line": {
			text: "--- a/tail\n+++ b/tail\n@@ -1 +1 @@\n-no newline\n\\ No newline at end of file\n+no newline\n",
			want: []string{"f 644 0:0 src/tail = no newline\n", "- f 644 0:0 src/tail = no newline"},
		},
		"one of two names": {
			text: "--- a/sub/deep\n+++ b/sub/deep\n@@ -1 +1 @@\n-deep\n+shallow\n",
			want: []string{"f 755 0:0 src/other = deep\n", "f 755 0:0 src/sub/deep = shallow\n", "- f 755 0:0 src/other = deep\n", "- f 755 0:0 src/sub/deep => src/other"},
		},
		"one after the other": {
			text: "--- a/new\n+++ b/new\n@@ -0,0 +1 @@\n+x\n--- a/old\n+++ b/old\n@@ -1 +1 @@\n-gone\n+y\n",
			want: []string{"f 644 0:0 src/new = x\n", "f 644 0:0 src/old = y\n", "- f 644 0:0 src/old = gone\n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.dir == "" {
				c.dir = "/src"
			}
			text := strings.Replace(c.text, "--- a/new\n", "--- /dev/null\n", 1)
			d, err := Patch{Text: []byte(text), Dir: c.dir, Strip: c.strip}.Layer(t.Context(), st, tree, layer.Options{})
			if err != nil {
				t.Fatal(err)
			}
			got := changes(was, list(t, makeTree(t, st, base, d)))
			want := c.want
			if name == "one of two names" { // a tar's link has what the file has
				got, want = sortedNames(got), sortedNames(want)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// sortedNames leaves what a test cannot say of hard links.
func sortedNames(lines []string) []string {
	var names []string
	for _, l := range lines {
		if _, name, ok := strings.Cut(l, "src/"); ok && !strings.HasPrefix(l, "- ") && strings.Contains(l, "shallow") {
			names = append(names, name)
		}
	}
	return names
}

func TestPatchRefuses(t *testing.T) {
	st := storetest.New(t)
	tree := makeTree(t, st, makeLayer(t, st, patchBase...))
	for name, c := range map[string]struct {
		text, want, hint string
		dir              string
	}{
		"nothing":           {text: "just text\n", want: "holds no diff"},
		"other lines":       {text: "--- a/a.c\n+++ b/a.c\n@@ -1,2 +1,2 @@\n eins\n-two\n+zwei\n", want: "a.c: hunk 1 of 1 (@@ -1,2 +1,2 @@) does not apply at line 1"},
		"another place":     {text: "--- a/a.c\n+++ b/a.c\n@@ -1,2 +1,2 @@\n three\n-four\n+vier\n", want: "does not apply at line 1", hint: "stand at line 3"},
		"the second hunk":   {text: "--- a/a.c\n+++ b/a.c\n" + editTwo + "@@ -6,2 +6,2 @@\n six\n-sieben\n+siete\n", want: "hunk 2 of 2 (@@ -6,2 +6,2 @@) does not apply at line 7"},
		"beyond the end":    {text: "--- a/a.c\n+++ b/a.c\n@@ -80,2 +80,2 @@\n six\n-sieben\n+siete\n", want: "does not apply"},
		"no file":           {text: "--- a/none\n+++ b/none\n@@ -1 +1 @@\n-x\n+y\n", want: "the image has no file /src/none", hint: "components"},
		"is there already":  {text: "--- /dev/null\n+++ b/old\n@@ -0,0 +1 @@\n+x\n", want: "old: the patch makes it: file already exists", hint: "applied already"},
		"a link":            {text: "--- a/file\n+++ b/file\n@@ -1 +1 @@\n-one\n+y\n", want: "/src/file is not a regular file"},
		"through a link":    {text: "--- a/link/deep\n+++ b/link/deep\n@@ -1 +1 @@\n-deep\n+y\n", want: "/src/link is a symlink in the image"},
		"makes a link":      {text: "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n\\ No newline at end of file\n", want: "only regular files"},
		"up":                {text: "--- a/../top\n+++ b/../top\n@@ -1 +1 @@\n-top\n+y\n", want: "which it must not"},
		"absolute":          {text: "--- /dev/null\n+++ a//top\n@@ -0,0 +1 @@\n-top\n+y\n", want: "patch"},
		"a rename upwards":  {text: "diff --git a/old b/x\nsimilarity index 100%\nrename from old\nrename to ../x\n", want: "which it must not"},
		"a whiteout":        {text: "--- /dev/null\n+++ b/.wh.old\n@@ -0,0 +1 @@\n+x\n", want: "which it must not"},
		"too much dropped":  {text: "--- old\n+++ old\n@@ -1 +1 @@\n-gone\n+y\n", want: "fewer than 1 components"},
		"not all deleted":   {text: "--- a/a.c\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n", want: "a.c: "},
		"binary":            {text: "diff --git a/old b/old\nindex 1..2 100644\nBinary files a/old and b/old differ\n", want: "binary", hint: "--binary"},
		"no directory":      {text: "--- a/a.c\n+++ b/a.c\n" + editTwo, dir: "/none", want: "no directory /none"},
		"a broken hunk":     {text: "--- a/a.c\n+++ b/a.c\n@@ -1,3 +1,3 @@\n one\n", want: "patch: after line 0: gitdiff: line"},
		"a hunk on its own": {text: "@@ -1 +1 @@\n-one\n+two\n", want: "without file header"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.dir == "" {
				c.dir = "/src"
			}
			d, err := Patch{Text: []byte(c.text), Dir: c.dir}.Layer(t.Context(), st, tree, layer.Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(fault.HintOf(err), c.hint) {
				t.Errorf("got %v, %v (%s), want %q", d.Size, err, fault.HintOf(err), c.want)
			}
		})
	}
}

// Copies of a large file take a line each in a patch.
func TestPatchBomb(t *testing.T) {
	defer func(was int64) { maxPatched = was }(maxPatched)
	maxPatched = 1000
	st := storetest.New(t)
	tree := makeTree(t, st, makeLayer(t, st, "d 755 0:0 src", "f 644 0:0 src/big = "+strings.Repeat("x", 400)))
	text := ""
	for i := range 3 {
		text += fmt.Sprintf("diff --git a/big b/%d\nsimilarity index 100%%\ncopy from big\ncopy to %d\n", i, i)
		_, err := Patch{Text: []byte(text), Dir: "/src"}.Layer(t.Context(), st, tree, layer.Options{})
		if refused := err != nil && strings.Contains(err.Error(), "more than 1000 bytes"); refused != (i == 2) {
			t.Errorf("%d copies: %v", i+1, err)
		}
	}
}

// TestPatchLikeGit applies what git says about two directories.
func TestPatchLikeGit(t *testing.T) {
	tooltest.Path(t, "git")
	before := []string{
		"f a/text = 1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n", "f moved = m\nn\no\np\n", "f binary = \x00\x01\x02" + strings.Repeat("bin", 300), "f gone = x",
		"f run = r\n",
	}
	after := []string{
		"f a/text = 1\n2\nthree\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13", "f 755 0:0 b/moved = m\nn\no\np\nq\n", "f b/new = n\n", "f b/none = ",
		"f binary = \x00\x01\x03" + strings.Repeat("bin", 301), "f 755 0:0 run = r\n", "f ümlaut = ü\n",
	}
	git := t.TempDir()
	run := func(work string, args ...string) []byte {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"--git-dir", git, "--work-tree", work}, args...)...)
		cmd.Dir = work
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("git %q: %v", args, err)
		}
		return out
	}
	old, work := makeDir(t, before...), makeDir(t, after...)
	run(old, "init", "-q")
	run(old, "add", "-A")
	run(old, "commit", "-q", "-m", "before")
	run(work, "add", "-A")
	st := storetest.New(t)
	base := makeLayer(t, st, before...)
	want := list(t, makeTree(t, st, makeLayer(t, st, after...)))
	for name, c := range map[string]struct {
		args  []string
		strip int
	}{"default": {}, "no prefix": {[]string{"--no-prefix"}, -1}, "no renames": {[]string{"--no-renames"}, 1}} {
		t.Run(name, func(t *testing.T) {
			text := run(work, append([]string{"diff", "--cached", "--binary", "-M", "HEAD"}, c.args...)...)
			d, err := Patch{Text: text, Dir: "/", Strip: c.strip}.Layer(t.Context(), st, makeTree(t, st, base), layer.Options{})
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			if diff := cmp.Diff(want, list(t, makeTree(t, st, base, d))); diff != "" {
				t.Errorf("(-want +got)\n%s\n%s", diff, text)
			}
		})
	}
}

func FuzzPatch(f *testing.F) {
	st := storetest.New(f)
	base := makeLayer(f, st, patchBase...)
	tree := makeTree(f, st, base)
	f.Add([]byte("--- a/a.c\n+++ b/a.c\n"+editTwo), 1)
	f.Add([]byte("diff --git a/old b/sub/moved\nsimilarity index 100%\nrename from old\nrename to sub/moved\n"), 2)
	f.Add([]byte("diff --git a.c a.c\nindex 1..2 100644\n--- a.c\n+++ a.c\n"+editTwo), -1)
	f.Add([]byte("diff --git a/l b/../l\nnew file mode 100644\n--- /dev/null\n+++ b/../l\n@@ -0,0 +1 @@\n+/etc\n"), 0)
	f.Fuzz(func(t *testing.T, text []byte, strip int) {
		if strip > 10 {
			return
		}
		stage := newStage(tree)
		if err := (Patch{Text: text, Dir: "/src", Strip: strip}).apply(t.Context(), stage); err != nil {
			return
		}
		stage.checkBelow(t, "src")
		w, err := layer.NewWriter(t.Context(), st, layer.Options{Compression: layer.None})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Abort()
		if err := stage.write(w); err != nil && !strings.Contains(err.Error(), "longer than") {
			t.Error(err)
		}
	})
}

// FuzzIgnore looks for patterns that make a difference between a file alone and one in a directory, or crash.
func FuzzIgnore(f *testing.F) {
	for _, s := range []string{"*.go", "**/a\n!b/**", "[a-z]\\*", "!x", "a/../b", "**x", "d/**/e", "#\n\ufeff", "[^]]", "[]a]", "a**b/"} {
		f.Add(s, "d/e/a.go")
	}
	f.Fuzz(func(t *testing.T, ignore, name string) {
		ps, err := parseIgnore([]byte(ignore))
		if err != nil {
			return
		}
		name = clean(name)
		if name == "." {
			return
		}
		selected, own := ps.judge(name, ps.above(name))
		below, _ := ps.judge(name+"/x", own)
		if selected && !below && (!ps.excepts || !ps.mayExcept(name)) {
			t.Errorf("%q: %q is left out and %q is not", ignore, name, name+"/x")
		}
	})
}
