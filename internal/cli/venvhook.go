package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/job"
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
	text := job.Seal(venv.Hook)
	if o.show {
		_, err := fmt.Fprint(a.out, text)
		return err
	}
	file, err := venv.HookFile()
	if err != nil {
		return err
	}
	if o.remove {
		return a.removeVenvHook(file, o.force)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := a.writeSealed(jobOptions{output: file, force: o.force}, text); err != nil {
		return err
	}
	return os.Chmod(file, 0o755) // enroot leaves out what cannot be executed
}

func (a *app) removeVenvHook(file string, force bool) error {
	old, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		a.say("there is no hook in %s", file)
		return nil
	case err != nil:
		return err
	case !job.Untouched(string(old)) && !force:
		return fault.Hint(fmt.Errorf("%s was edited, or not written by sconce: it is left as it is", file), "--force removes it")
	}
	if err := os.Remove(file); err != nil {
		return err
	}
	a.say("removed %s", file)
	return nil
}
