package lint

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/sbatch"
)

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

var localRank = lazyregexp.New(`^"?\$\{?SLURM_LOCALID\}?"?$`)

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
