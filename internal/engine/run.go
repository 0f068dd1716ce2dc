package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/device"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/users"
)

// AllGPUs asks for every GPU of this machine, see [RunOptions].
const AllGPUs = device.All

// RunOptions say what runs in an image, and what it gets of this machine.
type RunOptions struct {
	Image      string // as somebody names it, see [Session.Open]
	Platform   v1.Platform
	Command    []string // nil: the image's own entrypoint and command
	Entrypoint bool     // put the image's entrypoint before Command

	Binds    []string // SRC[:DST[:ro]]
	Env      []string // KEY=VALUE, or KEY for the value it has here
	EnvFiles []string // files of such lines
	Workdir  string
	Hostname string
	User     string // UserAuto, UserSelf, UserRoot, or the caller by name or number

	ReadOnly  bool // let the command write nowhere but to /tmp and what is bound
	NoNetwork bool
	GPU       string // AllGPUs, numbers or the name of a device, see [device.Host.Find]
	InJob     string // one of InJobModes: whether it runs as a task of a job step
	Cluster   string // whose profile names mounts and variables
	Venv      string // FILE[:DIR], an environment on top of the image
	AnyBase   bool   // although it was made for another image
	Unpack    string // one of config.UnpackModes; "": behind the command
}

// Caller is the program that runs a command in an image, as far as that has to know it.
type Caller struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Warnings       progress.Sink // for what is still to be said once the command has the terminal

	Leave   func()           // leaves the terminal to the command
	Release func()           // leaves signals to the command
	Keep    func(size int64) // is told how many bytes are kept in memory while the command runs

	Open   Opener // the session; a task for which another process holds the image needs none
	Store  string // the directory of its store
	Same   any    // of the caller, what tasks that share a root file system have in common besides the options
	Unpack func(store string, image store.Digest) []string
}

// running is a command on its way.
type running struct {
	RunOptions
	caller Caller

	env   []string       // what was given
	binds []sandbox.Bind // likewise
	self  *users.Account // who the command runs as, nil for root
}

// Run runs a command in an image, and returns its exit code: 128+N when signal N ended it.
func Run(ctx context.Context, o RunOptions, c Caller) (code int, err error) {
	r := &running{RunOptions: o, caller: c}
	if err := r.chooseUnpack(); err != nil {
		return 0, err
	}
	if r.env, err = givenEnv(o.EnvFiles, o.Env); err != nil {
		return 0, fault.Usage(err)
	}
	if r.binds, err = parseBinds(o.Binds); err != nil {
		return 0, fault.Usage(err)
	}
	if o.Cluster != "" {
		if r.env, r.binds, err = ofCluster(ctx, o.Cluster, r.env, r.binds); err != nil {
			return 0, err
		}
	}
	step, together, err := r.step()
	if err != nil {
		return 0, fault.Usage(err)
	}
	if r.self, err = runsAs(o.User, together); err != nil {
		return 0, err
	}
	switch {
	case os.Getenv(keeperVariable) != "":
		return 0, r.keepStep(ctx)
	case together:
		return r.inStep(ctx, step)
	}
	err = r.withRoot(ctx, func(s *Session, root *Root) error {
		code, err = r.inRoot(ctx, s, root)
		return err
	})
	return code, err
}

// withRoot opens the image and calls use with its root file system: a squashfs or SIF file as it is, when that can be.
func (r *running) withRoot(ctx context.Context, use func(*Session, *Root) error) error {
	s, err := r.caller.Open(ctx)
	if err != nil {
		return err
	}
	image, err := s.Open(r.Image, Wanted{Platform: r.Platform, ToRun: true})
	if err != nil {
		return err
	}
	defer image.Close()
	if r.Venv != "" {
		v, err := r.openVenv(ctx, s, image)
		if err != nil {
			return err
		}
		defer v.Close()
		use = r.withVenv(ctx, v, use)
	}
	if image.IsClusterFile() {
		err := fuse.Check() // here already, while what is done instead can be shown
		if err == nil {
			err = useInPlace(s, image, use)
			if !errors.Is(err, sandbox.ErrNoFUSE) {
				return err
			}
		}
		progress.Warn(ctx, fmt.Sprintf("%s is unpacked first: %v", r.Image, err), "ask for /dev/fuse to be opened to users")
	}
	im, err := image.ImportToRun(ctx, r.canRun)
	if err != nil {
		return err
	}
	if r.Unpack != config.UnpackFirst {
		done, err := r.useLayers(ctx, s, im, use)
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
func useInPlace(s *Session, image *Subject, use func(*Session, *Root) error) error {
	root, err := image.RootInPlace()
	if err != nil {
		return err
	}
	return use(s, root)
}

// inRoot runs the command in a root file system.
func (r *running) inRoot(ctx context.Context, s *Session, root *Root) (code int, err error) {
	run, gpus, err := r.sandboxOf(ctx, root, r.binds)
	if err != nil {
		return 0, err
	}
	config := root.Config.Config
	run.Args, run.Env = r.commandLine(config), gpus.environment(environment(r.self, config.Env, r.env))
	run.Stdin, run.Stdout, run.Stderr, run.ForwardSignals = r.caller.Stdin, r.caller.Stdout, r.caller.Stderr, true
	return r.runSandbox(ctx, s.Store, run)
}

// sandboxOf makes of a root file system and the options what a sandbox is made of, without the command.
func (r *running) sandboxOf(ctx context.Context, root *Root, binds []sandbox.Bind) (sandbox.Options, *gpus, error) {
	if p := root.Config.Platform(); p != nil {
		if err := r.canRun(*p); err != nil {
			return sandbox.Options{}, nil, err
		}
	}
	config := root.Config.Config
	run := sandbox.Options{
		Layers: root.Layers, Arch: root.Config.Architecture, Served: root.Served, Tree: root.Tree, Mounts: root.Mounts, Binds: binds, Hostname: r.Hostname, ReadOnly: r.ReadOnly, NoNetwork: r.NoNetwork,
		WorkDir: r.workdir(config), Self: r.self,
	}
	if r.ReadOnly {
		run.Tmpfs = []string{"/tmp"}
	}
	if r.GPU == "" {
		return run, nil, nil
	}
	gpus, err := addGPUs(ctx, &run, config, r.GPU)
	return run, gpus, err
}

// runSandbox leaves the terminal and the signals to a command in a sandbox.
func (r *running) runSandbox(ctx context.Context, st *store.Store, o sandbox.Options) (code int, err error) {
	if !o.ReadOnly && !st.ReadOnly() {
		scratch, err := st.TempDir("run-*")
		if err != nil {
			return 0, err
		}
		defer store.RemoveAll(scratch)
		o.ScratchDir = scratch
	}
	r.caller.Leave() // only warnings may still come
	ctx = progress.With(ctx, r.caller.Warnings)
	r.caller.Release()
	code, err = sandbox.Run(ctx, o)
	if err == nil && code != 0 {
		warnOfInstaller(ctx, o.Args)
	}
	return code, err
}

func (r *running) workdir(c v1.Config) string { return cmp.Or(r.Workdir, c.WorkingDir) }

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
func (r *running) commandLine(c v1.Config) []string {
	switch {
	case len(r.Command) == 0:
		return append(append([]string{}, c.Entrypoint...), c.Cmd...)
	case r.Entrypoint:
		return append(append([]string{}, c.Entrypoint...), r.Command...)
	case c.Labels[image.LabelStart] != "":
		return append([]string{c.Labels[image.LabelStart]}, r.Command...)
	default:
		return r.Command
	}
}

// canRun says no when this machine's processor cannot run an image's programs.
func (r *running) canRun(p v1.Platform) error {
	if err := sandbox.CheckArchitecture(p.Architecture); err != nil {
		return fault.Hint(fmt.Errorf("run %s: the image is for %s, and this machine is linux/%s", r.Image, p.String(), runtime.GOARCH),
			fault.HintOf(err)+"; images can be built, inspected and copied on any")
	}
	return nil
}
