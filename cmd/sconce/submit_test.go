package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/slurmtest"
	"sconce.dev/sconce/internal/tooltest"
)

const submitRecipe = `name = "tiny"
version = "1"
base.image = "debian:12"
target.cluster = "two"

[job.hello]
nodes = 2
time = "5m"
command = "echo rank $RANK of $WORLD_SIZE says"
logs = "logs"

[job.fails]
command = "exit 3"

[job.lacks]
command = "lacks"
logs = "${HOME}/logs"

[job.sleeps]
command = "sleep 1000"
options = ["--comment='of mine, 1st'"]

[job.held]
command = "echo it is let go"
options = ["--hold"]

[job.dies]
command = ": > /shared/up; sleep 1000"
mounts = ["/shared"]
options = ["--no-requeue", "--nodelist=n1"]
`

const submitProfile = `runtimes = ["sconce"]
platform = "linux/amd64"

[paths]
images = "/shared/images"

[slurm]
partition = "debug"
`

// submitCluster is a Slurm cluster with sconce on it, and the image of a recipe in the store there.
func submitCluster(t *testing.T) *slurmtest.Cluster {
	t.Helper()
	busybox := tooltest.Path(t, "busybox")
	c := slurmtest.Start(t, slurmtest.Options{})
	self, err := os.Executable() // which is sconce when it is called so: see TestMain
	if err != nil {
		t.Fatal(err)
	}
	for to, from := range map[string]string{
		"bin/sconce": self, "rootfs/bin/sh": busybox,
		"rootfs/bin/lacks": "/bin/true", "rootfs/lib64/ld-linux-x86-64.so.2": "/lib64/ld-linux-x86-64.so.2", // and no libc.so.6
	} {
		copyProgram(t, from, filepath.Join(c.SharedDir, to))
	}
	for name, text := range map[string]string{"app/sconce.toml": submitRecipe, "app/clusters/two.toml": submitProfile} {
		writeText(t, filepath.Join(c.SharedDir, name), text)
	}
	c.Run(slurmtest.Alice, "ln -s sh rootfs/bin/echo && ln -s sh rootfs/bin/sleep && sconce pull dir:rootfs --platform linux/amd64 --name tiny:1")
	return c
}

func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	writeText(t, to, string(data))
}

func writeText(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := tooltest.WriteProgram(path, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// Jobs are submitted to a real Slurm, run there in the image, and are listed, followed and cancelled.
func TestSubmit(t *testing.T) {
	c := submitCluster(t)
	has := func(script string, wants ...string) string {
		t.Helper()
		out, err := c.Try(slurmtest.Alice, "cd app && "+script)
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("%s: %v\n%s\nlacks %q", script, err, out, want)
			}
		}
		return out
	}
	if out := has("sconce submit hello --dry-run && ls -A", "#SBATCH --job-name=hello", "srun "); strings.Contains(out, "\n.sconce\n") {
		t.Errorf("a dry run writes files:\n%s", out)
	}
	has("sconce submit hello --test-only", "to start at")
	has("sconce submit hello --follow -- 'a  b'", "rank 0 of 2 says a  b", "rank 1 of 2 says a  b", "its log is /shared/app/logs/hello-")
	has("sconce logs hello", "rank 0 of 2 says a  b")
	has("sconce submit fails --wait; echo code $?", "ended as FAILED", "code 1")
	lacks := []string{"cause: /home/alice/logs/lacks-", "the library libc.so.6 is not in the image", "as link-missing-library", "follows: ", "task 0: Exited with exit code 127"}
	has("sconce submit lacks --follow; echo code $?", append(lacks, "ended as FAILED", "code 1")...)
	has("sconce logs lacks", lacks...)
	has("sconce explain lacks", lacks...)
	// One that has begun is COMPLETING for a while.
	has("sconce submit sleeps && sconce cancel sleeps && for i in $(seq 6000); do [ -z \"$(squeue -h)\" ] && break; sleep 0.1; done; sconce jobs", "cancelled job", "COMPLETED", "FAILED", "CANCELLED")
	has("sconce jobs --json", `"digest": "sha256:`, `"file": "/shared/images/sha256-`)
	has(`sconce jobs | grep -c " $(sconce jobs --json | sed -n 's/.*"digest": "sha256:\(.\{12\}\).*/\1/p' | head -1) "`, "4\n")
	has("sconce cancel other; echo code $?", `no job "other" was submitted from here`, "code 2")
	has("cd /shared && sconce submit app hello --nodes 9 --test-only; echo code $?", "error: sbatch: ", "code 1")
	has(held, "is pending (JobHeldUser)", "it is let go")
	nodeDies(t, c, has)
	has("sed -i 's/tiny/gone/' sconce.toml && sconce submit hello; echo code $?", "gone:1 is not in the store", "build it first", "code 1")
}

// held follows a job that waits until its follower has said so.
const held = `:
sconce submit held --follow > held.out 2>&1 & pid=$!
for i in $(seq 6000); do grep -q "is pending (JobHeldUser)" held.out && break; sleep 0.1; done
scontrol release $(squeue -h -n held -o %A); wait $pid; cat held.out`

// nodeDies ends the node of a job: nothing in the log need say so, but Slurm's state of the job does.
func nodeDies(t *testing.T, c *slurmtest.Cluster, has func(script string, wants ...string) string) {
	t.Helper()
	down := make(chan error, 1)
	go func() {
		out, err := c.Try(c.Admin(), "until [ -e up ]; do sleep 0.05; done; scontrol update nodename=n1 state=down reason=fire")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		down <- err
	}()
	says := []string{"a node failed", "--exclude=NODE"}
	has("sconce submit dies --follow; echo code $?", append(says, "ended as NODE_FAIL", "code 1")...)
	if err := <-down; err != nil {
		t.Error(err)
	}
	has("rm -f dies-*.log; sconce explain dies", append(says, "JobState=NODE_FAIL")...)
}

// asPeople is what lets two people do things in a cluster of root: `as UID COMMAND...`, each with a home and a store of its own.
const asPeople = `people="1000 65534"
as() {
	uid=$1
	shift
	setpriv --reuid=$uid --regid=$uid --clear-groups env HOME=/shared/people/$uid "$@"
}
for p in $people; do install -d -o $p people/$p && cp -r app people/$p/app && chown -R $p people/$p; done
`

// Ten submissions at once, of two people if root runs the tests, who let nobody read their files, share one copy of the image.
func TestSubmitAtOnce(t *testing.T) {
	c := submitCluster(t)
	people := "people=1000; mkdir people; cp -r app people/1000; as() { shift; \"$@\"; }\n"
	if c.Admin() == slurmtest.Root {
		people = asPeople
	}
	c.Run(slurmtest.Alice, "sconce copy tiny:1 oci:layout:tiny")
	out := c.Run(c.Admin(), "mkdir -p -m 1777 images\n"+people+`
for p in $people; do as $p sconce pull oci:layout:tiny --name tiny:1 > /dev/null; done
umask 077
for i in 1 2 3 4 5 6 7 8 9 10; do
	set -- $people $people $people $people $people $people $people $people $people $people
	shift $i
	as $1 sh -c "cd people/$1/app && sconce submit hello --nodes 1" > /tmp/id$i & pids="$pids $!"
done
for p in $pids; do wait $p || exit 1; done
cat /tmp/id* | sort -u | wc -l
ls /shared/images/*.sqsh | wc -l
stat -c %a /shared/images/*.sqsh
for p in $people; do ls -A people/$p/app/.sconce/*.sbatch | wc -l; squeue -h -t all -u $p -o %A | wc -l; done`)
	if want := map[bool]string{true: "10\n1\n644\n1\n5\n1\n5\n", false: "10\n1\n644\n1\n10\n"}[c.Admin() == slurmtest.Root]; out[:min(len(out), len(want))] != want {
		t.Errorf("jobs, images and their mode, and of each person scripts and jobs: %q, want %q", out, want)
	}
}
