package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/slurmtest"
	"sconce.dev/sconce/internal/tooltest"
)

const pipelineTOML = `recipes = ["app"]
staging = "127.0.0.1:5000/ci"
stable = ["127.0.0.1:5000/users"]
clusters = ["two"]
sign = "file:/shared/key.pem"
`

// onMain is what is checked out where images are promoted.
const onMain = "ref: refs/heads/main\n"

const pipelineRecipe = `name = "tiny"
version = "1"
base.image = "dir:../../rootfs"
target.cluster = "two"

[[test]]
name = "rate"
run = "echo rate = 5 GB/s"
expect = { rate = ">= 90%" }

[[test]]
name = "word"
run = "echo open sesame"
log = ["^open sesame$"]

[publish]
repository = "127.0.0.1:5000/users/tiny"
`

// withRegistry begins scripts with a registry of their own, whose collector of garbage has less to do (see registrytest.Start).
const withRegistry = `exec 2>&1
		unset CI GITHUB_ACTIONS GITLAB_CI
		GOGC=800 docker-registry serve reg.yml > /tmp/registry.log 2>&1 & registry=$!
		trap "kill $registry; wait $registry" EXIT
		until bash -c ': < /dev/tcp/127.0.0.1/5000' 2> /dev/null; do sleep 0.05; done`

// pipelineCluster is a cluster with a registry's program, a key, and the pipeline of one image.
func pipelineCluster(t *testing.T) *slurmtest.Cluster {
	t.Helper()
	c := submitCluster(t)
	copyProgram(t, tooltest.Path(t, "docker-registry"), filepath.Join(c.SharedDir, "bin/docker-registry"))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	profile := strings.Replace(testProfile, "good.rate", "rate.rate", 1)
	for name, text := range map[string]string{
		"pipe/.git/HEAD": onMain, "pipe/pipeline.toml": pipelineTOML, "pipe/app/sconce.toml": pipelineRecipe, "pipe/app/clusters/two.toml": profile,
		"key.pub": string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})),
		"key.pem": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"reg.yml": "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: /tmp/registry}}\nhttp: {addr: '127.0.0.1:5000', secret: test}\n",
	} {
		writeText(t, filepath.Join(c.SharedDir, name), text)
	}
	return c
}

// From a recipe to a tag for users: built under its canonical reference, tested by one job, promoted by the evidence. What was tested is
// not tested again, and a threshold that changes has its own test run alone.
func TestPipelineOnSlurm(t *testing.T) {
	c := pipelineCluster(t)
	out, err := c.Try(slurmtest.Alice, withRegistry+`
		cd pipe
		echo early; sconce test app --canonical --on two; echo code $?
		sconce lock app && sconce build app --canonical
		echo first; sconce test app --canonical --on two; echo code $?
		echo again; sconce test app --canonical --on two; echo code $?; ls -d .sconce/tests/*/job | wc -l
		sed -i 's/">= 90%"/">= 80%"/' app/sconce.toml
		echo changed; sconce test app --canonical --on two; echo code $?; ls -d .sconce/tests/*/job | wc -l
		echo promoted; sconce promote app; echo code $?
		sconce pipeline plan --json | sed -n 's/.*"canonical": "\(.*\)".*/\1/p' > /tmp/canonical
		echo planned; sconce pipeline plan; sconce verify $(cat /tmp/canonical) --key /shared/key.pub
		sed -i 's/sesame"/barley"/' app/sconce.toml
		echo run; sconce pipeline run --test --promote; echo code $?
		sed -i 's/open barley/open sesame/; s/version = "1"/version = "2"/' app/sconce.toml
		echo rerun; sconce pipeline run --test --promote; echo code $?; sconce pipeline plan`)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	part := func(from, to string) string {
		_, rest, _ := strings.Cut(out, "\n"+from+"\n")
		part, _, _ := strings.Cut(rest, "\n"+to+"\n")
		return part
	}
	wantIn(t, "x\n"+strings.SplitN(out, "\nfirst\n", 2)[0], "early", "sconce.lock does not exist", "code 3")
	wantIn(t, part("first", "again"), "rate PASSED", "word PASSED", "rate is recorded in 127.0.0.1:5000/ci/tiny", "word is recorded", "code 0")
	wantIn(t, part("again", "changed"), "rate was tested before: PASSED", "word was tested before: PASSED", "code 0 1")
	wantIn(t, part("changed", "promoted"), "word was tested before: PASSED", "rate is recorded", "code 0 2")
	if strings.Contains(part("changed", "promoted"), "rate was tested before") {
		t.Errorf("a test with another threshold counts as run:\n%s", out)
	}
	wantIn(t, part("promoted", "planned"), "127.0.0.1:5000/users/tiny:1", "code 0")
	wantIn(t, part("planned", "run"), "app fine", "provenance", "sbom")
	wantIn(t, part("run", "rerun"), "there is nothing to build", "rate was tested before", "word FAILED", "code 3")
	_, rerun, _ := strings.Cut(out, "\nrerun\n")
	wantIn(t, rerun, "rate PASSED", "word PASSED", "127.0.0.1:5000/users/tiny:2", "code 0", "app fine")
	if t.Failed() {
		t.Log(out)
	}
}

// parts of a script's output are what stands between lines that are marks.
func partsOf(out string, marks ...string) map[string]string {
	parts := map[string]string{}
	for i, mark := range marks {
		_, part, _ := strings.Cut(out, "\n== "+mark+"\n")
		if i+1 < len(marks) {
			part, _, _ = strings.Cut(part, "\n== "+marks[i+1]+"\n")
		}
		parts[mark] = part
	}
	return parts
}

// meet has a test of one variant wait for that of the other, which it does in vain when images are tested one after the other.
const meet = "n=0; : > /shared/met/$WHO; until [ -e /shared/met/small -a -e /shared/met/large ]; do n=$((n+1)); [ $n -lt 6000 ] || exit 1; sleep 0.1; done"

// threeImages are a base, a stack of components on it and an app on that, in two variants each.
var threeImages = map[string]string{
	".git/HEAD":     onMain,
	"pipeline.toml": strings.Replace(pipelineTOML, `["app"]`, `["base", "stack", "app"]`, 1) + "untested = \"allow\"\n",
	"base/sconce.toml": `name = "base"
version = "1"
base.image = "dir:../../rootfs"
target.cluster = "two"
[variant]
small = {}
large = { image.env.SIZE = "large" }
`,
	"stack/sconce.toml": `name = "stack"
version = "1"
target.cluster = "two"
[source.greet]
url = "greet.tar"
patch = ["greet.patch"]
[component.greet]
run = "mkdir -p $PREFIX; grep -v '^#' word > $PREFIX/word; echo made greet"
[component.user]
sources = ["plain"]
needs = ["greet"]
run = "mkdir -p $PREFIX; cat $GREET_PREFIX/word > $PREFIX/word; echo made user"
[component.other]
sources = ["plain"]
run = "mkdir -p $PREFIX; echo other > $PREFIX/word; echo made other"
[source.plain]
url = "greet.tar"
[variant]
small = { base.recipe = "../base:small", image.env.WHO = "small" }
large = { base.recipe = "../base:large", image.env.WHO = "large" }
[[test]]
name = "word"
run = "cat /opt/user/word; ` + meet + `"
log = ["sesame"]
`,
	"stack/greet.patch": "--- a/word\n+++ b/word\n@@ -1 +1 @@\n-open\n+open sesame\n",
	"app/sconce.toml": `name = "app"
version = "1"
target.cluster = "two"
[[step]]
run = "echo app > /app"
[variant.large]
base.recipe = "../stack:large"
[variant.small]
base.recipe = "../stack:small"
[[variant.small.test]]
name = "rate"
run = "echo rate = 5 GB/s"
expect = { rate = ">= 4 GB/s" }
`,
}

// Three images in two variants, from nothing to published; and what a change of each kind has built and tested again.
func TestPipelineOfThreeOnSlurm(t *testing.T) {
	c := pipelineCluster(t)
	for name, text := range threeImages {
		writeText(t, filepath.Join(c.SharedDir, "three", name), text)
	}
	for _, name := range []string{"base", "stack", "app"} {
		writeText(t, filepath.Join(c.SharedDir, "three", name, "clusters/two.toml"), testProfile)
	}
	out, err := c.Try(slurmtest.Alice, withRegistry+`
		mkdir met; for p in cat grep mkdir sleep; do ln -sf sh rootfs/bin/$p; done
		mkdir greet && echo open > greet/word && tar cf three/stack/greet.tar greet
		cd three
		again() { echo "== $1"; sconce lock base && sconce lock stack && sconce lock app; sconce pipeline run --test --promote --progress plain; echo code $?; echo jobs $(ls -d .sconce/tests/*/job | wc -l).; made; }
		made() { echo made $(find ~ -path '*/logs-v1/*.log' -exec grep -hx 'made [a-z]*' {} + | sort | uniq -c); }
		again nothing
		again fine; sconce pipeline plan
		sed -i 's|users"|people"|' pipeline.toml; again publishing
		sed -i 's/>= 4/>= 3/' app/sconce.toml; again threshold
		sed -i 's/@@ -1 +1 @@/@@ -1 +1,2 @@/; $a +# a comment' stack/greet.patch; again comment
		sed -i 's/open sesame/open, sesame/' stack/greet.patch; sed -i 's/version = "1"/version = "2"/' stack/sconce.toml app/sconce.toml
		echo "== why"; for r in base stack app; do sconce lock $r > /dev/null; done; sconce pipeline plan
		again patch; sconce pipeline plan; echo "== end"`)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	parts := partsOf("\n"+out, "nothing", "fine", "publishing", "threshold", "comment", "why", "patch", "end")
	for _, want := range []struct {
		part   string
		jobs   int      // of Slurm, from the beginning
		made   string   // how often components were, from the beginning: in both variants each time
		built  []string // canonical images
		others []string
	}{
		{"nothing", 3, "2 made greet 2 made other 2 made user", []string{"base:1-small", "base:1-large", "stack:1-small", "stack:1-large", "app:1-small", "app:1-large"}, []string{"users/app:1-large written"}},
		{"fine", 3, "2 made greet 2 made other 2 made user", nil, []string{"there is nothing to build", "6 images: there is nothing to do"}},
		{"publishing", 3, "2 made greet 2 made other 2 made user", nil, []string{"people/base:1-small written", "people/app:1-large written"}},
		{"threshold", 4, "2 made greet 2 made other 2 made user", nil, []string{"rate is recorded in 127.0.0.1:5000/ci/app"}},
		{"comment", 4, "4 made greet 2 made other 2 made user", []string{"stack:1-small", "stack:1-large", "app:1-small", "app:1-large"}, []string{"rate was tested before", "people/stack:1-small there"}},
		{"patch", 7, "6 made greet 2 made other 4 made user", []string{"stack:2-small", "stack:2-large", "app:2-small", "app:2-large"}, []string{"people/app:2-small written", "6 images: there is nothing to do"}},
	} {
		part := parts[want.part]
		wantIn(t, part, append(want.others, "code 0", fmt.Sprintf("jobs %d.", want.jobs), "made "+want.made)...)
		if built := regexp.MustCompile(`(?m)^built .*/ci/(.*)-[0-9a-f]{24}@`).FindAllStringSubmatch(part, -1); !sameSet(built, want.built) {
			t.Errorf("%s: built %q, want %q", want.part, built, want.built)
		}
	}
	wantIn(t, parts["why"], "base:small fine", "stack:small build it is a new version; what follows has changed since 1-small", "app:small build", "what it is based on, stack:small, is to be built")
	if t.Failed() {
		t.Log(out)
	}
}

// sameSet reports whether the first groups of matches are some words, in any order.
func sameSet(matches [][]string, words []string) bool {
	var found []string
	for _, m := range matches {
		found = append(found, m[1])
	}
	return slices.Equal(slices.Sorted(slices.Values(found)), slices.Sorted(slices.Values(words)))
}
