package lint

import (
	"path"
	"slices"
	"strconv"

	"sconce.dev/sconce/internal/sbatch"
)

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
