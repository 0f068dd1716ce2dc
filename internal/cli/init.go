package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/recipe"
)

// initOptions are the options of `sconce init`.
type initOptions struct {
	dir   string
	force bool
}

func newInitCmd(a *app) *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init [DIR]",
		Short: "Write a commented recipe to start from",
		Long: `Write ` + recipe.FileName + ` into DIR, by default the current directory. The recipe works as it is, and its comments show
what else there is.

DIR is made if it does not exist, and its name becomes the image's. A recipe that is there already stays, unless --force
is given.`,
		Example: examples(
			"sconce init llm-train        write llm-train/sconce.toml",
			"sconce init --force          replace ./sconce.toml",
		),
		Args: wants("[DIR]"),
		RunE: func(_ *cobra.Command, args []string) error {
			o.dir = "."
			if len(args) > 0 {
				o.dir = args[0]
			}
			return a.runInit(o)
		},
	}
	cmd.Flags().BoolVar(&o.force, "force", false, "replace a recipe that is there already")
	return cmd
}

func (a *app) runInit(o initOptions) error {
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("start a recipe: %w", err)
	}
	path := filepath.Join(o.dir, recipe.FileName)
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if o.force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fault.Usage(fault.Hint(fmt.Errorf("%s exists already", path), "--force replaces it"))
	}
	if err != nil {
		return fmt.Errorf("start a recipe: %w", err)
	}
	_, err = f.Write(recipe.Starter(filepath.Base(dir)))
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	a.say("wrote %s; `sconce build %s` builds it", path, o.dir)
	return nil
}
