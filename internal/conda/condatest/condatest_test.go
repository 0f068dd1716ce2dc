package condatest

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func small() []Package {
	return []Package{
		{Name: "libx", Version: "1.0", Files: map[string]File{"lib/libx.txt": {Data: "at " + Placeholder + "/lib\n"}, "lib/libx.link": {Link: "libx.txt"}}},
		{Name: "libx", Version: "0.9", TarBz2: true, Files: map[string]File{"lib/libx.txt": {Data: "old\n"}}},
		{Name: "tool", Version: "2.0", Noarch: "generic", Depends: []string{"libx >=1"}, Files: map[string]File{"share/tool": {Data: "tool\n"}}},
		{Name: "needs-gpu", Version: "1.0", Depends: []string{"__cuda >=12"}},
	}
}

// What other tests build on has to be what rattler takes for a channel, in each of the forms of repodata.
func TestRattlerReadsChannel(t *testing.T) {
	c := NewChannel(t, small()...)
	for _, without := range [][]string{nil, {"repodata_shards.msgpack.zst"}, {"repodata_shards.msgpack.zst", "repodata.json.zst"}} {
		s := c.Serve(t)
		s.Without(without...)
		s.Basic("user", "secret")
		got := Solve(t, s.WithLogin("user", "secret"), "linux-64", "tool")
		base := s.WithLogin("user", "secret")
		want := []string{base + "/linux-64/libx-1.0-0.conda", base + "/noarch/tool-2.0-0.conda"}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("without %q: got %q, want %q", without, got, want)
		}
	}
}

func TestRattlerInstallsPackages(t *testing.T) {
	c := NewChannel(t, small()...)
	c.Build(t, `
package: {name: built, version: "1"}
build:
  number: 0
  script: mkdir -p $PREFIX/bin && echo "from $PREFIX" > $PREFIX/bin/built
requirements: {run: [libx <1]}
`)
	target := filepath.Join(t.TempDir(), "env")
	s := c.Serve(t)
	s.Token("tk-1")
	got := Install(t, s.WithToken("tk-1"), "linux-64", "/opt/conda", target, "built")
	if len(got) != 2 {
		t.Errorf("got %q", got)
	}
	for name, want := range map[string]string{"bin/built": "from /opt/conda\n", "lib/libx.txt": "old\n"} {
		if data := read(t, filepath.Join(target, name)); data != want {
			t.Errorf("%s: got %q, want %q", name, data, want)
		}
	}
}

// A Python that is not where it was must find its library where it is.
func TestRealPythonRuns(t *testing.T) {
	p := LeanPython(t)
	dir := t.TempDir()
	for name, f := range p.Files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil && f.Link != "" {
			err = os.Symlink(f.Link, path)
		} else if err == nil {
			err = os.WriteFile(path, []byte(f.Data), os.FileMode(max(f.Mode, 0o644)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(dir, "bin/python"), "-I", "-c", "import sys, json, os, importlib.util; print(os.__file__)")
	out, err := cmd.CombinedOutput()
	if want := filepath.Join(dir, "lib/python"+PythonMinor(t), "os.py"); err != nil || strings.TrimSpace(string(out)) != want {
		t.Errorf("got %v %q, want %q", err, out, want)
	}
}

func TestServerFaults(t *testing.T) {
	s := NewChannel(t, small()...).Serve(t)
	get := func(url string) string {
		t.Helper()
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return fmt.Sprint(resp.StatusCode)
	}
	s.Fail("repodata.json", 1, http.StatusTooManyRequests)
	got := []string{get(s.URL + "/noarch/repodata.json"), get(s.URL + "/noarch/repodata.json"), get(s.URL + "/noarch/none")}
	s.Bearer("b")
	got = append(got, get(s.URL+"/noarch/repodata.json"))
	if want := []string{"429", "200", "404", "401"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := s.Requests(), []string{"GET noarch/none", "GET noarch/repodata.json", "GET noarch/repodata.json"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
