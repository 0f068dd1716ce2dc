package main

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"sconce.dev/sconce/internal/slurmtest"
)

// killingProxy is the program that [TestPipelineKilled] puts in front of a registry: killing-proxy LISTEN REGISTRY DIRECTORY. The process of
// which DIRECTORY/pid has the number is killed by the first request that the expression in DIRECTORY/kill describes, as METHOD PATH. The
// registry does not see that request.
func killingProxy() {
	listen, registry, dir := os.Args[1], os.Args[2], os.Args[3]
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: registry})
	var mu sync.Mutex
	err := http.ListenAndServe(listen, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		killed := killAt(dir, r.Method+" "+r.URL.Path)
		mu.Unlock()
		if killed {
			panic(http.ErrAbortHandler)
		}
		forward.ServeHTTP(w, r)
	}))
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// killAt kills when the request is the one that is waited for, once.
func killAt(dir, request string) bool {
	file := filepath.Join(dir, "kill")
	text, err := os.ReadFile(file)
	if err != nil || !regexp.MustCompile("^"+strings.TrimSpace(string(text))+"$").MatchString(request) {
		return false
	}
	pid, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		panic(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	if err != nil {
		panic(err)
	}
	if err := os.Remove(file); err != nil {
		panic(err)
	}
	return syscall.Kill(n, syscall.SIGKILL) == nil
}

const killedRecipe = `name = "tiny"
version = "1"
base.image = "dir:../../rootfs"
target.cluster = "two"

[[step]]
run = "echo made >> /tally/tally; echo made > /made"
mounts = ["cache:tally:/tally"]

[[test]]
name = "rate"
run = "echo ran >> /shared/ran; echo rate = 5 GB/s"
expect = { rate = ">= 90%" }

[[test]]
name = "word"
run = "echo ran >> /shared/ran; echo open sesame"
log = ["^open sesame$"]
`

// killingSlurm are Slurm's programs that kill who calls them, by what the file kill says: before sbatch has submitted a job or behind it, and
// when the job is asked for. Jobs ask as well, and are let be: pid is whom it means. Each job that is submitted is a line of submitted.
var killingSlurm = map[string]string{
	"sbatch": `#!/bin/sh
case "$(cat /shared/kill 2> /dev/null)" in
before) rm /shared/kill; kill -9 $PPID; exit 1 ;;
behind) rm /shared/kill; echo >> /shared/submitted; /usr/bin/sbatch "$@" > /dev/null; kill -9 $PPID; exit 1 ;;
esac
echo >> /shared/submitted
exec /usr/bin/sbatch "$@"
`,
	"scontrol": `#!/bin/sh
if [ "$(cat /shared/kill 2> /dev/null)" = asked ] && [ "$PPID" = "$(cat /shared/pid)" ]; then rm /shared/kill; kill -9 $PPID; exit 1; fi
exec /usr/bin/scontrol "$@"
`,
}

// A pipeline is killed between its steps, one after the other, and run again each time, until it comes to its end: the image is built once,
// its tests are one job and run once, it gets its tag, and nothing is left that would not be there otherwise.
func TestPipelineKilled(t *testing.T) {
	c := pipelineCluster(t)
	registry, err := os.ReadFile(filepath.Join(c.SharedDir, "reg.yml"))
	if err != nil {
		t.Fatal(err)
	}
	writeText(t, filepath.Join(c.SharedDir, "reg.yml"), strings.Replace(string(registry), ":5000", ":5001", 1))
	writeText(t, filepath.Join(c.SharedDir, "pipe/app/sconce.toml"), killedRecipe)
	for name, text := range killingSlurm {
		writeText(t, filepath.Join(c.SharedDir, "bin", name), text)
	}
	moments := []struct{ name, at string }{
		{"the image is made, and nothing of it is sent", `POST /v2/ci/tiny/blobs/uploads/`},
		{"it is sent, and nothing says what it is made from", `PUT /v2/ci/tiny/manifests/att\.[0-9a-f]{12}\.provenance`},
		{"nothing says what is in it", `PUT /v2/ci/tiny/manifests/att\.[0-9a-f]{12}\.sbom`},
		{"nothing says so in the other format", `PUT /v2/ci/tiny/manifests/att\.[0-9a-f]{12}\.spdx`},
		{"its key is not signed", `PUT /v2/ci/tiny/manifests/att\.[0-9a-f]{12}\.key-[0-9a-f]{24}`},
		{"its facts are not there", `PUT /v2/ci/tiny/manifests/att\.[0-9a-f]{12}\.facts-file`},
		{"its facts are not signed", `PUT /v2/ci/tiny/manifests/att\.[0-9a-f]{12}\.facts`},
		{"where it is from is not signed", `PUT /v2/ci/tiny/manifests/att\.[0-9a-f]{12}\.origin`},
		{"it is sent, and has no name", `PUT /v2/ci/tiny/manifests/1-[0-9a-f]{24}`},
		{"nothing is submitted", "before"},
		{"the job is submitted, and its number not noted", "behind"},
		{"the job is waited for", "asked"},
		{"the tests have run, and no verdict is kept", `PUT /v2/ci/tiny/manifests/t\..*`},
		{"the first verdict is kept", `PUT /v2/ci/tiny/manifests/log\..*`}, // of the second; the log of the first is there
		{"by what right it is promoted is not signed", `PUT /v2/ci/tiny/manifests/att\.[0-9a-f]{12}\.promotion`},
		{"no tag is claimed", `PUT /v2/ci/tiny/manifests/claim\..*`},
		{"the tag is claimed", `PUT /v2/users/tiny/manifests/1`},
	}
	script := strings.Replace(withRegistry, "registry=$!", `registry=$!
		ln -s sconce bin/killing-proxy; killing-proxy 127.0.0.1:5000 127.0.0.1:5001 /shared 2> /tmp/proxy.log & proxy=$!
		until bash -c ': < /dev/tcp/127.0.0.1/5001' 2> /dev/null; do sleep 0.05; done`, 1) + `
		trap "kill $registry $proxy" EXIT
		cd pipe; sconce lock app
		run() { sh -c 'echo $$ > /shared/pid; exec sconce pipeline run --test --promote'; echo code $?; }
`
	for _, m := range moments {
		script += fmt.Sprintf("echo '== %s'; echo '%s' > /shared/kill; run; [ ! -e /shared/kill ] || echo not killed\n", m.name, m.at)
	}
	out, err := c.Try(slurmtest.Alice, script+`
		echo "== end"; run; sconce pipeline plan
		echo made $(find ~ -name tally -type f -exec cat {} +), $(wc -l < /shared/submitted) job, $(wc -l < /shared/ran) tests
		echo "== again"; run; echo $(wc -l < /shared/submitted) job
		echo "== left"; find .sconce ~ /tmp -name '.new-*' -o -path '*/sconce/tests/*.json' -o -name 'sconce-tmp-*'`)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	names := make([]string, len(moments), len(moments)+3)
	for n, m := range moments {
		names[n] = m.name
	}
	parts := partsOf("\n"+out, append(names, "end", "again", "left")...)
	for _, name := range names {
		if part := parts[name]; !strings.Contains(part, "code 137") || strings.Contains(part, "not killed") {
			t.Errorf("when %s it was not killed:\n%s", name, part)
		}
	}
	wantIn(t, parts["end"], "code 0", "app fine published as 127.0.0.1:5000/users/tiny:1", "made made, 1 job, 2 tests")
	wantIn(t, parts["again"], "there is nothing to build", "code 0", "1 job")
	if parts["left"] != "" {
		t.Errorf("left behind:\n%s", parts["left"])
	}
	if t.Failed() {
		t.Log(out)
	}
}
