package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/slim"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/units"
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
	variant     string
	canonical   bool
	began       time.Time
	on          onOptions

	// Of a Containerfile.
	file       string
	buildArgs  []string
	argFiles   []string
	target     string
	tags       []string
	ignoreFile string
	labels     []string
	contexts   []string

	others dockerOptions
}

func newBuildCmd(a *app) *cobra.Command {
	var o buildOptions
	cmd := &cobra.Command{
		Use:   "build [RECIPE | -f CONTAINERFILE [CONTEXT]]",
		Short: "Build the image of a recipe",
		Long: `Build the image that RECIPE (a sconce.toml or its directory, by default the current one) describes, and keep it in the
store under the recipe's name and version. The digest of the image is printed. With -f, or for a directory that has no
recipe, it is the image of a Containerfile, and the argument is the build context. A RECIPE called NAME.def or Singularity is
a definition file of Apptainer's; it takes files from the current directory.

Only what is missing is made: what was built or downloaded before, for this image or another, is taken from the store. A
recipe without a lock, or with one that no longer fits, is locked first (see sconce lock); --locked refuses instead.

Steps run in a sandbox as an emulated root: an ordinary user can install packages and give files away, and nothing of
it reaches the machine. A step that fails shows its last lines and where the rest is; --shell-on-failure opens a shell
where it stood. What steps may see of this machine is given by name: --secret, --ssh.

When the recipe says what the image is for, under [target], the image is checked before it goes anywhere (see sconce
check). After an error it stays in the store, but nothing is written or pushed, and the exit code is 3. --no-check leaves
the check out, and a label of the image says so.

--on builds on a node of a cluster, in a job of Slurm's that reads and writes what a build here would, in the same store,
shows the same and ends with the same code. Ctrl-C cancels it; when sconce is killed here it goes on, and the same command
follows it. The store, the recipe and the outputs have to be on a file system that the nodes see.

Where the image goes, besides the store:
  oci:DIR[:TAG]             an OCI layout, also when OUT is another path with a slash, ./DIR
  oci-archive:FILE[:TAG]    an OCI layout in a tar, also when OUT ends in .tar
  docker-archive:FILE[:TAG] what docker load and podman load read
  sqsh:FILE, sif:FILE       what enroot, pyxis and Apptainer run, also when OUT ends in .sqsh or .sif
  dir:DIR, tar:FILE         the root file system
  plain:FILE                the same as a squashfs, without the files that enroot, pyxis and Apptainer read
  type=TYPE,dest=PATH       the same in docker's words: docker, oci, tar, local; type=registry,name=REF pushes
Layouts and archives carry the image's name, by which podman and docker load them. What was written there before of an
image of this name is replaced; anything else only with --force.`,
		Example: examples(
			"sconce build                                          build ./sconce.toml",
			"sconce build demo -o demo.sqsh -o demo.sif            and write the files that clusters run",
			"sconce build --locked --push registry.example.org/me/demo:1   build exactly the lock, and push",
			"sconce build images/pytorch:26.02-py3                 a variant of a recipe",
			"sconce build -f Containerfile . -t train:2            build a Containerfile",
			"sconce build train.def -o train.sif                   build a definition file of Apptainer's",
			"sconce build demo --on clariden -o demo.sqsh          on a node of a cluster",
			"sconce build demo --secret id=token,src=token.txt     give a secret to the steps that mount it",
		),
		Args: wants("[RECIPE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.recipe = withVariant(recipeArgument(args), o.variant)
			if o.on.given() {
				return a.buildOn(cmd, args, o)
			}
			if o.canonical {
				return a.buildCanonical(cmd.Context(), o)
			}
			return a.runBuild(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.outputs, "output", "o", nil, "write the image to `OUT` as well (repeatable)")
	f.StringArrayVar(&o.push, "push", nil, "push the image to `REF` in a registry (repeatable)")
	f.BoolVar(&o.publish, "publish", false, "push the image to the recipe's publish.repository, tagged with its version")
	f.BoolVar(&o.locked, "locked", false, "refuse when the lock is missing or does not fit the recipe")
	f.StringVarP(&o.file, "file", "f", "", "build this Containerfile or Dockerfile `FILE`, \"-\" for standard input; the argument is the context then")
	f.StringArrayVar(&o.buildArgs, "build-arg", nil, "`NAME[=VALUE]` of an ARG; without a value, this environment's (repeatable)")
	f.StringArrayVar(&o.argFiles, "build-arg-file", nil, "`FILE` of lines NAME=VALUE, as if each was a --build-arg (repeatable)")
	f.StringVar(&o.target, "target", "", "build this `STAGE` of the Containerfile (default: the last)")
	f.StringArrayVarP(&o.tags, "tag", "t", nil, "`NAME[:TAG]` of a Containerfile's image in the store (default: that of the context's directory; repeatable)")
	addFileFlags(cmd, &o)
	f.StringVar(&o.ignoreFile, "ignore-file", "", "`FILE` that says what the context leaves out (default: .containerignore, .dockerignore)")
	o.steps.addFlags(f)
	f.BoolVar(&o.steps.shellOnFailure, "shell-on-failure", false, "open a shell in the file system of a step that failed")
	f.StringVar(&o.variant, "variant", "", "build this `VARIANT` of the recipe, as RECIPE:VARIANT does")
	f.BoolVar(&o.canonical, "canonical", false, "build the image of a pipeline's recipe, and what it is based on, into its staging repository, unless it is there")
	f.StringVar(&o.wheels, "wheels", "", "copy the wheels of compiled packages to `DIR`")
	f.BoolVar(&o.noCache, "no-cache", false, "run all steps again, whatever was made before")
	a.addCacheFlags(f)
	f.BoolVar(&o.force, "force", false, "replace outputs that exist, whatever they hold")
	f.BoolVar(&o.noCheck, "no-check", false, "do not look whether the image will run on the recipe's target")
	f.StringVar(&o.compression, "compression", "", "compress new layers by this `METHOD`, gzip or zstd (default: the recipe's, else gzip)")
	f.StringVar(&o.platform, "platform", "", "build for this `PLATFORM`, linux/amd64 or linux/arm64 (default: the recipe's, else this machine's)")
	f.BoolVar(&o.json, "json", false, "print what was built as JSON")
	o.others.add(cmd)
	o.on.addFlags(cmd)
	addSquashfsFlags(cmd, &o.squashfs)
	addStartFlag(cmd, &o.squashfs)
	complete(cmd, "compression", "gzip", "zstd")
	complete(cmd, "platform", "linux/amd64", "linux/arm64")
	return cmd
}

// addCacheFlags adds the flags that say whether the registry is used that a recipe, which may be a stranger's, names under [cache].
func (a *app) addCacheFlags(f *pflag.FlagSet) {
	a.addReadCacheFlag(f)
	f.BoolVar(&a.flags.push, "push-cache", false, "send what is built to the registry under [cache] of the recipe, and read it as well")
}

func (a *app) addReadCacheFlag(f *pflag.FlagSet) {
	f.BoolVar(&a.flags.read, "read-cache", false, "take results of steps from the registry under [cache] of the recipe")
}

// withVariant is the recipe with the variant that a flag names.
func withVariant(recipe, variant string) string {
	if variant == "" {
		return recipe
	}
	return recipe + ":" + variant
}

// addFileFlags adds the options of a Containerfile that decide what its image is, and that neither a file nor a name is.
func addFileFlags(cmd *cobra.Command, o *buildOptions) {
	f := cmd.Flags()
	f.StringArrayVar(&o.labels, "label", nil, "give the image of a Containerfile the label `NAME=VALUE` (repeatable)")
	f.StringArrayVar(&o.contexts, "build-context", nil, "let a name in the Containerfile stand for a directory or image, `NAME=DIR|docker-image://REF` (repeatable)")
	f.StringVar(&o.steps.network, "network", defaultNetwork, "the commands' `NETWORK`: default (of their own, with a way out), host, or none (Containerfiles)")
	complete(cmd, "network", defaultNetwork, hostNetwork, noNetwork)
}

// built is what `sconce build --json` prints.
type built struct {
	Name     string       `json:"name"`
	Digest   store.Digest `json:"digest"`
	Platform string       `json:"platform"`
	Layers   int          `json:"layers"`
	Size     int64        `json:"size"` // as `sconce images` has it, in bytes
	Fresh    bool         `json:"upToDate"`
	Check    *audit.Count `json:"check,omitempty"`  // what the check for the recipe's target found
	Wheels   []string     `json:"wheels,omitempty"` // files written for --wheels
	Outputs  []string     `json:"outputs,omitempty"`
	Pushed   []string     `json:"pushed,omitempty"`
}

func (a *app) runBuild(ctx context.Context, o buildOptions) error {
	o.began = time.Now()
	if err := o.takeOthers(a); err != nil {
		return fault.Usage(err)
	}
	var err error
	if o.tags, err = wholeNames(o.tags); err != nil {
		return err
	}
	how, err := o.how()
	if err != nil {
		return err
	}
	if err := o.steps.apply(a, &how); err != nil {
		return err
	}
	s, p, err := a.plan(ctx, o, &how)
	if err != nil {
		return err
	}
	defer p.Close()
	b, err := s.Build(ctx, p, how)
	if b != nil {
		a.sayOnTheWay(o, b)
	}
	if err != nil {
		return err
	}
	if err := o.others.write(b); err != nil {
		return err
	}
	return a.reportBuild(o, b)
}

// how checks the flags that say where the image goes.
func (o buildOptions) how() (engine.BuildOptions, error) {
	b := engine.BuildOptions{Again: o.noCache, Wheels: o.wheels, Outputs: o.outputs, Push: o.push}
	for _, ref := range o.push {
		if strings.HasPrefix(ref, "-") {
			return b, fault.Usage(fault.Hint(fmt.Errorf("--push %s: it takes a reference in a registry", ref), "--push registry.example.org/me/app:1"))
		}
		if err := engine.CheckPush(ref); err != nil {
			return b, err
		}
	}
	for _, out := range o.outputs {
		if err := engine.CheckOutput(out, o.force); err != nil {
			return b, err
		}
	}
	err := checkCompression(o.compression)
	if err != nil {
		return b, err
	}
	b.Write, err = o.squashfs.writing(o.force)
	return b, err
}

func checkCompression(name string) error {
	switch name {
	case "", "gzip", "zstd":
		return nil
	}
	return fault.Usage(fmt.Errorf("--compression %q: it is one of gzip, zstd", name))
}

// plan opens a session and plans in it what the arguments name. To how is added what they and the recipe say of it.
func (a *app) plan(ctx context.Context, o buildOptions, how *engine.BuildOptions) (*engine.Session, *engine.Plan, error) {
	file, dir, isFile := buildFileOf(o)
	if err := checkBuildFlags(o, isFile); err != nil {
		return nil, nil, err
	}
	if isFile {
		how.Names = o.tags[min(1, len(o.tags)):]
		return a.planFile(ctx, o, file, dir)
	}
	return a.planRecipe(ctx, o, how)
}

func (a *app) planRecipe(ctx context.Context, o buildOptions, how *engine.BuildOptions) (*engine.Session, *engine.Plan, error) {
	r, err := loadRecipe(o.recipe, o.platform, o.compression)
	if err != nil {
		return nil, nil, engine.NothingToBuild(o.recipe, err)
	}
	if o.publish {
		ref, err := r.Published()
		if err != nil {
			return nil, nil, fault.Usage(fmt.Errorf("--publish: %w", err))
		}
		how.Push = append(how.Push[:len(how.Push):len(how.Push)], ref)
	}
	if len(how.Write.Start) == 0 {
		how.Write.Start = r.Start.Run
	}
	s, err := a.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	wanted, err := a.below(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	wanted.Locked, wanted.NoCheck = o.locked, o.noCheck
	p, err := s.Plan(ctx, r, wanted)
	return s, p, err
}

// loadRecipe reads a recipe, before which flags go.
func loadRecipe(path, platform, compression string) (*engine.Recipe, error) {
	if engine.IsContainerfile(path) || engine.IsDefinition(path) {
		return nil, fault.Usage(fault.Hint(fmt.Errorf("%s: this wants a recipe (sconce.toml)", path),
			fmt.Sprintf("`sconce build -f %[1]s` builds the file; `sconce init --from Containerfile` writes a recipe of a Containerfile", quote.Word(quote.Operand(path)))))
	}
	c := engine.Changes{Compression: compression}
	if platform != "" {
		var err error
		if c.Platform, err = recipe.ParsePlatform(platform); err != nil {
			return nil, fault.Usage(fmt.Errorf("--platform: %w", err))
		}
	}
	return engine.LoadRecipe(path, c)
}

// sayOnTheWay tells what was done besides building, whether or not all of it was.
func (a *app) sayOnTheWay(o buildOptions, b *engine.Built) {
	if b.Slimmed != nil {
		a.saySlimmed(b.Slimmed)
	}
	if b.Wheels != nil && len(b.Wheels) == 0 {
		a.say("no package was compiled: there is nothing to copy to %s", o.wheels)
	}
	for _, file := range b.Wheels {
		a.say("wrote %s", file)
	}
	for _, ref := range b.Pushed {
		a.say("pushed %s@%s", strings.TrimPrefix(ref, "docker://"), b.Image.Digest)
	}
}

func (a *app) saySlimmed(r *slim.Report) {
	if len(r.GPUs) > 0 {
		refused := 0
		for _, f := range r.Files {
			if f.Refused != "" {
				refused++
			}
		}
		text := fmt.Sprintf("slimmed to GPU %s: %s of %s of device code stay", strings.Join(r.GPUs, " "), units.Size(r.After), units.Size(r.Before))
		if refused > 0 {
			text += fmt.Sprintf("; %s left alone (`sconce slim --explain` says why)", units.Number(refused, "file"))
		}
		a.say("%s", text)
	}
	for _, x := range r.Removed {
		a.say("removed %s, %s: %s", units.Number(x.Files, "file"), units.Size(x.Size), x.Reason)
	}
	if len(r.Stripped) > 0 {
		var size int64
		for _, f := range r.Stripped {
			size += f.Before - f.After
		}
		a.say("stripped %s: %s of symbols and debugging information", units.Number(len(r.Stripped), "file"), units.Size(size))
	}
}

// reportBuild tells what was built.
func (a *app) reportBuild(o buildOptions, made *engine.Built) error {
	b := built{
		Name: made.Name, Digest: made.Image.Digest, Platform: made.Platform, Layers: len(made.Image.Layers), Size: made.Size, Fresh: made.Fresh,
		Check: made.Check, Wheels: made.Wheels, Outputs: made.Outputs, Pushed: made.Pushed,
	}
	if b.Fresh {
		a.say("%s is up to date: %s, %s", b.Name, units.Number(b.Layers, "layer"), units.Size(b.Size))
	} else {
		a.say("built %s for %s: %s, %s, in %s", b.Name, b.Platform, units.Number(b.Layers, "layer"), units.Size(b.Size), units.Duration(time.Since(o.began)))
	}
	if n := b.Check; n != nil && n.Errors == 0 && n.Warnings == 0 {
		a.say("checked for %s: nothing speaks against running it there", made.Target)
	}
	a.sayWritten(b.Outputs...)
	if o.json {
		return a.printJSON(b)
	}
	_, err := fmt.Fprintln(a.stdout, b.Digest)
	return err
}
