package cli

import (
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/cotainr"
	"sconce.dev/sconce/internal/ui"
)

// cotainrName is the subcommand that is another program's command line, and what a link to sconce is called that is only this.
const cotainrName = "cotainr"

// arguments are those of this process: a link called cotainr stands for `sconce cotainr`.
func arguments(command []string) []string {
	if filepath.Base(command[0]) == cotainrName {
		return append([]string{cotainrName}, command[1:]...)
	}
	return command[1:]
}

func newCotainrCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   cotainrName + " {build,info} ...",
		Short: "Take the command lines of cotainr",
		Long: `Take the command lines of cotainr, which builds a container from a base image and Conda environments: the same options,
questions, exit codes and last lines, and a .sif file in the end. A link to sconce that is called cotainr does the same.

Nothing is unpacked or kept in a temporary directory, what was made before is taken from the store, and neither Python nor
Apptainer is needed. The image is also in the store, as cotainr/NAME. "sconce cotainr build --help" lists the options.

Environment:
  SCONCE_COTAINR_SYSTEMS   the file of the systems (default: systems.json above the directory of the program)`,
		Example: examples(
			"sconce cotainr build app.sif --base-image docker://ubuntu:24.04",
			"sconce cotainr build app.sif --system lumi-g -v",
			"sconce cotainr info",
		),
		DisableFlagParsing:    true,
		DisableFlagsInUseLine: true,
		Args:                  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := &cotainr.App{
				Stdin: a.stdin, Stdout: a.out, Stderr: dataWriter{a.stderr, a.view}, Color: ui.WantColor(a.stderr),
				Command: os.Args, Version: currentVersion().Version, Open: a.open, Now: time.Now,
			}
			if a.view.Mode() == ui.TTY {
				c.Live = a.view
			}
			if code := c.Run(cmd.Context(), args); code != 0 {
				return exitStatus(code)
			}
			return nil
		},
	}
}
