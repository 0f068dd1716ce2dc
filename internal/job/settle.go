package job

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/units"
	packed "sconce.dev/sconce/internal/venv"
)

// settled is a request with everything decided.
type settled struct {
	Request
	runtime  string
	nodes    int
	tasks    int // on a node, of srun
	ranks    int // on a node
	gpus     int // on a node
	cpus     int // of a task; 0: Slurm's own
	time     time.Duration
	warn     time.Duration
	launcher string
	next     string // Chain, Requeue or No
	workdir  string // in the container; "" is the image's
	mounts   []Mount
	venv     venv
	env      []setting // of the job, sorted
}

// Mount is a file or directory of the host that a container sees.
type Mount struct {
	Source, Target string
	ReadOnly       bool
	Squashfs       bool // Source is a squashfs file of which the root is mounted
}

// venv is a virtual environment on top of the image's Python.
type venv struct {
	dir  string // where it is in the container; "" is none
	file string // the squashfs file that is mounted there; "" for a directory of the host
}

type setting struct{ name, value string }

// settle decides what the request leaves open. Errors are of exit code 2.
func (r Request) settle() (*settled, error) {
	s := &settled{Request: r}
	for _, step := range []func() error{s.checkText, s.checkVariables, s.settleRuntime, s.settleImage, s.settleSize, s.settleTimes, s.settleVenv, s.settleMounts} {
		if err := step(); err != nil {
			return nil, fault.Usage(err)
		}
	}
	return s, fault.Usage(s.settleEnv())
}

// checkText refuses characters that nobody sees, or that end a line, in names and paths. Those of recipes and profiles have been refused before.
func (s *settled) checkText() error {
	for _, of := range []setting{
		{"the path of the image", s.Image.File}, {"the image's name", s.Image.Reference}, {"the environment definition file", s.EDF},
	} {
		if strings.ContainsFunc(of.value, quote.Harmful) {
			return fault.Hint(fmt.Errorf("%s holds a control character: %q", of.name, of.value), "give the file a name without it")
		}
	}
	if s.Job.Workdir == "" && strings.ContainsFunc(s.Image.Workdir, quote.Harmful) {
		return fault.Hint(fmt.Errorf("the working directory of %s holds a control character: %q", s.Image.Name, s.Image.Workdir), "name another one: workdir under [job.NAME]")
	}
	return nil
}

// checkVariables wants every variable in braces, and none where sbatch reads it.
func (s *settled) checkVariables() error {
	if v := variable.FindString(s.Job.Logs); v != "" {
		return fault.Hint(fmt.Errorf("logs: sbatch expands no variables such as %s", v), "write the directory in full, or from where the job is submitted; `sconce submit` expands them")
	}
	texts := map[string][]string{"workdir": {s.Job.Workdir}, "venv": {s.Job.Venv}, "mounts": s.Job.Mounts, "logs": {s.Job.Logs}}
	for name, value := range s.Job.Env {
		texts["env."+name] = []string{value}
	}
	for _, key := range slices.Sorted(maps.Keys(texts)) {
		for _, text := range texts[key] {
			if m := unbraced.FindString(text); m != "" {
				return fault.Hint(fmt.Errorf("%s: the variable in %q has no braces", key, text), "write ${"+m[1:]+"}")
			}
		}
	}
	return nil
}

func (s *settled) settleRuntime() error {
	s.runtime = s.starter()
	if slices.Contains(cluster.Starters, s.runtime) {
		return nil
	}
	hint := "the runtimes are " + strings.Join(cluster.Starters, ", ")
	if near := spelling.Nearest(s.runtime, cluster.Starters); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	return fault.Hint(fmt.Errorf("unknown runtime %q", s.runtime), hint)
}

// settleImage wants an image that the runtime can start, and that the cluster's processors can run.
func (s *settled) settleImage() error {
	if _, arch, _ := strings.Cut(s.Cluster.Platform, "/"); arch != "" && s.Image.Arch != "" && arch != s.Image.Arch {
		return fault.Hint(fmt.Errorf("%s is for linux/%s, and %s is %s", s.Image.Name, s.Image.Arch, s.clusterName(), s.Cluster.Platform),
			"build it with --platform "+s.Cluster.Platform)
	}
	switch s.runtime {
	case cluster.Sarus, cluster.PodmanHPC:
		if s.Image.Reference == "" {
			return fault.Hint(fmt.Errorf("%s starts images by their name in a registry, and none is known of %s", runtimeTitle[s.runtime], s.Image.Name),
				`name it with --image registry.example.org/team/name:tag, or publish.repository in the recipe`)
		}
	case string(cluster.Uenv):
		if s.Job.Uenv == "" && !strings.HasSuffix(s.Image.File, ".squashfs") {
			return fault.Hint(errors.New("the job names no uenv"), `add uenv = "pytorch/v2.6.0:v1" to the job, or --image FILE.squashfs`)
		}
	}
	return nil
}

func (s *settled) clusterName() string { return cmp.Or(s.Cluster.Name, "the cluster") }

// settleSize decides how many tasks there are and what each has.
func (s *settled) settleSize() error {
	if s.Job.GPUsPerNode == nil && s.Cluster.Slurm.GPUsPerNode == 0 && (len(s.Cluster.GPU) > 0 || s.Image.CUDA > 0) {
		return fault.Hint(fmt.Errorf("nothing says how many GPUs a node of %s has", s.clusterName()),
			"add gpus-per-node = 4 to the job, 0 for one without GPUs, or to [slurm] of the cluster's profile")
	}
	s.nodes = max(1, s.Job.Nodes)
	s.gpus = s.Cluster.Slurm.GPUsPerNode
	if s.Job.GPUsPerNode != nil {
		s.gpus = *s.Job.GPUsPerNode
	}
	s.launcher = cmp.Or(s.Job.Launcher, Srun)
	s.ranks = cmp.Or(s.Job.TasksPerNode, s.gpus, 1)
	s.tasks = s.ranks
	if s.launcher == Torchrun {
		s.tasks = 1
	}
	s.cpus = s.Job.CPUsPerTask
	if all := s.Cluster.Slurm.CPUsPerNode; s.cpus == 0 && all > 0 && s.wholeNode() {
		s.cpus = max(1, all/s.tasks)
	}
	if all := s.Cluster.Slurm.CPUsPerNode; all > 0 && s.cpus*s.tasks > all {
		return fmt.Errorf("cpus-per-task: %d tasks with %d CPUs each do not fit on a node of %s, which has %d", s.tasks, s.cpus, s.clusterName(), all)
	}
	if s.gpus > 0 && s.Cluster.Slurm.GPUsPerNode > 0 && s.gpus > s.Cluster.Slurm.GPUsPerNode {
		return fmt.Errorf("gpus-per-node: a node of %s has %d GPUs, not %d", s.clusterName(), s.Cluster.Slurm.GPUsPerNode, s.gpus)
	}
	return nil
}

// wholeNode reports whether the job takes all GPUs of its nodes, and may have all CPUs too.
func (s *settled) wholeNode() bool { return s.gpus == s.Cluster.Slurm.GPUsPerNode }

func (s *settled) settleTimes() error {
	var err error
	if s.time, err = ParseTime(s.Job.Time); err != nil {
		return fmt.Errorf("time: %w", err)
	}
	longest, err := ParseTime(s.Cluster.Slurm.MaxTime)
	if err != nil {
		return fmt.Errorf("slurm.max-time: %w", err)
	}
	if longest > 0 && s.time > longest {
		hint := `continue = "chain" and warn-before run it as several jobs, one after the other`
		return fault.Hint(fmt.Errorf("time: %s lets a job run for %s, and this one asks for %s", s.clusterName(), units.Span(longest), units.Span(s.time)), hint)
	}
	if s.warn, err = ParseTime(s.Job.WarnBefore); err != nil {
		return fmt.Errorf("warn-before: %w", err)
	}
	if s.time > 0 && s.warn >= s.time {
		return fmt.Errorf("warn-before: a job of %s cannot be warned %s before its end", units.Span(s.time), units.Span(s.warn))
	}
	if s.warn > maxWarning {
		return fmt.Errorf("warn-before: Slurm warns at most %s before the end", units.Span(maxWarning))
	}
	s.next = cmp.Or(s.Job.Continue, No)
	if s.next != No && s.warn == 0 {
		return fault.Hint(fmt.Errorf("continue = %q needs a warning before the time is up", s.next), `add warn-before = "5m": the program then gets SIGUSR1, and saves`)
	}
	if s.next == Requeue && s.runtime == string(cluster.Pyxis) {
		return fault.Hint(errors.New(`continue = "requeue" fails under pyxis: a job that is queued again finds the container of its first run`), `write continue = "chain"`)
	}
	if s.next == Chain && s.Job.Array != "" {
		return fault.Hint(errors.New(`continue = "chain" cannot follow the jobs of an array`), `write continue = "requeue"`)
	}
	return nil
}

// maxWarning is what sbatch --signal takes, in seconds.
const maxWarning = 65535 * time.Second

// settleVenv decides where the virtual environment is, and how it comes there.
func (s *settled) settleVenv() error {
	source, target, given := s.Job.venvParts()
	if s.Job.Venv == "" {
		return nil
	}
	if ext := path.Ext(source); ext != ".sqsh" && ext != ".squashfs" {
		if given {
			return fmt.Errorf("venv: %q is a directory, which is used where it is", source)
		}
		s.venv = venv{dir: source}
		return nil
	}
	s.venv = venv{file: source, dir: "/venv"}
	if given {
		s.venv.dir = "/" + target
	}
	switch s.runtime {
	case string(cluster.ContainerEngine), string(cluster.Apptainer), string(cluster.Uenv), string(cluster.Sconce):
		return nil
	case pyxis:
		if s.Cluster.Container.SqshMount == cluster.HookMount {
			return nil
		}
		return fault.Hint(fmt.Errorf("venv: %s mounts no squashfs file beside the image by itself", runtimeTitle[s.runtime]),
			"`sconce venv hook` installs a hook that does; then write sqsh-mount = \"hook\" under [container] of the cluster's profile")
	}
	return fault.Hint(fmt.Errorf("venv: %s mounts no squashfs file beside the image", runtimeTitle[s.runtime]),
		"name a directory of the shared file system, or make the packages part of the image")
}

// settleMounts lists what the container sees: where the job is submitted from, for its logs and mostly its code, or what the request has
// instead; what the cluster's profile and the job name; and the virtual environment. It is the one place that decides so, for every runtime.
func (s *settled) settleMounts() error {
	s.workdir = s.Job.Workdir
	if s.workdir == "" && (s.Image.Workdir == "" || s.Image.Workdir == "/") {
		s.workdir = here
	}
	specs := slices.Concat(s.Cluster.Container.Mounts, s.Job.Mounts)
	if s.Sees == nil {
		specs = slices.Insert(specs, 0, here)
	}
	if s.venv.dir != "" && s.venv.file == "" {
		specs = append(specs, s.venv.dir)
	}
	specs = append(specs, s.Sees...) // last, over those that have the same directories
	for _, spec := range specs {
		m, err := parseMount(spec)
		if err != nil {
			return err
		}
		if !slices.Contains(s.mounts, m) {
			s.mounts = append(s.mounts, m)
		}
	}
	if s.venv.file != "" && s.runtime != pyxis {
		s.mounts = append(s.mounts, Mount{Source: s.venv.file, Target: s.venv.dir, Squashfs: true})
	}
	for _, m := range s.mounts {
		if s.cutsMounts() && strings.Contains(m.Source+m.Target, ",") {
			return fault.Hint(fmt.Errorf("mounts: %s takes the comma in %q for the end of a mount", runtimeTitle[s.runtime], m.spec()), noSeparator)
		}
	}
	return nil
}

// cutsMounts reports whether the runtime has several mounts in one option, with commas between them.
func (s *settled) cutsMounts() bool { return s.runtime == pyxis || s.runtime == apptainer }

const noSeparator = "give the directory a name without commas and colons"

// here is the directory that a job is submitted from, which is where its script runs.
const here = "${PWD}"

// unbraced is a variable without braces, which not all that reads our texts expands.
var unbraced = lazyregexp.New(`\$[A-Za-z_][A-Za-z0-9_]*`)

func parseMount(spec string) (Mount, error) {
	parts := strings.Split(variable.ReplaceAllStringFunc(spec, func(v string) string { return strings.ReplaceAll(v, ":", "\x00") }), ":")
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], "\x00", ":")
	}
	m := Mount{Source: parts[0], Target: parts[0]}
	if len(parts) > 1 {
		m.Target = parts[1]
	}
	m.ReadOnly = len(parts) == 3 && parts[2] == "ro"
	if len(parts) > 3 || len(parts) == 3 && !m.ReadOnly || m.Source == "" || m.Target == "" {
		return m, fmt.Errorf("mounts: %q is not SRC, SRC:DST or SRC:DST:ro", spec)
	}
	return m, nil
}

// ofScripts are variables that scripts have for themselves: some name what is removed at the end.
var ofScripts = []string{"cache", "code", "host", "hosts", "image", "list", "master", "status", "step", "warned"}

// settleEnv puts the variables of the cluster and those of the job together.
func (s *settled) settleEnv() error {
	all := map[string]string{}
	maps.Copy(all, s.Cluster.Env)
	if s.runtime == string(cluster.Uenv) {
		maps.Copy(all, s.Cluster.EnvUenv)
	}
	maps.Copy(all, s.Job.Env)
	if s.venv.file != "" && s.runtime == pyxis {
		all[packed.HookVariable] = s.venv.file + ":" + s.venv.dir
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if slices.Contains(ofScripts, name) {
			return fault.Hint(fmt.Errorf("env: the script has a variable %s of its own", name), "set it in the command: env "+name+"=… python train.py")
		}
		s.env = append(s.env, setting{name, all[name]})
	}
	return nil
}

// slurmTime is a time as Slurm has it: days-hours:minutes:seconds.
var slurmTime = lazyregexp.New(`^(?:([0-9]{1,4})-)?([0-9]{1,4}):([0-9]{2}):([0-9]{2})$`)

// ParseTime reads "90m", "24h", "2d" and, as Slurm has them, "12:00:00" and "1-12:00:00"; "" is 0.
func ParseTime(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	m := slurmTime.FindStringSubmatch(text)
	if m == nil {
		return units.ParseSpan(text)
	}
	var total time.Duration
	for i, unit := range []time.Duration{24 * time.Hour, time.Hour, time.Minute, time.Second} {
		n, _ := strconv.Atoi(m[i+1]) // digits or nothing, by the expression
		total += time.Duration(n) * unit
	}
	return total, nil
}

// inSlurm writes a time as Slurm has it.
func inSlurm(d time.Duration) string {
	seconds := int(d / time.Second)
	text := fmt.Sprintf("%02d:%02d:%02d", seconds/3600%24, seconds/60%60, seconds%60)
	if days := seconds / 86400; days > 0 {
		return fmt.Sprintf("%d-%s", days, text)
	}
	return text
}

// interval is how long a job of so many nodes should run between two checkpoints, and how often one of the nodes fails: sqrt(2·T·M), by
// J. W. Young, "A first order approximation to the optimum checkpoint interval", 1974, and J. T. Daly, 2006.
func interval(takes, mtbf time.Duration, nodes int) (every, fails time.Duration) {
	fails = mtbf / time.Duration(nodes)
	return time.Duration(math.Sqrt(2 * float64(takes) * float64(fails))), fails
}
