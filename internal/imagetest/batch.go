package imagetest

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/job"
)

// Place is where tests run.
type Place string

// The places.
const (
	Submitted  Place = "slurm"      // in a job that sbatch is given
	Allocation Place = "allocation" // in the job that this process is in
	Here       Place = "here"       // on this machine, without Slurm
)

// Plan is an image and the tests that it is given in one go.
type Plan struct {
	Place       Place
	Image       job.Image
	ImageDigest string // of its manifest
	Cluster     cluster.Profile
	Runtime     string // before what the cluster says
	Recipe      string // directory of the recipe, where the files of tests lie
	Tests       []Test // which run: none that is left out, or for other clusters
	Program     string // Here: sconce's
	Store       string // Here: the directory of the store
}

// batch is a plan as one job, in a directory of its own. What the job leaves there says all that happened, and so an image can write
// nothing of it but N/files, of which nobody reads or runs anything on the host.
//
//	job.sbatch    the script
//	kit.py        the kit
//	N/files/      a copy of what test N brings along, where it starts and may write
//	N/nodes       when test N began, in seconds since 1970, and where
//	N/log         what its runs printed, one after the other
//	N/run-K.end   the exit code of run K, and how long the log was then
//	N/lacks       that there were not enough nodes
//	job           the number of the job, once it is submitted; started: the same, once it runs
//	done          that the script came to its end
//	results.json  what was made of all that: the next run starts anew
type batch struct {
	Plan
	attempt int      // 1, or 2 on other nodes
	exclude []string // nodes
	hashes  []string // of the tests
	name    string   // of the job
	dir     string
	told    bool // the user knows of the job
}

// jobPrefix begins the names of jobs that run tests.
const jobPrefix = "sconce-test-"

// newBatch names the job: the same image, tests and cluster have the same name, by which a job is found again.
func newBatch(p Plan, attempt int, exclude []string, root string) (*batch, error) {
	hashes, err := p.hashes()
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal([]any{p.ImageDigest, p.Place, p.Runtime, p.Image.File, hashes, attempt, exclude})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	name := fmt.Sprintf("%s%s-%x", jobPrefix, safeName(p.Image.Name), sum[:6])
	dir := filepath.Join(root, name)
	if strings.ContainsAny(dir, ",:") || job.Variable(dir) != "" {
		return nil, fault.Usage(fault.Hint(fmt.Errorf("%q: tests cannot run where a path has a comma, a colon or a variable in it: it is mounted", root), "give the directory another name"))
	}
	return &batch{Plan: p, attempt: attempt, exclude: exclude, hashes: hashes, name: name, dir: dir}, nil
}

// hashes are those of the tests, in their order.
func (p Plan) hashes() ([]string, error) {
	hashes := make([]string, len(p.Tests))
	for i, t := range p.Tests {
		var err error
		if hashes[i], err = Hash(p.Recipe, t, p.Cluster); err != nil {
			return nil, fmt.Errorf("test %s: %w", t.Title(), err)
		}
	}
	return hashes, nil
}

// safeName is a name as jobs and files have it.
func safeName(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, clipTo(name, 40))
}

// prepare writes the directory anew, whole or not at all.
func (b *batch) prepare() (err error) {
	if err := os.MkdirAll(filepath.Dir(b.dir), 0o755); err != nil {
		return err
	}
	made := filepath.Join(filepath.Dir(b.dir), ".new-"+b.name) // its own, so that nothing stays of one who was killed here
	if err := os.RemoveAll(made); err != nil {
		return err
	}
	if err := os.Mkdir(made, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(made) // does nothing after the rename
	if err := os.Chmod(made, 0o755); err != nil {
		return err
	}
	for i, t := range b.Tests {
		files := filepath.Join(made, fmt.Sprint(i+1), "files")
		if err := copyFiles(b.Recipe, files, t.Files); err != nil {
			return fmt.Errorf("test %s: %w", t.Title(), err)
		}
		if copied, err := Hash(files, t, b.Cluster); err != nil || copied != b.hashes[i] {
			return cmp.Or(err, fmt.Errorf("test %s: its files were changed while they were copied", t.Title()))
		}
		if err := b.writeEDF(made, i, t); err != nil {
			return err
		}
	}
	text, err := b.script()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(made, "kit.py"), kitPy, 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(made, scriptFile), []byte(text), 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(b.dir); err != nil {
		return err
	}
	return os.Rename(made, b.dir)
}

const scriptFile = "job.sbatch"

// request is a test as a job.
func (b *batch) request(i int, t Test) job.Request {
	own := fmt.Sprintf("${PWD}/%d/files", i+1)
	r := job.Request{
		Name: safeName(t.Title()), Image: b.Image, Cluster: b.Cluster, Runtime: b.Runtime,
		Sees: []string{"${PWD}:${PWD}:ro", own}, // the first, since the cluster's mounts may have all that is here
		Job: job.Job{
			Nodes: t.NodeCount(), TasksPerNode: t.TasksPerNode, Time: "", Env: t.Env, Command: command(t),
			Workdir: own,
		},
	}
	if r.ReadsEDF() {
		r.EDF = filepath.Join(b.dir, edfFile(i))
	}
	if b.Cluster.Slurm.GPUsPerNode == 0 && len(b.Cluster.GPU) == 0 {
		r.Job.GPUsPerNode = new(int) // an image with CUDA may be tested where there are none
	}
	return r
}

func edfFile(i int) string { return fmt.Sprintf("%d.toml", i+1) }

func (b *batch) writeEDF(dir string, i int, t Test) error {
	r := b.request(i, t)
	if !r.ReadsEDF() {
		return nil
	}
	text, err := job.EDF(r)
	if err != nil {
		return fmt.Errorf("test %s: %w", t.Title(), err)
	}
	return os.WriteFile(filepath.Join(dir, edfFile(i)), []byte(text), 0o644)
}

// command is what a task of the test runs.
func command(t Test) string {
	if t.Use == "" {
		return t.Run
	}
	words := append([]string{"python3", "../../kit.py", t.Use}, t.Modules...)
	return strings.Join(words, " ")
}

// spareTime is what a job has besides the time of its tests: for starting containers, and for killing a test that takes too long.
const spareTime = 5 * time.Minute

// whole is the job that has room for each of the tests, one after the other.
func (b *batch) whole() (job.Request, error) {
	r := job.Request{Name: b.name, Image: b.Image, Cluster: b.Cluster, Runtime: b.Runtime, Job: job.Job{Command: "true"}}
	total := spareTime
	for i, t := range b.Tests {
		one := b.request(i, t)
		step, err := job.StepOf(one)
		if err != nil {
			return r, fmt.Errorf("test %s: %w", t.Title(), err)
		}
		r.Job.Nodes = max(r.Job.Nodes, t.NodeCount())
		r.Job.TasksPerNode = max(r.Job.TasksPerNode, step.Tasks)
		r.Job.GPUsPerNode, r.EDF = one.Job.GPUsPerNode, one.EDF
		total += time.Duration(t.Runs()) * (t.Limit() + killTime)
	}
	longest, err := job.ParseTime(b.Cluster.Slurm.MaxTime)
	if err != nil {
		return r, fault.Usage(fmt.Errorf("slurm.max-time: %w", err))
	}
	if longest > 0 {
		total = min(total, longest)
	}
	r.Job.Time = slurmTime(total)
	if len(b.exclude) > 0 {
		r.Job.Options = []string{"--exclude=" + strings.Join(b.exclude, ",")}
	}
	return r, nil
}

func slurmTime(d time.Duration) string {
	minutes := int((d + time.Minute - 1) / time.Minute)
	return fmt.Sprintf("%d-%02d:%02d:00", minutes/60/24, minutes/60%24, minutes%60)
}

// copyFiles copies what a test brings along, as its hash sees it.
func copyFiles(from, to string, paths []string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	list, err := listFiles(from, paths)
	if err != nil {
		return err
	}
	for _, f := range list {
		target := filepath.Join(to, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		switch f.Mode {
		case "dir":
			err = os.MkdirAll(target, 0o755)
		case "link":
			err = os.Symlink(f.Link, target)
		default:
			err = copyFile(filepath.Join(from, filepath.FromSlash(f.Path)), target, f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string, f file) error {
	data, err := os.Open(from)
	if err != nil {
		return err
	}
	defer data.Close()
	mode := os.FileMode(0o644)
	if f.Mode == "exec" {
		mode = 0o755
	}
	w, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	if _, err = w.ReadFrom(data); err != nil {
		_ = w.Close() // the copy is no good
		return err
	}
	return w.Close()
}

// clusterName is the name in results and messages.
func (p Plan) clusterName() string { return cmp.Or(p.Cluster.Name, "this machine") }

// nodesOf lists nodes, each once.
func nodesOf(lists ...[]string) []string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return slices.Compact(all)
}
