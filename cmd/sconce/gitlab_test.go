package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/tooltest"
)

// gitlabRepository is a pipeline of an app on a base. Its registry and everything that runs are in a network of their own, in which 5000 is free.
var gitlabRepository = map[string]string{
	"pipeline.toml":          "recipes = [\"base\", \"app\"]\nstaging = \"127.0.0.1:5000/ci\"\nstable = [\"127.0.0.1:5000/users\"]\nmutable = [\"*-dev\"]\nuntested = \"allow\"\n[ci.gitlab]\nbuild = { tags = [\"builder\"] }\nlight = { tags = [\"small\"] }\n",
	"base/sconce.toml":       "name = \"base\"\nversion = \"1\"\nbase.image = \"dir:../rootfs\"\ntarget.platform = \"linux/amd64\"\n",
	"app/sconce.toml":        "name = \"app\"\nbase.recipe = \"../base\"\ntarget.platform = \"linux/amd64\"\n[[step]]\ncopy = [\"file:/file\"]\n[variant]\nsmall-dev = {}\nlarge-dev = { image.env.SIZE = \"large\" }\n",
	"app/file":               "first\n",
	"rootfs/etc/passwd":      "root:x:0:0::/:/bin/sh\n",
	".gitignore":             ".gitlab-ci-local/\n",
	"../registry/config.yml": "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: ../registry/data}}\nhttp: {addr: '127.0.0.1:5000', secret: test}\n",
}

// A CI system's runners do a pipeline with the two jobs of the example, which is all that a team writes: a parent that asks the registry, and
// the child that it has written. What is published has no job the second time, and what has changed has some.
func TestPipelineByGitlab(t *testing.T) {
	offline, program := tooltest.GitlabCI(t)
	registrytest.Isolate(t)
	t.Setenv("SCONCE_STORE", filepath.Join(t.TempDir(), "store"))
	for _, name := range []string{"REGISTRY_AUTH_FILE", "GITHUB_ACTIONS"} { // a registry reads the first as one of its settings
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	// GitLab tells the jobs of a protected branch so; the program that stands for it here tells them that it is not GitLab.
	bin := t.TempDir()
	wrapper := "#!/bin/sh\nGITLAB_CI=true CI_COMMIT_REF_PROTECTED=true exec '" + tooltest.Path(t, "sconce") + "' \"$@\"\n"
	if err := tooltest.WriteProgram(filepath.Join(bin, "sconce"), []byte(wrapper)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	dir := filepath.Join(t.TempDir(), "repository")
	for name, text := range gitlabRepository {
		writeText(t, filepath.Join(dir, name), text)
	}
	copyProgram(t, "../../examples/pipeline/.gitlab-ci.yml", filepath.Join(dir, ".gitlab-ci.yml"))
	script := `exec 2>&1
		` + tooltest.Path(t, "ip") + ` link set lo up
		GOGC=800 ` + tooltest.Path(t, "docker-registry") + ` serve ../registry/config.yml > ../registry/log 2>&1 & registry=$!
		trap "kill $registry; wait $registry" EXIT
		until : < /dev/tcp/127.0.0.1/5000; do sleep 0.05; done 2> /dev/null
		sconce pipeline lock
		` + tooltest.CommitAll + `
		again() { echo "== $1"; PROGRAM; echo code $?; sconce pipeline plan; }
		again first; again second
		echo second > app/file
		again changed; echo "== end"`
	offline = append(offline, "bash", "-c", strings.Replace(script, "PROGRAM", strings.Join(program, " "), 1))
	cmd := exec.CommandContext(t.Context(), offline[0], offline[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	parts := partsOf("\n"+string(out), "first", "second", "changed", "end")
	wantIn(t, parts["first"], "code 0", "build base:1", "promote app:large-dev", "built 127.0.0.1:5000/ci/base:1-", "127.0.0.1:5000/users/app:small-dev", "3 images: there is nothing to do")
	wantIn(t, parts["second"], "code 0", "$ echo there is nothing to do", "3 images: there is nothing to do")
	wantIn(t, parts["changed"], "code 0", "built 127.0.0.1:5000/ci/app:small-dev-", "built 127.0.0.1:5000/ci/app:large-dev-", "3 images: there is nothing to do")
	for part, unwanted := range map[string]string{"first": " FAIL ", "second": "built ", "changed": "build base:1 "} {
		if strings.Contains(parts[part], unwanted) {
			t.Errorf("%s: there is %q", part, unwanted)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}
