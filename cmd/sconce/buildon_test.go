package main

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/slurmtest"
	"sconce.dev/sconce/internal/tooltest"
)

const onProfile = `name = "two"
runtimes = ["sconce"]
platform = "linux/amd64"

[paths]
scratch = "/shared"

[slurm]
partition = "debug"
max-time = "30m"
`

// onRecipes are what is built on nodes. Steps that wait do so at the gate, see gatePy.
var onRecipes = map[string]string{
	"app": `name = "app"
version = "1"
base.image = "dir:../rootfs"
[[step]]
run = "echo app > /app"
`,
	"fails": `name = "fails"
version = "1"
base.image = "dir:../rootfs"
[[step]]
run = "echo what went wrong; exit 7"
`,
	"held": `name = "held"
version = "1"
base.image = "dir:../rootfs"
[[step]]
run = "nc 192.0.2.1 7000 < /dev/null; test -s /run/secrets/token; echo held > /held"
mounts = ["secret:token"]
`,
	"one": componentRecipe("one"), "other": componentRecipe("other"),
	"cached": madeRecipe("cached") + "[cache]\nregistry = \"127.0.0.1:5000/cache\"\n",
	"shared": madeRecipe("shared"),
}

// madeRecipe is an image with a component and a step, of which the logs of the store say that they ran there.
func madeRecipe(name string) string {
	return `name = "` + name + `"
version = "1"
base.image = "dir:../rootfs"
[source.greet]
url = "../greet.tar"
[component.greet]
run = "mkdir -p $PREFIX; cat word > $PREFIX/` + name + `; echo made ` + name + `"
[[step]]
run = "cat /opt/greet/` + name + ` > /seen; echo then ` + name + `"
`
}

// componentRecipe is an image with a component and a step that others have, too.
func componentRecipe(name string) string {
	return `name = "` + name + `"
version = "1"
base.image = "dir:../rootfs"
[source.greet]
url = "../greet.tar"
[component.greet]
run = "mkdir -p $PREFIX; cat word > $PREFIX/word; echo made greet"
[[step]]
run = "nc 192.0.2.1 7000 < /dev/null; echo held > /held"
[[step]]
run = "echo ` + name + ` > /name"
`
}

// onPipeline are three images that wait at the gate.
var onPipeline = map[string]string{
	"pipeline.toml": "recipes = [\"tool\"]\nstaging = \"127.0.0.1:5000/ci\"\nsign = \"env:TEAM_KEY\"\n",
	"tool/sconce.toml": `name = "tool"
version = "1"
base.image = "dir:../../on/rootfs"
target.cluster = "two"
[[variant.a.step]]
run = "nc 192.0.2.1 7000 < /dev/null; echo a > /name"
[[variant.b.step]]
run = "nc 192.0.2.1 7000 < /dev/null; echo b > /name"
[[variant.c.step]]
run = "nc 192.0.2.1 7000 < /dev/null; echo c > /name"
`,
}

// gatePy is a gate at which steps wait: it lets all go once $1 have come and somebody has made the file open, which it removes.
const gatePy = `
import os, socket, sys, time
server = socket.create_server(("192.0.2.1", 7000), backlog=50)
server.settimeout(0.05)
waiting, came = [], 0
open("/shared/gate-up", "w").close()
while True:
    try:
        waiting.append(server.accept()[0])
        came += 1
        with open("/shared/came.new", "w") as f:
            f.write("%d\n" % came)
        os.rename("/shared/came.new", "/shared/came")
    except TimeoutError:
        pass
    if os.path.exists("/shared/open"):
        for c in waiting:
            c.close()
        waiting = []
`

// onSecret begins all secrets. It is in no program, this one included.
var onSecret = rand.Text()

// onCluster is a cluster with a registry, sconce, and the recipes.
func onCluster(t *testing.T, o slurmtest.Options) *slurmtest.Cluster {
	t.Helper()
	c := slurmtest.Start(t, o)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	_, private, public := evidencetest.Key(t)
	for to, from := range map[string]string{
		"team.key": private, "team.pub": public,
		"bin/sconce": self, "bin/docker-registry": tooltest.Path(t, "docker-registry"), "on/rootfs/bin/sh": tooltest.Path(t, "busybox"),
	} {
		copyProgram(t, from, filepath.Join(c.SharedDir, to))
	}
	for name, text := range onRecipes {
		writeText(t, filepath.Join(c.SharedDir, "on", name, "sconce.toml"), text)
		writeText(t, filepath.Join(c.SharedDir, "on", name, "clusters/two.toml"), onProfile)
	}
	for name, text := range onPipeline {
		writeText(t, filepath.Join(c.SharedDir, "pipe", name), text)
	}
	for name, text := range map[string]string{
		"pipe/tool/clusters/two.toml": onProfile, "clusters/two.toml": onProfile, "gate.py": gatePy, "token": onSecret + "-of-a-file", "variable": onSecret + "-of-a-variable", "on/note": "",
		"reg.yml": "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: /tmp/registry}}\nhttp: {addr: '127.0.0.1:5000', secret: test}\n",
	} {
		writeText(t, filepath.Join(c.SharedDir, name), text)
	}
	c.Run(slurmtest.Alice, `for p in cat echo mkdir nc test; do ln -s sh on/rootfs/bin/$p; done
		mkdir greet && echo hello > greet/word && tar cf on/greet.tar greet`)
	return c
}

// onNodes begins scripts: a registry, a gate, a store that both nodes see, and functions.
const onNodes = `exec 2>&1
	cd /shared/on
	rm -f /tmp/*.out /shared/open /shared/came /shared/gate-up
	GOGC=800 docker-registry serve /shared/reg.yml > /tmp/registry.log 2>&1 & registry=$!
	python3 /shared/gate.py > /tmp/gate.log 2>&1 & gate=$!
	trap 'kill $registry $gate; wait $registry $gate' EXIT # the next script needs their ports
	export SCONCE_STORE=/shared/store
	never() { echo "it never came: $1"; cat /tmp/registry.log /tmp/gate.log /tmp/*.out; exit 1; }
	soon() { until eval "$1"; do sleep 0.05; kill -0 $registry && kill -0 $gate && [ $SECONDS -le 600 ] || never "$1"; done; }
	came() { soon "[ \"\$(cat /shared/came 2> /dev/null)\" = $1 ]"; }
	idle() { soon '[ -z "$(squeue -h)" ]'; }
	interrupt() { pkill -INT -P $client sconce || kill -INT $client; }
	soon "[ -e /shared/gate-up ] && bash -c ': < /dev/tcp/127.0.0.1/5000' 2> /dev/null"
	left() { find /shared/.sconce-* -mindepth 1 -maxdepth 1 ! -name 'program-*'; ls -d /tmp/sconce-tmp-* 2> /dev/null; }
`

func onClusters() map[string]slurmtest.Options {
	if os.Getuid() != 0 {
		return map[string]slurmtest.Options{"ordinary user": {}}
	}
	return map[string]slurmtest.Options{"root": {}, "ordinary user": {UID: 54321, GID: 54321}}
}

// What is built on a node is what is built here, wherever it goes, and ends as it would here: on a cluster of root and on one of an
// ordinary user.
func TestBuildOnNode(t *testing.T) {
	for name, o := range onClusters() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := onCluster(t, o)
			t.Run("the same image", func(t *testing.T) { builtThereAsHere(t, c) })
			t.Run("secrets", func(t *testing.T) { secretsThere(t, c) })
			t.Run("interrupted", func(t *testing.T) { interruptedThere(t, c) })
			t.Run("the same component", func(t *testing.T) { componentThere(t, c) })
			t.Run("made elsewhere", func(t *testing.T) { madeElsewhere(t, c) })
			t.Run("a pipeline", func(t *testing.T) { pipelineThere(t, c) })
			t.Run("refused", func(t *testing.T) { refusedThere(t, c) })
		})
	}
}

// scriptOn runs a script of marked parts.
func scriptOn(t *testing.T, c *slurmtest.Cluster, script string, marks ...string) map[string]string {
	t.Helper()
	out, err := c.Try(slurmtest.Alice, onNodes+script)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(out)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return partsOf("\n"+out, marks...)
}

var digestForm = regexp.MustCompile(`(?m)^sha256:[0-9a-f]{64}$`)

func builtThereAsHere(t *testing.T, c *slurmtest.Cluster) {
	parts := scriptOn(t, c, `
		echo "== here"; sconce --store /shared/other build app -o /shared/here.sqsh; echo code $?
		echo "== there"; sconce build app --on two -o /shared/there.sqsh --push 127.0.0.1:5000/app:1; echo code $?
		cmp /shared/here.sqsh /shared/there.sqsh && echo the same file
		sconce --store /shared/third pull 127.0.0.1:5000/app:1
		echo "== copied"; sconce images; sconce copy app:1 /shared/copied.sif --on app/clusters/two.toml && sconce inspect /shared/copied.sif > /dev/null; echo code $?
		echo "== fails here"; sconce --store /shared/other build fails; echo code $?
		echo "== fails there"; sconce build fails --on two; echo code $?
		echo "== json"; sconce build app --on two --json --progress json 2> /tmp/json; echo code $?; grep -c '"kind":"error"' /tmp/json
		echo "== left"; left; echo "== end"; :`, "here", "there", "copied", "fails here", "fails there", "json", "left", "end")
	here := digestForm.FindString(parts["here"])
	wantIn(t, parts["there"], "job ", " runs on n", "step run echo app > /app: done", "built app:1", "code 0", "the same file", "127.0.0.1:5000/app:1 is "+here)
	if here == "" || digestForm.FindString(parts["there"]) != here {
		t.Errorf("there it is %s, and here %s", digestForm.FindString(parts["there"]), here)
	}
	wantIn(t, parts["copied"], "app", "runs on n", "code 0")
	failure := "error: fails/sconce.toml:4: run echo what went wrong; exit 7: the command ended with exit code 7"
	for _, part := range []string{"fails here", "fails there"} {
		wantIn(t, parts[part], "| what went wrong", failure, "hint: the whole output is in", "code 1")
	}
	wantIn(t, parts["json"], `"digest": "`+here, "code 0", "0")
	if strings.Contains(parts["left"], "/") {
		t.Errorf("files are left:\n%s", parts["left"])
	}
}

// Nothing secret is in the job's script, in what Slurm knows of it, in logs, in the environment or the command line of any process, while
// the job runs or after it.
func secretsThere(t *testing.T, c *slurmtest.Cluster) {
	script := `
		seen() { # in processes other than this shell and the client, which has the variable from its user
			for p in /proc/[0-9]*; do
				case ${p#/proc/} in $$|$client|$BASHPID) continue ;; esac
				grep -aHos '@SECRET@[a-z-]*' $p/environ $p/cmdline
			done
			grep -rao '@SECRET@[a-z-]*' /shared/.sconce-* /var/slurm /tmp ~/.local 2> /dev/null
			for job in $(squeue -h -o %A); do scontrol write batch_script $job - | grep -o '@SECRET@.*'; scontrol show job -dd $job | grep -o '@SECRET@.*'; done
		}
		export SITE_TOKEN=$(cat /shared/variable)
		sconce build held --on two --secret id=token,src=/shared/token > /tmp/held.out 2>&1 & client=$!
		export -n SITE_TOKEN
		came 1
		echo "== running"; squeue -h -o %T; find /shared/.sconce-* -prune ! -perm 700; seen
		grep -aqs '@SECRET@' /proc/$client/environ && echo the client has it
		touch /shared/open; wait $client; echo code $?
		echo "== over"; seen; idle; left
		sconce --quiet run held:1 -- cat /held
		echo "== end"`
	parts := scriptOn(t, c, strings.ReplaceAll(script, "@SECRET@", onSecret), "running", "over", "end")
	if parts["running"] != "RUNNING\nthe client has it\ncode 0" {
		t.Errorf("while it runs there is:\n%s", parts["running"])
	}
	if parts["over"] != "held" {
		t.Errorf("afterwards there is:\n%s", parts["over"])
	}
}

// Ctrl-C cancels the job and leaves nothing. A client that is killed leaves it alone, and the same command goes on with it.
func interruptedThere(t *testing.T, c *slurmtest.Cluster) {
	parts := scriptOn(t, c, `
		there() { sconce build held --no-cache --on two --secret id=token,src=/shared/token; }
		echo "== cancelled"
		there & client=$!
		came 1; interrupt; wait $client; echo code $?; idle; left
		echo "== killed"
		there > /tmp/first.out 2>&1 & client=$!
		came 2; pkill -KILL -P $client sconce || kill -KILL $client; wait $client 2> /dev/null
		there > /tmp/second.out 2>&1 & client=$!
		soon "grep -q 'was submitted before' /tmp/second.out"
		touch /shared/open; wait $client; echo code $?; cat /tmp/second.out; idle; left; cat /shared/came
		rm /shared/open
		echo "== waits"
		sbatch --exclusive -N2 --wrap 'sleep 1000' > /tmp/blocker
		there > /tmp/waits.out 2>&1 & client=$!
		until grep -q 'Resources\|Priority' /tmp/waits.out; do sleep 0.05; done
		find /shared/.sconce-* -name task.json | wc -l
		interrupt; wait $client; echo code $?; cat /tmp/waits.out; left; scancel --me; idle
		echo "== end"`, "cancelled", "killed", "waits", "end")
	wantIn(t, parts["cancelled"], "runs on n", "cancelling job", "error: interrupted", "code 130")
	if strings.Contains(parts["cancelled"], "/shared/.sconce-") || strings.Contains(parts["killed"], "/shared/.sconce-") {
		t.Error("files are left")
	}
	wantIn(t, parts["killed"], "code 0", "was submitted before: showing what it does", "built held:1")
	if !strings.HasSuffix(parts["killed"], "\n2") {
		t.Errorf("another step ran than the first two")
	}
	wantIn(t, parts["waits"], "1", "is pending (", "error: interrupted", "code 130")
}

// A component that two images need, built by two jobs at once, is made by one of them.
func componentThere(t *testing.T, c *slurmtest.Cluster) {
	parts := scriptOn(t, c, `
		sconce build one --on two > /tmp/one.out 2>&1 & one=$!
		sconce build other --on two > /tmp/other.out 2>&1 & other=$!
		came 1; soon '[ $(squeue -h -t R -o %N | sort -u | wc -l) = 2 ]'
		echo "== component"
		touch /shared/open; wait $one; echo code $?; wait $other; echo code $?
		cat /tmp/one.out /tmp/other.out; echo came $(cat /shared/came)
		echo made $(grep -hx 'made greet' /shared/store/logs-v1/* | wc -l)
		echo "== end"`, "component", "end")
	wantIn(t, parts["component"], "submitted job", "code 0 ", "built one:1", "built other:1", "came 1 made 1")
	if strings.Count(parts["component"], "code 0") != 2 {
		t.Error("not both were built")
	}
}

// What another cluster has made, with another store, comes to the nodes from the registry of [cache]; what a site has made, from its store, which
// stays as it is.
func madeElsewhere(t *testing.T, c *slurmtest.Cluster) {
	parts := scriptOn(t, c, `
		made() { echo "$1 in $2: $(grep -hx "made $1\|then $1" "$2"/logs-v1/* 2> /dev/null | wc -l)"; }
		echo "== first"; sconce build cached --push-cache --on two && SCONCE_STORE=/shared/site sconce build shared --on two; echo code $?
		made cached /shared/store; made shared /shared/site
		echo "== registry"; SCONCE_STORE=/shared/fourth sconce build cached --read-cache --on two; echo code $?; made cached /shared/fourth
		SCONCE_STORE=/shared/fourth sconce -q run cached:1 -- cat /seen
		echo "== site"; chmod -R a-w /shared/site
		export SCONCE_STORE=/shared/fifth SCONCE_SHARED_STORES=/shared/site
		sconce build shared --on two; echo code $?; made shared /shared/fifth; sconce -q run shared:1 -- cat /seen
		unset SCONCE_SHARED_STORES
		echo "== alone"; SCONCE_STORE=/shared/sixth sconce build shared --on two; echo code $?; made shared /shared/sixth
		chmod -R u+w /shared/site; idle; left; echo "== end"`, "first", "registry", "site", "alone", "end")
	wantIn(t, parts["first"], "code 0", "cached in /shared/store: 2", "shared in /shared/site: 2")
	wantIn(t, parts["registry"], "built cached:1", "code 0", "cached in /shared/fourth: 0", "hello")
	wantIn(t, parts["site"], "shared:1 is up to date", "code 0", "shared in /shared/fifth: 0", "hello")
	wantIn(t, parts["alone"], "built shared:1", "code 0", "shared in /shared/sixth: 2")
	alone := digestForm.FindString(parts["alone"])
	if alone == "" || digestForm.FindString(parts["site"]) != alone {
		t.Errorf("by the site's store it is another image than %s", alone)
	}
}

// Images of a pipeline are built on all nodes at once, and again not at all.
func pipelineThere(t *testing.T, c *slurmtest.Cluster) {
	parts := scriptOn(t, c, `
		cd /shared/pipe; unset CI GITHUB_ACTIONS GITLAB_CI
		export TEAM_KEY="$(cat /shared/team.key)"
		sconce lock tool && sconce pipeline run --on two > /tmp/run.out 2>&1 & client=$!
		came 2; soon '[ $(squeue -h -t R -o %N | sort -u | wc -l) = 2 ]'
		echo "== running"; touch /shared/open; wait $client; echo code $?; cat /tmp/run.out
		echo "== again"; sconce pipeline run --on two; echo code $?; sconce pipeline plan
		echo "== one"; sconce build tool:a --canonical --on two; echo code $?; idle; left; rm /shared/open
		echo "== signed"; sconce verify $(sconce pipeline plan --json | sed -n 's/.*"canonical": "\(.*\)".*/\1/p' | head -n 1) --key /shared/team.pub
		echo "== end"`, "running", "again", "one", "signed", "end")
	wantIn(t, parts["signed"], "provenance", "sbom")
	wantIn(t, parts["running"], "runs on n1", "runs on n2", "built 127.0.0.1:5000/ci/tool:1-a-", "built 127.0.0.1:5000/ci/tool:1-b-", "built 127.0.0.1:5000/ci/tool:1-c-", "code 0")
	wantIn(t, parts["again"], "there is nothing to build", "code 0", "tool:c fine")
	wantIn(t, parts["one"], "is there", "code 0")
	if strings.Contains(parts["again"], "submitted") {
		t.Error("a job is submitted for nothing")
	}
}

// What cannot be had on a node is said before there is a job, as far as it can be known here.
func refusedThere(t *testing.T, c *slurmtest.Cluster) {
	parts := scriptOn(t, c, `
		tell() { echo "== $1"; shift; "$@"; echo code $?; }
		tell "no cluster" sconce build app --time 1h
		tell agent sconce build app --on two --ssh default=/x
		tell elsewhere sconce build app --on two -o /tmp/x.sqsh
		SCONCE_STORE=/tmp/store tell store sconce build app --on two
		sed 's/amd64/arm64/' app/clusters/two.toml > /shared/arm.toml
		tell processor sconce build app --on /shared/arm.toml --platform linux/amd64
		sed 's/max-time.*//' app/clusters/two.toml > /shared/long.toml
		tell long sconce build app --on /shared/long.toml --time 5h
		cp -r /shared/on /tmp/on
		tell "here alone" sconce build /tmp/on/app --on two
		echo "== left"; idle; left
		echo "== end"`, "no cluster", "agent", "elsewhere", "store", "processor", "long", "here alone", "left", "end")
	wantIn(t, parts["no cluster"], "--on CLUSTER is missing", "code 2")
	wantIn(t, parts["agent"], "the agent is on this machine alone", "hint: ", "code 2")
	wantIn(t, parts["elsewhere"], "/tmp is a directory of this machine, which the nodes of two do not see", "code 2")
	wantIn(t, parts["store"], "/tmp/store is a directory of this machine", "SCONCE_STORE", "code 2")
	wantIn(t, parts["processor"], "the nodes of two are linux/arm64, and this sconce is for linux/amd64", "/shared/bin/sconce-linux-arm64", "code 1")
	wantIn(t, parts["long"], "will not start: Slurm says PartitionTimeLimit", "hint: look at [slurm]", "code 1")
	if strings.Contains(parts["left"], "/") {
		t.Errorf("files are left:\n%s", parts["left"])
	}
	wantIn(t, parts["here alone"], "/tmp/on/app is a directory of this machine", "code 2")
}
