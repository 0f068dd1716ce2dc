package lock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/condalock"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/gitrun"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/tempdir"
	"sconce.dev/sconce/internal/uv"
)

// uvLockFile is the name of uv's own lock of a project.
const uvLockFile = "uv.lock"

// uv lets uv resolve the Python packages and returns the PEP 751 lock. Versions of an earlier one are kept where they
// still fit.
//
// uv runs with the user's own configuration, index and credentials included, and with variables by a list (uv.Environment). A recipe may be
// a stranger's: uv gets a Python, starts in the root directory, where it finds nothing of the recipe's by itself, and reads copies of what the
// recipe says (see handing, and uvKeys for the settings).
func (k *locker) uv(ctx context.Context) ([]byte, error) {
	task := progress.Begin(ctx, "resolve", "Python packages", 0)
	k.task = task
	text, err := k.askUV(ctx)
	return text, task.End(err)
}

func (k *locker) askUV(ctx context.Context) ([]byte, error) {
	dir, remove, err := tempdir.Make("lock")
	if err != nil {
		return nil, err
	}
	defer remove()
	out, err := k.unfinished()
	if err != nil {
		return nil, err
	}
	defer os.Remove(out)
	if err := k.keepVersions(out); err != nil {
		return nil, err
	}
	if frozen(k.recipe) != "" {
		return k.askOnce(ctx, dir, out)
	}
	return k.askWithSources(ctx, dir, out)
}

// askOnce runs uv once. What it needs to read goes to dir, and what it writes to out.
func (k *locker) askOnce(ctx context.Context, dir, out string) ([]byte, error) {
	k.handing = newHanding(k.recipe, dir)
	args, err := k.uvArgs(dir)
	if err != nil {
		return nil, err
	}
	if frozen(k.recipe) == "" {
		args = append(args, "--custom-compile-command", markedCommand(out))
	}
	packages, err := packagesOf(k.recipe)
	if err == nil {
		packages, err = k.handing.packages(packages)
	}
	if err != nil {
		return nil, err
	}
	if err := k.runUV(ctx, dir, packages, append(args, "--output-file", out)); err != nil {
		return nil, err
	}
	text, err := k.readOutput(ctx, out)
	if err != nil {
		return nil, err
	}
	return text, k.checkAnswer(text)
}

func (k *locker) readOutput(ctx context.Context, out string) ([]byte, error) {
	text, err := os.ReadFile(out)
	if err != nil {
		return nil, fmt.Errorf("run uv: %w", err)
	}
	if frozen(k.recipe) != "" {
		text = exportCommand.Regexp().ReplaceAll(text, []byte("${1}"+lockCommand))
	} else if text, err = withoutMark(text, out); err != nil {
		return nil, err
	}
	if k.stubs != "" {
		if text, _, err = condalock.DropStubs(text); err != nil {
			return nil, err
		}
	}
	strong, err := k.withStrongHashes(ctx, string(text))
	if err != nil {
		return nil, err
	}
	return []byte(fetch.WithoutLogins(k.portable(strong))), nil
}

// exportCommand is the line in which uv repeats how it was called to export a lock, which differs from directory to directory and from
// time to time.
var exportCommand = lazyregexp.New(`(?m)\A((?:#.*\n)*?#\s+)uv export .*$`)

// lockedPath is where a lock says the path of something on this machine.
var lockedPath = lazyregexp.New(`\bpath = "(/[^"]*)"`)

// portable makes paths relative to the lock, as uv does with those that it is told relative ones for: those that the recipe says so, and those of
// local wheels below the lock's directory. So the lock holds in any directory.
func (k *locker) portable(text string) string {
	dir := filepath.Dir(pylockPath(k.recipe))
	return lockedPath.ReplaceAllStringFunc(text, func(said string) string {
		path := lockedPath.FindStringSubmatch(said)[1]
		rel, err := filepath.Rel(dir, path)
		moved := k.handing != nil && k.handing.moved[path]
		if err != nil || !moved && !filepath.IsLocal(rel) {
			return said
		}
		return `path = "` + rel + `"`
	})
}

// keepVersions puts the earlier lock where uv writes the new one: uv prefers the versions that it finds in its output file.
func (k *locker) keepVersions(out string) error {
	text, err := readBeside(k.recipe, pylockPath(k.recipe))
	if err != nil {
		text = nil
	} else if _, err := python.ReadLock(bytes.NewReader(text)); err != nil {
		text = nil // broken by hand; it is written anew
	}
	if text == nil {
		if err := os.Remove(out); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("lock: %w", err)
		}
		return nil
	}
	if err := os.WriteFile(out, text, 0o644); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return nil
}

// uvArgs returns uv's command line. What it needs to read goes to dir.
func (k *locker) uvArgs(dir string) ([]string, error) {
	if frozen(k.recipe) != "" {
		return k.exportArgs(), nil
	}
	args, err := k.compileArgs(dir)
	if err != nil {
		return nil, err
	}
	return k.withSettings(dir, args, k.sources.metadata())
}

// withSettings adds to args where uv finds its settings, the metadata of sources among them.
func (k *locker) withSettings(dir string, args []string, metadata []dependencyMetadata) ([]string, error) {
	if os.Getenv(noConfig) == "" {
		return append(args, "--project", dir), writeSettings(dir, k.settings, metadata)
	}
	// Nobody's settings count then, but uv has to be told what sources say of themselves.
	if len(metadata) == 0 {
		return append(args, "--no-config", "--project", dir), nil
	}
	return append(args, "--config-file", filepath.Join(dir, uvConfig), "--project", dir), writeSettings(dir, nil, metadata)
}

// frozen returns the uv.lock of the recipe's project, as the recipe would name it, or "". It decides then; uv only writes
// it in the standard form.
func frozen(r *recipe.Recipe) string {
	if r.Python.Project == "" {
		return ""
	}
	file := filepath.Join(r.Python.Project, uvLockFile)
	if !exists(r.Resolve(file)) {
		return ""
	}
	return file
}

func (k *locker) compileArgs(dir string) ([]string, error) {
	r := k.recipe.Python
	args := []string{
		"pip", "compile",
		"--format", "pylock.toml",
		"--python-version", k.python.Version,
		"--python-platform", uvPlatform(&k.python),
		"--no-build-isolation", "--config-setting", answeredHere, // see sources_read.go
		"--quiet",
	}
	for _, name := range k.sources.names() {
		args = append(args, "--no-binary", name) // from its source: it goes before :all:
	}
	for _, name := range k.onlyBinary() {
		args = append(args, "--only-binary", name)
	}
	if len(r.Packages) > 0 || r.InstallsProject() {
		args = append(args, "-") // see runUV
	}
	for _, name := range r.Requirements {
		file, err := k.handing.file(requirementsPlace{path: k.recipe.Resolve(name), name: name})
		if err != nil {
			return nil, err
		}
		args = append(args, file)
	}
	for _, list := range r.Listed {
		file, err := k.handing.list(list)
		if err != nil {
			return nil, err
		}
		args = append(args, file)
	}
	if r.Project != "" {
		args = append(args, k.projectArgs()...)
	}
	if names := k.python.protectedNames(); len(names) > 0 && k.base == nil {
		file := filepath.Join(dir, "excludes.txt")
		if err := os.WriteFile(file, []byte(strings.Join(names, "\n")+"\n"), 0o644); err != nil {
			return nil, err
		}
		args = append(args, "--excludes", file)
	}
	args = append(args, k.stubArgs()...)
	switch r.TorchBackend {
	case "":
	case backendOfTarget: // uv takes what fits the driver that uvEnvironment names
		args = append(args, "--torch-backend", "auto")
	default:
		args = append(args, "--torch-backend", r.TorchBackend)
	}
	return append(args, k.howArgs()...), nil
}

func (k *locker) projectArgs() []string {
	file := filepath.Join(k.recipe.Resolve(k.recipe.Python.Project), projectFile)
	args := []string{file}
	for _, e := range k.recipe.Python.Extras {
		args = append(args, "--extra", e)
	}
	for _, g := range k.recipe.Python.Groups {
		args = append(args, "--group", file+":"+g)
	}
	return args
}

// howArgs are the arguments that say how to resolve, not what.
func (k *locker) howArgs() []string {
	var args []string
	if k.opts.Upgrade {
		args = append(args, "--upgrade")
	}
	for _, name := range k.opts.UpgradePackages {
		args = append(args, "--upgrade-package", name)
	}
	if k.opts.Offline {
		args = append(args, "--offline")
	}
	return args
}

func (k *locker) exportArgs() []string {
	r := k.recipe.Python
	args := []string{
		"export", "--no-config", "--project", k.recipe.Resolve(r.Project), "--frozen", "--format", "pylock.toml", "--no-editable",
		"--no-default-groups", "--quiet",
	}
	if !r.InstallsProject() {
		args = append(args, "--no-emit-project")
	}
	for _, e := range r.Extras {
		args = append(args, "--extra", e)
	}
	for _, g := range r.Groups {
		args = append(args, "--group", g)
	}
	for _, name := range slices.Concat(k.python.protectedNames(), k.python.condaNames()) {
		args = append(args, "--prune", name)
	}
	return args
}

func (p *Python) protectedNames() []string {
	var names []string
	for _, guard := range p.Protected {
		names = append(names, guard.Name)
	}
	return names
}

// condaNames are the Python packages that conda brings.
func (p *Python) condaNames() []string {
	var names []string
	for _, x := range p.Conda {
		names = append(names, x.Name)
	}
	return names
}

// requestedNames returns the names of what was asked for, normalised and sorted.
func requestedNames(asked []string) []string {
	names := []string{}
	for _, text := range asked {
		name := requirementName(text)
		if address, _, _ := strings.Cut(text, " "); strings.HasSuffix(address, ".whl") { // an unnamed file or address
			name, _, _ = strings.Cut(path.Base(address), "-")
		}
		if name != "" {
			names = append(names, python.NormalizeName(name))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// manylinux are the second numbers of the glibc versions that uv's --python-platform knows.
var manylinux = []int{17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40}

// uvPlatform names the interpreter's machine and C library as uv does, never newer than what is there.
func uvPlatform(p *Python) string {
	if p.Musl != "" {
		return p.Platform + "-unknown-linux-musl"
	}
	best := manylinux[0]
	_, minor, _ := strings.Cut(p.Glibc, ".")
	if n, err := strconv.Atoi(minor); err == nil {
		for _, known := range manylinux {
			if known <= n {
				best = known
			}
		}
	}
	return fmt.Sprintf("%s-manylinux_2_%d", p.Platform, best)
}

// noConfig is the variable by which users tell uv to read no settings. It is passed on as an argument, see withSettings.
const noConfig = "UV_NO_CONFIG"

// uvEnvironment is the user's as far as uv needs it, with what makes uv's messages fit for an error. What uv leaves goes to dir.
func (k *locker) uvEnvironment(dir string) ([]string, error) {
	files, err := readRequirements(k.recipe)
	if err != nil {
		return nil, err
	}
	env, err := gitrun.SettingsInFile(gitrun.Environment(os.Environ()), filepath.Join(dir, "gitconfig"))
	if err != nil {
		return nil, err
	}
	env = append(uv.Environment(env), indexEnvironment(k.recipe, files)...)
	env = append(uv.WithoutSecrets(env), pythonDownloads+"=never")
	if k.recipe.Python.TorchBackend == backendOfTarget {
		env = append(env, "UV_CUDA_DRIVER_VERSION="+k.recipe.Target.Driver) // instead of this machine's
	}
	if _, decided := os.LookupEnv(httpRetries); !decided {
		env = append(env, httpRetries+"=1") // for a hiccup: a server that is away longer is waited for here, where it is told, see runOnce
	}
	logins, err := k.logins.forUV(dir)
	if err != nil {
		return nil, err
	}
	env = append(env, logins...)
	env = append(env, "NO_COLOR=1", "UV_NO_PROGRESS=1", "TMPDIR="+dir, tellsSearch, nothingRuns) // uv removes none of its lock files, and nothing when it is killed
	if k.reader != nil {
		env = append(env, k.reader.environment()...)
	}
	return env, nil
}

// nothingRuns keeps uv from running any code of a package to learn its dependencies: a Python whose home does not exist ends
// before it reads a line, other than that of sources_read.go. uv itself asks its Python for its version in isolated mode (-I), in which the variable does not count.
const nothingRuns = "PYTHONHOME=" + nowhere

// nowhere is a directory that does not exist.
const nowhere = "/nonexistent"

// httpRetries is the variable by which uv is told how often it asks a server again.
const httpRetries = "UV_HTTP_RETRIES"

// pythonDownloads is the variable by which uv is told whether it may bring a Python.
const pythonDownloads = "UV_PYTHON_DOWNLOADS"

// runUV runs uv with requirements as its standard input. When it fails, its own explanation is the error. dir is where the copies of what the
// recipe says are, and where uv may leave what it likes.
//
// uv needs some Python to resolve, and any does. It would look for one in the directories around, where a stranger's may be, so it is told one:
// one of this machine. Where there is none, as on many login nodes, a [pythonStandIn] says what the image's is; only where uv wants more of it
// than that, uv brings one, unless the user has decided that it brings none.
func (k *locker) runUV(ctx context.Context, dir string, requirements, args []string) error {
	if k.uses == "" {
		if p, ok := host.AnyPython(ctx, k.python.Interpreter().Minor(), oldestPython); ok {
			k.uses = p.Path
		}
	}
	if k.uses != "" {
		return k.runOnce(ctx, dir, k.uses, requirements, args)
	}
	standIn, err := newPythonStandIn(dir, &k.python)
	if err != nil {
		return err
	}
	err = k.runOnce(ctx, dir, standIn.program, requirements, args)
	if err == nil || ctx.Err() != nil || k.opts.Offline || !bringsPython() {
		return err
	}
	program, found := k.opts.uv(k.recipe).Path(ctx)
	if found != nil || !standIn.failed() && uv.Understands(ctx, program, standIn.program) {
		return err
	}
	var brought error
	if k.uses, brought = uv.BringPython(ctx, program, k.python.Interpreter().Minor()); brought != nil {
		return errors.Join(err, brought)
	}
	return k.runOnce(ctx, dir, k.uses, requirements, args)
}

// oldestPython is the minor version of the oldest Python 3 that uv works with.
const oldestPython = 8

// bringsPython reports whether the user leaves it to uv to bring a Python.
func bringsPython() bool {
	said, decided := os.LookupEnv(pythonDownloads)
	return !decided || said == "automatic" || said == "true"
}

// runOnce is runUV with a Python. What fails because a repository or an index cannot be read over the network is tried
// again; uv goes on with what it read before, which is in its cache.
func (k *locker) runOnce(ctx context.Context, dir, interpreter string, requirements, args []string) error {
	program, err := k.opts.uv(k.recipe).Path(ctx)
	if err != nil {
		return err
	}
	args = slices.Concat(args, []string{"--python", interpreter})
	most := 0
	err = k.opts.Fetch.Retry(ctx, func(ctx context.Context, _ bool) (progress bool, err error) {
		found, err := k.start(ctx, dir, requirements, exec.CommandContext(ctx, program, args...))
		progress, most = found > most, max(found, most)
		return progress, err
	})
	var away *awayError
	if errors.As(err, &away) {
		return away.withRemedy(err)
	}
	return err
}

// start starts uv, which cmd is, and waits for its end. found is how many packages it learned the versions of.
func (k *locker) start(ctx context.Context, dir string, requirements []string, cmd *exec.Cmd) (found int, err error) {
	cmd.Dir = "/"
	if cmd.Env, err = k.uvEnvironment(dir); err != nil {
		return 0, err
	}
	cmd.Stdin = strings.NewReader(strings.Join(requirements, "\n") + "\n")
	stderr := newSearchLog(ctx, k.task)
	cmd.Stderr = stderr
	err = gitrun.Run(cmd)
	stderr.Close()
	found = stderr.found()
	if ctx.Err() != nil {
		return found, context.Cause(ctx)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && stderr.String() != "" {
		text := stderr.String()
		if k.settings != nil {
			text = strings.ReplaceAll(text, filepath.Join(dir, uvConfig), k.settings.file)
		}
		if k.handing != nil {
			text = k.handing.called(text)
		}
		text = k.logins.redact(strings.TrimRight(text, "\n"))
		return found, k.refusal(text, found, err)
	}
	if err != nil {
		return found, fmt.Errorf("run uv: %w", err)
	}
	return found, nil
}

// refusal is what uv's failure with err is for who locks: uv said text, after it had found so many packages.
func (k *locker) refusal(text string, found int, err error) error {
	if strings.Contains(text, gitFailed) && gitrun.NetworkFailed(err, text) {
		return newRepositoryError(text, err)
	}
	if away := newAwayError(text, found); away != nil {
		return away
	}
	return &ResolutionError{Text: text, hint: uvHint(text, &k.python)}
}

// gitFailed is among what uv says when git failed.
const gitFailed = "Git operation failed"

// repositoryError says that uv could not read a repository, of which another attempt may make more.
type repositoryError struct{ text string }

// newRepositoryError takes from uv's account which package it is about, and why git failed.
func newRepositoryError(text string, err error) *repositoryError {
	what, rest, _ := strings.Cut(strings.TrimPrefix(text, "error: "), "\n")
	var silent *gitrun.SilentError
	if errors.As(err, &silent) {
		return &repositoryError{what + ": " + silent.Error()}
	}
	for line := range strings.Lines(rest) {
		if gitrun.NetworkFailed(nil, line) {
			what += ": " + strings.TrimSpace(line)
			break
		}
	}
	return &repositoryError{what}
}

func (e *repositoryError) Error() string { return e.text }

// Transient tells package fetch that another attempt makes sense.
func (*repositoryError) Transient() bool { return true }

// ResolutionError is uv's explanation of why there is no answer, word for word: it derives the conflict step by step and
// ends in hints of its own.
type ResolutionError struct {
	Text string
	hint string
}

func (e *ResolutionError) Error() string {
	return "uv could not resolve the Python packages:\n" + e.Text
}

// Hint adds what uv does not know: what the packages are for.
func (e *ResolutionError) Hint() string { return e.hint }

var (
	// What uv says of a package that has only sources, or wheels only for others.
	noWheel = lazyregexp.New(`Wheels are required for .([A-Za-z0-9._-]+).|([A-Za-z0-9._-]+)(?:\[[^\]\s]*\])?(?:[=<>]=?\S+)? has no (?:usable wheels|wheels with a matching)`)
	// What uv says of a package whose code it would have to run.
	notBuilt = lazyregexp.New("Failed to (?:build|prepare|resolve metadata for|generate package metadata for) `([A-Za-z0-9._-]+)(?:==([^ `]+))?")
	// What an uv says that is too old for what it is told.
	tooOld = lazyregexp.New(`unexpected argument|invalid value '(?:pylock\.toml|[a-z0-9_]+-manylinux)|unknown (?:option|argument)`)
)

func uvHint(text string, p *Python) string {
	if tooOld.MatchString(text) {
		return "this uv is too old: `uv self update`, or `pip install --upgrade uv`"
	}
	if hint := gitrun.Hint(text); hint != "" {
		return hint
	}
	if strings.Contains(text, notAnswered) {
		return "this uv asks for the metadata of sources in a way that this sconce does not know: take another version of one of the two"
	}
	if strings.Contains(text, "+conda") || strings.Contains(text, ".conda") {
		return "a version that ends in +conda is what the conda environment brings: ask for that version, or for another one under [conda]"
	}
	if m := notBuilt.FindStringSubmatch(text); m != nil {
		name := python.NormalizeName(m[1])
		return fmt.Sprintf("the source of %s says what it depends on only when its code is run, which is not done here: name it, depends = [...] under [python.compile.%s]", name, name)
	}
	if m := noWheel.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("%s has no wheel for Python %s on %s, and no source that could be built instead: ask for a version that has one, or name a wheel or a repository: %s @ file:///path/to/the.whl",
			m[1]+m[2], p.Interpreter().Minor(), uvPlatform(p), m[1]+m[2])
	}
	return remedyOf(text)
}
