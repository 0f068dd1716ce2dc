package condalock

import (
	"cmp"
	"context"
	_ "embed" // the script of the solver
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"sconce.dev/sconce/internal/child"
	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tempdir"
	"sconce.dev/sconce/internal/uv"
)

// Rattler is the release of py-rattler that solve.py is written for.
const Rattler = "0.28.0"

//go:embed solve.py
var solveScript []byte

// usualTimeout is how long a solver may take. The largest environments on the slowest lines take a few minutes.
const usualTimeout = 20 * time.Minute

// Solver asks py-rattler, run by uv. Its methods may be called from many goroutines.
type Solver struct {
	Store   *store.Store // keeps the indexes of channels
	Config  *Config
	Offline bool          // take the indexes that are in the store, and nothing from the network
	Timeout time.Duration // for one answer; 0 means usualTimeout

	// UV returns the path of uv.
	UV func(ctx context.Context) (string, error)
	// Env are more variables for uv, such as UV_DEFAULT_INDEX: py-rattler comes from the user's Python package index.
	Env []string
}

// Source is one file of a chain, or what a recipe lists.
type Source struct {
	Name       string // names it in messages: "environment.yml"
	Dir        string // paths of channels are relative to it
	Channels   []string
	NoDefaults bool
	Specs      []Spec
}

// Source returns the conda part of an environment.
func (e *Environment) Source() Source {
	return Source{Name: e.File, Dir: filepath.Dir(e.File), Channels: e.Channels, NoDefaults: e.NoDefaults, Specs: e.Specs}
}

// Request is what to solve.
type Request struct {
	Platform string // "linux-64"
	Sources  []Source

	// Defaults are added behind the channels of the sources, unless all sources say nodefaults.
	Defaults []string
	Priority string // "strict", "flexible" or "disabled"; "" is strict
	Machine  *Machine

	// Locked were chosen earlier and are kept where they fit, but for those in Upgrade.
	Locked  []conda.Package
	Upgrade []string // names, normalised

	// WantsCUDA makes it an error when a package that a spec names comes without CUDA although it has a build with CUDA, because the
	// driver is unknown or too old. Else that is a warning, as it is with packages that nobody named.
	WantsCUDA bool

	AddPip         bool // a Python brings pip along, as with conda, where a channel has it
	AcceptLicenses bool // of Anaconda's own channels
}

// Answer is what the solver chose.
type Answer struct {
	Packages []conda.Package // each after those that it depends on
	Channels []Channel
	Warnings []Warning
}

// Warning is something that the user should know, and what to do about it, or "".
type Warning struct{ Text, Hint string }

// ask is the request as solve.py reads it.
type ask struct {
	Platform  string           `json:"platform"`
	Channels  []string         `json:"channels"`
	Priority  string           `json:"priority"`
	Virtual   []VirtualPackage `json:"virtual"`
	Sources   []askSource      `json:"sources"`
	Pinned    []string         `json:"pinned"`
	Locked    []record         `json:"locked"`
	Complete  []record         `json:"complete"`
	CheckCUDA bool             `json:"check_cuda"`
	AddPip    bool             `json:"add_pip"`

	Config    string              `json:"config"`
	Plain     bool                `json:"plain"`
	Mirrors   map[string][]string `json:"mirrors"`
	Repodata  map[string]bool     `json:"repodata"`
	Cache     string              `json:"cache"`
	Offline   bool                `json:"offline"`
	Retries   int                 `json:"retries"`
	Timeout   int                 `json:"timeout"` // in seconds
	UserAgent string              `json:"user_agent"`
}

type askSource struct {
	Specs []string `json:"specs"`
}

// reply is the answer of solve.py.
type reply struct {
	Packages    []record      `json:"packages"`
	WithoutCUDA []withoutCUDA `json:"without_cuda"`
	Warnings    []string      `json:"warnings"`
	Error       *failure      `json:"error"`
}

// withoutCUDA is a package that was chosen in a build without CUDA, although there is one with it.
type withoutCUDA struct {
	Name  string   `json:"name"`
	Wants []string `json:"wants"` // what the builds with CUDA want: "__cuda >=12.8"
	Asked bool     `json:"asked"` // the user named it
}

// Solve chooses packages. The sources are solved in order, what was chosen earlier being kept where it can be, to one set. A
// [*ConflictError] says that there is none.
func (s *Solver) Solve(ctx context.Context, r Request) (*Answer, error) {
	task := progress.Begin(ctx, "resolve", "conda packages", 0)
	answer, err := s.solve(ctx, r)
	return answer, task.End(err)
}

func (s *Solver) solve(ctx context.Context, r Request) (*Answer, error) {
	channels, err := s.Config.channelsOf(&r)
	if err != nil {
		return nil, err
	}
	warnings, err := checkLicenses(channels, r.AcceptLicenses)
	if err != nil {
		return nil, err
	}
	a := &ask{Platform: r.Platform, Priority: cmp.Or(r.Priority, "strict"), Virtual: r.Machine.Packages, AddPip: r.AddPip}
	a.CheckCUDA = !slices.Contains(r.Machine.Without, "__cuda")
	for _, c := range channels {
		a.Channels = append(a.Channels, c.URL)
	}
	if a.Pinned, err = s.Config.pinned(); err != nil {
		return nil, err
	}
	if a.Sources, err = s.Config.specs(r.Sources); err != nil {
		return nil, err
	}
	for _, p := range r.Locked {
		if !slices.Contains(r.Upgrade, p.Name) {
			a.Locked = append(a.Locked, recordOf(p))
		}
	}
	found, err := s.ask(ctx, a)
	if err != nil {
		return nil, err
	}
	if found.Error != nil {
		return nil, s.explain(found.Error, &r)
	}
	return s.answer(found, &r, channels, warnings)
}

func (s *Solver) answer(found *reply, r *Request, channels []Channel, warnings []Warning) (*Answer, error) {
	packages, err := packagesOf(found.Packages)
	if err != nil {
		return nil, err
	}
	for _, text := range found.Warnings {
		warnings = append(warnings, Warning{Text: s.Config.Logins.redact(text)})
	}
	for _, one := range found.WithoutCUDA {
		w := one.warning(r.Machine)
		if r.WantsCUDA && one.Asked {
			return nil, fault.Hint(errors.New(w.Text), w.Hint)
		}
		warnings = append(warnings, w)
	}
	return &Answer{Packages: conda.SortPackages(packages), Channels: channels, Warnings: warnings}, nil
}

// warning says why a package comes without CUDA.
func (w *withoutCUDA) warning(m *Machine) Warning {
	text := fmt.Sprintf("%s comes without CUDA: its builds with CUDA want %s, and ", w.Name, strings.Join(w.Wants, " or "))
	if cuda := m.version("__cuda"); cuda != "" {
		return Warning{
			Text: text + "the target's driver runs CUDA up to " + cuda,
			Hint: fmt.Sprintf("if that is enough, ask for a build with CUDA by its name: %[1]s=*=cuda*; if not, for an older version, which has one for that driver, or for a build without: %[1]s=*=cpu*", w.Name),
		}
	}
	return Warning{Text: text + "no driver of the target is known", Hint: cudaHint}
}

// cudaHint is what makes __cuda known.
const cudaHint = `say which driver the target has: driver = "550.54" under [target], or CONDA_OVERRIDE_CUDA=12.4; CONDA_OVERRIDE_CUDA="" says that there is none`

// channelsOf gathers the channels of all sources, and those that their specs name (conda-forge::numpy), in the order in which they
// are mentioned, then the defaults.
func (c *Config) channelsOf(r *Request) ([]Channel, error) {
	var all []Channel
	add := func(names []string, dir string) error {
		found, err := c.Channels(names, dir)
		for _, one := range found {
			if !slices.ContainsFunc(all, func(a Channel) bool { return a.URL == one.URL }) {
				all = append(all, one)
			}
		}
		return err
	}
	defaults := len(r.Sources) == 0
	for _, source := range r.Sources {
		if err := add(source.Channels, source.Dir); err != nil {
			return nil, fmt.Errorf("%s: %w", source.Name, err)
		}
		defaults = defaults || !source.NoDefaults
	}
	if defaults {
		if err := add(r.Defaults, "."); err != nil {
			return nil, err
		}
	}
	for _, source := range r.Sources {
		for _, spec := range source.Specs {
			if name, _, ok := strings.Cut(spec.Text, "::"); ok {
				if err := add([]string{name}, source.Dir); err != nil {
					return nil, fmt.Errorf("%s: %w", spec.at(source.Name), err)
				}
			}
		}
	}
	if len(all) == 0 {
		return nil, fault.Hint(errors.New("no channel to take conda packages from"), "name one: channels: [conda-forge]")
	}
	return all, nil
}

// Learn notes how the channels of packages that were chosen earlier are reached: the logins in addresses that sources name, and what stands
// here for names that all know. An address that cannot be made out, as for want of a variable, brings none: whoever has none gets in
// another way, or is told when the channel asks for it.
func (c *Config) Learn(sources []Source, packages []conda.Package) {
	for _, source := range sources {
		for _, name := range source.Channels {
			_, _ = c.Channels([]string{name}, source.Dir)
		}
		for _, spec := range source.Specs {
			if name, _, ok := strings.Cut(spec.Text, "::"); ok {
				_, _ = c.Channels([]string{name}, source.Dir)
			}
		}
	}
	var known string
	for _, p := range packages {
		if name, ok := strings.CutPrefix(p.Channel, usualAlias+"/"); ok && name != known {
			_, _ = c.Channels([]string{name}, ".")
			known = name
		}
	}
}

// specs are the specs of the sources as the solver reads them.
func (c *Config) specs(sources []Source) ([]askSource, error) {
	all := make([]askSource, len(sources))
	for i, source := range sources {
		all[i].Specs = []string{}
		for _, spec := range source.Specs {
			text, err := c.spec(spec.Text, source.Dir)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", spec.at(source.Name), err)
			}
			all[i].Specs = append(all[i].Specs, text)
		}
	}
	return all, nil
}

// spec is a spec in which the channel is an address.
func (c *Config) spec(text, dir string) (string, error) {
	name, rest, ok := strings.Cut(text, "::")
	if !ok {
		return text, nil
	}
	found, err := c.Channels([]string{name}, dir)
	if err == nil && len(found) == 1 { // a name that stands for several channels binds to none of them
		rest = found[0].URL + "::" + rest
	}
	return rest, err
}

// pinned is what the user's configuration holds packages to.
func (c *Config) pinned() (all []string, err error) {
	for _, text := range c.Pinned {
		text, err := c.spec(strings.TrimSpace(text), ".")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pinnedPlace, err)
		}
		all = append(all, text)
	}
	return all, nil
}

// pinnedPlace is where pinned packages are named.
const pinnedPlace = "pinned_packages of conda's configuration"

// at names the place of a spec.
func (s Spec) at(file string) string {
	if s.Line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d:%d", file, s.Line, s.Column)
}

// ask runs the script.
func (s *Solver) ask(ctx context.Context, a *ask) (*reply, error) {
	cache, err := s.Store.CacheDir(ctx, "conda repodata", store.CacheShared, func(string) error { return nil })
	if err != nil {
		return nil, err
	}
	defer cache.Release()
	dir, remove, err := tempdir.Make("conda")
	if err != nil {
		return nil, err
	}
	defer remove()
	if err := s.fill(a, cache.Dir); err != nil {
		return nil, err
	}
	if err := s.write(dir, a); err != nil {
		return nil, fmt.Errorf("ask the solver: %w", err)
	}
	env, err := s.Config.environment(a.Channels)
	if err != nil {
		return nil, err
	}
	if err := s.run(ctx, dir, env); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "answer.json"))
	if err != nil {
		return nil, fmt.Errorf("the solver ended without an answer: %w", err)
	}
	var found reply
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, fmt.Errorf("the solver's answer: %w", err)
	}
	return &found, nil
}

// retries is how often the solver asks a server again that does not answer or is busy, waiting longer each time.
const retries = 5

// fill adds how channels are reached. Lists are never null in what the script reads.
func (s *Solver) fill(a *ask, cache string) (err error) {
	if a.Config, a.Plain, err = s.Config.solverConfig(); err != nil {
		return fmt.Errorf("rattler's configuration: %w", err)
	}
	a.Mirrors = map[string][]string{}
	for usual, places := range s.Config.Mirrors {
		a.Mirrors[usual+"/"] = places
	}
	a.Repodata, a.Cache, a.Offline, a.Retries, a.UserAgent = s.Config.repodata(), cache, s.Offline, retries, "sconce"
	a.Timeout = int(s.timeout().Seconds())
	a.Channels, a.Virtual, a.Sources, a.Pinned = listOf(a.Channels), listOf(a.Virtual), listOf(a.Sources), listOf(a.Pinned)
	a.Locked, a.Complete = listOf(a.Locked), listOf(a.Complete)
	return nil
}

func (s *Solver) timeout() time.Duration { return max(cmp.Or(s.Timeout, usualTimeout), time.Second) }

func listOf[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func (s *Solver) write(dir string, a *ask) error {
	request, err := json.Marshal(a)
	if err != nil {
		return err
	}
	logins, err := s.Config.Logins.file()
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "solve.py"), solveScript, 0o600),
		os.WriteFile(filepath.Join(dir, "request.json"), request, 0o600),
		os.WriteFile(filepath.Join(dir, "logins.json"), logins, 0o600),
	)
}

// run runs the script in dir, with request.json, until it has written answer.json. env are variables that say how channels are reached.
func (s *Solver) run(ctx context.Context, dir string, env []string) error {
	program, err := s.UV(ctx)
	if err != nil {
		hint := "bring a lock of the conda packages: conda-lock.yml, pixi.lock or an @EXPLICIT file"
		if above := fault.HintOf(err); above != "" {
			hint = above + "; or " + hint
		}
		return fault.Hint(fmt.Errorf("choosing conda packages needs uv: %w", err), hint)
	}
	args := []string{"run", "--quiet", "--no-project", "--isolated", "--with", "py-rattler==" + Rattler}
	if p, ok := host.AnyPython(ctx, "3.12", oldestPython); ok { // uv would look for one in directories around, where a stranger's may be
		args = append(args, "--python", p.Path)
	} else {
		args = append(args, "--python", fmt.Sprintf(">=3.%d", oldestPython), "--managed-python")
	}
	if s.Offline {
		args = append(args, "--offline")
	}
	args = append(args, "python", "-I")
	for _, file := range []string{"solve.py", "request.json", "answer.json"} {
		args = append(args, filepath.Join(dir, file))
	}
	limited, cancel := context.WithTimeoutCause(ctx, s.timeout(), errTimeout)
	defer cancel()
	cmd := exec.CommandContext(limited, program, args...)
	cmd.Dir = "/"
	cmd.Env = s.environment(dir, env)
	var stderr child.Tail
	cmd.Stderr = &stderr
	err = child.Group(cmd, syscall.SIGKILL)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && limited.Err() != nil:
		return fault.Hint(fmt.Errorf("the solver gave no answer in %s", s.timeout()), "a channel may be slow or hang: try again, or name a mirror of it in .condarc")
	case err != nil:
		return s.died(err, stderr.String())
	}
	return nil
}

var errTimeout = errors.New("the solver takes too long")

// oldestPython is the minor version of the oldest Python 3 that py-rattler works with.
const oldestPython = 10

// environment is what uv gets of the user's, what rattler reads besides, and the logins. What both leave behind goes with dir.
func (s *Solver) environment(dir string, more []string) []string {
	stores := slices.DeleteFunc(os.Environ(), func(kv string) bool { return !strings.HasPrefix(kv, "AWS_") && !strings.HasPrefix(kv, "GOOGLE_") })
	env := slices.Concat(uv.Environment(os.Environ()), stores, more, s.Env)
	return append(env, "NO_COLOR=1", "UV_NO_PROGRESS=1", "RUST_BACKTRACE=0", "TMPDIR="+dir, "RATTLER_AUTH_FILE="+filepath.Join(dir, "logins.json"))
}

// died explains a script that ended without an answer.
func (s *Solver) died(err error, said string) error {
	said = strings.TrimSpace(s.Config.Logins.redact(said))
	if text, ok := strings.CutPrefix(said, "error: "); ok { // uv's own, with hints behind an empty line
		text, _, _ = strings.Cut(text, "\n\n")
		return fault.Hint(fmt.Errorf("uv cannot run the solver of conda packages: %s", chain(text)), uvHint(text))
	}
	if strings.HasPrefix(said, "Traceback") {
		lines := strings.Split(said, "\n")
		said = lines[len(lines)-1]
	}
	died := fmt.Errorf("the solver of conda packages died: %w", err)
	if said != "" {
		died = fmt.Errorf("%w: %s", died, said)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && (exit.ExitCode() == killed || strings.HasSuffix(err.Error(), "killed")) {
		return fault.Hint(died, "something killed it: the machine may be short of memory, of which the index of a large channel takes some GB")
	}
	return died
}

// killed is how shells, and uv, pass on that a program was ended by SIGKILL.
const killed = 128 + 9

func uvHint(text string) string {
	switch {
	case strings.Contains(text, "No interpreter found"):
		return "it needs a Python of 3.10 or newer on this machine: `uv python install`"
	case strings.Contains(text, "in the cache"):
		return fmt.Sprintf("it is py-rattler %s of the Python package index: run it once with the network, and uv keeps it", Rattler)
	case strings.Contains(text, "Request failed"), strings.Contains(text, "Failed to fetch"):
		return "it comes from the Python package index: UV_DEFAULT_INDEX or uv.toml says where yours is"
	}
	return ""
}

// Complete looks up in their channels what locks leave out of packages: SHA-256, size, dependencies. What a channel does not
// know, or knows with other hashes, comes back as it was.
func (s *Solver) Complete(ctx context.Context, platform string, packages []conda.Package) ([]conda.Package, error) {
	a := &ask{Platform: platform, Priority: "disabled"}
	for _, p := range packages {
		a.Complete = append(a.Complete, recordOf(p))
		if !slices.Contains(a.Channels, p.Channel) {
			a.Channels = append(a.Channels, p.Channel)
		}
	}
	if len(packages) == 0 {
		return nil, nil
	}
	found, err := s.ask(ctx, a)
	if err != nil {
		return nil, err
	}
	if found.Error != nil {
		return nil, s.explain(found.Error, &Request{})
	}
	known, err := packagesOf(found.Packages)
	if err != nil {
		return nil, err
	}
	whole := slices.Clone(packages)
	for i, p := range whole {
		for _, k := range known {
			if sameArchive(p, k) {
				whole[i] = k
			}
		}
	}
	return whole, nil
}

// sameArchive reports whether two packages are of the same address, with no hash that says otherwise.
func sameArchive(p, k conda.Package) bool {
	return p.URL == k.URL && (p.SHA256 == "" || p.SHA256 == k.SHA256) && (p.MD5 == "" || k.MD5 == "" || p.MD5 == k.MD5)
}
