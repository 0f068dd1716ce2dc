package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/slurmtest"
)

// examplePipeline is a cluster with a copy of examples/pipeline at /shared/example. The base is a directory instead of a distribution: the
// cluster has no network.
func examplePipeline(t *testing.T) *slurmtest.Cluster {
	t.Helper()
	c := pipelineCluster(t)
	to := filepath.Join(c.SharedDir, "example")
	if err := os.CopyFS(to, os.DirFS("../../examples/pipeline")); err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(to, "images/base/sconce.toml")
	text, err := os.ReadFile(base)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), "bootstrap = ")
	_, after, ended := strings.Cut(rest, "\n")
	if !found || !ended {
		t.Fatalf("%s has another base:\n%s", base, text)
	}
	writeText(t, base, before+`image = "dir:../../../rootfs"`+"\n"+after)
	for _, doc := range []string{"doc/tiny/copyright", "man/man1/sh.1"} {
		writeText(t, filepath.Join(c.SharedDir, "rootfs/usr/share", doc), "text\n")
	}
	copyProgram(t, filepath.Join(c.SharedDir, "key.pem"), filepath.Join(to, "team.key")) // no openssl in the cluster
	return c
}

// What examples/pipeline/README.md says: two commands from nothing to published, nothing to do the second time, and what each of its
// changes has done.
func TestPipelineExample(t *testing.T) {
	c := examplePipeline(t)
	out, err := c.Try(slurmtest.Alice, "cp -r example mine && cd mine\n"+strings.Replace(withRegistry, "reg.yml", "registry.yml", 1)+`
		ln -s sh ../rootfs/bin/cat
		again() { echo "== $1"; ./all.sh; echo code $?; echo jobs $(ls -d .sconce/tests/*/job | wc -l).; }
		again nothing; sconce pipeline plan
		again fine
		echo '# a comment' >> apps/app/sconce.toml; again comment
		sed -i 's|5000/images|5000/others|' pipeline.toml; again stable
		sed -i 's|"^hello"|"hello"|' apps/app/sconce.toml; again test
		sed -i 's|hello|hello, world|' apps/app/app.sh; sed -i 's|"0.1"|"0.2"|' apps/app/sconce.toml; again app
		echo '# more' >> images/stack/files/team.conf; again stack; sconce pipeline plan
		echo "== end"`)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	parts := partsOf("\n"+out, "nothing", "fine", "comment", "stable", "test", "app", "stack", "end")
	for _, want := range []struct {
		part  string
		jobs  int // of Slurm, from the beginning
		built []string
		texts []string
	}{
		{"nothing", 2, []string{"base:1", "stack:1", "app:0.1-plain", "app:0.1-verbose-dev"}, []string{
			"code 0", "apps/app:plain fine published as localhost:5000/images/app:0.1-plain", "4 images: there is nothing to do",
		}},
		{"fine", 2, nil, []string{"code 0", "there is nothing to build"}},
		{"comment", 2, nil, []string{"code 0", "there is nothing to build"}},
		{"stable", 2, nil, []string{"code 0", "localhost:5000/others/base:1 written", "localhost:5000/others/app:0.1-verbose-dev written"}},
		{"test", 4, nil, []string{"code 0", "says-hello is recorded in localhost:5000/ci/app"}},
		{"app", 6, []string{"app:0.2-plain", "app:0.2-verbose-dev"}, []string{"code 0", "localhost:5000/others/app:0.2-plain written"}},
		{"stack", 6, []string{"stack:1"}, []string{"code 3", "others/stack:1 is written already", "images/stack stuck"}},
	} {
		part := parts[want.part]
		wantIn(t, part, append(want.texts, fmt.Sprintf("jobs %d.", want.jobs))...)
		if built := regexp.MustCompile(`(?m)^built .*/ci/(.*)-[0-9a-f]{24}@`).FindAllStringSubmatch(part, -1); !sameSet(built, want.built) {
			t.Errorf("%s: built %q, want %q", want.part, built, want.built)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}
