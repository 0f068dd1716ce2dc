package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/quote"
)

// jobOptions are the options of the commands that write the files of a job.
type jobOptions struct {
	engine.JobOptions

	output string
	diff   bool
	force  bool
	json   bool
}

const aboutJobs = `RECIPE (a sconce.toml or its directory, by default the current one) names jobs in [job.NAME]; of
several, --job says which. An IMAGE, wherever it is, runs COMMAND. The cluster is the recipe's
[target] or --cluster, and its profile says what starts the image there: the first of its runtimes,
or --runtime.

The nodes read the image from the profile's paths.images, under its name and version, or where
--image says. Nothing is copied there.

The same recipe, lock and profile give the same text.`

const aboutJobFiles = aboutJobs + ` With -o, a file that sconce wrote is
replaced, and a file that somebody has edited is left alone: the first lines hold a hash. --diff
shows how the file differs from the text that would be written, and exits with 1 if it does.`

const usesJob = "[RECIPE|IMAGE] [-- COMMAND...]"

func newExportSbatchCmd(a *app) *cobra.Command {
	o := jobOptions{}
	cmd := &cobra.Command{
		Use:   "sbatch " + usesJob,
		Short: "Write the script of a job, for sbatch",
		Long: `Write the script by which Slurm runs an image as a job. It finds out where the ranks meet, gives
every rank its CPUs and GPUs, keeps caches on the nodes, has hangs recorded, passes the warning
before the end on to the command, and submits the next job.

` + aboutJobFiles,
		Example: examples(
			"sconce export sbatch --job train -o train.sbatch                 write it",
			"sconce export sbatch --job train -o train.sbatch --diff          show what would change in it",
			"sconce export sbatch --cluster h100-infiniband --runtime pyxis   the same job elsewhere",
			"sconce export sbatch llm.sqsh --cluster clariden --nodes 2 --time 1h -- python train.py",
		),
		Args: jobArguments(&o),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.runExportJob(cmd.Context(), o, "sbatch", job.Sbatch)
		},
	}
	addJobFlags(cmd, &o.JobOptions)
	addJobOutputFlags(cmd, &o)
	return cmd
}

func newExportEDFCmd(a *app) *cobra.Command {
	o := jobOptions{}
	cmd := &cobra.Command{
		Use:   "edf " + usesJob,
		Short: "Write an environment definition file, for the Container Engine",
		Long: `Write the environment definition file (EDF) of a job: which image it runs in, what is mounted there,
which hooks are on and which variables are set. The Container Engine reads it (srun
--environment=NAME) and, in a dialect of its own, the Sarus Suite (srun --edf=NAME). Without a job
it has what every job of the image needs.

` + aboutJobFiles,
		Example: examples(
			"sconce export edf --cluster clariden -o ~/.edf/llm-train.toml",
			"sconce export edf --job train --runtime sarus",
			"sconce export edf llm.sqsh --cluster clariden",
		),
		Args: jobArguments(&o),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.runExportJob(cmd.Context(), o, "edf", job.EDF)
		},
	}
	addJobFlags(cmd, &o.JobOptions)
	addJobOutputFlags(cmd, &o)
	return cmd
}

func newExportSrunArgsCmd(a *app) *cobra.Command {
	o := jobOptions{}
	cmd := &cobra.Command{
		Use:   "srun-args " + usesJob,
		Short: "Print the arguments by which srun starts an image",
		Long: `Print what srun is called with to start a command in an image: options of srun, and the program that
the command stands behind where srun does not start the image itself. It is for programs that write
scripts of their own, such as submitit and NeMo-Run. Variables are expanded here. --json tells
options, program and the variables to set apart.

` + aboutJobs,
		Example: examples(
			"sconce export srun-args --cluster clariden",
			"sconce export srun-args --job train --runtime apptainer --json",
		),
		Args: jobArguments(&o),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.runExportSrunArgs(cmd.Context(), o)
		},
	}
	addJobFlags(cmd, &o.JobOptions)
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

// jobArguments takes one recipe or image, and behind -- a command.
func jobArguments(o *jobOptions) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if at := cmd.ArgsLenAtDash(); at >= 0 {
			args, o.Command = args[:at], args[at:]
		}
		o.Subject = recipeArgument(args)
		if len(args) > 1 {
			err := fmt.Errorf("%s: one argument too many: %q", cmd.CommandPath(), args[1])
			return fault.Usage(fault.Hint(err, "a command stands behind --"))
		}
		return nil
	}
}

func addJobFlags(cmd *cobra.Command, o *engine.JobOptions) {
	f := cmd.Flags()
	f.StringVar(&o.Cluster, "cluster", "", "write for this `CLUSTER` (a name, or a profile's file) instead of the recipe's")
	f.StringVar(&o.Job, "job", "", "the job `NAME` of the recipe")
	f.StringVar(&o.Runtime, "runtime", "", "start the image by this `RUNTIME`: "+strings.Join(cluster.Starters, ", "))
	f.StringVar(&o.Image, "image", "", "`PATH` from which the nodes read the image, or its name in a registry")
	f.IntVar(&o.Nodes, "nodes", 0, "run on `N` nodes")
	f.IntVar(&o.GPUs, "gpus-per-node", -1, "use `N` GPUs of each node; -1 is all of them")
	f.StringVar(&o.Time, "time", "", "run for at most this `TIME`, such as 90m or 12h")
	f.StringVar(&o.Launcher, "launcher", "", "start the processes with this `PROGRAM`: srun, torchrun")
	f.StringVar(&o.EDF, "edf", "", "`NAME` or path by which srun finds the environment definition file")
	complete(cmd, "runtime", cluster.Starters...)
	complete(cmd, "launcher", job.Launchers...)
}

func addJobOutputFlags(cmd *cobra.Command, o *jobOptions) {
	f := cmd.Flags()
	f.StringVarP(&o.output, "output", "o", "", "write to `FILE` (default: standard output)")
	f.BoolVar(&o.diff, "diff", false, "show how FILE differs from what would be written, and write nothing")
	f.BoolVar(&o.force, "force", false, "replace FILE although it was edited")
}

func (a *app) runExportJob(ctx context.Context, o jobOptions, what string, write func(job.Request) (string, error)) error {
	if o.diff && o.output == "" {
		return fault.Usage(fault.Hint(errors.New("--diff compares with a file"), "name it with -o FILE"))
	}
	r, err := a.jobRequest(ctx, o, what)
	if err != nil {
		return err
	}
	text, err := write(r)
	switch {
	case err != nil && r.Name != "":
		return fmt.Errorf("job %s: %w", r.Name, err)
	case err != nil:
		return err
	case o.diff:
		return a.showDiff(o.output, text)
	case o.output == "":
		_, err = fmt.Fprint(a.out, text)
		return err
	}
	written, err := engine.WriteSealed(o.output, text, o.force)
	if err == nil {
		a.sayUnlessThere(o.output, written)
	}
	return err
}

func (a *app) runExportSrunArgs(ctx context.Context, o jobOptions) error {
	r, err := a.jobRequest(ctx, o, "srun-args")
	if err != nil {
		return err
	}
	lookup := func(name string) (string, bool) {
		if name == "PWD" { // which somebody may have left wrong
			dir, err := os.Getwd()
			return dir, err == nil
		}
		return os.LookupEnv(name)
	}
	args, err := job.SrunArgs(r, lookup)
	if err != nil {
		return err
	}
	if o.json {
		return a.printJSON(args)
	}
	_, err = fmt.Fprintln(a.out, args)
	return err
}

// jobRequest puts together what a job's files are written from, and by which command they are written again.
func (a *app) jobRequest(ctx context.Context, o jobOptions, what string) (job.Request, error) {
	r, err := engine.JobRequest(ctx, o.JobOptions, a.open)
	r.From = o.again(what)
	return r, err
}

// again is the command by which a file is written once more.
func (o jobOptions) again(what string) string {
	words := []string{"sconce", "export", what}
	if o.Subject != "." {
		words = append(words, quote.Operand(o.Subject))
	}
	for _, f := range []struct{ flag, value string }{
		{"cluster", o.Cluster}, {"job", o.Job}, {"runtime", o.Runtime}, {"image", o.Image}, {"time", o.Time}, {"launcher", o.Launcher}, {"edf", o.EDF},
	} {
		if f.value != "" {
			words = append(words, "--"+f.flag, f.value)
		}
	}
	if o.Nodes > 0 {
		words = append(words, "--nodes", fmt.Sprint(o.Nodes))
	}
	if o.GPUs >= 0 {
		words = append(words, "--gpus-per-node", fmt.Sprint(o.GPUs))
	}
	if len(o.Command) > 0 {
		words = append(append(words, "--"), o.Command...)
	}
	return quote.Words(words...)
}

// showDiff shows how a file differs from text, as diff -u does, and ends with its exit code.
func (a *app) showDiff(file, text string) error {
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Usage(err) // trouble: exit code 2
	}
	name := quote.Clean(file)
	changes := diff.Diff(name, old, name+" (would be written)", []byte(text))
	if len(changes) == 0 && err == nil {
		return nil
	}
	if err != nil {
		changes = []byte(name + " does not exist\n")
	}
	out, end := a.foreign()
	_, err = out.Write(changes)
	if err := cmp.Or(err, end()); err != nil {
		return err
	}
	return exitStatus(1)
}

// sayUnlessThere tells that a file was written, or was so already.
func (a *app) sayUnlessThere(file string, written bool) {
	if written {
		a.say("wrote %s", file)
	} else {
		a.say("%s is up to date", file)
	}
}
