package test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/slurmtest"
	"sconce.dev/sconce/internal/tooltest"
)

// slurm starts a cluster with sconce and an image in it: $IMAGE has Python, and the store is one that both nodes share. started is who
// starts the cluster, nil for who runs the tests.
func slurm(t *testing.T, started *account) *slurmtest.Cluster {
	t.Helper()
	b := base(t)
	var o slurmtest.Options
	if started != nil {
		o.UID, o.GID = started.uid, started.gid
	}
	c := slurmtest.Start(t, o)
	bin := filepath.Join(c.SharedDir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := copyFile(filepath.Join(workshop, "bin", "sconce"), filepath.Join(bin, "sconce")); err != nil {
		t.Fatal(err)
	}
	layout, _, _ := strings.Cut(strings.TrimPrefix(b.ref, "oci:"), ":")
	if err := os.CopyFS(filepath.Join(c.SharedDir, "layout"), os.DirFS(layout)); err != nil {
		t.Fatal(err)
	}
	c.Run(slurmtest.Alice, settings+"sconce -q pull oci:/shared/layout:base --name base:1")
	return c
}

// settings are what scripts of the cluster begin with.
const settings = "set -e; export SCONCE_STORE=/shared/store IMAGE=base:1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29501\n"

// writeShared puts a file into the directory that the nodes share.
func writeShared(t *testing.T, c *slurmtest.Cluster, name, text string) {
	t.Helper()
	if err := tooltest.WriteProgram(filepath.Join(c.SharedDir, name), []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// Tasks of jobs under sconce, on a cluster of root and on one of an ordinary user.
func TestSlurmTasks(t *testing.T) {
	begin(t)
	started := map[string]*account{"ordinary user": ordinary(t)}
	if os.Getuid() == 0 {
		started["root"] = nil
	}
	for name, who := range started {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := slurm(t, who)
			t.Run("share a node", func(t *testing.T) { tasksShareANode(t, c) })
			t.Run("stand on one tree", func(t *testing.T) { tasksStandOnOneTree(t, c) })
			t.Run("are who started them", func(t *testing.T) { tasksAreWhoStartedThem(t, c) })
			t.Run("read each other's memory", func(t *testing.T) { tasksReadEachOther(t, c) })
			t.Run("agree by PMIx", func(t *testing.T) { tasksAgreeByPMIx(t, c) })
			t.Run("are killed", func(t *testing.T) { tasksAreKilled(t, c) })
			t.Run("are killed anywhere", func(t *testing.T) { tasksAreKilledAnywhere(t, c) })
			t.Run("get signals", func(t *testing.T) { tasksGetSignals(t, c) })
			t.Run("talk to process managers", func(t *testing.T) { tasksTalkToProcessManagers(t, c) })
			t.Run("test their image", func(t *testing.T) { tasksTestTheirImage(t, c) })
		})
	}
}

// taskPy is a task of two nodes with two tasks each: they add up their ranks over the network, pass a number on in shared memory to
// their neighbour, and print where they are.
const taskPy = `
import json, os, socket
from multiprocessing import resource_tracker, shared_memory

rank, size, local = (int(os.environ["SLURM_" + v]) for v in ("PROCID", "NTASKS", "LOCALID"))
at = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

def everybody(number):
    """The sum of all tasks' numbers; nobody has it before all have come."""
    if rank == 0:
        with socket.create_server(at, backlog=size) as server:
            others = [server.accept()[0] for _ in range(size - 1)]
        number += sum(int(c.makefile().readline()) for c in others)
        for c in others:
            c.sendall(b"%d\n" % number)
            c.close()
        return number
    while True:
        try:
            with socket.create_connection(at) as c:
                c.sendall(b"%d\n" % number)
                return int(c.makefile().readline())
        except OSError:
            pass

name = "sconce-" + os.environ["SLURM_STEP_ID"]
if local == 0:
    mine = shared_memory.SharedMemory(name, create=True, size=8)
    mine.buf[0] = 40 + rank
total = everybody(rank)
at = at[0], at[1] + 1
theirs = shared_memory.SharedMemory(name)
if local != 0:
    resource_tracker.unregister(theirs._name, "shared_memory")  # it is the other's to remove
seen = theirs.buf[0]
everybody(0)
if local == 0:
    mine.unlink()
with open("/written-by-%d" % rank, "w"):
    pass
at = at[0], at[1] + 1
everybody(0)
print(json.dumps({
    "rank": rank, "node": os.uname().nodename, "total": total, "seen": seen,
    "shm": os.stat("/dev/shm").st_dev, "spaces": [os.readlink("/proc/self/ns/" + n) for n in ("mnt", "user", "pid", "ipc")],
    "written": sorted(f for f in os.listdir("/") if f.startswith("written-by-")),
    "env": {k: os.environ.get(k) for k in ("SLURM_JOB_ID", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "OF_THE_HOST")},
}))
`

// taskSays is what a task prints.
type taskSays struct {
	Rank    int               `json:"rank"`
	Node    string            `json:"node"`
	Total   int               `json:"total"`
	Seen    int               `json:"seen"`
	Shm     int               `json:"shm"`
	Spaces  []string          `json:"spaces"`
	Written []string          `json:"written"`
	Env     map[string]string `json:"env"`
}

// The tasks of a node share one root file system, the memory, the processes and the job's variables, and those of two nodes do not.
func tasksShareANode(t *testing.T, c *slurmtest.Cluster) {
	t.Helper()
	writeShared(t, c, "task.py", taskPy)
	out := c.Run(slurmtest.Alice, settings+`OF_THE_HOST=1 NCCL_DEBUG=INFO srun -Q -N2 --ntasks-per-node=2 --gpus-per-task=1 \
			sconce run -B /shared $IMAGE python3 /shared/task.py`)
	tasks := map[string][]taskSays{}
	unpacked, read := 0, 0
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "{") {
			switch {
			case strings.HasPrefix(line, "unpack ") && strings.Contains(line, ": done"):
				unpacked++
			case strings.HasPrefix(line, "index ") && strings.Contains(line, ": done"):
				read++
			case strings.HasPrefix(line, "index "), strings.HasPrefix(line, "unpack "), strings.HasPrefix(line, "waiting for "):
			default:
				t.Errorf("more was printed: %s", line)
			}
			continue
		}
		var s taskSays
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		tasks[s.Node] = append(tasks[s.Node], s)
	}
	if got := slices.Sorted(maps.Keys(tasks)); !slices.Equal(got, []string{"n1", "n2"}) || len(tasks["n1"]) != 2 || len(tasks["n2"]) != 2 {
		t.Fatalf("nodes %q say\n%s", got, out)
	}
	if unpacked+read != 1 {
		t.Errorf("the image's layer was unpacked %d times, and read to be served %d times:\n%s", unpacked, read, out)
	}
	for node, first := range map[string]int{"n1": 0, "n2": 2} {
		a, b := tasks[node][0], tasks[node][1]
		if a.Shm != b.Shm || !slices.Equal(a.Spaces, b.Spaces) {
			t.Errorf("the tasks of %s do not share what they should: %v %v", node, a, b)
		}
		for _, s := range tasks[node] {
			written := []string{fmt.Sprint("written-by-", first), fmt.Sprint("written-by-", first+1)}
			if s.Total != 0+1+2+3 || s.Seen != 40+first || !slices.Equal(s.Written, written) {
				t.Errorf("%s: sum of ranks %d, number in shared memory %d, files %q; want 6, %d, %q", node, s.Total, s.Seen, s.Written, 40+first, written)
			}
			if s.Env["SLURM_JOB_ID"] == "" || s.Env["SLURMD_NODENAME"] != node || s.Env["NCCL_DEBUG"] != "INFO" || s.Env["OF_THE_HOST"] != "" {
				t.Errorf("%s: variables %v", node, s.Env)
			}
			if want := fmt.Sprint(s.Rank - first); s.Env["CUDA_VISIBLE_DEVICES"] != want {
				t.Errorf("rank %d sees the GPUs %q, want %q", s.Rank, s.Env["CUDA_VISIBLE_DEVICES"], want)
			}
		}
	}
	if a, b := tasks["n1"][0], tasks["n2"][0]; a.Shm == b.Shm || a.Spaces[0] == b.Spaces[0] {
		t.Errorf("two nodes share what they cannot: %v %v", a, b)
	}
	wantNothingLeft(t, c)
}

// Eight tasks that start at once, of which each says what its root is, and waits for the others, have one.
func tasksStandOnOneTree(t *testing.T, c *slurmtest.Cluster) {
	t.Helper()
	out := c.Run(slurmtest.Alice, settings+`srun -Q -N1 -n8 sconce -q run -B /shared $IMAGE sh -c '
			touch /shared/here-$SLURM_PROCID
			while [ "$(ls /shared | grep -c ^here-)" -lt 8 ]; do :; done
			readlink /proc/self/ns/mnt' | sort -u`)
	if strings.Count(out, "\n") != 1 {
		t.Errorf("eight tasks have these mounts:\n%s", out)
	}
	// --in-job=no takes each apart. The first waits for the second, for the kernel gives the number of a name space that is gone to the next.
	out = c.Run(slurmtest.Alice, settings+`srun -Q -N1 -n2 sconce -q run --in-job=no -B /shared $IMAGE sh -c '
			mktemp /shared/apart-XXXXXX > /dev/null
			while [ "$(ls /shared | grep -c ^apart-)" -lt 2 ]; do sleep 0.02; done
			readlink /proc/self/ns/pid; echo "$SLURM_PROCID"' | sort -u`)
	if strings.Count(out, "\n") != 3 {
		t.Errorf("two tasks apart print\n%s", out)
	}
	wantNothingLeft(t, c)
}

// Tasks run under the name and number of who has started the job, in a home of that name, and without rights. Elsewhere, and by --user, a
// command runs as root.
func tasksAreWhoStartedThem(t *testing.T, c *slurmtest.Cluster) {
	t.Helper()
	writeShared(t, c, "who.py", `
import getpass, os, pathlib, pwd, stat
mine = pathlib.Path("/shared/by-%d-%s" % (os.getpid(), os.uname().nodename))
mine.touch()
(pathlib.Path.home() / "a file").touch()
caps = [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")][0]
print(getpass.getuser(), pwd.getpwuid(os.getuid()).pw_name, "%d:%d" % (os.getuid(), os.getgid()), os.environ["HOME"], pathlib.Path(pwd.getpwuid(os.getuid()).pw_dir),
      mine.owner(), pathlib.Path("/etc").owner(), "no rights" if int(caps, 16) == 0 else "rights")
`)
	const self, root = "alice alice 1000:1000 /home/alice /home/alice alice alice no rights\n", "root root 0:0 /root /root root root rights\n"
	for command, want := range map[string]string{
		"srun -Q -N2 --ntasks-per-node=2 sconce -q run -B /shared $IMAGE": self,
		"srun -Q -N2 sconce -q run -u root -B /shared $IMAGE":             root,
		"sconce -q run -B /shared $IMAGE":                                 root,
		"sconce -q run -B /shared --user=self $IMAGE":                     self,
		"sconce -q run -B /shared -u $(id -u):$(id -g) $IMAGE":            self,
		"sconce -q run -B /shared --unpack=first -u alice $IMAGE":         self,
	} {
		if out := c.Run(slurmtest.Alice, settings+command+" python3 /shared/who.py | sort -u"); out != want {
			t.Errorf("%s\ngot  %swant %s", command, out, want)
		}
	}
	if out := c.Run(slurmtest.Alice, "stat -c %u /shared/by-* | sort -u"); out != "1000\n" {
		t.Errorf("files of tasks belong to\n%s", out)
	}
	if out, err := c.Try(slurmtest.Alice, settings+"sconce run -u bob $IMAGE true"); err == nil || !strings.Contains(out, "as root or as alice") {
		t.Errorf("as somebody else: %v\n%s", err, out)
	}
	wantNothingLeft(t, c)
}

// MPI libraries copy large messages between the tasks of a node out of each other's memory (CMA). The kernel allows that within one user
// name space alone.
func tasksReadEachOther(t *testing.T, c *slurmtest.Cluster) {
	t.Helper()
	writeShared(t, c, "cma.py", `
import ctypes, os, pathlib, time
libc = ctypes.CDLL(None, use_errno=True)
rank = int(os.environ["SLURM_PROCID"])
text = ctypes.create_string_buffer(b"written by rank %d" % rank)
place = pathlib.Path("/shared/cma-%s-%d" % (os.environ["SLURM_JOB_ID"], rank))
place.with_suffix(".new").write_text("%d %d" % (os.getpid(), ctypes.addressof(text)))
place.with_suffix(".new").rename(place)
other = place.with_name(place.name[:-1] + str(1 - rank))
while not other.exists():
    time.sleep(0.01)
pid, address = map(int, other.read_text().split())
class Part(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]
got = ctypes.create_string_buffer(len(text))
n = libc.process_vm_readv(pid, ctypes.byref(Part(ctypes.addressof(got), len(text))), 1, ctypes.byref(Part(address, len(text))), 1, 0)
print(got.value.decode() if n > 0 else os.strerror(ctypes.get_errno()), flush=True)
place.with_suffix(".read").touch()
while not other.with_suffix(".read").exists():
    time.sleep(0.01)
`)
	const want = "written by rank 0\nwritten by rank 1\n"
	for _, flags := range []string{"", "--user=root"} {
		out := c.Run(slurmtest.Alice, settings+`srun -Q -N1 -n2 sconce -q run -B /shared `+flags+` $IMAGE python3 /shared/cma.py | sort`)
		if out != want {
			t.Errorf("with %q, two tasks of a node say\n%swant\n%s", flags, out, want)
		}
	}
	wantNothingLeft(t, c)
}

// Ranks of two nodes exchange a number each through PMIx, which refuses whoever is another user than the job's. The image has no PMIx: it
// gets the machine's programs and libraries over its own.
func tasksAgreeByPMIx(t *testing.T, c *slurmtest.Cluster) {
	t.Helper()
	writeShared(t, c, "pmix.py", `
import ctypes, os
pmix = ctypes.CDLL("libpmix.so.2")
class Proc(ctypes.Structure):
    _fields_ = [("job", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]
class Value(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint16), ("pad", ctypes.c_uint16 * 3), ("number", ctypes.c_uint32), ("rest", ctypes.c_char * 48)]
uint32, everywhere = 14, 3
def call(name, *arguments):
    code = getattr(pmix, name)(*arguments)
    if code != 0:
        print("%s: error %d" % (name, code), flush=True)
        os._exit(1)
me = Proc()
call("PMIx_Init", ctypes.byref(me), None, 0)
mine = Value(uint32, number=100 + me.rank)
call("PMIx_Put", ctypes.c_uint8(everywhere), b"number", ctypes.byref(mine))
call("PMIx_Commit")
call("PMIx_Fence", None, 0, None, 0)
total = 0
for rank in range(int(os.environ["SLURM_NTASKS"])):
    theirs = ctypes.POINTER(Value)()
    call("PMIx_Get", ctypes.byref(Proc(me.job, rank)), b"number", None, 0, ctypes.byref(theirs))
    total += theirs.contents.number
call("PMIx_Fence", None, 0, None, 0)
call("PMIx_Finalize", None, 0)
print(os.uname().nodename, me.rank, total)
`)
	out := c.Run(slurmtest.Alice, settings+`srun -Q -N2 --ntasks-per-node=2 --mpi=pmix sconce -q run -B /shared -B /usr $IMAGE python3 /shared/pmix.py | sort`)
	if want := "n1 0 406\nn1 1 406\nn2 2 406\nn2 3 406\n"; out != want {
		t.Errorf("ranks say\n%swant\n%s", out, want)
	}
	wantNothingLeft(t, c)
}

// A task that is killed takes nobody along, the first one neither, which started the process that holds the image; a job that is
// cancelled leaves nothing.
func tasksAreKilled(t *testing.T, c *slurmtest.Cluster) {
	t.Helper()
	out, err := c.Try(slurmtest.Alice, settings+`srun -Q -N1 -n2 --kill-on-bad-exit=0 sconce -q run -B /shared $IMAGE sh -c '
			touch /shared/up-$SLURM_PROCID
			while [ "$(ls /shared | grep -c ^up-)" -lt 2 ]; do :; done
			if [ "$SLURM_PROCID" = 0 ]; then echo $PPID > /shared/parent.new; mv /shared/parent.new /shared/parent; sleep 1000; fi
			while [ ! -e /shared/go-on ]; do :; done
			cat /etc/debian_version' &
			until [ -e /shared/parent ]; do sleep 0.02; done
			kill -9 $(cat /shared/parent)
			touch /shared/go-on
			wait $!`)
	if err == nil || !strings.HasPrefix(out, "12") {
		t.Errorf("one of two tasks was killed: %v\n%s", err, out)
	}
	wantNothingLeft(t, c)

	out, err = c.Try(slurmtest.Alice, settings+`srun -N2 --ntasks-per-node=2 sconce -q run -B /shared $IMAGE sh -c '
			trap "" TERM INT HUP
			sleep 1000 &
			touch /shared/running-$SLURM_PROCID; wait; sleep 1000' &
			until [ "$(ls /shared | grep -c ^running-)" = 4 ]; do sleep 0.02; done
			scancel -u alice
			wait $!`)
	if !strings.Contains(out, "CANCELLED") {
		t.Errorf("a cancelled job says, %v:\n%s", err, out)
	}
	wantNothingLeft(t, c)
}

// A step on two nodes is killed as a whole, at the first event of its work, next time at the second, then at the third, and again, until it is
// faster: from a new store to an image that is unpacked there. The store is sound after every kill, and of what they left nothing stays.
func tasksAreKilledAnywhere(t *testing.T, c *slurmtest.Cluster) {
	t.Helper()
	out := c.Run(slurmtest.Alice, settings+`export SCONCE_STORE=/shared/killed step
		mkfifo never # to wait at without another process: Slurm does not see one that is born while it kills
		for step in 1 2 3 1 2 3 1 2 3; do
			rm -f was-killed
			srun -Q -N2 sh -c 'sconce --progress json run oci:/shared/layout:base true 2>&1 | while read -r line; do
				case $line in *\"progress\"* | *\"error\"*) continue ;; esac
				step=$((step - 1))
				if [ $step = 0 ]; then echo "$line" | tee -a killed-at > was-killed; scancel --signal=KILL $SLURM_JOB_ID; read -r line < never; fi
			done' > out 2>&1 || [ -e was-killed ] || { cat out; exit 1; }
			sconce -q cache verify > verified || { cat verified; exit 1; }
			[ -e was-killed ] || break
		done
		srun -Q -N2 sconce -q run oci:/shared/layout:base echo good
		sconce -q cache prune --all > pruned
		ls -A $SCONCE_STORE/tmp-v1
		cat killed-at`)
	kills, good := strings.CutPrefix(out, "good\ngood\n")
	if !good || !strings.HasPrefix(kills, "{") {
		t.Errorf("after the kills, and at which:\n%s", out)
	}
	t.Logf("killed at\n%s", kills)
	wantNothingLeft(t, c)
}

// Signals reach the command, and its exit code comes back.
func tasksGetSignals(t *testing.T, c *slurmtest.Cluster) {
	t.Helper()
	out, err := c.Try(slurmtest.Alice, settings+`srun -Q -n1 sconce -q run -B /shared $IMAGE python3 -c '
import os, signal, sys
def end(*_):
    # Without cgroups, Slurm signals every process of a step, and so the command twice.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.write(1, b"saved\n")
    os._exit(5)
signal.signal(signal.SIGUSR1, end)
open("/shared/ready", "w").close()
while True:
    signal.pause()' &
		until [ -e /shared/ready ]; do sleep 0.02; done
		scancel -s USR1 $(squeue -h -t R -o %A) # not one before it that Slurm has not quite ended
		code=0; wait $! || code=$?; echo code $code`)
	if err != nil || !strings.HasPrefix(out, "saved\n") || !strings.Contains(out, "code 5\n") {
		t.Errorf("%v\n%s", err, out)
	}
	wantNothingLeft(t, c)
}

// A process manager talks to tasks: over a socket that it hands them (PMI 2), or in a directory of sockets and files (PMIx).
func tasksTalkToProcessManagers(t *testing.T, c *slurmtest.Cluster) {
	t.Helper()
	out := c.Run(slurmtest.Alice, settings+`srun -Q -n2 --mpi=pmi2 sconce -q run $IMAGE python3 -c '
import os, socket
s = socket.socket(fileno=int(os.environ["PMI_FD"]))
s.sendall(b"cmd=init pmi_version=2 pmi_subversion=0\n")
print(os.environ["PMI_RANK"], s.recv(100))' | sort`)
	if strings.Count(out, "response_to_init") != 2 {
		t.Errorf("with PMI 2, tasks hear\n%s", out)
	}
	out = c.Run(slurmtest.Alice, settings+`srun -Q -n2 --mpi=pmix sconce -q run $IMAGE python3 -c '
import os
print(os.environ["PMIX_RANK"], os.path.isdir(os.environ["PMIX_SERVER_TMPDIR"]))' | sort`)
	if want := "0 True\n1 True\n"; out != want {
		t.Errorf("with PMIx, tasks see\n%swant\n%s", out, want)
	}
	wantNothingLeft(t, c)
}

// The kit runs by the image's Python. There is no torch in the image, so that importing it fails on both nodes.
func tasksTestTheirImage(t *testing.T, c *slurmtest.Cluster) {
	t.Helper()
	for how, want := range map[string]string{"": "import FAILED - n1,n2", "--here": "import FAILED - ctl"} {
		out, _ := c.Try(slurmtest.Alice, settings+"sconce test $IMAGE "+how+" || echo code $?")
		words := strings.Join(strings.Fields(out), " ")
		for _, want := range []string{want, "env PASSED gpus 0, ranks 1", "ModuleNotFoundError: No module named 'torch'", "code 3"} {
			if !strings.Contains(words, want) {
				t.Errorf("sconce test %s:\n%s\nlacks %q", how, out, want)
			}
		}
	}
	wantNothingLeft(t, c)
}

// wantNothingLeft fails when a process of sconce, or a file in memory or among the store's temporary ones, stays.
func wantNothingLeft(t *testing.T, c *slurmtest.Cluster) {
	t.Helper()
	// The brackets keep this script from being found itself.
	const processes = `grep -alE 'base[:]1|layout[:]base|sandbox[-]init|sleep.100[0]' /proc/[0-9]*/cmdline 2> /dev/null | while read -r f; do
		echo $f $(tr '\0' ' ' < $f 2> /dev/null); done
		ls -A /shared/store/tmp-v1`
	var out string
	// Slurm takes a minute to end a step that was killed while it started.
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if out = strings.TrimSpace(c.Run(slurmtest.Alice, processes)); out == "" {
			break
		}
	}
	if out += c.Run(slurmtest.Alice, "srun -Q -N2 ls -A /dev/shm"); out != "" {
		t.Errorf("this is left:\n%s", out)
	}
}
