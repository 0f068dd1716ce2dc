package job

import (
	"fmt"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/quote"
)

// Step is a job as a step of somebody else's script, in words and lines of bash. Variables in them are expanded when the script runs.
type Step struct {
	Directives string // lines of #SBATCH by which a script asks for what the job needs
	Variables  string // lines that set the variables of the cluster and the job
	Start      string // the program that starts the image, without srun; what it runs follows
	Task       string // the command in the image, as one task runs it
	Options    string // of srun
	Tasks      int    // on a node
}

// StepOf writes a job as a step. The tasks run where the script is when it calls srun, or in the job's own directory.
func StepOf(r Request) (Step, error) {
	s, err := r.settle()
	if err != nil {
		return Step{}, err
	}
	lines, err := s.lines()
	if err != nil {
		return Step{}, err
	}
	var directives, variables script
	s.directives(&directives)
	s.variables(&variables)
	names := []string{"PYTHONUNBUFFERED", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"}
	for _, v := range s.env {
		if !s.usesEDF() {
			names = append(names, v.name)
		}
	}
	how := s.start(s.Image.File, names)
	options := []string{"--kill-on-bad-exit=1", fmt.Sprintf("--ntasks-per-node=%d", s.tasks)}
	if s.cpus > 0 {
		options = append(options, fmt.Sprintf("--cpus-per-task=%d", s.cpus))
	}
	options = append(options, s.stepOptions()...)
	shell := "bash"
	if s.Image.NoBash {
		shell = "sh"
	}
	return Step{
		Directives: directives.String(), Variables: variables.String(), Tasks: s.tasks,
		Start:   words(how.program),
		Task:    shell + " -c " + quote.Single(strings.Join(lines, "\n")) + " " + fileName(s.Name),
		Options: words(slices.Concat(options, how.options)),
	}, nil
}

// words writes words of a shell, in which ${NAME} is expanded and nothing else.
func words(list []string) string {
	quoted := make([]string, len(list))
	for i, w := range list {
		quoted[i] = optionWord(w)
	}
	return strings.Join(quoted, " ")
}

// HereProfile is this machine as a cluster without Slurm, on which images are started by sconce run.
func HereProfile(gpus int) cluster.Profile {
	return cluster.Profile{Starts: []string{cluster.Sconce}, Slurm: cluster.Slurm{GPUsPerNode: gpus, GPURequest: "none"}}
}
