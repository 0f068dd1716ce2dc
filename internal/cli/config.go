package cli

import (
	"os"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/engine"
)

// configure reads what site and user decide for every command. What a flag or the environment says goes before it.
func (a *app) configure(cmd *cobra.Command) error {
	var err error
	if a.config, err = config.Load(); err != nil {
		return err
	}
	if a.flags.patience == "" {
		a.flags.patience = a.config.Patience
	}
	if a.config.Progress != "" && os.Getenv("SCONCE_PROGRESS") == "" && !cmd.Flags().Changed("progress") {
		a.flags.progress = a.config.Progress
	}
	engine.AllowPaths(a.flags.allowPaths, a.config)
	configureFiles(cmd, a.config.Files)
	return nil
}

// settings are what counts for every command, beside what flags of single ones say.
func (a *app) settings() engine.Settings {
	return engine.Settings{Config: a.config, Store: a.flags.store}
}
