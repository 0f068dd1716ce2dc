package pipeline

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// The address of a repository tells nothing but where it is for everybody.
func TestWithoutLogin(t *testing.T) {
	for address, want := range map[string]string{
		"https://example.org/team/images.git":                "https://example.org/team/images.git",
		"HTTPS://me:secret@example.org:8443/team/images":     "https://example.org:8443/team/images",
		"https://me:pass@word@example.org/team/images?t=1#x": "https://example.org/team/images",
		"https://me:p/a?s#s@w@example.org/team/images?t=1#x": "",
		"https://example.org/team/images#token":              "https://example.org/team/images",
		"ssh://git@example.org:22/team/images":               "ssh://example.org:22/team/images",
		"git@example.org:team/images.git":                    "example.org:team/images.git",
		"git://example.org/team":                             "git://example.org/team",
		"https://example.org/":                               "",
		"file:///home/alice/images":                          "",
		"FILE:///home/alice/images":                          "",
		"file://host/home/alice/images":                      "",
		"ext::sh -c 'cat /home/alice/x'":                     "",
		"gcrypt::/home/alice/images":                         "",
		"gcrypt::ssh://host/images":                          "",
		"/home/alice/images":                                 "",
		"../images":                                          "",
		"./a:b":                                              "",
		"C:/images":                                          "",
		"":                                                   "",
	} {
		if got := withoutLogin(address); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
}

// Files that are not those of the commit are told, whatever the configuration hides; what git does not say is unknown.
func TestChanged(t *testing.T) {
	tooltest.Path(t, "git")
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("file", "text")
	for _, args := range [][]string{{"init", "-q"}, {"add", "file"}, {"-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-qm", "x"}, {"config", "status.showUntrackedFiles", "no"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	want := func(what string, changed, unknown bool) {
		t.Helper()
		if c, u := newGit(t.Context(), dir).changed([]string{"."}); c != changed || u != unknown {
			t.Errorf("%s: changed %v, unknown %v", what, c, u)
		}
	}
	want("as it was committed", false, false)
	put("more", "text")
	want("with another file", true, false)
	if err := os.RemoveAll(filepath.Join(dir, ".git")); err != nil {
		t.Fatal(err)
	}
	put(".git", "nonsense")
	want("of a damaged repository", false, true)
}

// What somebody writes into a note is text on a page.
func TestNoteInTable(t *testing.T) {
	const text = `a | b](https://example.org) <b> www.example.org \](x)`
	if got, want := inCell.Replace(text), `a \| b\](https&#58;//example.org) &lt;b&gt; www&#46;example.org \\\](x)`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
