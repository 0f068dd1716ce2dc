package job

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/slurmtest"
	"sconce.dev/sconce/internal/tooltest"
)

// twoNodes is the profile of the cluster that slurmtest starts.
func twoNodes(starts string) cluster.Profile {
	return cluster.Profile{
		Name: "two", Platform: "linux/amd64", Starts: []string{starts}, PMI: "pmix",
		Slurm: cluster.Slurm{Partition: "debug", GPUsPerNode: 4, CPUsPerNode: 8, MaxTime: "30m", Constraint: "thp_never&nvidia_vboost_enabled"},
		Paths: cluster.Paths{Images: "/shared/images", Local: "/tmp"},
	}
}

// put writes a script where the cluster's nodes see it.
func put(t *testing.T, c *slurmtest.Cluster, name, text string) {
	t.Helper()
	file := filepath.Join(c.SharedDir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := tooltest.WriteProgram(file, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// forUenvs are what directives for plug-ins there are, by request: the others' containers are started by the steps.
var forUenvs = map[string][]string{"uenv": {"sbatch --uenv=pytorch/v2.6.0:v1", "sbatch --view=default"}}

// Slurm takes the script of every runtime. The options for uenvs are a plug-in's: a stand-in has them here.
func TestSlurmAccepts(t *testing.T) {
	c := slurmtest.Start(t, slurmtest.Options{StandIn: true})
	for name, r := range requests(t) {
		r = onTwoNodes(r)
		for _, request := range []string{"gpus-per-node", "gres"} {
			r.Cluster.Slurm.GPURequest = request
			text, err := Sbatch(r)
			if err != nil {
				t.Fatal(name, err)
			}
			put(t, c, "job.sbatch", text)
			if out, err := c.Try(slurmtest.Alice, "sbatch --test-only job.sbatch"); err != nil || !strings.Contains(out, "to start at") {
				t.Errorf("%s: %v\n%s\n%s", name, err, out, text)
			}
			given := slices.Compact(slices.Sorted(slices.Values(c.Recorded())))
			if want := forUenvs[name]; !slices.Equal(given, want) {
				t.Errorf("%s: plug-ins are given %q, want %q", name, given, want)
			}
		}
	}
}

// onTwoNodes is a request as the cluster that slurmtest starts can fulfil it.
func onTwoNodes(r Request) Request {
	r.Runtime = first(r.Runtime, r.Cluster.Starter())
	mounts := r.Cluster.Container.SqshMount
	r.Cluster = twoNodes("pyxis")
	r.Cluster.Container.SqshMount = mounts
	r.Image.Arch, r.Job.Time = "amd64", "20m"
	r.Job.Nodes = min(r.Job.Nodes, 2)
	r.Job.Reservation = ""
	if r.Job.Array != "" {
		r.Job.Array = "0-1"
	}
	return r
}

// inContainer are lines that need what only a container has.
var inContainer = regexp.MustCompile(`\. /(venv|user-tools)/bin/activate|cd /data`)

// The scripts of all runtimes run to their end in a real Slurm, and their steps give the plug-ins what each is to be given. The plug-ins
// are a stand-in that records it, and so are the programs that start containers, which run the command on the node itself.
func TestSlurmSteps(t *testing.T) {
	c := slurmtest.Start(t, slurmtest.Options{StandIn: true})
	for _, starter := range []string{"apptainer", "podman-hpc", "sconce"} {
		put(t, c, "bin/"+starter, "#!/bin/bash\nwhile [ \"$1\" != bash ]; do [ \"$1\" ] || exit 9; shift; done\nexec \"$@\"\n")
	}
	put(t, c, "bin/python", "#!/bin/bash\necho \"$SLURM_JOB_ID task $SLURM_PROCID\" >> /shared/ran\n")
	put(t, c, "scratch/venvs/exp/bin/activate", "")
	c.Run(slurmtest.Alice, "mkdir -p logs home/my-app")
	all := requests(t)
	var recorded strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		r := onTwoNodes(all[name])
		text, err := Sbatch(r)
		if err != nil {
			t.Fatal(name, err)
		}
		put(t, c, name+".sbatch", inContainer.ReplaceAllString(text, ":"))
		c.Run(slurmtest.Alice, ": > ran; chmod a+w ran")
		id := strings.TrimSpace(c.Run(slurmtest.Alice, "HOME=/shared/home SCRATCH=/shared/scratch sbatch --parsable "+name+".sbatch"))
		waitFor(t, c, name+" has ended", `[ -z "$(squeue -h)" ]`)
		out, _ := c.Try(slurmtest.Alice, "scontrol -o show job "+id+"; sort -u ran | wc -l; cat ran; tail -n 20 *-"+id+"*.log logs/*-"+id+"*.log")
		tasks := 1
		for _, n := range []int{strings.Count(out, "JobState=COMPLETED"), max(1, r.Job.Nodes), tasksOf(t, r)} {
			tasks *= n
		}
		if tasks == 0 || !strings.Contains(out, fmt.Sprintf("\n%d\n", tasks)) {
			t.Errorf("%s, of %d tasks:\n%s\n%s", name, tasks, out, text)
		}
		for _, line := range slices.Compact(slices.Sorted(slices.Values(c.Recorded()))) {
			recorded.WriteString(name + ": " + line + "\n")
		}
	}
	golden(t, "recorded", recorded.String())
}

// tasksOf is how many tasks a job has on a node.
func tasksOf(t *testing.T, r Request) int {
	t.Helper()
	s, err := r.settle()
	if err != nil {
		t.Fatal(err)
	}
	return s.tasks
}

// The program of a job that trains, saves when it is warned, and goes on from there in the next job.
const trains = `import os, signal, sys, time
rank = os.environ["RANK"]
def say(text):
    with open(f"/shared/said-{rank}", "a") as f:
        f.write(text + "\n")
saved = f"/shared/saved-{rank}"
def save(*_):
    open(saved, "w").close()
    say("saved")
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
say(f"world {os.environ['WORLD_SIZE']} local {os.environ['LOCAL_RANK']} at {os.environ['MASTER_ADDR']} cpus {len(os.environ['OMP_NUM_THREADS'])} args {sys.argv[1:]}")
if os.path.exists(saved):
    say("resumed and done")
    sys.exit(0)
open(f"/shared/ready-{rank}", "w").close()
while True:
    time.sleep(0.1)
`

// A job over two nodes is warned, saves in every rank, submits the next one, and that one goes on from there. What starts the container is
// a stand-in for `sconce run` that runs the command on the node itself, since there is no image here.
func TestSlurmRuns(t *testing.T) {
	c := slurmtest.Start(t, slurmtest.Options{})
	put(t, c, "bin/sconce", "#!/bin/bash\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nexec \"$@\"\n")
	put(t, c, "train.py", trains)
	r := Request{
		Name: "train", Cluster: twoNodes(cluster.Sconce), Image: Image{Name: "x", File: "/shared/x.sqsh"},
		Job: Job{Nodes: 2, Time: "20m", Command: "python3 /shared/train.py", TasksPerNode: 2, WarnBefore: "1m", Continue: Chain, Logs: "logs"},
	}
	text, err := Sbatch(r)
	if err != nil {
		t.Fatal(err)
	}
	put(t, c, "job.sbatch", text)
	id := strings.TrimSpace(c.Run(slurmtest.Alice, "mkdir -p logs && sbatch --parsable job.sbatch 'a  b'"))
	waitFor(t, c, "four ranks are ready", "[ -e ready-0 ] && [ -e ready-1 ] && [ -e ready-2 ] && [ -e ready-3 ]")
	// As Slurm does before the time is up, which it does only to the minute.
	c.Run(slurmtest.Alice, "scancel --batch --signal=USR1 "+id)
	waitFor(t, c, "the next job has ended", "grep -qs resumed said-0 said-1 said-2 said-3 && [ -z \"$(squeue -h)\" ]")
	for rank := range 4 {
		said, err := os.ReadFile(filepath.Join(c.SharedDir, "said-"+string(rune('0'+rank))))
		began := "world 4 local " + string(rune('0'+rank%2)) + " at n1 cpus 1 args ['a  b']\n"
		if want := began + "saved\n" + began + "resumed and done\n"; err != nil || string(said) != want {
			t.Errorf("rank %d said\n%swant\n%s%v", rank, said, want, err)
		}
	}
	if logs := c.Run(slurmtest.Alice, "ls logs | wc -l; cat logs/*"); !strings.HasPrefix(logs, "2\n") {
		t.Errorf("the logs are %s", logs)
	}
}

// waitFor waits until a command of the shell is true.
func waitFor(t *testing.T, c *slurmtest.Cluster, what, condition string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		if out, err := c.Try(slurmtest.Alice, condition); err == nil {
			return
		} else if time.Now().After(deadline) {
			logs, _ := c.Try(slurmtest.Alice, "squeue; cat logs/*")
			t.Fatalf("waited in vain until %s: %s\n%s", what, out, logs)
		}
	}
}
