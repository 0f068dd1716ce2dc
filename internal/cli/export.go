package cli

import (
	"context"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/tocontainerfile"
)

// exportOptions are the options of `sconce export containerfile`.
type exportOptions struct {
	recipe string
	locked bool
	output string
	force  bool
	how    tocontainerfile.Options
}

func newExportCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "export COMMAND",

		DisableFlagsInUseLine: true,

		Short: "Write files that other tools read: jobs for a cluster, a uenv, a conda lock, a Containerfile",
		Long: `Write what other tools read: the files by which an image runs as a job on a cluster, a uenv, the lock of a conda
environment, and the Containerfile that a recipe amounts to. What is written says why each line is there, and
needs no sconce where it is used.`,
		Example: examples(
			"sconce export sbatch --job train -o train.sbatch   the script of a job in ./sconce.toml, for Slurm",
			"sconce export edf -o ~/.edf/llm-train.toml         the environment definition file of the Container Engine",
			"sconce export conda -o conda-lock.yml              the conda packages of ./sconce.toml, for conda-lock and others",
			"sconce export containerfile                        print the Containerfile of ./sconce.toml",
		),
		Args: cobra.ArbitraryArgs,
		RunE: helpOrUnknown,
	}
	cmd.AddCommand(newExportSbatchCmd(a), newExportEDFCmd(a), newExportSrunArgsCmd(a), newExportUenvCmd(a), newExportCondaCmd(a), newExportContainerfileCmd(a))
	return cmd
}

func newExportContainerfileCmd(a *app) *cobra.Command {
	var o exportOptions
	cmd := &cobra.Command{
		Use:   "containerfile [RECIPE]",
		Short: "Write a recipe as a Containerfile",
		Long: `Write RECIPE (a sconce.toml or its directory, by default the current one), as its lock pins it, as a Containerfile for
BuildKit or buildah. It is built with the recipe's directory as its context.

Base, system packages and Python packages are those of the lock; steps become COPY and RUN, with cache mounts. A base that
is made from a distribution's packages becomes that distribution's own image; --base names another one. uv installs the
Python packages, from an image that --uv names. Slimming and the check for a target have no counterpart.`,
		Example: examples(
			"sconce export containerfile                            print that of ./sconce.toml",
			"sconce export containerfile llm -o llm/Containerfile   and `docker build llm` builds it",
		),
		Args: wants("[RECIPE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.recipe = recipeArgument(args)
			return a.runExportContainerfile(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.output, "output", "o", "", "write to `FILE` (default: standard output)")
	f.BoolVar(&o.force, "force", false, "replace a file that is there already")
	f.StringVar(&o.how.Base, "base", "", "start from this `IMAGE` instead of the recipe's base")
	f.StringVar(&o.how.UV, "uv", tocontainerfile.DefaultUV, "`IMAGE` that has uv at /uv")
	f.BoolVar(&o.locked, "locked", false, "refuse when the lock is missing or does not fit the recipe")
	return cmd
}

func (a *app) runExportContainerfile(ctx context.Context, o exportOptions) error {
	r, err := loadRecipe(o.recipe, "", "")
	if err != nil {
		return err
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	text, err := s.Containerfile(ctx, r, o.locked, o.how)
	if err != nil {
		return err
	}
	return a.deliverText(o.output, text, o.force)
}
