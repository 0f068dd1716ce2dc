package lint

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/edf"
	"sconce.dev/sconce/internal/lazyregexp"
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

var shellVariable = lazyregexp.New(`\$(\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*)`)

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

var secret = lazyregexp.New(`(^|_)(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|ACCESS_KEY)(_|$)`)

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
var shared = lazyregexp.New(`^(~|\$\{?(HOME|SCRATCH|STORE|PROJECT|SLURM_SUBMIT_DIR|PWD)\}?(/|$)|/(users|home|capstor|iopsstor|lustre|scratch|project|gpfs)/)`)

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

var installs = lazyregexp.New(`^(pip3?|uv pip|python3? -m pip|conda|mamba) +(-\S+ +)*install( |$)`)

func cut(text string) string {
	if len(text) > 50 {
		return strings.ToValidUTF8(text[:50], "") + "…"
	}
	return text
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
