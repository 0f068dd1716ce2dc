package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/venv"
)

// venvHookOptions are the options of `sconce venv hook`.
type venvHookOptions struct {
	show, remove, force bool
}

func newVenvHookCmd(a *app) *cobra.Command {
	var o venvHookOptions
	cmd := &cobra.Command{
		Use:   "hook",
		Short: "Have pyxis and enroot mount packed environments",
		Long: `Install a hook of your own for enroot, which pyxis (srun --container-image) runs too: it mounts the packed
environment that the variable ` + venv.HookVariable + ` names, FILE.sqsh[:DIR], in every container that is started with the
variable set, and makes it the active one. Without the variable it does nothing.

No administrator is needed. The nodes have to see your home, or ENROOT_CONFIG_PATH, and need squashfuse and an
open /dev/fuse. squashfuse ends with the container.

With sqsh-mount = "hook" under [container] of a cluster's profile, venv = "FILE.sqsh" of a job works under pyxis.`,
		Example: examples(
			"sconce venv hook",
			venv.HookVariable+"=$SCRATCH/exp.sqsh srun --container-image=llm-train.sqsh python train.py",
			"sconce venv hook --print",
			"sconce venv hook --remove",
		),
		Args: wants(),
		RunE: func(*cobra.Command, []string) error { return a.runVenvHook(o) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.show, "print", false, "print the hook, and install nothing")
	f.BoolVar(&o.remove, "remove", false, "remove the hook")
	f.BoolVar(&o.force, "force", false, "replace or remove a hook that was edited")
	cmd.MarkFlagsMutuallyExclusive("print", "remove")
	return cmd
}

func (a *app) runVenvHook(o venvHookOptions) error {
	switch {
	case o.show:
		_, err := fmt.Fprint(a.out, engine.VenvHook())
		return err
	case o.remove:
		return a.removeVenvHook(o.force)
	}
	file, written, err := engine.InstallVenvHook(o.force)
	if err == nil {
		a.sayUnlessThere(file, written)
	}
	return err
}

func (a *app) removeVenvHook(force bool) error {
	file, removed, err := engine.RemoveVenvHook(force)
	switch {
	case err != nil:
		return err
	case removed:
		a.say("removed %s", file)
	default:
		a.say("there is no hook in %s", file)
	}
	return nil
}
