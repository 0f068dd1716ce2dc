package lint

import (
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/edf"
	"sconce.dev/sconce/internal/sbatch"
)

// sbatchRules are about job scripts: what sbatch reads of them, and what the batch shell runs. Their sources are the manuals of sbatch
// and srun, and what a Slurm 24.11 does.
var sbatchRules = []Rule{
	{
		Rule: audit.Rule{
			ID: "sbatch-syntax", Severity: audit.Error,
			Title:  "Scripts that the shell cannot read",
			Why:    "The job waits in the queue, starts, and ends at this line.",
			Remedy: "mend the line; `bash -n FILE` says the same",
		},
		script: func(s *subject) {
			if e := s.script.Err; e != nil {
				s.tell(s.in(lineStart(s.data, e.Line)), "%s", e.Message)
			}
		},
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-shebang", Severity: audit.Error,
			Title:  "Scripts without #! in the first line",
			Why:    `sbatch refuses them: "This does not look like a batch script".`,
			Remedy: "write #!/bin/bash into the first line",
		},
		script: func(s *subject) {
			if s.script.Shebang == "" {
				s.tell(s.in(0), "the first line does not begin with #!")
			}
		},
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-late-directive", Severity: audit.Error,
			Title:  "Directives behind the first command",
			Why:    "sbatch stops looking at the first line that is neither empty nor a comment. What comes later is ignored without a word.",
			Remedy: "move the line up, above all commands",
		},
		script: func(s *subject) {
			for _, d := range s.script.Late {
				s.tell(s.in(d.At), "%s is behind the first command, and is ignored", quote(lineAt(s.data, d.At)))
			}
		},
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-case", Severity: audit.Error,
			Title:  "Comments that were meant as directives",
			Why:    "Only #SBATCH, in these letters at the beginning of a line, is a directive. All else is a comment, and is ignored without a word.",
			Remedy: "write #SBATCH",
		},
		script: func(s *subject) {
			for _, d := range s.script.Near {
				f := s.tell(s.in(d.At), "%s is a comment, and no directive", quote(lineAt(s.data, d.At)))
				f.edits = s.replace(edf.Span{Offset: d.At, Length: len(d.Mark)}, "#SBATCH")
			}
		},
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-output-directory", Severity: audit.Warning,
			Title: "Directories for output that are made too late",
			Why: "Slurm opens the output before the script runs. Versions before 24.11 do not make its directory: the job fails and leaves no " +
				"word of why.",
			Remedy: "make the directory before the job is submitted",
		},
		script: lookOutput,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-environment", Severity: audit.Warning,
			Title: "Batch scripts that run in a container themselves",
			Why: "With --environment as a directive, the whole script runs in the container on the first node, without the host's Slurm and " +
				"modules; the Container Engine's documentation advises against it.",
			Remedy: "take the line out, and give --environment to each srun",
		},
		script: lookBatchEnvironment,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-environment-missing", Severity: audit.Error,
			Title:  "Environments that are not there",
			Why:    "The step does not start.",
			Remedy: "name an environment of EDF_PATH or ~/.edf, or a file by a path that begins with / or ./",
		},
		script: func(s *subject) {
			for _, u := range s.environments {
				if u.lacks != "" {
					s.tell(s.in(u.option.At), "%s", u.lacks)
				}
			}
		},
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-nested-container", Severity: audit.Error,
			Title:  "Containers that are started in containers",
			Why:    "A script that runs in a container has no srun and no scontrol there, and a container cannot start another.",
			Remedy: "take the option out of the directives, and give it to each srun",
		},
		script: lookNested,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-cpus-inherit", Severity: audit.Warning,
			Title:  "srun does not inherit --cpus-per-task",
			Why:    "Since Slurm 22.05 a step gets one CPU for each task unless srun is told: data loaders and OpenMP then share that one.",
			Remedy: "add export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK above srun, or give --cpus-per-task to srun",
		},
		script: lookCPUs,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-ranks-mismatch", Severity: audit.Error,
			Title:  "Numbers of tasks that contradict each other",
			Why:    "Processes wait for ranks that never come, or several processes take the same GPU.",
			Remedy: "start one task for each GPU, or one torchrun for each node; take the numbers from SLURM_NNODES and SLURM_NTASKS",
		},
		script: lookRanks,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-gpu-ordinal", Severity: audit.Error,
			Title: "One visible GPU, and devices by LOCAL_RANK",
			Why: "With --gpus-per-task=1 each task sees one GPU, number 0. Programs that take cuda:LOCAL_RANK end with \"invalid device " +
				"ordinal\" in all tasks but one of each node, and isolated GPUs cannot reach each other directly.",
			Remedy: "ask for --gpus-per-node and leave --gpus-per-task out, so that all tasks see all GPUs of their node",
		},
		script: lookOrdinal,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-quoting", Severity: audit.Warning,
			Title:  "Quotes that end where they should not",
			Why:    "Between double quotes the batch shell puts values in before srun starts anything: a rank is the same in all tasks, and inner quotes end the text.",
			Remedy: "write bash -c '…' in single quotes and export what it needs, or call a script",
		},
		script: lookQuoting,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-secret-traced", Severity: audit.Error,
			Title:  "Secrets that set -x prints",
			Why:    "With set -x the shell prints each command with its values, so the key stands in the job's output, which others may read.",
			Remedy: "set +x above the line and set -x below it, or read the key from a file in the program",
		},
		script: lookSecrets,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-cache-shared", Severity: audit.Warning,
			Title:  "Compiler caches on a shared file system",
			Why:    "All ranks write into one cache: stale file handles, half-written kernels, and starts that wait for minutes.",
			Remedy: "put the cache on the node, with the job's number: /tmp/triton-$SLURM_JOB_ID",
		},
		script: lookCaches,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-pip-in-job", Severity: audit.Warning,
			Title:  "Packages that each job installs",
			Why:    "Several tasks install into one place at the same time, each job may get other versions, and GPUs wait meanwhile.",
			Remedy: "put the packages into the image, or into a virtual environment that is made once",
		},
		script: lookPip,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-time-limit", Severity: audit.Error,
			Title:  "Times that Slurm does not take",
			Why:    "sbatch refuses the job, or the job waits for ever.",
			Remedy: "write --time=HH:MM:SS or D-HH:MM:SS; a number alone is minutes",
		},
		script: lookTime,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-directive-variable", Severity: audit.Error,
			Title:  "Variables in directives",
			Why:    "sbatch expands no variables of the shell in #SBATCH lines: the log is in a directory that is called $SCRATCH, or the job is refused.",
			Remedy: "write the value in full, give the option to sbatch on the command line, or use sbatch's own patterns, such as %j and %u, for files",
		},
		script: lookDirectiveVariable,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-signal-without-trap", Severity: audit.Warning,
			Title:  "Signals to a script that does not take them",
			Why:    "With B: the signal goes to the batch shell alone. Without a trap it ends the script at once, and no checkpoint is written.",
			Remedy: "add a trap that passes the signal on to srun, start srun with & and wait for it",
		},
		script: lookSignal,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-requeue-pyxis", Severity: audit.Warning,
			Title:  "Jobs that are requeued with pyxis",
			Why:    "A requeued job keeps its number, finds the container's directory of its first run, and fails; pyxis' author advises against it.",
			Remedy: "submit the next job at the end of this one: sbatch --dependency=singleton",
		},
		script: lookRequeue,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-constraint-unquoted", Severity: audit.Error,
			Title:  "An ampersand in a constraint without quotes",
			Why:    "The shell ends the command at the ampersand and puts it into the background; what follows is run as a command of its own.",
			Remedy: "put the constraint in quotes: --constraint='a&b'",
		},
		script: func(s *subject) {
			for _, c := range s.script.Calls {
				if o, ok := sbatch.Find(c.Options, "constraint"); ok && c.Joined && len(c.Command) == 0 {
					s.tell(s.in(o.At), "the constraint %s ends at an ampersand", quote(o.Value))
				}
			}
		},
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-async-error-handling", Severity: audit.Note,
			Title:  "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
			Why:    "With 1, PyTorch tears the communicator down at a time-out before the flight recorder writes what it knows. Its default is 3, which does not.",
			Remedy: "leave the variable out",
		},
		script: lookAsyncErrors,
	},
}

// lineAt is a line without its end, cut to what fits into a message.
func lineAt(data []byte, at int) string {
	line, _, _ := strings.Cut(string(data[at:]), "\n")
	if line = strings.TrimSpace(line); len(line) > 60 {
		line = strings.ToValidUTF8(line[:60], "") + "…"
	}
	return line
}

// runtime is what starts the container of a step.
type runtime string

const (
	none      runtime = ""
	engine    runtime = "container-engine"
	sarus     runtime = "sarus"
	pyxis     runtime = "pyxis"
	uenv      runtime = "uenv"
	apptainer runtime = "apptainer"
	podman    runtime = "podman-hpc"
)

// by tells the runtime from options of sbatch or srun.
func by(options []sbatch.Option) runtime {
	for _, o := range options {
		switch o.Name {
		case "environment":
			return engine
		case "edf":
			return sarus
		case "container-image", "container-name":
			return pyxis
		case "uenv":
			return uenv
		}
	}
	return none
}

// runtimeOf tells the runtime of a step.
func runtimeOf(srun *sbatch.Call) runtime {
	if srun == nil {
		return none
	}
	if r := by(srun.Options); r != none {
		return r
	}
	if len(srun.Command) > 0 {
		switch path.Base(srun.Command[0].Text) {
		case "apptainer", "singularity":
			return apptainer
		case "podman-hpc", "podman":
			return podman
		}
	}
	return none
}

// runtimeAt is the runtime of what a call runs in: the step's, or else the whole script's.
func (s *subject) runtimeAt(c *sbatch.Call) runtime {
	if r := runtimeOf(c.Inside); r != none {
		return r
	}
	return by(s.script.Options())
}

// sruns are the steps of a script.
func (s *subject) sruns() []*sbatch.Call {
	return slices.DeleteFunc(slices.Clone(s.script.Calls), func(c *sbatch.Call) bool { return c.Name != "srun" })
}

// number is an option of a step, or of the job, when it is a fixed number.
func (s *subject) number(srun *sbatch.Call, name string) (int, bool) {
	if srun != nil {
		if o, ok := sbatch.Find(srun.Options, name); ok {
			n, err := strconv.Atoi(o.Value)
			return n, err == nil
		}
	}
	o, ok := sbatch.Find(s.script.Options(), name)
	n, err := strconv.Atoi(o.Value)
	return n, ok && err == nil
}

// perNode is how many tasks a step has on a node, when that is fixed.
func (s *subject) perNode(srun *sbatch.Call) (int, bool) {
	if n, ok := s.number(srun, "ntasks-per-node"); ok {
		return n, true
	}
	tasks, ok := s.number(srun, "ntasks")
	nodes, known := s.number(srun, "nodes")
	if !ok || !known || nodes == 0 || tasks%nodes != 0 {
		return 0, false
	}
	return tasks / nodes, true
}

// set returns the last value that a script gives a variable, or that a step's text does.
func (s *subject) set(name string) (sbatch.Assign, bool) {
	for _, a := range slices.Backward(s.script.Sets) {
		if a.Name == name {
			return a, true
		}
	}
	return sbatch.Assign{}, false
}

// makesDirectories is the first version of Slurm that makes the directories of output files.
const makesDirectories = "24.11"

// olderSlurm compares versions of two numbers each.
func olderSlurm(a, b string) bool {
	var x, y [2]int
	_, _ = fmt.Sscanf(a, "%d.%d", &x[0], &x[1])
	_, _ = fmt.Sscanf(b, "%d.%d", &y[0], &y[1])
	return slices.Compare(x[:], y[:]) < 0
}

func lookOutput(s *subject) {
	if v := s.linter.Target.Slurm.Version; v != "" && !olderSlurm(v, makesDirectories) {
		return
	}
	for _, o := range s.script.Options() {
		if o.Name != "output" && o.Name != "error" {
			continue
		}
		dir := path.Dir(o.Value)
		if dir == "." || dir == "/" {
			continue
		}
		for _, c := range s.script.Calls {
			if c.Name == "mkdir" && c.Inside == nil && slices.ContainsFunc(c.Command, func(w sbatch.Word) bool { return sameDir(w.Text, dir) }) {
				f := s.tell(s.in(o.At), "--%s needs the directory %s, which the script makes only when it runs", o.Name, dir)
				f.Remedy = "run mkdir -p " + dir + " before sbatch"
				if v := s.linter.Target.Slurm.Version; v != "" && olderSlurm(v, makesDirectories) {
					f.Severity = audit.Error
				}
				break
			}
		}
	}
}

// taken are options that sbatch takes as they are written. Those of plug-ins may be expanded by the plug-in.
var taken = []string{"output", "error", "input", "chdir", "account", "partition", "qos", "job-name", "reservation", "time", "nodes", "nodelist"}

var shellVariable = regexp.MustCompile(`\$(\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*)`)

func lookDirectiveVariable(s *subject) {
	for _, o := range s.script.Options() {
		if v := shellVariable.FindString(o.Value); v != "" && slices.Contains(taken, o.Name) {
			s.tell(s.in(o.At), "--%s has %s in it, which sbatch does not expand", o.Name, v)
		}
	}
}

func sameDir(a, b string) bool {
	clean := func(p string) string {
		return path.Clean(strings.TrimPrefix(strings.NewReplacer("${SLURM_SUBMIT_DIR}/", "", "$SLURM_SUBMIT_DIR/", "").Replace(p), "./"))
	}
	return clean(a) == clean(b)
}

func lookBatchEnvironment(s *subject) {
	if o, ok := sbatch.Find(s.script.Options(), "environment"); ok {
		s.tell(s.in(o.At), "--environment=%s is a directive", o.Value)
	}
}

func lookNested(s *subject) {
	o, ok := sbatch.Find(s.script.Options(), "container-image", "environment")
	if !ok {
		return
	}
	for _, c := range s.script.Calls {
		switch {
		case c.Inside != nil:
		case c.Name == "srun" && by(c.Options) != none:
			s.tell(s.in(c.At), "srun starts a container, and the script runs in one already by --%s", o.Name)
		case o.Name == "container-image" && (c.Name == "srun" || c.Name == "scontrol"):
			s.tell(s.in(c.At), "%s is called in the container of --%s, where there is none", c.Name, o.Name)
		}
	}
}

func lookCPUs(s *subject) {
	o, ok := sbatch.Find(s.script.Options(), "cpus-per-task")
	if _, exported := s.set("SRUN_CPUS_PER_TASK"); !ok || exported || o.Value == "1" {
		return
	}
	for _, c := range s.sruns() {
		if _, told := sbatch.Find(c.Options, "cpus-per-task", "cpus-per-gpu", "exact", "jobid"); told || c.Inside != nil || len(c.Command) == 0 {
			continue
		}
		if tasks, known := s.number(c, "ntasks"); known && tasks == 1 && !isTraining(c) {
			continue
		}
		s.tell(s.in(c.At), "srun is not told of --cpus-per-task=%s, and each task gets one CPU", o.Value)
		return
	}
}

// isTraining reports whether a step starts Python or a shell that may.
func isTraining(srun *sbatch.Call) bool {
	return slices.ContainsFunc(srun.Command, func(w sbatch.Word) bool {
		return slices.Contains([]string{"python", "python3", "torchrun", "bash", "sh", "accelerate", "deepspeed"}, path.Base(w.Text))
	})
}

// launched is what torchrun was told, of what is fixed.
func launched(c *sbatch.Call) (options map[string]sbatch.Word, ok bool) {
	words := c.Command
	if c.Name != "torchrun" {
		i := slices.IndexFunc(words, func(w sbatch.Word) bool {
			return w.Text == "torch.distributed.run" || w.Text == "torch.distributed.launch"
		})
		if !strings.HasPrefix(c.Name, "python") || i < 0 {
			return nil, false
		}
		words = words[i+1:]
	}
	options = map[string]sbatch.Word{}
	for i := 0; i < len(words) && strings.HasPrefix(words[i].Text, "-"); i++ {
		name, value, given := strings.Cut(strings.TrimLeft(words[i].Text, "-"), "=")
		w := sbatch.Word{Text: value, Fixed: words[i].Fixed, At: words[i].At}
		if !given && name != "standalone" && name != "m" && i+1 < len(words) {
			i++
			w.Text, w.Fixed = words[i].Text, words[i].Fixed
		}
		options[strings.ReplaceAll(name, "_", "-")] = w
	}
	return options, true
}

func lookRanks(s *subject) {
	for _, c := range s.script.Calls {
		if o, ok := launched(c); ok {
			s.launcher(c, o)
		}
	}
	tasks, known := s.number(nil, "ntasks")
	nodes, alsoNodes := s.number(nil, "nodes")
	per, alsoPer := s.number(nil, "ntasks-per-node")
	if known && alsoNodes && alsoPer && nodes*per < tasks {
		o, _ := sbatch.Find(s.script.Options(), "ntasks")
		s.tell(s.in(o.At), "--ntasks=%d, and %d nodes with %d tasks each hold %d", tasks, nodes, per, nodes*per)
	}
	s.fixedWorld()
}

// launcher compares torchrun with the step that starts it.
func (s *subject) launcher(c *sbatch.Call, options map[string]sbatch.Word) {
	fixed := func(names ...string) (int, bool) {
		for _, name := range names {
			if w, ok := options[name]; ok && w.Fixed {
				n, err := strconv.Atoi(w.Text)
				return n, err == nil
			}
		}
		return 0, false
	}
	processes, _ := fixed("nproc-per-node")
	if per, known := s.perNode(c.Inside); known && c.Inside != nil && per > 1 && processes > 1 {
		s.tell(s.in(c.At), "each of %d tasks of a node starts %d processes: %d for its GPUs", per, processes, per*processes)
	}
	asked, ok := fixed("nnodes")
	if nodes, known := s.number(c.Inside, "nodes"); ok && known && asked != nodes {
		s.tell(s.in(c.At), "torchrun waits for %d nodes, and there are %d", asked, nodes)
	}
}

// fixedWorld compares a WORLD_SIZE that is a number with the job.
func (s *subject) fixedWorld() {
	world, ok := s.set("WORLD_SIZE")
	size, err := strconv.Atoi(world.Value)
	if !ok || err != nil {
		return
	}
	tasks, known := s.number(world.Inside, "ntasks")
	if !known {
		nodes, n := s.number(world.Inside, "nodes")
		per, p := s.number(world.Inside, "ntasks-per-node")
		tasks, known = nodes*per, n && p
	}
	if known && tasks > 1 && size != tasks {
		s.tell(s.in(world.At), "WORLD_SIZE is %d, and there are %d tasks", size, tasks)
	}
}

var localRank = regexp.MustCompile(`^"?\$\{?SLURM_LOCALID\}?"?$`)

func lookOrdinal(s *subject) {
	rank, ok := s.set("LOCAL_RANK")
	if _, own := s.set("CUDA_VISIBLE_DEVICES"); !ok || own || !localRank.MatchString(rank.Value) {
		return
	}
	steps := s.sruns()
	if len(steps) == 0 {
		steps = []*sbatch.Call{nil}
	}
	for _, c := range steps {
		gpus, per := s.gpusPerTask(c)
		if tasks, known := s.perNode(c); !per || !known || tasks < 2 {
			continue
		}
		s.tell(s.in(gpus.At), "each task sees one GPU, and LOCAL_RANK counts to the number of tasks on a node").Seen = []string{
			"LOCAL_RANK=" + rank.Value,
		}
		return
	}
}

// gpusPerTask is where a step gets one GPU for each task.
func (s *subject) gpusPerTask(srun *sbatch.Call) (sbatch.Option, bool) {
	options := s.script.Options()
	if srun != nil {
		options = append(options, srun.Options...)
	}
	if bind, ok := sbatch.Find(options, "gpu-bind"); ok {
		return bind, bind.Value == "per_task:1" || bind.Value == "single:1"
	}
	o, ok := sbatch.Find(options, "gpus-per-task")
	i := strings.LastIndexByte(o.Value, ':')
	return o, ok && o.Value[i+1:] == "1"
}

// ofTask are variables that differ from task to task.
var ofTask = []string{"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"}

func lookQuoting(s *subject) {
	for _, c := range s.sruns() {
		for i, w := range c.Command {
			if i == 0 || !strings.HasSuffix(c.Command[i-1].Text, "c") || !strings.HasPrefix(c.Command[i-1].Text, "-") {
				continue
			}
			for _, name := range w.Expanded() {
				if slices.Contains(ofTask, name) {
					s.tell(s.in(w.At), "the batch shell puts %s in, so all tasks have the same", name)
					break
				}
			}
			if w.Broken() {
				s.tell(s.in(w.At), "the text of bash -c is cut by quotes within it")
			}
		}
	}
}

var secret = regexp.MustCompile(`(^|_)(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|ACCESS_KEY)(_|$)`)

func lookSecrets(s *subject) {
	for _, a := range s.script.Sets {
		if a.Traced && secret.MatchString(a.Name) && a.Value != "" && !strings.Contains(a.Name, "TOKENIZER") {
			s.tell(s.in(a.At), "%s is set while set -x is on", a.Name)
		}
	}
}

// caches are variables that name the directories of compilers.
var caches = []string{"TRITON_CACHE_DIR", "TRITON_HOME", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH"}

// shared are beginnings of paths that all nodes see.
var shared = regexp.MustCompile(`^(~|\$\{?(HOME|SCRATCH|STORE|PROJECT|SLURM_SUBMIT_DIR|PWD)\}?(/|$)|/(users|home|capstor|iopsstor|lustre|scratch|project|gpfs)/)`)

func lookCaches(s *subject) {
	if !s.severalTasks() {
		return
	}
	for _, a := range s.script.Sets {
		value := strings.Trim(a.Value, `"`)
		if slices.Contains(caches, a.Name) && shared.MatchString(value) && !strings.Contains(value, "SLURM_PROCID") && !strings.Contains(value, "SLURM_NODEID") {
			s.tell(s.in(a.At), "%s is %s, which all nodes share", a.Name, value)
		}
	}
}

// severalTasks reports whether a job is known to have more than one task.
func (s *subject) severalTasks() bool {
	steps := append([]*sbatch.Call{nil}, s.sruns()...)
	for _, c := range steps {
		for _, name := range []string{"nodes", "ntasks", "ntasks-per-node"} {
			if n, ok := s.number(c, name); ok && n > 1 {
				return true
			}
		}
	}
	return false
}

func lookPip(s *subject) {
	if !s.severalTasks() {
		return
	}
	for _, c := range s.script.Calls {
		words := make([]string, 0, len(c.Words))
		for _, w := range c.Words {
			words = append(words, w.Text)
		}
		text := strings.Join(words, " ")
		if installs.MatchString(path.Base(words[0]) + strings.TrimPrefix(text, words[0])) {
			s.tell(s.in(c.At), "%s runs in every job", quote(cut(text)))
		}
	}
}

var installs = regexp.MustCompile(`^(pip3?|uv pip|python3? -m pip|conda|mamba) +(-\S+ +)*install( |$)`)

func cut(text string) string {
	if len(text) > 50 {
		return strings.ToValidUTF8(text[:50], "") + "…"
	}
	return text
}

var slurmTime = regexp.MustCompile(`^(\d+|\d+:\d{1,2}(:\d{1,2})?|\d+-\d{1,2}(:\d{1,2}(:\d{1,2})?)?|(?i:infinite|unlimited))$`)

func lookTime(s *subject) {
	for _, o := range s.script.Options() {
		if o.Name != "time" {
			continue
		}
		limit, known := longest(s.linter.Target.Slurm.MaxTime)
		switch asked, fixed := slurmMinutes(o.Value); {
		case !slurmTime.MatchString(o.Value):
			s.tell(s.in(o.At), "--time=%s is no time of Slurm's", o.Value)
		case known && fixed && asked > limit:
			s.tell(s.in(o.At), "--time=%s is longer than the %s that %s allows", o.Value, s.linter.Target.Slurm.MaxTime, s.target()).
				Remedy = "ask for less, and have the next job go on from a checkpoint"
		}
	}
}

// slurmMinutes is a time as sbatch takes it: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S.
func slurmMinutes(text string) (float64, bool) {
	days, clock, hasDays := strings.Cut(text, "-")
	if !hasDays {
		days, clock = "0", text
	}
	var n []float64
	for part := range strings.SplitSeq(clock, ":") {
		v, err := strconv.ParseFloat(part, 64)
		if err != nil {
			return 0, false
		}
		n = append(n, v)
	}
	d, err := strconv.ParseFloat(days, 64)
	n = append(n, 0, 0, 0)
	switch fields := strings.Count(clock, ":"); {
	case err != nil || fields > 2:
		return 0, false
	case !hasDays && fields < 2:
		return n[0] + n[1]/60, true
	default:
		return d*24*60 + n[0]*60 + n[1] + n[2]/60, true
	}
}

// longest is a profile's time in minutes: "90m", "24h", "2d".
func longest(text string) (float64, bool) {
	if text == "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(text[:len(text)-1], 64)
	unit := map[byte]float64{'s': 1. / 60, 'm': 1, 'h': 60, 'd': 24 * 60, 'w': 7 * 24 * 60, 'y': 365 * 24 * 60}[text[len(text)-1]]
	return n * unit, err == nil && unit > 0
}

func lookSignal(s *subject) {
	o, ok := sbatch.Find(s.script.Options(), "signal")
	if !ok || !s.script.IsShell() || s.script.Err != nil {
		return
	}
	to, rest, found := strings.Cut(o.Value, ":")
	if !found || !strings.Contains(to, "B") {
		return
	}
	name, _, _ := strings.Cut(rest, "@")
	name = strings.TrimPrefix(strings.ToUpper(name), "SIG")
	for _, c := range s.script.Calls {
		if c.Name == "trap" || c.Name == "source" || c.Name == "." {
			return
		}
	}
	s.tell(s.in(o.At), "SIG%s goes to the batch shell, which has no trap for it", name)
}

func lookRequeue(s *subject) {
	o, ok := sbatch.Find(s.script.Options(), "requeue")
	if !ok {
		return
	}
	for _, c := range s.sruns() {
		if runtimeOf(c) == pyxis {
			s.tell(s.in(o.At), "--requeue, and srun starts containers with pyxis")
			return
		}
	}
}

func lookAsyncErrors(s *subject) {
	const name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
	for _, a := range s.script.Sets {
		if a.Name == name && a.Value == "1" {
			s.tell(s.in(a.At), "%s is 1", name)
		}
	}
}

// images are the images that a script gives to pyxis.
func (s *subject) images() []sbatch.Option {
	var all []sbatch.Option
	add := func(options []sbatch.Option) {
		if o, ok := sbatch.Find(options, "container-image"); ok && o.Fixed {
			all = append(all, o)
		}
	}
	add(s.script.Options())
	for _, c := range s.sruns() {
		add(c.Options)
	}
	return all
}

func lookImagePath(s *subject) {
	for _, o := range s.images() {
		switch {
		case !strings.Contains(o.Value, "/") && (strings.HasSuffix(o.Value, ".sqsh") || strings.HasSuffix(o.Value, ".squashfs")):
			s.tell(s.in(o.At), "--container-image=%s has no slash in it, so it is taken for an image of Docker Hub", o.Value)
		case filepath.IsAbs(o.Value):
			if s.linter.lacks(o.Value) {
				s.tell(s.in(o.At), "there is no file %s", o.Value)
			}
		}
	}
}
