package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/recipe"
)

func newSchemaCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "schema [recipe | pipeline | cluster | config]",
		Short: "Print the JSON Schema of a file that people write",
		Long: `Print the JSON Schema of ` + recipe.FileName + `, of ` + recipe.PipelineFile + `, of a cluster's profile, or of
config.toml. Editors that know the schema complete and check such a file while it is written; a file names
it in its first line.`,
		Example: examples("sconce schema > "+recipe.SchemaFile, "sconce schema pipeline > "+recipe.PipelineSchemaFile,
			"sconce schema cluster > "+recipe.ProfileSchemaFile, "sconce schema config > "+config.SchemaFile),
		ValidArgs: []string{"recipe", "pipeline", "cluster", "config"},
		Args:      wants("[WHAT]"),
		RunE: func(_ *cobra.Command, args []string) error {
			write := recipe.Schema
			switch {
			case len(args) == 0 || args[0] == "recipe":
			case args[0] == "pipeline":
				write = recipe.PipelineSchema
			case args[0] == "cluster":
				write = recipe.ProfileSchema
			case args[0] == "config":
				write = config.Schema
			default:
				return fault.Usage(fmt.Errorf("there is no schema of %q: recipe, pipeline, cluster or config", args[0]))
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
