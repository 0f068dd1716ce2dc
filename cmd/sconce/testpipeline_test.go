package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/slurmtest"
)

const pipelineTOML = `recipes = ["app"]
staging = "127.0.0.1:5000/ci"
stable = ["127.0.0.1:5000/users"]
clusters = ["two"]
sign = "file:/shared/key.pem"
`

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

// From a recipe to a tag for users: built under its canonical reference, tested by one job, promoted by the evidence. What was tested is
// not tested again, and a threshold that changes has its own test run alone.
func TestPipelineOnSlurm(t *testing.T) {
	c := submitCluster(t)
	copyProgram(t, registrytest.Tool(t, "docker-registry"), filepath.Join(c.SharedDir, "bin/docker-registry"))
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
		"pipe/pipeline.toml": pipelineTOML, "pipe/app/sconce.toml": pipelineRecipe, "pipe/app/clusters/two.toml": profile,
		"key.pub": string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})),
		"key.pem": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"reg.yml": "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: /tmp/registry}}\nhttp: {addr: '127.0.0.1:5000', secret: test}\n",
	} {
		writeText(t, filepath.Join(c.SharedDir, name), text)
	}
	out, err := c.Try(slurmtest.Alice, `exec 2>&1
		unset CI_COMMIT_BRANCH GITHUB_REF_NAME
		docker-registry serve reg.yml > /tmp/registry.log 2>&1 & registry=$!
		trap "kill $registry" EXIT
		until bash -c ': < /dev/tcp/127.0.0.1/5000' 2> /dev/null; do sleep 0.05; done
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
