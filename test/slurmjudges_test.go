package test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/slurmtest"
	"sconce.dev/sconce/internal/tooltest"
)

// rankSh is what a rank of the judged jobs does: it says who it is, in an image that has no other shell than busybox's.
const rankSh = `echo "rank $RANK of $WORLD_SIZE, $LOCAL_RANK on $(cat /proc/sys/kernel/hostname), at ${MASTER_ADDR:-nobody}, in $(pwd), $(. /etc/os-release; echo $ID), $GREETING, $MINE, $*"
[ "$1" != fail ] || exit 7
`

// jobRecipe is a job of two nodes with two ranks each.
const jobRecipe = `name = "app"
version = "1"
[base]
image = "oci:/nowhere"
[job.train]
nodes = 2
tasks-per-node = 2
gpus-per-node = 0
time = "10m"
command = "sh /shared/rank.sh"
env = { MINE = "a 'b' \"c\" $5" }
mounts = ["/shared"]
`

// judgedCluster starts a cluster with sconce, the judged image under a name, the job, and a profile with a runtime.
func judgedCluster(t *testing.T, o slurmtest.Options, runtime, image string) *slurmtest.Cluster {
	t.Helper()
	c := slurmtest.Start(t, o)
	for _, dir := range []string{"app", "app/logs"} {
		if err := os.Mkdir(filepath.Join(c.SharedDir, dir), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(c.SharedDir, dir), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyFile(filepath.Join(workshop, "bin", "sconce"), filepath.Join(c.SharedDir, "bin", "sconce")); err != nil {
		t.Fatal(err)
	}
	newPlace(t, nil).must("copy", judged(t), filepath.Join(c.SharedDir, image))
	writeShared(t, c, "rank.sh", rankSh)
	writeShared(t, c, "app/sconce.toml", jobRecipe)
	writeShared(t, c, "app/two.toml", fmt.Sprintf("runtimes = [%q]\nplatform = \"linux/amd64\"\n[slurm]\npartition = \"debug\"\ngpu-request = \"none\"\n", runtime))
	return c
}

// runJob submits the script that sconce writes for the job, and returns its log and how it ended.
func runJob(t *testing.T, c *slurmtest.Cluster, image, args string) (log, state string) {
	t.Helper()
	out := c.Run(slurmtest.Alice, fmt.Sprintf(`cd app; rm -f train.sbatch
		sconce -q export sbatch --cluster two.toml --image /shared/%s -o train.sbatch
		code=0; id=$(sbatch --parsable --wait train.sbatch %s) || code=$?
		id=${id%%%%;*}; cat *-"$id".log; echo "== $code"`, image, args))
	log, state, _ = strings.Cut(out, "== ")
	return log, strings.TrimSpace(state)
}

// wantRanks wants each rank to have said what it should, in a job that has ended well, and one that fails to end the job.
func wantRanks(t *testing.T, c *slurmtest.Cluster, image string) {
	t.Helper()
	log, state := runJob(t, c, image, `"two  words"`)
	greeting := strings.TrimPrefix(judgedConfig.Env[1], "GREETING=")
	var want []string
	for rank := range 4 {
		want = append(want, fmt.Sprintf(`%d: rank %d of 4, %d on n%d, at n1, in %s, judged, %s, a 'b' "c" $5, two  words`, rank, rank, rank%2, rank/2+1, judgedConfig.WorkingDir, greeting))
	}
	var said []string
	for line := range strings.SplitSeq(log, "\n") {
		if strings.Contains(line, ": rank ") {
			said = append(said, line)
		}
	}
	slices.Sort(said)
	if !slices.Equal(said, want) || state != "0" {
		t.Errorf("the job ended with %s:\n%s\nwant\n%s", state, log, strings.Join(want, "\n"))
	}
	// The job's code is the greatest of its tasks', among them those that Slurm ends because of the first.
	if log, state := runJob(t, c, image, "fail"); state == "0" || !strings.Contains(log, "Exited with exit code 7") {
		t.Errorf("a job whose ranks fail ended with %s:\n%s", state, log)
	}
}

// The script for pyxis, with pyxis and enroot themselves.
func TestPyxisRunsJobs(t *testing.T) {
	begin(t)
	for name, o := range judgedStarters(t) {
		t.Run(name, func(t *testing.T) {
			o.Pyxis = true
			c := judgedCluster(t, o, "pyxis", "x.sqsh")
			wantRanks(t, c, "x.sqsh")
			// Without a script.
			out := c.Run(slurmtest.Alice, "srun -Q --container-image=/shared/x.sqsh env -0")
			wantEnvironment(t, out, underEnroot)
		})
	}
}

// The script for Apptainer, with Apptainer itself, which mounts images by FUSE.
func TestApptainerRunsJobs(t *testing.T) {
	begin(t)
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		tooltest.Missing(t, "no FUSE here: %v", err)
	}
	fuse.Close()
	wantRanks(t, judgedCluster(t, slurmtest.Options{Programs: []string{"apptainer"}}, "apptainer", "x.sif"), "x.sif")
}

// judgedStarters are who starts a cluster for judges.
func judgedStarters(t *testing.T) map[string]slurmtest.Options {
	t.Helper()
	if os.Getuid() != 0 {
		return map[string]slurmtest.Options{"ordinary user": {}}
	}
	u := ordinary(t)
	return map[string]slurmtest.Options{"root": {}, "ordinary user": {UID: u.uid, GID: u.gid}}
}
