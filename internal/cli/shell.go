package cli

import (
	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
)

// bestShell starts bash where the image has it, else its sh.
var bestShell = []string{"/bin/sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; fi; exec sh"}

func newShellCmd(a *app) *cobra.Command {
	o := runFlags{RunOptions: engine.RunOptions{Command: bestShell}}
	cmd := &cobra.Command{
		Use: "shell [FLAGS] IMAGE",

		DisableFlagsInUseLine: true,
		Short:                 "Look around in an image with a shell",
		Long: "Start a shell in an image: bash where it has one, else sh. What is changed there is gone when the shell ends.\n" +
			"See `sconce run --help` for what the shell sees.\n\n" + anyImage,
		Example: examples(
			"sconce shell llm-train:25.11",
			"sconce shell -B $PWD:/work -w /work docker://debian:bookworm-slim",
		),
		Args:              wants("IMAGE"),
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Image = args[0]
			return a.runRun(cmd.Context(), o)
		},
	}
	addRunFlags(cmd, &o)
	addPlatformFlag(cmd, &o.platform)
	return cmd
}
