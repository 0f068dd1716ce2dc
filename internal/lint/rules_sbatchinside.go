package lint

import (
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/sbatch"
)

// sbatchInsideRules are about what a script starts in containers.
var sbatchInsideRules = []Rule{
	{
		Rule: audit.Rule{
			ID: "sbatch-image-path", Severity: audit.Error,
			Title:  "Images for pyxis that are no path",
			Why:    "pyxis takes a name without a slash for an image in a registry, and the step does not start.",
			Remedy: "write the path of the file, with / or ./ in front",
		},
		script: lookImagePath,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-scontrol-inside", Severity: audit.Error,
			Title:  "Slurm's commands in a container that has none",
			Why:    "The command is not found there, so what it was to print is empty: an empty MASTER_ADDR makes all ranks wait for ever.",
			Remedy: "call it in the batch script and export the result, before srun",
		},
		script: lookScontrol,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-master-port-overridden", Severity: audit.Warning,
			Title:  "MASTER_ADDR and MASTER_PORT that the image overrides",
			Why:    "enroot's hook for PyTorch, which an image with PYTORCH_VERSION switches on, sets its own address and port over those of the job.",
			Remedy: "give srun --container-env=MASTER_ADDR,MASTER_PORT, with which the job's values stay",
		},
		script: func(s *subject) { lookOverridden(s, "MASTER_PORT", "MASTER_ADDR") },
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-omp-overridden", Severity: audit.Warning,
			Title:  "OMP_NUM_THREADS that the image overrides",
			Why:    "enroot's hook for PyTorch, which an image with PYTORCH_VERSION switches on, sets it to 1 when there are more tasks than nodes.",
			Remedy: "give srun --container-env=OMP_NUM_THREADS, with which the job's value stays",
		},
		script: func(s *subject) { lookOverridden(s, "OMP_NUM_THREADS") },
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-torchrun-venv", Severity: audit.Warning,
			Title:  "torchrun that does not see the virtual environment",
			Why:    "torchrun of the image runs the image's Python, whatever environment was activated: packages of the environment are not found.",
			Remedy: "write python -m torch.distributed.run",
		},
		script: lookTorchrun,
	},
	{
		Rule: audit.Rule{
			ID: "sbatch-mpirun-inside", Severity: audit.Error,
			Title:  "mpirun under srun",
			Why:    "srun has started the processes already; mpirun in each of them starts all of them again, or finds no way to the other nodes.",
			Remedy: "start the program with srun --mpi=pmix itself",
		},
		script: lookMpirun,
	},
}

func lookScontrol(s *subject) {
	for _, c := range s.script.Calls {
		if c.Inside == nil || !slices.Contains([]string{"scontrol", "squeue", "srun"}, c.Name) {
			continue
		}
		r, told := runtimeOf(c.Inside), s.linter.Target.Container.SlurmInside
		if told != nil && (string(r) != s.linter.Target.Starter()) { // the profile speaks of the cluster's usual containers
			told = nil
		}
		switch {
		case told != nil && *told:
		case told != nil:
			s.tell(s.in(c.At), "%s is called in a container, and %s has no Slurm in those", c.Name, s.linter.Target.Words())
		case r == pyxis, r == apptainer, r == podman:
			s.tell(s.in(c.At), "%s is called in a container of %s, which has none of Slurm's programs", c.Name, r)
		case r == sarus:
			if !s.hookOn(c.Inside, "slurm") {
				s.tell(s.in(c.At), "%s is called in a container of the Sarus Suite, and com.hooks.slurm is not on", c.Name)
			}
		}
	}
}

// hookOn reports whether the environment of a step has a hook on, or may: nothing is known of one that is not here.
func (s *subject) hookOn(srun *sbatch.Call, hook string) bool {
	for _, u := range s.environments {
		if u.call == srun {
			return u.doc == nil || u.doc.env == nil || u.doc.env.On(hook)
		}
	}
	return true
}

// imageIn is the image that a step of pyxis runs in, nil when nothing is known of it.
func (s *subject) imageIn(srun *sbatch.Call) *facts.Facts {
	o, ok := sbatch.Find(srun.Options, "container-image")
	if !ok || !o.Fixed {
		return nil
	}
	im, err := s.linter.image(o.Value)
	if err != nil || im == nil {
		return nil // whoever looks next is told
	}
	return im.Facts
}

func lookOverridden(s *subject, names ...string) {
	for _, c := range s.sruns() {
		if runtimeOf(c) != pyxis {
			continue
		}
		im := s.imageIn(c)
		if im == nil {
			continue
		}
		version, ok := im.Env("PYTORCH_VERSION")
		if !ok {
			continue
		}
		passed, _ := sbatch.Find(c.Options, "container-env")
		for _, name := range names {
			a, set := s.set(name)
			if !set || a.Inside != nil || slices.Contains(strings.Split(passed.Value, ","), name) {
				continue
			}
			s.tell(s.in(a.At), "%s is set for srun, and the image overrides it", name).Seen = []string{"PYTORCH_VERSION=" + version + " in the image"}
		}
	}
}

// activates reports whether a call enters a virtual environment.
func activates(c *sbatch.Call) bool {
	return (c.Name == "source" || c.Name == ".") && len(c.Command) > 0 && strings.HasSuffix(c.Command[0].Text, "bin/activate")
}

func lookTorchrun(s *subject) {
	active := map[*sbatch.Call]bool{}
	for _, c := range s.script.Calls {
		if c.Inside == nil || s.runtimeAt(c) == none {
			continue
		}
		if activates(c) {
			active[c.Inside] = true
		}
		if c.Name == "torchrun" && active[c.Inside] && c.Words[0].Text == "torchrun" {
			s.tell(s.in(c.At), "torchrun is called in a virtual environment on top of an image")
		}
	}
}

func lookMpirun(s *subject) {
	for _, c := range s.script.Calls {
		if c.Inside == nil || c.Name != "mpirun" && c.Name != "mpiexec" {
			continue
		}
		if len(c.Words) > 1 && path.Base(c.Words[1].Text) == "--version" {
			continue
		}
		s.tell(s.in(c.At), "%s is started by srun", c.Name)
	}
}
