package job

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/units"
	packed "sconce.dev/sconce/internal/venv"
)

// script is a shell script that grows.
type script struct{ strings.Builder }

func (b *script) line(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }

// because begins a paragraph with the reason for it.
func (b *script) because(reason string) { b.line("\n%s", comment(reason)) }

// note is a comment with a command to paste.
func (b *script) note(text, command string) {
	b.line("%s", comment(text))
	b.line("#   %s", quote.Clean(command))
}

// Sbatch writes the script of a job. Errors are of exit code 2.
func Sbatch(r Request) (string, error) {
	s, err := r.settle()
	if err != nil {
		return "", err
	}
	lines, err := s.lines()
	if err != nil {
		return "", err
	}
	var b script
	b.line("#!/bin/bash")
	s.header(&b)
	s.directives(&b)
	s.preamble(&b)
	s.guard(&b)
	s.rendezvous(&b)
	s.threads(&b)
	s.caches(&b)
	s.downloads(&b)
	s.recorder(&b)
	s.variables(&b)
	s.checkpoints(&b)
	image := s.spread(&b)
	s.step(&b, image, lines)
	s.finish(&b)
	return Seal(b.String()), nil
}

// header says what the script is, and what it needs.
func (s *settled) header(b *script) {
	b.line("#")
	b.line("%s", comment(fmt.Sprintf("Job %s: %s on %s, started by %s.", s.Name, s.Image.Name, s.clusterName(), runtimeTitle[s.runtime])))
	if s.From != "" {
		b.note("Written again by:", s.From)
	}
	b.line("#")
	b.line("%s", comment("Submit it with `sbatch FILE`, from the directory that the job shall run in. Arguments after FILE go to the command."))
	switch {
	case s.usesEDF():
		b.line("%s", comment(fmt.Sprintf("It needs the environment definition file %s: `sconce export edf` writes it.", s.edfFile())))
	case s.runtime == cluster.PodmanHPC:
		b.note("The image has to be there first, once:", "podman-hpc pull "+word(s.Image.Reference))
	}
	s.imageNote(b)
	if s.Job.Logs != "" {
		b.note("Slurm before 24.11 needs the directory of the log to be there first:", "mkdir -p "+word(s.Job.Logs))
	}
	b.line("#")
}

// imageNote says how the image comes where the nodes read it.
func (s *settled) imageNote(b *script) {
	if !s.readsFile() || s.Image.Put == "" {
		return
	}
	if stripe, dir := s.Cluster.Paths.Stripe, s.Cluster.Paths.Images; stripe != "" && dir != "" {
		b.note("Once, before the first image, so that all nodes can read a large one at once:",
			fmt.Sprintf("mkdir -p %s && lfs setstripe %s %s", word(dir), stripe, word(dir)))
	}
	b.note("The image is put there by:", s.Image.Put)
	if s.Cluster.Paths.Stripe != "" {
		b.note("Over how many servers it is spread says:", "lfs getstripe "+word(s.Image.File))
	}
}

// readsFile reports whether the image is a file that all nodes read.
func (s *settled) readsFile() bool {
	return s.runtime != cluster.Sarus && s.runtime != cluster.PodmanHPC && s.runtime != uenv && s.Image.File != ""
}

// edfFile is where the environment definition file is looked for.
func (s *settled) edfFile() string {
	name := s.edfName()
	if strings.Contains(name, "/") || strings.HasSuffix(name, ".toml") {
		return name
	}
	return "~/.edf/" + name + ".toml"
}

// directives ask Slurm for what the job needs.
func (s *settled) directives(b *script) {
	ask := func(option, value string) {
		if value != "" {
			b.line("#SBATCH --%s=%s", option, directive(value))
		}
	}
	number := func(option string, value int) {
		if value > 0 {
			b.line("#SBATCH --%s=%d", option, value)
		}
	}
	slurm := s.Cluster.Slurm
	ask("job-name", fileName(s.Name))
	ask("account", first(s.Job.Account, slurm.Account))
	ask("partition", first(s.Job.Partition, slurm.Partition))
	ask("qos", first(s.Job.QOS, slurm.QOS))
	ask("reservation", s.Job.Reservation)
	ask("constraint", first(s.Job.Constraint, slurm.Constraint))
	number("nodes", s.nodes)
	number("ntasks-per-node", s.tasks)
	number("cpus-per-task", s.cpus)
	s.askGPUs(number, ask)
	if s.time > 0 {
		ask("time", inSlurm(s.time))
	}
	ask("array", s.Job.Array)
	ask("dependency", s.Job.Dependency)
	s.askSignals(b)
	if s.runtime == uenv && !s.uenvInStep() {
		for _, option := range s.uenvOptions() {
			name, value, _ := strings.Cut(option, "=")
			b.line("#SBATCH %s=%s", name, directive(value))
		}
	}
	log := "%x-%j.log"
	if s.Job.Array != "" {
		log = "%x-%A_%a.log"
	}
	if s.Job.Logs != "" {
		log = strings.TrimSuffix(s.Job.Logs, "/") + "/" + log
	}
	ask("output", log)
	for _, option := range slices.Concat(slurm.Options, s.Job.Options) {
		b.line("#SBATCH %s", option)
	}
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// directive quotes a value as sbatch reads it, which is as a shell does without expanding anything: between quotes too, \ is before what
// means itself.
func directive(value string) string {
	if quote.Plain.MatchString(value) {
		return value
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`
}

// askGPUs asks for the GPUs of a node, for all of its tasks.
func (s *settled) askGPUs(number func(string, int), ask func(string, string)) {
	switch s.Cluster.Slurm.GPURequest {
	case "none":
	case "gres":
		if s.gpus > 0 {
			ask("gres", fmt.Sprintf("gpu:%d", s.gpus))
		}
	default:
		number("gpus-per-node", s.gpus)
	}
}

// askSignals has Slurm warn the script (B:) before the time is up, and says what becomes of a job whose node has failed.
func (s *settled) askSignals(b *script) {
	if s.warn > 0 {
		b.line("#SBATCH --signal=B:USR1@%d", int(s.warn/time.Second))
	}
	if s.next == Requeue {
		b.line("#SBATCH --requeue")
	} else {
		b.line("#SBATCH --no-requeue")
	}
	if s.next != No {
		b.line("#SBATCH --open-mode=append")
	}
}

// ownView is the view of the uenvs that sconce writes. uenv 9 loads none that is not named.
const ownView = "default"

// uenvOptions are what sbatch or srun is given: the uenv, with a virtual environment beside it, and a view.
func (s *settled) uenvOptions() []string {
	list := first(s.Job.Uenv, s.Image.File)
	if s.venv.file != "" {
		list += "," + s.venv.file + ":" + s.venv.dir
	}
	options := []string{"--uenv=" + list}
	view := s.Job.View
	if view == "" && s.Job.Uenv == "" {
		view = ownView
	}
	if view != "" {
		options = append(options, "--view="+view)
	}
	return options
}

// uenvInStep reports whether srun has to ask for the uenv: sbatch expands no variables in directives.
func (s *settled) uenvInStep() bool { return variable.MatchString(s.uenvOptions()[0]) }

func (s *settled) preamble(b *script) {
	b.line("\nset -euo pipefail")
	b.line("ulimit -c 0 # a core file for every rank would fill the file system")
	if s.runtime != uenv {
		b.line("unset PYTHONPATH PYTHONHOME # those of the login shell are for the host's Python")
	}
	b.line("export PYTHONUNBUFFERED=1 # what Python prints is in the log at once")
	if s.runtime == uenv || s.runtime == apptainer {
		b.because("Packages in ~/.local would go before those of the image.")
		b.line("export PYTHONNOUSERSITE=1")
	}
}

// guard ends a job whose directory has a name that its runtime takes for several mounts.
func (s *settled) guard(b *script) {
	if !s.cutsMounts() || !slices.ContainsFunc(s.mounts, func(m Mount) bool { return strings.Contains(m.spec(), here) }) {
		return
	}
	b.because(fmt.Sprintf("The directory is mounted, and %s takes what is behind a comma or a colon in its name for something else to mount.", runtimeTitle[s.runtime]))
	b.line(`case $PWD in *[,:]*) printf '%%s\n' "$PWD: a name with a comma or a colon cannot be mounted" >&2; exit 2 ;; esac`)
}

// rendezvous says where the first rank is. It is found out here, on the host: many containers have no scontrol.
func (s *settled) rendezvous(b *script) {
	b.because("Where the ranks meet. Containers mostly lack scontrol, so it is asked here; the port follows from the job, so that two jobs on a node do not take the same one.")
	b.line(`mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")`)
	b.line(`export MASTER_ADDR=${hosts[0]}`)
	b.line(`export MASTER_PORT=$((20000 + SLURM_JOB_ID %% 12000))`)
}

// maxThreads is where more threads of OpenMP stop to help a rank whose data loaders want CPUs too.
const maxThreads = 8

func (s *settled) threads(b *script) {
	if s.cpus == 0 {
		return
	}
	b.because("Since Slurm 22.05 srun does not take --cpus-per-task over from sbatch.")
	b.line("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK")
	if !s.ownsVariable("OMP_NUM_THREADS") {
		b.line("export OMP_NUM_THREADS=%d # the rest of a rank's %d CPUs is for its data loaders", s.ompThreads(), s.cpusOfRank())
	}
}

func (s *settled) cpusOfRank() int { return max(1, s.cpus*s.tasks/s.ranks) }
func (s *settled) ompThreads() int { return min(maxThreads, s.cpusOfRank()) }

// ownsVariable reports whether the job or the cluster sets a variable itself.
func (s *settled) ownsVariable(name string) bool {
	return slices.ContainsFunc(s.env, func(v setting) bool { return v.name == name })
}

// localCache is a directory that each node has for itself.
func (s *settled) localCache() string {
	if s.runtime == uenv {
		return first(s.Cluster.Paths.Local, "/tmp")
	}
	return "/tmp" // the container's own, or under Apptainer the host's
}

func (s *settled) caches(b *script) {
	b.because("What Triton and Inductor compile stays on the node: ranks that share such a cache over the network meet stale files, and wait for each other's locks.")
	b.line(`cache=%s/%s-$SLURM_JOB_ID`, word(s.localCache()), fileName(s.Name))
	b.line(`export TRITON_CACHE_DIR=$cache/triton TORCHINDUCTOR_CACHE_DIR=$cache/inductor`)
	if s.leavesCache() && !s.spreads() {
		b.line("# It is a directory of the host, which nobody else clears.")
		b.line("%s", clearing(`"$cache"`))
	}
}

// clearing is the trap that removes what a job leaves on its nodes.
func clearing(what string) string {
	return `trap 'srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 rm -rf -- ` + what + ` || true' EXIT`
}

// downloaded are the variables that say where what a job downloads is kept, with the directory of each.
var downloaded = []setting{{"HF_HOME", "huggingface"}, {"TORCH_HOME", "torch"}}

// downloads keeps models and data sets where the profile says, unless somebody has said so before.
func (s *settled) downloads(b *script) {
	if s.Cluster.Paths.Cache == "" {
		return
	}
	b.because("Models and data sets are downloaded once for all jobs, to where there is room: homes are small, and what is written into a container is gone with it.")
	for _, v := range downloaded {
		if !s.ownsVariable(v.name) {
			b.line("export %s=${%s:-%s}", v.name, v.name, word(strings.TrimSuffix(s.Cluster.Paths.Cache, "/")+"/"+v.value))
		}
	}
}

// leavesCache reports whether the cache is the host's, which somebody has to clear.
func (s *settled) leavesCache() bool { return s.runtime == uenv || s.runtime == apptainer }

// recorder has NCCL's last operations written down when a rank hangs. TORCH_NCCL_ASYNC_ERROR_HANDLING stays at PyTorch's default, 3: with
// 1 the communicator is torn down before anything is written.
func (s *settled) recorder(b *script) {
	if s.gpus == 0 {
		return
	}
	b.because("When a collective operation times out, each rank writes down its last ones, for `torchfrtrace`. PyTorch 2.9 has new names for two of the variables.")
	b.line("export TORCH_NCCL_DUMP_ON_TIMEOUT=1")
	b.line("export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000")
	dir := "$PWD"
	if s.Job.Logs != "" {
		logs := word(strings.TrimSuffix(s.Job.Logs, "/"))
		if dir += "/" + logs; strings.HasPrefix(s.Job.Logs, "/") || strings.HasPrefix(s.Job.Logs, "$") {
			dir = logs
		}
	}
	b.line("export TORCH_FR_DUMP_TEMP_FILE=%s/%s-$SLURM_JOB_ID-nccl-rank-", dir, fileName(s.Name))
	b.line("export TORCH_NCCL_DEBUG_INFO_TEMP_FILE=$TORCH_FR_DUMP_TEMP_FILE")
}

// variables sets those of the cluster and the job, unless the environment definition file has them.
func (s *settled) variables(b *script) {
	if len(s.env) == 0 || s.usesEDF() {
		return
	}
	b.because("Variables of the cluster's profile and of the job.")
	for _, v := range s.env {
		if v.name == packed.HookVariable {
			b.line("# The hook that `sconce venv hook` has installed mounts what this names.")
		}
		b.line("export %s=%s", v.name, word(v.value))
	}
}

// exported names the variables that the script sets and the command needs, the job's own included.
func (s *settled) exported() []string {
	names := []string{"PYTHONUNBUFFERED", "MASTER_ADDR", "MASTER_PORT"}
	if s.cpus > 0 && !s.ownsVariable("OMP_NUM_THREADS") {
		names = append(names, "OMP_NUM_THREADS")
	}
	names = append(names, "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
	for _, v := range downloaded {
		if s.Cluster.Paths.Cache != "" && !s.ownsVariable(v.name) {
			names = append(names, v.name)
		}
	}
	if s.gpus > 0 {
		names = append(names, "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
	}
	if s.usesEDF() {
		return names
	}
	for _, v := range s.env {
		names = append(names, v.name)
	}
	return names
}

// checkpoints says how often to save.
func (s *settled) checkpoints(b *script) {
	takes, err := ParseTime(s.Job.Checkpoint.Takes)
	mtbf, err2 := ParseTime(s.Cluster.Reliability.MTBFNode)
	if err != nil || err2 != nil || takes == 0 || mtbf == 0 {
		return
	}
	every, fails := interval(takes, mtbf, s.nodes)
	b.because(fmt.Sprintf("Checkpoints: a node fails about every %s, one of the %d every %s, and saving takes %s. Least is lost by saving about every %s (Young and Daly: sqrt(2 x saving x time between failures)).",
		units.Span(mtbf), s.nodes, units.Span(fails), units.Span(takes), units.Span(every)))
	if s.warn > 0 && takes >= s.warn {
		b.line("%s", comment(fmt.Sprintf("A warning %s before the end is too short for that.", units.Span(s.warn))))
	}
}

// spreadNodes is the number of nodes from which sending an image around is faster than having all of them read it.
const spreadNodes = 32

// spreads reports whether the image is sent to a disk of each node, which is where that pays.
func (s *settled) spreads() bool {
	local := s.Cluster.Paths.Local
	fits := s.runtime == pyxis || s.runtime == apptainer || s.runtime == cluster.Sconce
	return fits && s.nodes >= spreadNodes && local != "" && !strings.HasPrefix(local, "/dev/shm") && s.Image.File != ""
}

// spreadImage is the image on a disk of each node, as a variable that the script sets.
const spreadImage = "${image}"

// spread sends the image to a disk of each node where that pays, and returns where it is read.
func (s *settled) spread(b *script) string {
	if !s.spreads() {
		return s.Image.File
	}
	b.because(fmt.Sprintf("%d nodes that open one file at once are slow: the first one reads it, and Slurm sends it to the others, from whose disks nobody else removes it.", s.nodes))
	b.line("image=%s/$SLURM_JOB_ID-%s", word(s.Cluster.Paths.Local), fileName(path.Base(s.Image.File)))
	left := `"$image"`
	if s.leavesCache() {
		b.line("# The caches above stay on the host as well.")
		left += ` "$cache"`
	}
	b.line("%s", clearing(left))
	b.line(`sbcast --force %s "$image"`, word(s.Image.File))
	return spreadImage
}

// step starts the command in all tasks.
func (s *settled) step(b *script, image string, lines []string) {
	waits := s.warn > 0
	if waits {
		b.because("Slurm warns this script, which passes the warning on to every process of the step as SIGUSR1: time to save, and to end with 0.")
		note := ""
		if s.next != No {
			b.line("warned=no")
			note = "    warned=yes\n"
		}
		b.line("step=\"\"")
		b.line("warn() {\n%s    [ -z \"$step\" ] || kill -USR1 \"$step\" || true\n}", note)
		b.line("trap warn USR1")
	}
	b.because(s.stepReason())
	options := append([]string{"--label", "--kill-on-bad-exit=1"}, s.stepOptions()...)
	how := s.start(image, s.exported())
	b.line("srun %s \\", strings.Join(options, " "))
	for _, option := range how.options {
		b.line("    %s \\", optionWord(option))
	}
	if len(how.program) > 0 {
		b.line("    %s \\", s.programWords(how.program))
	}
	shell := "bash"
	if s.Image.NoBash {
		shell = "sh"
	}
	end := ""
	if waits {
		end = " &"
	}
	program := "\n    " + strings.Join(lines, "\n    ") + "\n"
	b.line(`    %s -c %s %s "$@"%s`, shell, quote.Single(program), fileName(s.Name), end)
	if waits {
		b.line("step=$!")
	}
}

func (s *settled) stepReason() string {
	how := fmt.Sprintf("One process for each of the %d GPUs of a node", s.ranks)
	switch {
	case s.launcher == Torchrun:
		how = fmt.Sprintf("One launcher on each node, which starts %d processes", s.ranks)
	case s.gpus == 0 && s.ranks == 1:
		how = "One process on each node"
	case s.gpus == 0:
		how = fmt.Sprintf("%d processes on each node", s.ranks)
	case s.ranks != s.gpus:
		how = fmt.Sprintf("%d processes on each node, which has %d GPUs", s.ranks, s.gpus)
	}
	if s.gpus > 0 {
		how += ". All see all GPUs of their node, and take that of their LOCAL_RANK: one GPU alone in view would be number 0 for every rank, and would lose its direct way to the others"
	}
	if s.mpi() != "" {
		how += ". Those that use MPI find each other by " + s.mpi()
	}
	return how + ". The first one that fails ends all."
}

// stepOptions are options of srun that follow from the cluster: every task sees all GPUs of its node, and MPI in the image has what srun
// speaks there.
func (s *settled) stepOptions() []string {
	var options []string
	if s.gpus > 0 && s.Cluster.Slurm.GPURequest != "none" {
		options = append(options, "--gpu-bind=none")
	}
	if s.mpi() != "" {
		options = append(options, "--mpi="+s.mpi())
	}
	return options
}

// mpi is how processes of MPI find each other, as srun --mpi has it; "" leaves it to Slurm, which on a Cray has its own name for that.
func (s *settled) mpi() string {
	if s.Cluster.PMI == "cray" {
		return ""
	}
	return s.Cluster.PMI
}

// programWords writes a program with its options, as many to a line as are read at a glance; a mount and the image have one to themselves.
func (s *settled) programWords(words []string) string {
	const width = 90
	var b strings.Builder
	length := 0
	for i, w := range words {
		quoted := optionWord(w)
		alone := strings.HasPrefix(w, "--bind=") || strings.HasPrefix(w, "--volume=") || w == s.Image.Reference || w == s.Image.File || w == spreadImage
		switch {
		case i == 0:
		case alone || length+1+len(quoted) > width || length == 0:
			b.WriteString(" \\\n        ")
			length = 0
		default:
			b.WriteByte(' ')
		}
		b.WriteString(quoted)
		length += 1 + len(quoted)
		if alone && w != words[len(words)-1] && words[len(words)-1] != "--" {
			length = 0
		}
	}
	return b.String()
}

// finish waits for a step that runs beside the script, sees to what comes next, and ends as the step did.
func (s *settled) finish(b *script) {
	if s.warn == 0 {
		return
	}
	b.because("A signal ends `wait`, and not the step.")
	b.line("status=0\nwait \"$step\" || status=$?")
	b.line("while kill -0 \"$step\" 2>/dev/null; do\n    status=0\n    wait \"$step\" || status=$?\ndone")
	switch s.next {
	case Chain:
		b.because("A job that was warned and has ended well has more to do. A new job is better than a requeued one, which waits two minutes and finds what the container left behind. $0 is Slurm's own copy of this script, so that editing the file in the meantime changes nothing.")
		sbatch := "sbatch"
		if s.runtime == uenv {
			sbatch = "env -u UENV_MOUNT_LIST -u UENV_VIEW sbatch" // uenv 10 refuses to submit from within a uenv
		}
		b.line("if [ \"$warned\" = yes ] && [ \"$status\" -eq 0 ]; then\n    %s --dependency=singleton \"$0\" \"$@\"\nfi", sbatch)
	case Requeue:
		b.because("A job that was warned and has ended well has more to do: the same one is queued again.")
		b.line("if [ \"$warned\" = yes ] && [ \"$status\" -eq 0 ]; then\n    scontrol requeue \"$SLURM_JOB_ID\"\nfi")
	}
	b.line("\nexit \"$status\"")
}
