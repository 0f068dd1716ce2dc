package nodejob

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
)

// The script, which Slurm keeps, tells nothing of the command; and it asks for a whole node, as the profile says of it.
func TestScript(t *testing.T) {
	c := Command{
		Name: "team/llm:25.11", Args: []string{"build", "--build-arg=T=secret"}, Dir: "/home/secret", Env: []string{"T=secret"}, Secrets: map[string][]byte{"t": []byte("secret")},
		Cluster: cluster.Profile{Name: "two", Slurm: cluster.Slurm{Partition: "debug", CPUsPerNode: 288, GPUsPerNode: 4, MaxTime: "24h"}},
	}
	name := c.jobName()
	text, err := c.script(name, "/shared/sconce", "/shared/it's/dir")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"#SBATCH --job-name=sconce-team-llm-25.11-", "#SBATCH --partition=debug\n", "#SBATCH --cpus-per-task=288\n", "#SBATCH --time=06:00:00\n", "#SBATCH --no-requeue\n",
		"#SBATCH --export=HOME,PATH\n", `exec /shared/sconce on-node '/shared/it'\''s/dir'`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the script lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "secret") || strings.Contains(text, "gpus") {
		t.Errorf("the script tells too much:\n%s", text)
	}
	c.Key = "another"
	if other := c.jobName(); other == name {
		t.Errorf("two commands have the name %s", name)
	}
}

// The file of a command is gone when the command runs, which has what it had, and none of this machine's own variables.
func TestOnNode(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	p, err := placeOf(work)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir) // and back again
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	t.Setenv("OF_THE_NODE", "yes")
	local := t.TempDir()
	writeTask(t, dir, task{Args: []string{"build", "x"}, Dir: work, Env: []string{"TOKEN=t"}, Secrets: map[string][]byte{"a": []byte("b")}, Places: []place{p}, Local: local})
	err = OnNode(t.Context(), dir, func(_ context.Context, n Node) int {
		if _, err := os.Stat(filepath.Join(dir, taskFile)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the command is still there: %v", err)
		}
		here, err := os.Getwd()
		_, other := os.LookupEnv("OF_THE_NODE")
		if err != nil || here != work || other || os.Getenv("TOKEN") != "t" || string(n.Secrets["a"]) != "b" || !slices.Equal(n.Args, []string{"build", "x"}) {
			t.Errorf("in %s (%v) with %q: %+v", here, err, os.Environ(), n)
		}
		if scratch := os.Getenv("SCONCE_SCRATCH"); !strings.HasPrefix(scratch, local+"/") {
			t.Errorf("it writes to %q, and the node's own disk is %s", scratch, local)
		}
		fmt.Fprintln(n.Stdout, "said")
		return 7
	})
	if err != nil {
		t.Fatal(err)
	}
	f := follower{dir: dir}
	if e, err := f.end(); err != nil || e.Code != 7 {
		t.Errorf("it ended with %+v, %v", e, err)
	}
}

func writeTask(t *testing.T, dir string, what task) {
	t.Helper()
	data, err := json.Marshal(what)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, taskFile), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A node that sees another directory under the same name runs nothing.
func TestOtherPlace(t *testing.T) {
	dir := t.TempDir()
	p, err := placeOf(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p.Path = t.TempDir()
	writeTask(t, dir, task{Places: []place{p}})
	if err := OnNode(t.Context(), dir, func(context.Context, Node) int { t.Error("it runs"); return 0 }); err != nil {
		t.Fatal(err)
	}
	events, err := os.ReadFile(filepath.Join(dir, eventsFile))
	if err != nil || !strings.Contains(string(events), "this node does not see "+p.Path) {
		t.Errorf("it says %s, %v", events, err)
	}
}

func TestCarried(t *testing.T) {
	got := carried([]string{"A=1", "SLURM_JOB_ID=2", "TMPDIR=/x", "SBATCH_EXPORT=ALL", "SSH_AUTH_SOCK=/s", "PATH=/bin"})
	if want := []string{"A=1", "PATH=/bin"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A directory that others may read is no place for secrets.
func TestPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	for _, mode := range []os.FileMode{0, 0o700, 0o750} {
		if mode != 0 {
			if err := os.Chmod(dir, mode); err != nil {
				t.Fatal(err)
			}
		}
		if err := private(dir); (err != nil) != (mode == 0o750) {
			t.Errorf("%o: %v", mode, err)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := private(link); err == nil {
		t.Error("a link is followed")
	}
}

// What the command says in the end is an error like one of here.
func TestFailure(t *testing.T) {
	f := follower{}
	f.event([]byte(`{"kind":"error","error":"no","hint":"do","code":3}` + "\n"))
	if err := f.failed; err == nil || err.Error() != "no" || fault.HintOf(err) != "do" || fault.CodeOf(err) != 3 {
		t.Errorf("%+v", err)
	}
}
