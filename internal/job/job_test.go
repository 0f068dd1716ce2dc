package job

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/tooltest"
)

var update = flag.Bool("update", false, "write the golden files")

func profile(t *testing.T, name string) cluster.Profile {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	f, err := cluster.Find(name, "")
	if err != nil {
		t.Fatal(err)
	}
	return f.Profile
}

// ours is a cluster with x86-64, 8 GPUs a node and a disk in each.
func ours(starts string) cluster.Profile {
	return cluster.Profile{
		Name: "ours", Platform: "linux/amd64", Starts: []string{starts}, Fabric: cluster.InfiniBand, PMI: "pmix",
		Slurm:       cluster.Slurm{Partition: "gpu", Account: "team", GPUsPerNode: 8, CPUsPerNode: 192, MaxTime: "2d", GPURequest: "gres", Constraint: "hbm80g&ib"},
		Paths:       cluster.Paths{Scratch: "/scratch/${USER}", Images: "/scratch/${USER}/images", Local: "/local", Cache: "/scratch/${USER}/cache"},
		Container:   cluster.Container{Mounts: []string{"/scratch/${USER}", "/datasets:/data:ro"}},
		Env:         map[string]string{"NCCL_SOCKET_IFNAME": "ib0"},
		Reliability: cluster.Reliability{MTBFNode: "5y"},
	}
}

var image = Image{
	Name: "llm-train:25.11", File: "/scratch/${USER}/images/llm-train+25.11.sqsh", Reference: "registry.example.org/team/llm-train:25.11", Arch: "amd64",
}

func onAlps(i Image) Image {
	i.Arch, i.File, i.CUDA, i.Cudart = "arm64", "${SCRATCH}/ce-images/llm-train+25.11.sqsh", 12, Nope
	i.Put = "sconce build -o " + i.File
	return i
}

var long = Job{
	Nodes: 64, Time: "24h", Launcher: Srun, Command: "python train.py --data /data --name 'it works'", Continue: Chain, WarnBefore: "5m",
	Checkpoint: Checkpoint{Takes: "90s"}, Logs: "logs", Env: map[string]string{"WANDB_DIR": "${PWD}/wandb", "PROMPT": "a \"b\" $5 `c`"},
	Mounts: []string{"${HOME}/my-app"},
}

func hooked(p cluster.Profile) cluster.Profile { p.Container.SqshMount = cluster.HookMount; return p }

func with(j Job, change func(*Job)) Job { change(&j); return j }

// requests are jobs as people would ask for them, by the names of the golden files.
func requests(t *testing.T) map[string]Request {
	t.Helper()
	clariden := profile(t, "clariden")
	torchrun := with(long, func(j *Job) { j.Nodes, j.Launcher, j.Continue = 2, Torchrun, No })
	short := Job{Nodes: 2, Time: "1h", Command: "python train.py"}
	return map[string]Request{
		"container-engine": {Name: "train", Job: with(long, func(j *Job) { j.Venv = "${SCRATCH}/venvs/exp.sqsh" }), Image: onAlps(image), Cluster: clariden, From: "sconce export sbatch --job train"},
		"sarus":            {Name: "train", Job: short, Image: onAlps(image), Cluster: clariden, Runtime: cluster.Sarus},
		"pyxis":            {Name: "train", Job: long, Image: image, Cluster: ours("pyxis")},
		"pyxis-venv": {
			Name: "train", Job: with(short, func(j *Job) { j.Venv = "${SCRATCH}/venvs/exp.sqsh" }), Image: image,
			Cluster: hooked(ours("pyxis")),
		},
		"pyxis-torchrun": {Name: "train", Job: torchrun, Image: image, Cluster: ours("pyxis")},
		"apptainer": {
			Name: "train", Job: with(short, func(j *Job) { j.Venv, j.WarnBefore, j.Continue = "${HOME}/venvs/exp.sqsh:/venv", "2m", Requeue }), Cluster: ours("apptainer"),
			Image: Image{Name: "llm-train:25.11", File: "/scratch/${USER}/images/llm-train+25.11.sif", Arch: "amd64", Workdir: "/workspace"},
		},
		"podman-hpc": {Name: "train", Job: short, Image: image, Cluster: profile(t, "perlmutter")},
		"uenv": {
			Name: "train", Cluster: clariden, Runtime: "uenv", Image: Image{Name: "pytorch/v2.6.0:v1"},
			Job: with(short, func(j *Job) {
				j.Uenv, j.View, j.Venv, j.Workdir = "pytorch/v2.6.0:v1", "default", "${SCRATCH}/venvs/exp", "${HOME}/my-app"
			}),
		},
		"uenv-venv": {
			Name: "train", Cluster: clariden, Runtime: "uenv", Image: Image{Name: "mine", File: "${SCRATCH}/uenvs/mine.squashfs"},
			Job: with(short, func(j *Job) { j.Venv = "${SCRATCH}/venvs/exp.sqsh:/user-tools" }),
		},
		"apptainer-spread": {
			Name: "train", Job: with(short, func(j *Job) { j.Nodes, j.Reservation, j.Dependency = 40, "maintenance", "singleton" }), Cluster: ours("apptainer"),
			Image: Image{Name: "llm-train:25.11", File: "/scratch/${USER}/images/llm-train+25.11.sif", Arch: "amd64", Workdir: "/workspace"},
		},
		"sconce":       {Name: "train", Job: short, Image: image, Cluster: cluster.Profile{Name: "somewhere"}},
		"array-script": {Name: "sweep", Job: Job{Time: "30m", Array: "0-9%2", Command: "cd /data\nfor i in a 'b c'; do\n  python sweep.py \"$i\" $SLURM_ARRAY_TASK_ID\ndone", GPUsPerNode: new(int), CPUsPerTask: 4, TasksPerNode: 2}, Image: image, Cluster: ours("pyxis")},
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s; go test ./internal/job -update writes it (-file +now):\n%s", path, diff)
	}
}

// What is written is what a person would have written: read the files.
func TestSbatch(t *testing.T) {
	for name, r := range requests(t) {
		t.Run(name, func(t *testing.T) {
			got, err := Sbatch(r)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".sbatch", got)
			if !Untouched(got) || Untouched(got+"#") || Untouched(strings.Replace(got, "srun", "mpirun", 1)) {
				t.Error("the seal does not tell an edited file")
			}
			judge(t, got)
		})
	}
}

// judge has bash and shellcheck look at a script.
func judge(t *testing.T, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "job.sbatch")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("bash", "-n", file).CombinedOutput(); err != nil {
		t.Errorf("bash: %v\n%s", err, out)
	}
	// SC2016: what stands between single quotes is for the shell in the container. SC2154: Slurm sets its variables. SC2317: a trap calls the function.
	if out, err := exec.Command(tooltest.Path(t, "shellcheck"), "--exclude=SC2016,SC2154,SC2317", file).CombinedOutput(); err != nil {
		t.Errorf("shellcheck: %v\n%s", err, out)
	}
}

// judgeEDF has the Sarus Suite's reader, by whose schema both dialects go, look at an environment, where there is one.
func judgeEDF(t *testing.T, text string) {
	t.Helper()
	judge, err := exec.LookPath("sarusctl")
	if err != nil {
		t.Log(err)
		return
	}
	file := filepath.Join(t.TempDir(), "a.toml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(judge, "validate", file).CombinedOutput(); err != nil {
		t.Errorf("sarusctl: %v\n%s%s", err, out, text)
	}
}

func TestEDF(t *testing.T) {
	for name, r := range requests(t) {
		got, err := EDF(r)
		if name != "container-engine" && name != "sarus" {
			if err == nil || fault.CodeOf(err) != fault.CodeUsage {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name+".toml", got)
		judgeEDF(t, got)
		var doc struct {
			Image, Workdir       string
			Entrypoint, Writable bool
			Mounts, Devices      []string
			Env                  map[string]string
			Annotations          any
		}
		d := toml.NewDecoder(strings.NewReader(got)).DisallowUnknownFields()
		if err := d.Decode(&doc); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for k, v := range r.Job.Env {
			if doc.Env[k] != v {
				t.Errorf("%s: %s is %q, want %q", name, k, doc.Env[k], v)
			}
		}
	}
}

// The hook for Slurm's commands is turned on where the profile says that these work in the containers that are usual there.
func TestSlurmInside(t *testing.T) {
	on, off := true, false
	for _, c := range []struct {
		usual  string
		inside *bool
		want   bool
	}{{cluster.Sarus, &on, true}, {cluster.Sarus, &off, false}, {cluster.Sarus, nil, false}, {"container-engine", &on, false}} {
		p := ours(c.usual)
		p.Container.SlurmInside = c.inside
		text, err := EDF(Request{Name: "train", Image: image, Cluster: p, Runtime: cluster.Sarus})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(text, `com.hooks.slurm.enabled = "true"`); got != c.want {
			t.Errorf("%+v: %v\n%s", c, got, text)
		}
	}
}

// A script does what it says: run by bash, with programs in place of Slurm's that write down how they are called. There is no Slurm here.
func TestScriptRuns(t *testing.T) {
	for name, r := range requests(t) {
		t.Run(name, func(t *testing.T) {
			text, err := Sbatch(r)
			if err != nil {
				t.Fatal(err)
			}
			bin, dir := t.TempDir(), t.TempDir()
			for program, script := range map[string]string{
				"scontrol": "echo node7\necho node8",
				"sbcast":   ":",
				"rm":       ":",
				// As srun does with a task: the last words are the shell and what it runs.
				"srun":   `while [ "$1" != bash ] && [ "$1" != rm ]; do [ "$1" ] || exit 9; printf '%s\n' "$1" >> "$LOG"; shift; done; exec "$@"`,
				"python": `printf 'argument %s\n' "$@" >> "$LOG"; echo "rank $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT, prompt $PROMPT" >> "$LOG"`,
			} {
				if err := tooltest.WriteProgram(filepath.Join(bin, program), []byte("#!/bin/bash\n"+script+"\n")); err != nil {
					t.Fatal(err)
				}
			}
			for _, d := range []string{"venv/bin", "venvs/exp/bin", "my-app"} {
				if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, "venvs/exp/bin/activate"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			text = strings.ReplaceAll(strings.ReplaceAll(text, ". /venv/bin/activate", ":"), "cd /data", "cd /")
			log := filepath.Join(dir, "log")
			cmd := exec.Command("bash", "-c", text, "train.sbatch", "--epochs", "a  b")
			cmd.Dir = dir
			cmd.Env = []string{
				"PATH=" + bin + ":/usr/bin:/bin", "LOG=" + log, "HOME=" + dir, "USER=ada", "SCRATCH=" + dir, "SLURM_JOB_NODELIST=node[7-8]", "SLURM_JOB_ID=12345",
				"SLURM_PROCID=3", "SLURM_LOCALID=1", "SLURM_NTASKS=8", "SLURM_NNODES=2", "SLURM_NODEID=0", "SLURM_CPUS_PER_TASK=4", "SLURM_ARRAY_TASK_ID=5",
			}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			got, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".called", strings.ReplaceAll(string(got), dir, "DIR"))
		})
	}
}

func TestErrors(t *testing.T) {
	base := Request{Name: "train", Job: Job{Command: "python a.py", Time: "1h"}, Image: image, Cluster: ours("pyxis")}
	for want, change := range map[string]func(*Request){
		`unknown runtime "pixis"; hint: did you mean "pyxis"?`:                        func(r *Request) { r.Runtime = "pixis" },
		"llm-train:25.11 is for linux/arm64, and ours is linux/amd64; hint: build it": func(r *Request) { r.Image.Arch = "arm64" },
		"none is known of llm-train:25.11; hint: name it with --image":                func(r *Request) { r.Runtime, r.Image.Reference = cluster.Sarus, "" },
		"the job names no uenv": func(r *Request) { r.Runtime = "uenv" },
		"time: ours lets a job run for 2 d, and this one asks for 3 d": func(r *Request) { r.Job.Time = "3d" },
		`time: "soon" is not a time`:                                   func(r *Request) { r.Job.Time = "soon" },
		"a job of 1 h cannot be warned 1 h before":                     func(r *Request) { r.Job.WarnBefore = "60m" },
		"warns at most":                                                func(r *Request) { r.Job.WarnBefore, r.Job.Time = "20h", "2d" },
		`continue = "chain" needs a warning`:                           func(r *Request) { r.Job.Continue = Chain },
		"cannot follow the jobs of an array":                           func(r *Request) { r.Job.Continue, r.Job.WarnBefore, r.Job.Array = Chain, "5m", "1-3" },
		`continue = "requeue" fails under pyxis`:                       func(r *Request) { r.Job.Continue, r.Job.WarnBefore = Requeue, "5m" },
		"pyxis mounts no squashfs file":                                func(r *Request) { r.Job.Venv = "/x/v.sqsh" },
		"is a directory, which is used where it is":                    func(r *Request) { r.Job.Venv = "/x/v:/w" },
		"200 CPUs each do not fit":                                     func(r *Request) { r.Job.CPUsPerTask = 200 },
		"a node of ours has 8 GPUs, not 9":                             func(r *Request) { n := 9; r.Job.GPUsPerNode = &n },
		`the variable in "$HOME/a" has no braces; hint: write ${HOME}`: func(r *Request) { r.Job.Mounts = []string{"$HOME/a"} },
		"logs: sbatch expands no variables such as ${SCRATCH}; hint: write the directory in full": func(r *Request) { r.Job.Logs = "${SCRATCH}/logs" },
		`pyxis takes the comma in "/a,/b:/c" for the end of a mount; hint: give the directory`:    func(r *Request) { r.Job.Mounts = []string{"/a,/b:/c"} },
		`Apptainer takes the comma in "/c:/a,/b" for the end`:                                     func(r *Request) { r.Runtime, r.Cluster.Container.Mounts = apptainer, []string{"/c:/a,/b"} },
		`"/a:/b:rw" is not SRC`: func(r *Request) { r.Job.Mounts = []string{"/a:/b:rw"} },
		`nothing says how many GPUs a node of ours has; hint: add gpus-per-node`:                 func(r *Request) { r.Cluster.GPU, r.Cluster.Slurm.GPUsPerNode = []string{"9.0"}, 0 },
		"the job has no command; hint: add command":                                              func(r *Request) { r.Job.Command = " " },
		"no command of the shell":                                                                func(r *Request) { r.Job.Command = "python 'a" },
		`with launcher = "torchrun" the command must be Python's alone, not "cd a; python b.py"`: func(r *Request) { r.Job.Launcher, r.Job.Command = Torchrun, "cd a; python b.py" },
	} {
		r := base
		change(&r)
		_, err := Sbatch(r)
		if text := fmt.Sprint(err) + "; hint: " + fault.HintOf(err); err == nil || !strings.Contains(text, want) || fault.CodeOf(err) != fault.CodeUsage {
			t.Errorf("got %s, want %s", text, want)
		}
	}
}

// The hook of NCCL gets the variant that the image can load.
func TestVariant(t *testing.T) {
	base := requests(t)["container-engine"]
	for _, c := range []struct {
		image   Image
		variant string
		want    string
	}{
		{Image{}, "cuda-dl", "cuda-dl"},
		{Image{CUDA: 12, Cudart: Yes}, "cuda-dl", "cuda-dl"},
		{Image{CUDA: 12, Cudart: Nope}, "cuda-dl", "cuda12"},
		{Image{CUDA: 13}, "cuda12", "cuda13"},
		{Image{CUDA: 13}, "cuda13", "cuda13"},
		{Image{}, "cuda12", "cuda12"},
		{Image{CUDA: 12}, "rocm6", "rocm6"},
		{Image{Musl: true}, "cuda12", ""},
	} {
		r := base
		r.Image.CUDA, r.Image.Cudart, r.Image.Musl = c.image.CUDA, c.image.Cudart, c.image.Musl
		r.Cluster.Container.Annotations = map[string]string{hookNCCL: "true", hookVariant: c.variant}
		s, err := r.settle()
		if err != nil {
			t.Fatal(err)
		}
		if all, _ := s.annotations(); all[hookVariant] != c.want {
			t.Errorf("%+v with %s: %q, want %q", c.image, c.variant, all[hookVariant], c.want)
		}
	}
}

func TestSrunArgs(t *testing.T) {
	env := map[string]string{"PWD": "/home/ada/my app", "USER": "ada", "HOME": "/home/ada", "SCRATCH": "/scratch/ada"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	var b strings.Builder
	all := requests(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		a, err := SrunArgs(all[name], lookup)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s: %s\n%v\n", name, a, a.Environment)
	}
	golden(t, "srun-args", b.String())
	delete(env, "USER")
	if _, err := SrunArgs(all["pyxis"], lookup); err == nil || !strings.Contains(err.Error(), "the variable USER is not set") {
		t.Error(err)
	}
	env["USER"] = "ada"
	for _, name := range []string{"pyxis", "apptainer", cluster.Sconce} {
		env["PWD"] = "/home/ada/a,/etc:/x"
		if _, err := SrunArgs(all[name], lookup); err == nil || !strings.Contains(err.Error(), `the comma or colon in PWD, which is "/home/ada/a,/etc:/x"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A job whose directory has a name of several mounts ends before it starts anything.
func TestDirectoryOfSeveralMounts(t *testing.T) {
	for _, launcher := range []string{pyxis, apptainer} {
		text, err := Sbatch(Request{Name: "x", Runtime: launcher, Job: Job{Command: "true"}, Cluster: cluster.Profile{Name: "y"}, Image: Image{Name: "z", File: "/z.sqsh"}})
		if err != nil {
			t.Fatal(err)
		}
		for name, fits := range map[string]bool{"a b": true, "a,b": false, "a:b": false} {
			dir := filepath.Join(t.TempDir(), name)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("bash", "-c", "srun() { echo started; }\nscontrol() { echo node7; }\n"+text)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "SLURM_JOB_NODELIST=node7", "SLURM_JOB_ID=1", "SLURM_NNODES=1")
			out, err := cmd.CombinedOutput()
			if started := strings.Contains(string(out), "started"); started != fits || (err == nil) != fits {
				t.Errorf("%s in %q: %v\n%s", launcher, name, err, out)
			}
		}
	}
}

// A word with variables means the same in an interactive shell, which looks for a ! between double quotes in its history.
func TestWordInHistory(t *testing.T) {
	cmd := exec.Command("bash", "--norc", "-i")
	cmd.Stdin = strings.NewReader("set +o emacs -o histexpand\ntrue secret\nprintf '%s\\n' " + word("${A}/!!.sqsh") + "\n")
	cmd.Env = []string{"A=/a", "PATH=/usr/bin:/bin", "HISTFILE="}
	if out, err := cmd.Output(); err != nil || string(out) != "/a/!!.sqsh\n" {
		t.Errorf("%v: %q", err, out)
	}
}

// word expands ${NAME} alone, whatever is in the text: bash says what comes of it.
func FuzzWord(f *testing.F) {
	for _, s := range []string{"", "a b", "${A}/x", "$A", "`id`", `"\`, "${A:-b c}", "$(id)", "a'b", "${A", "!", "~", "é\n", "${A}${B:-}", "${A}!!\"!", "${B:-it's}", "${C:-it's}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.ContainsRune(text, 0) || len(text) > 1000 {
			return
		}
		values := map[string]string{"A": "one  two", "B": "*"}
		want := variable.ReplaceAllStringFunc(text, func(ref string) string {
			m := reference.FindStringSubmatch(ref)
			if v, ok := values[m[1]]; ok {
				return v
			}
			return strings.TrimPrefix(m[2], ":-")
		})
		cmd := exec.Command("bash", "-c", "printf '%s.' "+word(text))
		cmd.Env = []string{"A=one  two", "B=*", "PATH=/usr/bin:/bin"}
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != want+"." {
			t.Errorf("%q is %q for bash, want %q: %v", word(text), out, want, err)
		}
	})
}

// Whatever a command is, the script is one that bash reads, or there is an error.
func FuzzCommand(f *testing.F) {
	for _, s := range []string{"python a.py", "a | b", "a\nb", "'", "a 'b' \"c\" $D", "cat <<E\nx'y\nE", "# no", "a;", "a &", "x=1 a", "!", "(a)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.ContainsAny(text, "\x00\r") || len(text) > 1000 {
			return
		}
		got, err := Sbatch(Request{Name: "x", Job: Job{Command: text}, Cluster: cluster.Profile{Name: "y"}, Image: Image{Name: "z", File: "/z.sqsh"}})
		if err != nil {
			return
		}
		cmd := exec.Command("bash", "-n")
		cmd.Stdin = strings.NewReader(got)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", text, err, out)
		}
	})
}

// A variable of a job is none of its script, which removes the directory that one of them names.
func TestVariablesOfScripts(t *testing.T) {
	for _, starts := range []string{string(cluster.Apptainer), string(cluster.Pyxis)} {
		for _, r := range []Request{{Job: Job{Env: map[string]string{"cache": "/home/me"}}}, {Cluster: cluster.Profile{Env: map[string]string{"cache": "/home/me"}}}} {
			r.Name, r.Job.Command, r.Image, r.Runtime = "a", "true", Image{Name: "a", File: "/a.sif"}, starts
			if text, err := Sbatch(r); err == nil || !strings.Contains(err.Error(), "a variable cache of its own") {
				t.Errorf("%v:\n%s", err, text)
			}
		}
	}
}
