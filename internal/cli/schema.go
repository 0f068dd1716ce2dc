package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/recipe"
)

func newSchemaCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "schema [recipe | pipeline]",
		Short: "Print the JSON Schema of recipes",
		Long: `Print the JSON Schema of ` + recipe.FileName + `, or of ` + recipe.PipelineFile + `. Editors that
know the schema complete and check recipes while they are written; a recipe names it in its first line.`,
		Example:   examples("sconce schema > "+recipe.SchemaFile, "sconce schema pipeline > "+recipe.PipelineSchemaFile),
		ValidArgs: []string{"recipe", "pipeline"},
		Args:      wants("[WHAT]"),
		RunE: func(_ *cobra.Command, args []string) error {
			write := recipe.Schema
			switch {
			case len(args) == 0 || args[0] == "recipe":
			case args[0] == "pipeline":
				write = recipe.PipelineSchema
			default:
				return fault.Usage(fmt.Errorf("there is no schema of %q: recipe or pipeline", args[0]))
			}
			schema, err := write()
			if err != nil {
				return err
			}
			_, err = a.out.Write(schema)
			return err
		},
	}
}
