package main

import (
	"crypto/rand"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/registry/registrytest"
)

const secretsRecipe = `name = "tiny"
version = "1"
base.image = "dir:../../rootfs"
target.cluster = "two"

[[step]]
run = "test -s /run/secrets/token; set; echo made > /made"
mounts = ["secret:token"]

[[test]]
name = "rate"
run = "set; echo up > /shared/up; until [ -e /shared/go-on ]; do sleep 0.1; done; echo rate = 5 GB/s"
expect = { rate = ">= 90%" }
`

// searchPy searches files, what is compressed in them and what is base64 in those, for the lines of a file.
const searchPy = `
import base64, gzip, os, re, sys
needles = open(sys.argv[1], "rb").read().split()
def forms(data):
    yield data
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
        yield data
    for m in re.finditer(rb"[A-Za-z0-9+/]{40,}", data):
        yield base64.b64decode(m[0][:len(m[0]) // 4 * 4])
searched = 0
for top in sys.argv[2:]:
    for dir, _, names in os.walk(top):
        for name in names:
            path = os.path.join(dir, name)
            if os.path.islink(path) or not os.path.isfile(path) or path.startswith(("/shared/private/", "/shared/bin/")):
                continue
            searched += 1
            for form in forms(open(path, "rb").read()):
                for n, needle in enumerate(needles):
                    if needle in form:
                        print("secret", n, "is in", path)
print("searched", searched > 100)
`

// The key that signs, the password of a registry and a secret of a build are in no log, no job's script or environment, no command line,
// nothing that Slurm keeps, no file of the store and nothing in the registry: while a pipeline runs, and when it has built, tested and promoted.
func TestPipelineSecrets(t *testing.T) {
	c := pipelineCluster(t)
	token, password := rand.Text(), rand.Text()
	login := base64.StdEncoding.EncodeToString([]byte("joe:" + password))
	key, err := os.ReadFile(filepath.Join(c.SharedDir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	body := strings.Split(string(key), "\n")[1]
	for name, text := range map[string]string{
		"private/token": token + "\n", "private/key.pem": string(key), "private/needles": strings.Join([]string{token, password, login, body}, "\n") + "\n",
		"private/config.json": `{"auths": {"127.0.0.1:5000": {"auth": "` + login + `"}}}`,
		"search.py":           searchPy, "users": registrytest.Run(t, "htpasswd", "-B", "-C", "4", "-bn", "joe", password),
		"reg.yml": "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: /tmp/registry}}\nhttp: {addr: '127.0.0.1:5000', secret: test}\n" +
			"auth:\n  htpasswd: {realm: test, path: /shared/users}\n",
		"pipe/pipeline.toml":   strings.Replace(pipelineTOML, "file:/shared/key.pem", "env:TEAM_KEY", 1),
		"pipe/app/sconce.toml": secretsRecipe,
	} {
		writeText(t, filepath.Join(c.SharedDir, name), text)
	}
	if err := os.Remove(filepath.Join(c.SharedDir, "key.pem")); err != nil {
		t.Fatal(err)
	}
	out, err := c.Try(c.Admin(), withRegistry+`
		export DOCKER_CONFIG=/shared/private
		for p in test cat; do ln -sf sh rootfs/bin/$p; done
		seen() { # in processes other than the client, which has the key from its user
			for p in /proc/[0-9]*; do
				[ ${p#/proc/} = $client ] || grep -aHosFf private/needles $p/environ $p/cmdline
			done
			for job in $(squeue -h -o %A); do scontrol write batch_script $job - | grep -Ff private/needles; scontrol show job -dd $job | grep -Ff private/needles; done
			python3 search.py private/needles /shared /tmp /var ~
		}
		sconce lock pipe/app || exit
		cd pipe; TEAM_KEY="$(cat ../private/key.pem)" sconce pipeline run --test --promote --secret id=token,src=../private/token > /tmp/client.out 2>&1 & client=$!
		until [ -e /shared/up ] || ! kill -0 $client 2> /dev/null; do sleep 0.05; done
		cd /shared
		echo "== running"; seen
		grep -aqFf private/needles /proc/$client/environ && echo the client has it
		touch go-on; wait $client; echo code $?
		echo "== signed"; cat /tmp/client.out
		cd pipe; sconce build app --secret id=token,src=../private/token
		TEAM_KEY="$(cat ../private/key.pem)" sconce push tiny:1 127.0.0.1:5000/facts/tiny:1 --sign env:TEAM_KEY; echo code $?; cd ..
		echo "== over"; seen
		ls -d /tmp/registry/docker/registry/v2/repositories/*/tiny
		echo "== end"`)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	parts := partsOf("\n"+out, "running", "signed", "over", "end")
	if want := "searched True\nthe client has it\ncode 0"; parts["running"] != want {
		t.Errorf("while it runs there is:\n%s\nwant\n%s", parts["running"], want)
	}
	wantIn(t, parts["signed"], "rate PASSED", "127.0.0.1:5000/users/tiny:1 written", "code 0")
	const kept = "/tmp/registry/docker/registry/v2/repositories/"
	if want := "searched True\n" + kept + "ci/tiny\n" + kept + "facts/tiny\n" + kept + "users/tiny"; parts["over"] != want {
		t.Errorf("afterwards there is:\n%s\nwant\n%s", parts["over"], want)
	}
	if t.Failed() {
		t.Log(out)
	}
}
