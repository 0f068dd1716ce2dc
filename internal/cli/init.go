package cli

import (
	"context"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/recipe"
)

func newInitCmd(a *app) *cobra.Command {
	var o engine.InitOptions
	cmd := &cobra.Command{
		Use:   "init [DIR]",
		Short: "Write a recipe to start from",
		Long: `Write ` + recipe.FileName + ` into DIR, by default the current directory. The recipe works as it is, and its comments show
what else there is. It is based on Debian's packages, or on an image where no mirror of those is known.

With --from, it is the recipe that builds what is there already: the environment of environment.yml files or of a conda
lock, the packages of requirements.txt files, the dependencies of a pyproject.toml, or the image of a Containerfile. What a
recipe cannot say is refused, with the line and the reason. Files that are named stay where they are: the recipe refers to
them.

DIR is made if it does not exist, and its name becomes the image's. A recipe that is there already stays, unless --force
is given.`,
		Example: examples(
			"sconce init llm-train                        write llm-train/sconce.toml",
			"sconce init --from environment.yml --from more.yml",
			"sconce init --from requirements.txt          a recipe with these packages",
			"sconce init --from pyproject.toml --base docker://python:3.12-slim",
			"sconce init app --from app/Dockerfile        a step for each instruction",
			"sconce init --force                          replace ./sconce.toml",
		),
		Args: wants("[DIR]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Dir = "."
			if len(args) > 0 {
				o.Dir = args[0]
			}
			return a.runInit(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.From, "from", nil, "build what this `FILE` says: environment.yml, requirements.txt (both repeatable), pyproject.toml, Containerfile")
	f.StringVar(&o.Base, "base", "", "with --from, stand on this `IMAGE` (default: Debian or Ubuntu with a Python that fits)")
	f.BoolVar(&o.Force, "force", false, "replace a recipe that is there already")
	return cmd
}

func (a *app) runInit(ctx context.Context, o engine.InitOptions) error {
	made, err := engine.Init(ctx, o, a.open)
	for _, n := range made.Notes {
		a.say("note: %s", n)
	}
	if err != nil {
		return err
	}
	if made.OnImage {
		a.say("it is based on an image of Docker Hub, as no mirror of Debian is known here: `mirrors` in %s names one", config.Own())
	}
	build := "sconce build " + quote.Word(quote.Operand(o.Dir))
	for _, path := range made.Outside {
		build += " --allow-path " + quote.Word(path)
	}
	a.say("wrote %s; `%s` builds it", made.Path, build)
	return nil
}
