package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/ui"
)

// runFlags are the flags of `sconce run` and `sconce shell`.
type runFlags struct {
	engine.RunOptions
	platform string
}

const runLong = `Run a command in an image, without root rights: a user namespace of your own is enough.

The command sees the image's files and environment, and runs as root there, which is you outside: files it writes into a
bound directory are yours. With --user=self it runs under your own name. Everything else that it writes is gone when it ends.
Without a command, the image's own entrypoint and command run. sconce ends with the command's exit code, 128+N when signal N
ended it.

An image that was built here starts at once: files of layers that are not unpacked are read from them, and these are
unpacked behind the running command for the next one; --unpack says otherwise. Layers that were made elsewhere, as those of
most bases, are unpacked first, once for all images that have them. A .sqsh or .sif file is not unpacked: its files are
read from where they are. Both take /dev/fuse; where that is not open, layers are unpacked first.

With --gpu it gets this machine's GPUs, with --gpu=0,1 those: their devices and the driver's libraries, as a specification of
the Container Device Interface (CDI) in /etc/cdi says, or else as they are found. The image needs nothing of the driver.

Of your environment the command gets TERM, and what --env names. The network, and the names it resolves, are the host's.

The tasks of a job step (srun, mpiexec, flux run) see each other: those of a machine stand on one root file system and share
/dev/shm, processes and IPC with the host, and get the job's variables: SLURM_*, PMI*, MASTER_*, RANK, NCCL_* and the like.
They run under your own name and number, as PMIx and MPI want it, unless --user=root says otherwise.
--in-job says whether to do so, where no launcher's variables tell. With --cluster, they also get what that cluster's
profile names: the mounts of [container], and the variables of [env] unless they are set here. A NAME is a profile of yours,
of the site or of sconce's own; one that lies in a repository counts when its file is named, as ./clusters/NAME.toml.

A NAME alone runs an image of the store, never one of a registry: docker://NAME, USER/NAME and HOST/NAME do.

`

func newRunCmd(a *app) *cobra.Command {
	o := runFlags{}
	cmd := &cobra.Command{
		Use: "run [FLAGS] IMAGE [--] [COMMAND [ARGUMENT]...]",

		DisableFlagsInUseLine: true,
		Short:                 "Run a command in an image",
		Long:                  runLong + anyImage,
		Example: examples(
			"sconce run llm-train:25.11 -- python -c 'import torch; print(torch.__version__)'",
			"sconce run -B $PWD:/work -w /work llm-train python train.py",
			"sconce run -B /data:/data:ro -e WANDB_API_KEY -e EPOCHS=3 llm-train python train.py",
			"sconce run --gpu llm-train -- python -c 'import torch; print(torch.cuda.get_device_name())'",
			"sconce run --gpu=0,1 llm-train torchrun --nproc-per-node 2 train.py",
			"sconce run llm-train.sqsh -- python -c 'import torch'",
			"srun --ntasks-per-node=4 sconce run --gpu llm-train.sqsh -- python train.py",
			"srun sconce run --cluster mycluster --gpu llm-train.sqsh -- python train.py",
			"sconce run --venv exp.sqsh llm-train.sqsh -- python train.py",
		),
		Args:              atLeastImage,
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Image, o.Command = args[0], args[1:]
			if err := foreignMount(a.flags.verbose, o.Image); err != nil {
				return err
			}
			if len(o.Command) > 0 && o.Command[0] == "--" {
				o.Command = o.Command[1:]
			}
			return a.runRun(cmd.Context(), o)
		},
	}
	cmd.Flags().SetInterspersed(false) // what comes after IMAGE belongs to the command
	addRunFlags(cmd, &o)
	cmd.Flags().BoolVar(&o.Entrypoint, "entrypoint", false, "put the image's entrypoint before COMMAND")
	addPlatformFlag(cmd, &o.platform)
	return cmd
}

func addRunFlags(cmd *cobra.Command, o *runFlags) {
	f := cmd.Flags()
	f.StringArrayVarP(&o.Binds, "bind", "B", nil, "make a file or directory of the host visible, as `SRC[:DST[:ro]]`")
	f.StringArrayVarP(&o.Env, "env", "e", nil, "set an environment variable, `KEY[=VALUE]`; without a value it is passed on")
	f.StringArrayVar(&o.EnvFiles, "env-file", nil, "read environment variables from `FILE`, one KEY[=VALUE] a line")
	f.StringVarP(&o.Workdir, "workdir", "w", "", "run in this `DIR` of the image (default: the image's)")
	f.StringVarP(&o.User, "user", "u", engine.UserAuto, "run as `WHO`: root, self (you), or auto: you in a job step, else root")
	f.StringVar(&o.Hostname, "hostname", "", "`NAME` of the host, as the command sees it (default: this host's)")
	f.BoolVar(&o.ReadOnly, "read-only", false, "let the command write nowhere but to /tmp, in memory, and to what is bound")
	f.StringVar(&o.GPU, "gpu", "", "make these `GPUS` usable: all, numbers as nvidia-smi has them, or a CDI device's name")
	f.Lookup("gpu").NoOptDefVal = engine.AllGPUs
	f.StringVar(&o.Cluster, "cluster", "", "mount, and set, what the profile of a `CLUSTER` says (see sconce clusters)")
	f.StringVar(&o.Venv, "venv", "", "run in an environment on top of the image: `FILE.sqsh[:DIR]`, or the directory of one (see sconce venv)")
	f.BoolVar(&o.AnyBase, "any-base", false, "use the environment although it was made for another image")
	f.StringVar(&o.InJob, "in-job", "auto", "share the machine with the other tasks of a job step, `WHEN`: auto, yes, no")
	f.StringVar(&o.Unpack, "unpack", "", "unpack the image's layers `WHEN`: behind the running command (the default), first, never")
	complete(cmd, "unpack", config.UnpackModes...)
	f.BoolVar(&o.NoNetwork, "no-network", false, "give the command no network but its own loopback")
	complete(cmd, "in-job", engine.InJobModes...)
	complete(cmd, "user", engine.UserAuto, engine.UserSelf, engine.UserRoot)
	addSilentFlags(f)
}

func atLeastImage(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return nil
	}
	return fault.Usage(fault.Hint(fmt.Errorf("%s: IMAGE is missing", cmd.CommandPath()), "usage: "+cmd.UseLine()))
}

func (a *app) runRun(ctx context.Context, o runFlags) error {
	if err := checkGPUFlag(o.RunOptions); err != nil {
		return err
	}
	var err error
	if o.Platform, err = parsePlatform(o.platform); err != nil {
		return err
	}
	dir, err := a.settings().Dir()
	if err != nil {
		return err
	}
	o.Unpack = cmp.Or(o.Unpack, a.config.Unpack)
	warnings := ui.New(a.stderr, ui.Options{Mode: ui.Quiet, Color: ui.WantColor(a.stderr)})
	defer warnings.Close()
	code, err := engine.Run(ctx, o.RunOptions, engine.Caller{
		Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr, Warnings: warnings,
		Leave: a.closeView, Release: a.signals.release, Keep: engine.AllowMemory,
		Open: a.open, Store: dir, Same: []any{currentVersion(), a.flags.offline},
		Unpack: func(dir string, image store.Digest) []string {
			return []string{"--store", dir, "unpack", string(image)}
		},
	})
	if err == nil && code != 0 {
		return exitStatus(code)
	}
	return foreignEntrypoint(o.RunOptions, err)
}

// gpuRequest is what may stand behind --gpu= and is no name of an image.
var gpuRequest = lazyregexp.New(`^(all|\d{1,2}(,\d{1,2})*|[\w.-]+/[\w.-]+=[^/]+)$`)

// checkGPUFlag finds "--gpu 0 IMAGE". The flag's value is optional, so that it needs a "=", and 0 is taken for the image.
func checkGPUFlag(o engine.RunOptions) error {
	if o.GPU != engine.AllGPUs || !gpuRequest.MatchString(o.Image) {
		return nil
	}
	return fault.Usage(fault.Hint(fmt.Errorf("%q is no image, and --gpu takes its value with a =", o.Image), "write --gpu="+o.Image))
}
