package cotainr

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/condalock"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
)

// build is one `cotainr build`.
type build struct {
	app *App

	image     string // as it was written
	base      string
	system    string
	condaEnvs []string
	repeated  bool // --conda-env was given more than once, of which the last counts
	accept    bool
	client    bool
	noColor   bool
	logToFile bool
	verbosity int
	lock      string // file; "" is none
	locked    bool

	log *log
}

var buildCommand = command{
	name: "cotainr build",
	usage: `usage: cotainr build [-h] (--base-image BASE_IMAGE | --system SYSTEM)
                     [--conda-env CONDA_ENV [CONDA_ENV ...]]
                     [--accept-licenses] [--verbose | --quiet] [--log-to-file]
                     [--no-color] [--conda-client] [--lock LOCK] [--locked]
                     image_path
`,
	about: `
Build a container from a base image.

positional arguments:
  image_path            the file to write: a SIF, or by its name a squashfs
                        (.sqsh, .squashfs, .sqfs) or an OCI archive (.tar)

options:
  -h, --help            print this text
  --base-image BASE_IMAGE
                        the image to start from: docker://NAME, a .sif or .sqsh
                        file, a sandbox directory, oci-archive:FILE,
                        docker-archive:FILE, oci:DIR
  --system SYSTEM       build for a system of systems.json, which names the
                        base image; "cotainr info" lists them
  --conda-env CONDA_ENV [CONDA_ENV ...]
                        environment.yml files; each adds to those before it
  --accept-licenses     accept the terms of Anaconda's channels ("defaults"),
                        where an environment names them
  --verbose, -v         say more: once for what is done, twice with time and
                        place, three times for everything
  --quiet, -q           say nothing but what went wrong
  --log-to-file         write what is said to two files in this directory, too
  --no-color            no colour
  --conda-client        add conda and mamba to the environment
  --lock LOCK           keep what was decided in this file, NAME.lock
  --locked              build what that file says, and nothing else

examples:
  cotainr build app.sif --base-image docker://ubuntu:24.04
  cotainr build app.sqsh --base-image base.sif --conda-env torch.yml more.yml -v
  cotainr build app.sif --system lumi-g --lock app.lock
`,
}

func (b *build) options() []*option {
	text := func(to *string) func([]string) error {
		return func(v []string) error { *to = v[0]; return nil }
	}
	flag := func(to *bool) func([]string) error {
		return func([]string) error { *to = true; return nil }
	}
	return []*option{
		b.app.helpOption(&buildCommand),
		{names: []string{"--base-image"}, values: one, choice: "base", take: text(&b.base)},
		{names: []string{"--system"}, values: one, choice: "base", take: text(&b.system)},
		{names: []string{"--conda-env"}, values: several, take: b.takeEnvironments},
		{names: []string{"--accept-licenses"}, take: flag(&b.accept)},
		{names: []string{"--verbose", "-v"}, choice: "verbosity", take: func([]string) error { b.verbosity++; return nil }},
		{names: []string{"--quiet", "-q"}, choice: "verbosity", take: func([]string) error { b.verbosity = -1; return nil }},
		{names: []string{"--log-to-file"}, take: flag(&b.logToFile)},
		{names: []string{"--no-color"}, take: flag(&b.noColor)},
		{names: []string{"--conda-client"}, own: true, take: flag(&b.client)},
		{names: []string{"--lock"}, own: true, values: one, take: text(&b.lock)},
		{names: []string{"--locked"}, own: true, take: flag(&b.locked)},
	}
}

func (b *build) takeEnvironments(files []string) error {
	b.repeated = b.condaEnvs != nil
	b.condaEnvs = files
	return nil
}

// parse reads the arguments. extras are those that nothing is known of.
func (b *build) parse(args []string) (extras []string, err error) {
	p := &parser{options: b.options()}
	if _, err := p.parse(args, false); err != nil {
		return nil, wrongUnlessAnswered(&buildCommand, err)
	}
	words := p.words
	if len(words) == 0 && lastIsImage(b.condaEnvs) {
		last := len(b.condaEnvs) - 1
		words, b.condaEnvs = b.condaEnvs[last:], b.condaEnvs[:last]
	}
	switch {
	case len(words) == 0:
		return nil, &usageError{&buildCommand, "the following arguments are required: image_path"}
	case p.seen["base"] == nil:
		return nil, &usageError{&buildCommand, "one of the arguments --base-image --system is required"}
	case b.locked && b.lock == "":
		return nil, &usageError{&buildCommand, "argument --locked: needs argument --lock"}
	case b.lock != "" && filepath.Ext(b.lock) != ".lock":
		return nil, &usageError{&buildCommand, fmt.Sprintf("argument --lock: %s does not end in .lock", repr(b.lock))}
	}
	b.image = words[0]
	return append(p.extras, words[1:]...), nil
}

// lastIsImage reports whether the last value of --conda-env is the image: where the option took one value, people write
// `--conda-env env.yml image.sif`. A file that looks like an environment never is: it would be overwritten.
func lastIsImage(envs []string) bool {
	if len(envs) < 2 {
		return false
	}
	ext := strings.ToLower(filepath.Ext(envs[len(envs)-1]))
	return ext != ".yml" && ext != ".yaml"
}

// run asks what is to be asked, and builds.
func (b *build) run(ctx context.Context) error {
	a := b.app
	b.log = &log{verbosity: b.verbosity, color: a.Color && !b.noColor, out: a.Stdout, err: a.Stderr, now: a.Now}
	began := a.Now()
	err := b.prepare(ctx, began)
	if err == nil {
		err = b.make(ctx, began)
	}
	if err != nil && !errors.Is(err, errAnswered) && ctx.Err() == nil {
		b.log.fail(onCommandLine(err))
	}
	return errors.Join(err, b.log.close())
}

// onCommandLine says of an error what is to be done about it here, where there is no recipe to write it into.
func onCommandLine(err error) error {
	var license *condalock.LicenseError
	if errors.As(err, &license) {
		return fault.Hint(err, license.HintWith("--accept-licenses"))
	}
	return err
}

// prepare checks what the command line names, in cotainr's order.
func (b *build) prepare(ctx context.Context, began time.Time) error {
	image, replaced, err := resolved(b.image)
	if err != nil {
		return err
	}
	b.image = image
	if replaced {
		yes, err := b.app.ask(ctx, b.image+" already exists. Would you like to overwrite it?")
		if err != nil {
			return err
		}
		if !yes {
			fmt.Fprintf(b.app.Stderr, "You have chosen not to overwrite %s. Exiting.\n", b.image)
			return errAnswered
		}
	}
	if err := b.findBase(); err != nil {
		return err
	}
	if b.lock != "" {
		if b.lock, err = filepath.Abs(b.lock); err != nil {
			return err
		}
	}
	for _, env := range b.condaEnvs {
		if _, err := os.Stat(env); err != nil {
			return fmt.Errorf("The provided Conda env file %s does not exist.", repr(absolute(env))) //nolint:staticcheck,revive // cotainr's words
		}
	}
	if b.logToFile {
		return b.log.openFiles(began)
	}
	return nil
}

// resolved makes a path absolute, following links, and reports whether something is there.
func resolved(path string) (string, bool, error) {
	full, err := filepath.Abs(path)
	if err != nil {
		return "", false, err
	}
	real, err := filepath.EvalSymlinks(full)
	switch {
	case err == nil:
		return real, true, nil
	case errors.Is(err, fs.ErrNotExist):
		return full, false, nil
	}
	return "", false, err
}

// absolute is a path for messages.
func absolute(path string) string {
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return path
}

// findBase finds out what the image is based on. The list of systems has to be in order for every build, as cotainr has it.
func (b *build) findBase() error {
	file := systemsFile(b.app.Command[0])
	systems, err := readSystems(file)
	if err != nil {
		return err
	}
	if b.system != "" {
		if b.base, err = findSystem(systems, b.system, file); err != nil {
			return err
		}
	}
	b.base, err = baseReference(b.base)
	return err
}

// make builds the image and writes it.
func (b *build) make(ctx context.Context, began time.Time) error {
	ctx = progress.With(ctx, b.sink())
	s, err := b.app.Open(ctx)
	if err != nil {
		return err
	}
	r, err := b.recipe()
	if err != nil {
		return err
	}
	b.log.say(info, "Resolving base image: %s", b.base)
	if b.repeated {
		b.log.say(warning, "--conda-env was given more than once, and the last one counts (give it all files: --conda-env a.yml b.yml)")
	}
	for _, env := range b.condaEnvs {
		b.log.say(info, "Installing Conda environment: %s", absolute(env))
	}
	if b.lock != "" && !b.locked { // anew, as cotainr does; without a file, Plan does it
		if _, err := s.Lock(ctx, r, engine.LockOptions{Upgrade: true}); err != nil {
			return err
		}
	}
	p, err := s.Plan(ctx, r, engine.PlanOptions{Locked: b.locked})
	if err != nil {
		return err
	}
	defer p.Close()
	b.log.say(info, "Building container image")
	how := engine.BuildOptions{Outputs: []string{outputOf(b.image)}, Write: engine.Writing{Force: true}}
	if _, err := s.Build(ctx, p, how); err != nil {
		return err
	}
	b.log.say(info, "Finished building %s in %s", b.image, clock(b.app.Now().Sub(began)))
	return nil
}

func (b *build) sink() sink {
	if b.verbosity != 0 || b.noColor {
		return sink{log: b.log}
	}
	return sink{log: b.log, live: b.app.Live}
}

// outputs are the kinds of files that are told by their name; all others are SIF files, as cotainr's are whatever they are called.
var outputs = map[string]string{".sqsh": "sqsh", ".squashfs": "sqsh", ".sqfs": "sqsh", ".tar": "oci-archive"}

func outputOf(image string) string {
	if kind, ok := outputs[filepath.Ext(image)]; ok {
		return kind + ":" + image
	}
	return "sif:" + image
}

// clock writes a time as HH:MM:SS.
func clock(d time.Duration) string {
	s := int(d.Seconds())
	return fmt.Sprintf("%02d:%02d:%02d", s/3600, s/60%60, s%60)
}

// pathForms are the ways of naming a base that is a file or directory. Apptainer writes some of them with two slashes.
var pathForms = []string{"oci", "oci-archive", "docker-archive", "tar", "dir", "sqsh", "sif"}

// baseReference returns an image as the engine knows it for one as Apptainer spells it. Paths stay as they are: a lock that holds them is
// good in another directory with the same files.
func baseReference(spec string) (string, error) {
	form, rest, found := strings.Cut(spec, ":")
	switch {
	case found && slices.Contains(pathForms, form):
		return form + ":" + strings.TrimPrefix(rest, "//"), nil
	case isDefinition(spec):
		return "", fault.Hint(fmt.Errorf("%s is a definition file, and no image", spec), "build it first: apptainer build base.sif "+quote.Word(spec))
	}
	return spec, nil
}

// isDefinition reports whether a file begins as Apptainer's definitions do.
func isDefinition(file string) bool {
	if st, err := os.Stat(file); err != nil || !st.Mode().IsRegular() {
		return false
	}
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 4096)
	n, _ := f.Read(head)
	for line := range strings.Lines(string(head[:n])) {
		line = strings.ToLower(strings.TrimSpace(line))
		if line != "" && !strings.HasPrefix(line, "#") {
			return strings.HasPrefix(line, "bootstrap:")
		}
	}
	return false
}
