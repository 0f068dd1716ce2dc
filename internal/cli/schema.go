package cli

import (
	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/recipe"
)

func newSchemaCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of recipes",
		Long: `Print the JSON Schema of ` + recipe.FileName + `. Editors that know the schema complete and check recipes while they are written;
a recipe names it in its first line.`,
		Example: examples("sconce schema > " + recipe.SchemaFile),
		Args:    wants(),
		RunE: func(*cobra.Command, []string) error {
			schema, err := recipe.Schema()
			if err != nil {
				return err
			}
			_, err = a.out.Write(schema)
			return err
		},
	}
}
