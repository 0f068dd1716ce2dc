package cli

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/build"
	"sconce.dev/sconce/internal/event"
	"sconce.dev/sconce/internal/export"
	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/slim"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/ui"
)

// buildOptions are the options of `sconce build`.
type buildOptions struct {
	recipe      string
	outputs     []string
	push        []string
	publish     bool
	locked      bool
	force       bool
	noCheck     bool
	json        bool
	compression string
	platform    string
	squashfs    squashfsOptions
	steps       stepOptions
	noCache     bool
	wheels      string
	began       time.Time

	// Of a Containerfile.
	file       string
	buildArgs  []string
	target     string
	tag        string
	ignoreFile string
}

func newBuildCmd(a *app) *cobra.Command {
	var o buildOptions
	cmd := &cobra.Command{
		Use:   "build [RECIPE | -f CONTAINERFILE [CONTEXT]]",
		Short: "Build the image of a recipe",
		Long: `Build the image that RECIPE (a sconce.toml or its directory, by default the current one) describes, and keep it in the
store under the recipe's name and version. The digest of the image is printed. With -f, or for a directory that has no
recipe, it is the image of a Containerfile, and the argument is the build context.

Only what is missing is made: what was built or downloaded before, for this image or another, is taken from the store. A
recipe without a lock, or with one that no longer fits, is locked first (see sconce lock); --locked refuses instead.

Steps run in a sandbox as a root that is none: an ordinary user can install packages and give files away, and nothing of
it reaches the machine. A step that fails shows its last lines and where the rest is; --shell-on-failure opens a shell
where it stood. What steps may see of this machine is given by name: --secret, --ssh.

When the recipe says what the image is for, under [target], the image is checked before it goes anywhere (see sconce
check). After an error it stays in the store, but nothing is written or pushed, and the exit code is 3. --no-check leaves
the check out, and a label of the image says so.

Where the image goes, besides the store:
  oci:DIR[:TAG]             an OCI layout, also when OUT has no prefix and does not end in .tar
  oci-archive:FILE[:TAG]    an OCI layout in a tar, also when OUT ends in .tar
  docker-archive:FILE[:TAG] what docker load and podman load read
  sqsh:FILE, sif:FILE       what enroot, pyxis and Apptainer run, also when OUT ends in .sqsh or .sif
  dir:DIR, tar:FILE         the root file system
Layouts and archives carry the image's name, by which podman and docker load them. What was written there before of an
image of this name is replaced; anything else only with --force.`,
		Example: examples(
			"sconce build                                          build ./sconce.toml",
			"sconce build demo -o demo.sqsh -o demo.sif            and write the files that clusters run",
			"sconce build --locked --push registry.example.org/me/demo:1   build exactly the lock, and push",
			"sconce build -f Containerfile . -t train:2            build a Containerfile",
			"sconce build demo --secret id=token,src=token.txt     give a secret to the steps that mount it",
		),
		Args: wants("[RECIPE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.recipe = recipeArgument(args)
			return a.runBuild(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.outputs, "output", "o", nil, "write the image to `OUT` as well (repeatable)")
	f.StringArrayVar(&o.push, "push", nil, "push the image to `REF` in a registry (repeatable)")
	f.BoolVar(&o.publish, "publish", false, "push the image to the recipe's publish.repository, tagged with its version")
	f.BoolVar(&o.locked, "locked", false, "refuse when the lock is missing or does not fit the recipe")
	f.StringVarP(&o.file, "file", "f", "", "build this Containerfile or Dockerfile, \"-\" for standard input; the argument is the context then")
	f.StringArrayVar(&o.buildArgs, "build-arg", nil, "`NAME[=VALUE]` of an ARG; without a value, this environment's (repeatable)")
	f.StringVar(&o.target, "target", "", "build this `STAGE` of the Containerfile (default: the last)")
	f.StringVarP(&o.tag, "tag", "t", "", "`NAME[:TAG]` of a Containerfile's image in the store (default: that of the context's directory)")
	f.StringVar(&o.ignoreFile, "ignore-file", "", "`FILE` that says what the context leaves out (default: .containerignore, .dockerignore)")
	f.StringArrayVar(&o.steps.secrets, "secret", nil, "a secret for steps that mount it: `id=ID,src=FILE` or id=ID,env=VARIABLE (repeatable)")
	f.StringArrayVar(&o.steps.ssh, "ssh", nil, "an SSH agent for steps that mount it: `default|ID[=SOCKET]` (repeatable)")
	f.BoolVar(&o.steps.shellOnFailure, "shell-on-failure", false, "open a shell in the file system of a step that failed")
	f.StringVar(&o.wheels, "wheels", "", "copy the wheels of compiled packages to `DIR`")
	f.BoolVar(&o.noCache, "no-cache", false, "run all steps again, whatever was made before")
	f.BoolVar(&o.force, "force", false, "replace outputs that exist, whatever they hold")
	f.BoolVar(&o.noCheck, "no-check", false, "do not look whether the image will run on the recipe's target")
	f.StringVar(&o.compression, "compression", "", "compress new layers with gzip or zstd (default: the recipe's, else gzip)")
	f.StringVar(&o.platform, "platform", "", "build for linux/amd64 or linux/arm64 (default: the recipe's, else this machine's)")
	f.BoolVar(&o.json, "json", false, "print what was built as JSON")
	addSquashfsFlags(cmd, &o.squashfs)
	complete(cmd, "compression", "gzip", "zstd")
	complete(cmd, "platform", "linux/amd64", "linux/arm64")
	return cmd
}

// built is what `sconce build --json` prints.
type built struct {
	Name     string       `json:"name"`
	Digest   store.Digest `json:"digest"`
	Platform string       `json:"platform"`
	Layers   int          `json:"layers"`
	Size     int64        `json:"size"` // of the layers as stored, in bytes
	Fresh    bool         `json:"upToDate"`
	Check    *audit.Count `json:"check,omitempty"`  // what the check for the recipe's target found
	Wheels   []string     `json:"wheels,omitempty"` // files written for --wheels
	Outputs  []string     `json:"outputs,omitempty"`
	Pushed   []string     `json:"pushed,omitempty"`
}

func (a *app) runBuild(ctx context.Context, o buildOptions) error {
	o.began = time.Now()
	if err := checkOutputs(o); err != nil {
		return err
	}
	file, dir, found := containerfileOf(o)
	if err := checkBuildFlags(o, found); err != nil {
		return err
	}
	if found {
		return a.runBuildFile(ctx, o, file, dir)
	}
	r, err := loadRecipe(o)
	if err != nil {
		return nothingToBuild(o, err)
	}
	t, err := targetOf(r, "")
	if err != nil {
		return err
	}
	kept, err := slimFor(r, t)
	if err != nil {
		return err
	}
	l, err := a.lockFor(ctx, r, o)
	if err != nil {
		return err
	}
	s, err := a.planRecipe(ctx, r, l, plan.Options{Slim: kept, Unchecked: o.noCheck, GPU: t.GPU})
	if err != nil {
		return err
	}
	defer s.close()
	s.target = t
	return a.runPlan(ctx, s, o)
}

// buildSubject is what is built, from whatever it was written as.
type buildSubject struct {
	plan     *plan.Plan
	contexts *contexts
	options  build.Options  // what is the subject's own
	recipe   *recipe.Recipe // nil for a Containerfile
	target   target
}

func (s buildSubject) close() { s.contexts.close() }

// runPlan builds what is planned, checks it, and brings it where it shall go.
func (a *app) runPlan(ctx context.Context, s buildSubject, o buildOptions) error {
	result, err := a.makePlan(ctx, s, o)
	if err != nil {
		return err
	}
	b := describe(s.plan, result)
	if o.wheels != "" {
		if b.Wheels, err = a.copyWheels(ctx, o.wheels, result.Built); err != nil {
			return err
		}
	}
	if err := a.name(ctx, result.Image, &b); err != nil {
		return err
	}
	if s.recipe != nil && s.recipe.Target.Named() && !o.noCheck {
		if b.Check, err = a.checkBuilt(ctx, s.recipe, result.Image, s.target); err != nil {
			return err
		}
	}
	if err := a.deliver(ctx, s.recipe, result.Image, o, &b); err != nil {
		return err
	}
	if b.Fresh {
		a.say("%s is up to date: %s, %s", b.Name, ui.Number(b.Layers, "layer"), ui.Size(b.Size))
	} else {
		a.say("built %s for %s: %s, %s, in %s", b.Name, b.Platform, ui.Number(b.Layers, "layer"), ui.Size(b.Size), ui.Duration(time.Since(o.began)))
	}
	if o.json {
		return a.printJSON(b)
	}
	_, err = fmt.Fprintln(a.stdout, b.Digest)
	return err
}

// checkOutputs finds mistakes in the flags before anything is built.
func checkOutputs(o buildOptions) error {
	for _, out := range o.outputs {
		if _, err := export.ParseTarget(out); err != nil {
			return err
		}
	}
	_, err := o.squashfs.parse()
	return err
}

// loadRecipe reads the recipe and lets the flags override it.
func loadRecipe(o buildOptions) (*recipe.Recipe, error) {
	r, err := recipe.Load(o.recipe)
	if err != nil {
		return nil, err
	}
	if o.platform != "" {
		if r.Target.Platform, err = recipe.ParsePlatform(o.platform); err != nil {
			return nil, fault.Usage(fmt.Errorf("--platform: %w", err))
		}
		r.Target.AnyPlatform = false
	}
	if r.Target.Cluster != "" {
		t, err := targetOf(r, "")
		if err != nil {
			return nil, err
		}
		r.Target.Platform, r.Target.GPU = t.Platform, t.GPU
	}
	switch o.compression {
	case "":
	case "gzip", "zstd":
		r.Image.Compression = o.compression
	default:
		return nil, fault.Usage(fmt.Errorf("--compression %q: it is one of gzip, zstd", o.compression))
	}
	if o.publish && r.Publish.Repository == "" {
		return nil, fault.Usage(fault.Hint(fmt.Errorf("--publish: %s names no publish.repository", r.Path), "name one in the recipe, or use --push REF"))
	}
	return r, nil
}

// lockFor returns the lock of r, made or brought up to date unless --locked was given.
func (a *app) lockFor(ctx context.Context, r *recipe.Recipe, o buildOptions) (*lock.Lock, error) {
	l, drift, err := readLock(r)
	switch {
	case err != nil:
		return nil, err
	case l != nil && len(drift) == 0:
		return l, nil
	case o.locked && l == nil:
		return nil, fault.Hint(fmt.Errorf("--locked: %s does not exist", lockName(r)), "run `sconce lock`")
	case o.locked:
		return nil, fmt.Errorf("--locked: %w", driftError(r, drift))
	}
	return a.makeLock(ctx, r, lockOptions{})
}

// planRecipe plans the image of a locked recipe. The subject is the caller's to close.
func (a *app) planRecipe(ctx context.Context, r *recipe.Recipe, l *lock.Lock, how plan.Options) (s buildSubject, err error) {
	wheels, err := l.Wheels(r)
	if err != nil {
		return s, err
	}
	how.RunsHere = runsHere(l.Platform)
	if l.Python != nil && !how.RunsHere && r.Python.CompilesBytecode() {
		event.Warn(ctx, fmt.Sprintf("no byte code is compiled: programs for %s do not run on this machine", l.Platform),
			"imports are slower the first time; build on a machine of that kind, or set bytecode = false under [python] to silence this")
	}
	if how.Compiles, err = l.Compiles(r); err != nil {
		return s, err
	}
	if how.Sources, err = a.directorySources(ctx, how.Compiles); err != nil {
		return s, err
	}
	s.contexts = newContexts()
	how.Open, s.recipe = s.contexts.Open, r
	if s.plan, err = plan.New(ctx, r, l, wheels, how); err != nil {
		s.close()
		return s, err
	}
	s.options = build.Options{Wheels: wheels, Authorize: lock.Authorizer(r), Open: how.Open}
	if l.Python != nil {
		s.options.Protect = l.Python.Protected
	}
	return s, a.addCache(ctx, r, &s.options)
}

// makePlan builds with what this machine has.
func (a *app) makePlan(ctx context.Context, s buildSubject, o buildOptions) (*build.Result, error) {
	st, err := a.store(ctx)
	if err != nil {
		return nil, err
	}
	client, err := a.fetch(ctx)
	if err != nil {
		return nil, err
	}
	how := s.options
	how.Store, how.Fetch, how.Offline = st, client, a.flags.offline
	how.Again, how.WantBuilt = o.noCache, o.wheels != ""
	how.Cores, how.Memory = runtime.GOMAXPROCS(0), host.AvailableMemory().Available
	if err := o.steps.apply(a, &how); err != nil {
		return nil, err
	}
	result, err := build.Run(ctx, s.plan, how)
	if err == nil && result.Slimmed != nil {
		a.saySlimmed(result.Slimmed)
	}
	return result, err
}

// slimFor says what is taken out of the image; nil is nothing.
func slimFor(r *recipe.Recipe, t target) (*slim.Options, error) {
	o := slim.Options{Strip: r.Slim.Strip, Remove: r.Slim.Remove, PackageCaches: r.Slim.PackageCaches}
	if !r.Slim.GPU {
		if !o.Strip && !o.PackageCaches && len(o.Remove) == 0 {
			return nil, nil
		}
		return &o, nil
	}
	if len(t.GPU) == 0 {
		err := fmt.Errorf("%s: slim.gpu: the profile of cluster %s names no GPUs", r.Path, t.Name)
		return nil, fault.Usage(fault.Hint(err, `add gpu = ["9.0"], or what the GPUs are, under [target]`))
	}
	var err error
	if o.GPUs, err = fatbin.ParseGPUs(t.GPU); err != nil {
		return nil, fmt.Errorf("%s: slim.gpu: %w", r.Path, err)
	}
	o.PTX, o.DropRelocatable = slim.PTX(r.Slim.PTX), r.Slim.Relfatbin == "drop"
	return &o, nil
}

func (a *app) saySlimmed(r *slim.Report) {
	if len(r.GPUs) > 0 {
		refused := 0
		for _, f := range r.Files {
			if f.Refused != "" {
				refused++
			}
		}
		text := fmt.Sprintf("slimmed to GPU %s: %s of %s of device code stay", strings.Join(r.GPUs, " "), ui.Size(r.After), ui.Size(r.Before))
		if refused > 0 {
			text += fmt.Sprintf("; %s left alone (`sconce slim --explain` says why)", number(refused, "file"))
		}
		a.say("%s", text)
	}
	for _, x := range r.Removed {
		a.say("removed %s, %s: %s", number(x.Files, "file"), ui.Size(x.Size), x.Reason)
	}
	if len(r.Stripped) > 0 {
		var size int64
		for _, f := range r.Stripped {
			size += f.Before - f.After
		}
		a.say("stripped %s: %s of symbols and debugging information", number(len(r.Stripped), "file"), ui.Size(size))
	}
}

func describe(p *plan.Plan, result *build.Result) built {
	b := built{
		Name: p.Name, Digest: result.Image.Digest, Platform: p.Platform.String(), Layers: len(result.Image.Layers), Fresh: result.Fresh,
	}
	for _, d := range result.Image.Layers {
		b.Size += d.Size
	}
	return b
}

// name gives the image its name in the store.
func (a *app) name(ctx context.Context, im *image.Image, b *built) error {
	st, err := a.store(ctx)
	if err != nil {
		return err
	}
	return nameImage(st, im, b)
}

// deliver writes the outputs and pushes.
func (a *app) deliver(ctx context.Context, r *recipe.Recipe, im *image.Image, o buildOptions, b *built) error {
	st, err := a.store(ctx)
	if err != nil {
		return err
	}
	how, err := o.squashfs.exportOptions(st, o.force)
	if err != nil {
		return err
	}
	how.Name = b.Name
	for _, out := range o.outputs {
		if err := export.Write(ctx, im, out, how); err != nil {
			return err
		}
		b.Outputs = append(b.Outputs, out)
	}
	refs := o.push
	if o.publish {
		refs = append(refs, r.Publish.Repository+":"+r.Version)
	}
	for _, ref := range refs {
		if err := a.push(ctx, im, ref); err != nil {
			return err
		}
		b.Pushed = append(b.Pushed, ref)
	}
	return nil
}

// nameImage gives the image its name in the store, unless it has it: a build with nothing to do writes nothing.
func nameImage(st *store.Store, im *image.Image, b *built) error {
	if old, err := st.FindImage(b.Name); err == nil && old.Digest == im.Digest {
		return nil
	}
	name, tag := store.SplitImageName(b.Name)
	return st.PutImage(store.ImageRef{
		Name: name, Tag: tag, Digest: im.Digest, Platform: b.Platform, Created: time.Now(), Size: b.Size,
	}, im.Refs())
}
