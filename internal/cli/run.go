package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/device"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/searchpath"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/users"
)

// runOptions are the options of `sconce run` and `sconce shell`.
type runOptions struct {
	image      string
	platform   string
	command    []string
	entrypoint bool
	binds      []string
	env        []string
	envFiles   []string
	workdir    string
	hostname   string
	user       string
	readOnly   bool
	noNetwork  bool
	gpu        string
	inJob      string
	cluster    string
	venv       string // FILE[:DIR]
	anyBase    bool
	unpack     string // one of config.UnpackModes; "": the configuration says

	self *users.Account // who the command runs as, nil for root
}

const runLong = `Run a command in an image, without root rights: a user namespace of your own is enough.

The command sees the image's files and environment, and runs as root there, which is you outside: files it writes into a
bound directory are yours. With --user=self it runs under your own name. Everything else that it writes is gone when it ends.
Without a command, the image's own entrypoint and command run. sconce ends with the command's exit code, 128+N when signal N
ended it.

An image that was built here starts at once: its files are read from its layers, which are unpacked behind the running
command for the next one; --unpack says otherwise. A .sqsh or .sif file is not unpacked: its files are read from where they
are. Both take /dev/fuse; where that is not open, layers are unpacked first.

With --gpu it gets this machine's GPUs, with --gpu=0,1 those: their devices and the driver's libraries, as a specification of
the Container Device Interface (CDI) in /etc/cdi says, or else as they are found. The image needs nothing of the driver.

Of your environment the command gets TERM, and what --env names. The network, and the names it resolves, are the host's.

The tasks of a job step (srun, mpiexec, flux run) see each other: those of a machine stand on one root file system and share
/dev/shm, processes and IPC with the host, and get the job's variables: SLURM_*, PMI*, MASTER_*, RANK, NCCL_* and the like.
They run under your own name and number, as PMIx and MPI want it, unless --user=root says otherwise.
--in-job says whether to do so, where no launcher's variables tell. With --cluster, they also get what that cluster's
profile names: the mounts of [container], and the variables of [env] unless they are set here.

`

func newRunCmd(a *app) *cobra.Command {
	var o runOptions
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
			o.image, o.command = args[0], args[1:]
			if err := foreignMount(a.flags.verbose, o.image); err != nil {
				return err
			}
			if len(o.command) > 0 && o.command[0] == "--" {
				o.command = o.command[1:]
			}
			return a.runRun(cmd.Context(), o)
		},
	}
	cmd.Flags().SetInterspersed(false) // what comes after IMAGE belongs to the command
	addRunFlags(cmd, &o)
	cmd.Flags().BoolVar(&o.entrypoint, "entrypoint", false, "put the image's entrypoint before COMMAND")
	addPlatformFlag(cmd, &o.platform)
	return cmd
}

func addRunFlags(cmd *cobra.Command, o *runOptions) {
	f := cmd.Flags()
	f.StringArrayVarP(&o.binds, "bind", "B", nil, "make a file or directory of the host visible, as `SRC[:DST[:ro]]`")
	f.StringArrayVarP(&o.env, "env", "e", nil, "set an environment variable, `KEY[=VALUE]`; without a value it is passed on")
	f.StringArrayVar(&o.envFiles, "env-file", nil, "read environment variables from `FILE`, one KEY[=VALUE] a line")
	f.StringVarP(&o.workdir, "workdir", "w", "", "run in this `DIR` of the image (default: the image's)")
	f.StringVarP(&o.user, "user", "u", userAuto, "run as `WHO`: root, self (you), or auto: you in a job step, else root")
	f.StringVar(&o.hostname, "hostname", "", "`NAME` of the host, as the command sees it (default: this host's)")
	f.BoolVar(&o.readOnly, "read-only", false, "let the command write nowhere but to /tmp, in memory, and to what is bound")
	f.StringVar(&o.gpu, "gpu", "", "make these `GPUS` usable: all, numbers as nvidia-smi has them, or a CDI device's name")
	f.Lookup("gpu").NoOptDefVal = device.All
	f.StringVar(&o.cluster, "cluster", "", "mount, and set, what the profile of a `CLUSTER` says (see sconce clusters)")
	f.StringVar(&o.venv, "venv", "", "run in an environment on top of the image: `FILE.sqsh[:DIR]`, or the directory of one (see sconce venv)")
	f.BoolVar(&o.anyBase, "any-base", false, "use the environment although it was made for another image")
	f.StringVar(&o.inJob, "in-job", "auto", "share the machine with the other tasks of a job step: auto, yes, no")
	f.StringVar(&o.unpack, "unpack", "", "unpack the image's layers `WHEN`: behind the running command (the default), first, never")
	complete(cmd, "unpack", config.UnpackModes...)
	f.BoolVar(&o.noNetwork, "no-network", false, "give the command no network but its own loopback")
	complete(cmd, "in-job", "auto", "yes", "no")
	complete(cmd, "user", userAuto, userSelf, userRoot)
	addSilentFlags(f)
}

func atLeastImage(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return nil
	}
	return fault.Usage(fault.Hint(fmt.Errorf("%s: IMAGE is missing", cmd.CommandPath()), "usage: "+cmd.UseLine()))
}

func (a *app) runRun(ctx context.Context, o runOptions) error {
	if err := checkGPUFlag(o); err != nil {
		return err
	}
	if err := a.chooseUnpack(&o); err != nil {
		return err
	}
	env, err := givenEnv(o.envFiles, o.env)
	if err != nil {
		return fault.Usage(err)
	}
	binds, err := parseBinds(o.binds)
	if err != nil {
		return fault.Usage(err)
	}
	if o.cluster != "" {
		if env, binds, err = ofCluster(o.cluster, env, binds); err != nil {
			return err
		}
	}
	step, together, err := o.step()
	if err != nil {
		return fault.Usage(err)
	}
	if o.self, err = o.runsAs(together); err != nil {
		return err
	}
	switch {
	case os.Getenv(keeperVariable) != "":
		return a.keepStep(ctx, o, binds)
	case together:
		return a.runInStep(ctx, step, o, binds, env)
	}
	return a.withRoot(ctx, o, func(s *engine.Session, root *engine.Root) error {
		return a.runRoot(ctx, s, root, o, binds, env)
	})
}

// withRoot opens an image and calls use with its root file system: a squashfs or SIF file as it is, when that can be.
func (a *app) withRoot(ctx context.Context, o runOptions, use func(*engine.Session, *engine.Root) error) error {
	s, image, err := a.openImage(ctx, o.image, o.platform)
	if err != nil {
		return err
	}
	defer image.Close()
	if o.venv != "" {
		v, err := a.openRunVenv(ctx, s, image, o)
		if err != nil {
			return err
		}
		defer v.Close()
		use = withVenv(ctx, v, o, use)
	}
	if image.IsClusterFile() {
		err := fuse.Check() // here already, while what is done instead can be shown
		if err == nil {
			err = useInPlace(s, image, use)
			if !errors.Is(err, sandbox.ErrNoFUSE) {
				return err
			}
		}
		progress.Warn(ctx, fmt.Sprintf("%s is unpacked first: %v", o.image, err), "ask for /dev/fuse to be opened to users")
	}
	im, err := image.ImportToRun(ctx, o.canRun)
	if err != nil {
		return err
	}
	if o.unpack != config.UnpackFirst {
		done, err := a.useLayers(ctx, s, im, o, use)
		if done || err != nil {
			return err
		}
	}
	root, err := s.Root(ctx, im)
	if err != nil {
		return err
	}
	return use(s, root)
}

// useInPlace calls use with the root of a squashfs or SIF file as it is.
func useInPlace(s *engine.Session, image *engine.Subject, use func(*engine.Session, *engine.Root) error) error {
	root, err := image.RootInPlace()
	if err != nil {
		return err
	}
	return use(s, root)
}

// runRoot runs a command in a root file system.
func (a *app) runRoot(ctx context.Context, s *engine.Session, root *engine.Root, o runOptions, binds []sandbox.Bind, env []string) error {
	run, gpus, err := sandboxOf(ctx, root, o, binds)
	if err != nil {
		return err
	}
	config := root.Config.Config
	run.Args, run.Env = commandLine(config, o), gpus.environment(environment(o.self, config.Env, env))
	run.Stdin, run.Stdout, run.Stderr, run.ForwardSignals = a.stdin, a.stdout, a.stderr, true
	return a.runSandbox(ctx, s.Store, run)
}

// sandboxOf makes of a root file system and the flags what a sandbox is made of, without the command.
func sandboxOf(ctx context.Context, root *engine.Root, o runOptions, binds []sandbox.Bind) (sandbox.Options, *gpus, error) {
	if p := root.Config.Platform(); p != nil {
		if err := o.canRun(*p); err != nil {
			return sandbox.Options{}, nil, err
		}
	}
	config := root.Config.Config
	run := sandbox.Options{
		Layers: root.Layers, Tree: root.Tree, Mounts: root.Mounts, Binds: binds, Hostname: o.hostname, ReadOnly: o.readOnly, NoNetwork: o.noNetwork,
		WorkDir: config.WorkingDir, Self: o.self,
	}
	if o.workdir != "" {
		run.WorkDir = o.workdir
	}
	if o.readOnly {
		run.Tmpfs = []string{"/tmp"}
	}
	if o.gpu == "" {
		return run, nil, nil
	}
	gpus, err := addGPUs(ctx, &run, config, o.gpu)
	return run, gpus, err
}

// runSandbox hands the terminal and the signals over to a command in a sandbox.
func (a *app) runSandbox(ctx context.Context, st *store.Store, o sandbox.Options) error {
	if !o.ReadOnly && !st.ReadOnly() {
		scratch, err := st.TempDir("run-*")
		if err != nil {
			return err
		}
		defer store.RemoveAll(scratch)
		o.ScratchDir = scratch
	}
	a.closeView() // the terminal is the command's now; only warnings may still come
	warnings := ui.New(a.stderr, ui.Options{Mode: ui.Quiet, Color: ui.WantColor(a.stderr)})
	defer warnings.Close()
	a.signals.release()
	code, err := sandbox.Run(progress.With(ctx, warnings), o)
	if err != nil {
		return err
	}
	if code != 0 {
		warnOfInstaller(progress.With(ctx, warnings), o.Args)
		return exitStatus(code)
	}
	return nil
}

// installers are the programs that put packages into a distribution, and the words by which they do.
var installers = map[string]string{"apt-get": "install", "apt": "install", "dnf": "install", "yum": "install", "microdnf": "install", "zypper": "install", "apk": "add"}

// warnOfInstaller says where packages belong when a command that installs some has failed.
func warnOfInstaller(ctx context.Context, args []string) {
	if len(args) == 0 {
		return
	}
	name := path.Base(args[0])
	if word := installers[name]; word != "" && slices.Contains(args, word) {
		progress.Warn(ctx, name+" installs nothing in an image that runs: no root is emulated here, and what is written is gone when the command ends",
			"name the packages in the recipe, under [system] packages, or in a RUN of a Containerfile, and build")
	}
}

// commandLine returns what runs: the command given, after the entrypoint if that was asked for; else what the image says.
func commandLine(c v1.Config, o runOptions) []string {
	switch {
	case len(o.command) == 0:
		return append(append([]string{}, c.Entrypoint...), c.Cmd...)
	case o.entrypoint:
		return append(append([]string{}, c.Entrypoint...), o.command...)
	case c.Labels[image.LabelStart] != "":
		return append([]string{c.Labels[image.LabelStart]}, o.command...)
	default:
		return o.command
	}
}

// canRun says no when this machine's processor cannot run an image's programs.
func (o runOptions) canRun(p v1.Platform) error {
	if p.Architecture == "" || p.Architecture == runtime.GOARCH || emulated(p.Architecture) {
		return nil
	}
	return fault.Hint(
		fmt.Errorf("run %s: the image is for %s, and this machine is linux/%s", o.image, p.String(), runtime.GOARCH),
		"run it on a machine of that kind; images can be built, inspected and copied on any")
}

// interpreters are the names under which QEMU's emulators register with the kernel (binfmt_misc).
var interpreters = map[string]string{"amd64": "qemu-x86_64", "arm64": "qemu-aarch64"}

// emulated reports whether the kernel runs programs of arch through an emulator that it has open already, which the flag F
// says: the emulator's file is not in the image.
func emulated(arch string) bool {
	b, err := os.ReadFile("/proc/sys/fs/binfmt_misc/" + interpreters[arch])
	if err != nil || !strings.HasPrefix(string(b), "enabled\n") {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if flags, ok := strings.CutPrefix(line, "flags:"); ok {
			return strings.Contains(flags, "F")
		}
	}
	return false
}

// environment puts the command's environment together: the image's, below it what programs cannot do without, above it
// what the user gave. Later values win. self is who runs it, nil for root.
func environment(self *users.Account, image, given []string) []string {
	env := []string{"PATH=" + searchpath.Default, "HOME=/root"}
	if self != nil {
		env = append(env[:1], "HOME="+self.Home, "USER="+self.Name, "LOGNAME="+self.Name)
	}
	if t := os.Getenv("TERM"); t != "" && term.IsTerminal(int(os.Stdin.Fd())) {
		env = append(env, "TERM="+t)
	}
	return merged(env, image, given)
}

// merged makes one environment of several. Later values win.
func merged(lists ...[]string) []string {
	at := map[string]int{}
	var out []string
	for _, list := range lists {
		for _, kv := range list {
			key, _, _ := strings.Cut(kv, "=")
			if i, ok := at[key]; ok {
				out[i] = kv
				continue
			}
			at[key] = len(out)
			out = append(out, kv)
		}
	}
	return out
}

// givenEnv reads what --env-file and --env say; the flags come last, so they win.
func givenEnv(files, flags []string) ([]string, error) {
	var env []string
	for _, name := range files {
		lines, err := readEnvFile(name)
		if err != nil {
			return nil, err
		}
		env = append(env, lines...)
	}
	for _, kv := range flags {
		kv, err := withValue(kv)
		if err != nil {
			return nil, fmt.Errorf("--env %w", err)
		}
		if kv != "" {
			env = append(env, kv)
		}
	}
	return env, nil
}

// readEnvFile reads lines of KEY=VALUE or KEY, as Docker does: a line that starts with # is a comment, quotes have no
// meaning.
func readEnvFile(name string) ([]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("--env-file: %w", err)
	}
	defer f.Close()
	var env []string
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		kv, err := withValue(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		if kv != "" {
			env = append(env, kv)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return env, nil
}

// withValue gives a variable that was named without a value the one it has here; "" when it has none.
func withValue(kv string) (string, error) {
	key, _, given := strings.Cut(kv, "=")
	if key == "" || strings.ContainsAny(key, " \t\x00") {
		return "", fmt.Errorf("%q: write KEY=VALUE, or KEY to pass on the value it has here", kv)
	}
	if given {
		return kv, nil
	}
	if v, ok := os.LookupEnv(key); ok {
		return key + "=" + v, nil
	}
	return "", nil
}

func parseBinds(specs []string) ([]sandbox.Bind, error) {
	binds := make([]sandbox.Bind, len(specs))
	for i, s := range specs {
		b, err := parseBind(s)
		if err != nil {
			return nil, fmt.Errorf("--bind %s: %w", s, err)
		}
		binds[i] = b
	}
	return binds, nil
}

// parseBind reads SRC[:DST[:ro]]. SRC may be relative; without DST the path in the image is that of SRC.
func parseBind(s string) (sandbox.Bind, error) {
	parts := strings.Split(s, ":")
	source, err := filepath.Abs(parts[0])
	if err != nil {
		return sandbox.Bind{}, err
	}
	b := sandbox.Bind{Source: source, Target: source}
	switch {
	case parts[0] == "" || len(parts) > 3:
		return b, errors.New("write SRC, SRC:DST or SRC:DST:ro")
	case len(parts) == 3 && parts[2] != "ro" && parts[2] != "rw":
		return b, fmt.Errorf("%q is neither ro nor rw", parts[2])
	}
	if len(parts) > 1 && parts[1] != "" {
		b.Target = parts[1]
	}
	if !filepath.IsAbs(b.Target) {
		return b, fmt.Errorf("%s, the path in the image, must be absolute", b.Target)
	}
	b.ReadOnly = len(parts) == 3 && parts[2] == "ro"
	_, err = os.Stat(source)
	return b, err
}
