package wheelbuild

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/searchpath"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/units"
)

//go:embed driver.py
var driver []byte

// Where things are in the sandbox. The directory is always the same, because compilers write its name into what they make.
const (
	workDir    = "/sconce/build" // files of this machine: what is written there is in no layer
	sourceDir  = "/sconce/source"
	driverPath = "/sconce/driver.py"
	orderPath  = "/sconce/order.json"
	ccacheDir  = "/sconce/ccache"
)

// order is what the driver is told.
type order struct {
	Dir          string   `json:"dir"`
	Archive      string   `json:"archive"`
	Subdirectory string   `json:"subdirectory"`
	Backend      string   `json:"backend"`
	BackendPath  []string `json:"backendPath"`
	Phase        phase    `json:"phase"`
}

// phase is what the driver does in one run.
type phase string

const (
	onlyAsk     phase = "ask"   // the backend says what it wants
	onlyBuild   phase = "build" // it was asked
	askAndBuild phase = "both"  // it builds when it wants nothing
)

// exitMissing is the driver's word that the backend wants more than its source says.
const exitMissing = 64

// Limits on what the driver writes.
const (
	maxAnswer = 4 << 20 // bytes
)

func (s *site) build(ctx context.Context) (record, error) {
	g, done, err := s.builder.Jobs.take(ctx, s.pkg)
	if err != nil {
		return record{}, err
	}
	defer done()
	if !s.asked {
		r, wanted, err := s.attempt(ctx, g, askAndBuild)
		if wanted == nil || err != nil {
			return r, err
		}
		if err := s.checkWanted(*wanted); err != nil {
			return r, err
		}
	}
	r, _, err := s.attempt(ctx, g, onlyBuild)
	return r, err
}

// ask has the backend say what it wants besides what its source says (PEP 517, get_requires_for_build_wheel). What is not there is an
// error.
func (s *site) ask(ctx context.Context) error {
	g, done, err := s.builder.Jobs.take(ctx, s.pkg)
	if err != nil {
		return err
	}
	defer done()
	_, wanted, err := s.attempt(ctx, g, onlyAsk)
	if err == nil && wanted != nil {
		err = s.checkWanted(*wanted)
	}
	s.asked = err == nil
	return err
}

// attempt runs the driver once. The requirements come back when the backend has some that have to be looked at.
func (s *site) attempt(ctx context.Context, g grant, p phase) (record, *wanted, error) {
	dir, err := s.builder.store().TempDir("compile-*")
	if err != nil {
		return record{}, nil, err
	}
	defer store.RemoveAll(dir)
	c, err := s.command(dir, g, p)
	if err != nil {
		return record{}, nil, err
	}
	title := "compile " + s.pkg.Label()
	if p == onlyAsk {
		title = "prepare " + s.pkg.Label()
	}
	_, err = s.builder.Runner.Run(ctx, title, s.layers, c)
	var f *execop.Failure
	if errors.As(err, &f) && f.Code == exitMissing && p != onlyBuild {
		var w wanted
		if err := readAnswer(dir, "requires.json", &w); err == nil {
			return record{}, &w, nil
		}
	}
	if err != nil {
		return record{}, nil, s.explain(err, g)
	}
	if p == onlyAsk {
		return record{}, nil, nil
	}
	r, err := s.take(dir)
	if err != nil {
		return r, nil, fmt.Errorf("compile %s: %w", s.pkg.Label(), err)
	}
	return r, nil, nil
}

func (s *site) command(dir string, g grant, p phase) (execop.Command, error) {
	blob, err := s.builder.store().BlobPath(s.source.Digest)
	if err != nil {
		return execop.Command{}, err
	}
	archive := path.Join(sourceDir, path.Base(s.source.File))
	text, err := json.Marshal(order{
		Dir: workDir, Archive: archive, Subdirectory: s.pkg.Source.Subdirectory, Backend: s.source.info.Backend,
		BackendPath: s.source.info.BackendPath, Phase: p,
	})
	if err != nil {
		return execop.Command{}, err
	}
	c := execop.Command{
		Args: []string{"/" + buildRoot + "/bin/python", driverPath, orderPath}, Env: s.env(g), WorkDir: workDir, NoNetwork: !s.pkg.Network,
		Mounts: []execop.Mount{
			{Kind: execop.Bind, Target: workDir, Dir: dir},
			{Kind: execop.Bind, Target: archive, Dir: blob, ReadOnly: true},
		},
		Files:  []execop.File{{Target: driverPath, Content: driver}, {Target: orderPath, Content: text}},
		Answer: exitMissing, Arch: s.builder.Arch,
	}
	if s.ccache {
		c.Mounts = append(c.Mounts, execop.Mount{Kind: execop.Cache, Target: ccacheDir, ID: "ccache"})
	}
	return c, nil
}

// env is the whole environment of the build.
func (s *site) env(g grant) []string {
	env := make(map[string]string)
	for _, kv := range s.ground.Env {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	dirs := []string{"/" + buildRoot + "/bin"}
	if !s.pkg.Isolated && s.ground.Root != "" {
		dirs = append(dirs, "/"+s.ground.Root+"/bin")
	}
	set := func(name, format string, args ...any) { env[name] = fmt.Sprintf(format, args...) }
	if home := s.toolkit.home; home != "" {
		dirs = append(dirs, home+"/bin")
		set("CUDA_HOME", "%s", home)
	}
	if dir := s.masquerade(); dir != "" {
		dirs = append(dirs, dir)
	}
	if env["PATH"] == "" {
		env["PATH"] = searchpath.Default
	}
	set("PATH", "%s:%s", strings.Join(dirs, ":"), env["PATH"])
	set("VIRTUAL_ENV", "/%s", buildRoot)
	set("HOME", "%s/home", workDir)
	set("TMPDIR", "%s/tmp", workDir)
	set("LC_ALL", "C.UTF-8")
	set("SOURCE_DATE_EPOCH", "%d", s.epoch())
	set("PYTHONHASHSEED", "0")
	set("PYTHONNOUSERSITE", "1")
	set("PYTHONDONTWRITEBYTECODE", "1")
	set("PYTHONUNBUFFERED", "1")
	s.parallel(set, g)
	maps.Copy(env, s.pkg.Variables())
	s.forCcache(set)
	maps.Copy(env, s.pkg.Env)
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// parallel says how many compilers may run, in all the ways that build systems ask for it.
func (s *site) parallel(set func(name, format string, args ...any), g grant) {
	for _, name := range []string{"MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL", "CARGO_BUILD_JOBS", "NPY_NUM_BUILD_JOBS"} {
		set(name, "%d", g.jobs)
	}
	set("MAKEFLAGS", "-j%d", g.jobs)
	set("NVCC_THREADS", "%d", g.threads)
	set("NVTE_BUILD_THREADS_PER_JOB", "%d", g.threads)
}

// notInName is what a variable's name cannot hold.
var notInName = lazyregexp.New(`[^A-Za-z0-9]+`)

// Variables are what the package's build is told of the package itself: the target's GPUs, for torch's extensions and for CMake
// (cmake-env-variables(7), CUDAARCHS); and the version, for who would ask the repository for it, which is not there
// (setuptools-scm, "Overrides"). What the package declares goes before them.
func (p Package) Variables() map[string]string {
	env := make(map[string]string)
	if len(p.Archs) > 0 {
		var numbers []string
		for _, arch := range p.Archs {
			numbers = append(numbers, strings.ReplaceAll(strings.TrimSuffix(arch, "+PTX"), ".", "")+"-real")
		}
		env["TORCH_CUDA_ARCH_LIST"], env["CUDAARCHS"] = strings.Join(p.Archs, ";"), strings.Join(numbers, ";")
	}
	if p.Source.Kind != python.SourceArchive && p.Version != "" {
		env["SETUPTOOLS_SCM_PRETEND_VERSION_FOR_"+strings.ToUpper(notInName.ReplaceAllString(p.Name, "_"))] = p.Version
	}
	return env
}

// forCcache puts ccache before the compilers: by a directory of its links on PATH where there is one, else by CMake's
// launchers; torch takes nvcc's name from PYTORCH_NVCC.
func (s *site) forCcache(set func(name, format string, args ...any)) {
	if !s.ccache {
		return
	}
	set("CCACHE_DIR", "%s", ccacheDir)
	set("CCACHE_BASEDIR", "%s", workDir)
	set("CCACHE_NOHASHDIR", "1")
	set("CMAKE_CUDA_COMPILER_LAUNCHER", "ccache")
	if s.masquerade() == "" {
		set("CMAKE_C_COMPILER_LAUNCHER", "ccache")
		set("CMAKE_CXX_COMPILER_LAUNCHER", "ccache")
	}
	if s.toolkit.home != "" {
		set("PYTORCH_NVCC", "ccache %s/bin/nvcc", s.toolkit.home)
	}
}

// masquerade returns the directory in which ccache goes by the names of compilers, "" when the distribution has none.
func (s *site) masquerade() string {
	for _, dir := range []string{"/usr/lib/ccache", "/usr/lib64/ccache"} {
		if s.ccache && isFile(s.tree, dir+"/gcc") {
			return dir
		}
	}
	return ""
}

// readAnswer reads a file that the driver wrote. What the build did to it or to the directory is not trusted.
func readAnswer(dir, name string, v any) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxAnswer))
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// take takes the wheel out of the build's directory.
func (s *site) take(dir string) (record, error) {
	var built struct{ File string }
	if err := readAnswer(dir, "built.json", &built); err != nil {
		return record{}, fmt.Errorf("the backend %s said nothing of a wheel: %w", s.source.info.Backend, err)
	}
	name, version, err := s.checkName(built.File)
	if err != nil {
		return record{}, err
	}
	root, err := os.OpenRoot(filepath.Join(dir, "dist"))
	if err != nil {
		return record{}, err
	}
	defer root.Close()
	f, err := root.Open(name)
	if err != nil {
		return record{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return record{}, err
	}
	digest, size, err := normalize(s.builder.store(), f, info.Size(), time.Unix(s.epoch(), 0))
	if err != nil {
		return record{}, fmt.Errorf("the wheel %s: %w", name, err)
	}
	return record{File: name, Version: version, Digest: digest, Size: size}, nil
}

// checkName makes sure that the wheel is the one that was asked for, and fits.
func (s *site) checkName(file string) (name, version string, err error) {
	built, err := python.ParseWheelName(file)
	if err != nil {
		return "", "", fmt.Errorf("the backend %s made %q: %w", s.source.info.Backend, file, err)
	}
	if python.NormalizeName(built.Name) != s.pkg.Name {
		return "", "", fmt.Errorf("the source of %s makes a package %s", s.pkg.Name, built.Name)
	}
	if s.pkg.Version != "" && !python.SamePublicVersion(built.Version, s.pkg.Version) {
		return "", "", fault.Hint(fmt.Errorf("the build made version %s", built.Version), "lock again: `sconce lock`")
	}
	if !built.Fits(s.ground.Python.Tags()) {
		return "", "", fmt.Errorf("the build made %s, which the image's Python %s does not take", file, s.ground.Python.Minor())
	}
	return file, built.Version, nil
}

// wanted is what a backend wants besides what its source says, and what there is.
type wanted struct {
	Wanted    []string          `json:"wanted"`
	Installed map[string]string `json:"installed"`
}

// checkWanted compares the two (PEP 517, get_requires_for_build_wheel).
func (s *site) checkWanted(w wanted) error {
	have := make(map[string]string)
	for name, version := range w.Installed {
		have[python.NormalizeName(name)] = version
	}
	env := python.EnvironmentOf(s.ground.Python).WithExtra("")
	var missing []string
	for _, text := range w.Wanted {
		r, err := python.ParseRequirement(text)
		if err != nil {
			return fmt.Errorf("compile %s: its backend wants %q: %w", s.pkg.Label(), text, err)
		}
		if r.Marker != nil {
			if applies, err := r.Marker.Evaluate(env); err == nil && !applies {
				continue
			}
		}
		version, there := have[python.NormalizeName(r.Name)]
		if v, err := python.ParseVersion(version); !there || err == nil && !r.Specifiers.Contains(v) {
			missing = append(missing, strconv.Quote(text))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fault.Hint(fmt.Errorf("compile %s: its backend wants %s, which is not there", s.pkg.Label(), strings.Join(missing, ", ")),
		fmt.Sprintf("add it under [python.compile.%s]: requires = [%s]", s.pkg.Name, strings.Join(missing, ", ")))
}

// explain adds to a failed build what is to be done about it.
func (s *site) explain(err error, g grant) error {
	var f *execop.Failure
	if !errors.As(err, &f) {
		return err
	}
	if f.OutOfMemory || killed(f) {
		return s.outOfMemory(f, g)
	}
	tail := strings.Join(f.Tail, "\n")
	if m := noModule.FindStringSubmatch(tail); m != nil {
		name := strings.ReplaceAll(strings.Split(m[1], ".")[0], "_", "-")
		if s.pkg.Isolated && name == "torch" {
			return fault.Hint(err, fmt.Sprintf("it is built against the image's torch: isolation = false under [python.compile.%s]", s.pkg.Name))
		}
		return fault.Hint(err, fmt.Sprintf("add what it needs while it is built: requires = [%q] under [python.compile.%s]", name, s.pkg.Name))
	}
	if hint := s.missingHint(f); hint != "" {
		return fault.Hint(err, hint)
	}
	if noNetwork.MatchString(strings.Join(lastLines(f), "\n")) && !s.pkg.Network {
		return fault.Hint(err, fmt.Sprintf("packages are compiled without network: network = true under [python.compile.%s] lets it download, crates and Go modules by the hashes in its Cargo.lock and go.sum; "+
			"surer is a source that has it, or a build requirement", s.pkg.Name))
	}
	return err
}

var (
	noModule  = lazyregexp.New(`(?m)ModuleNotFoundError: No module named '([A-Za-z0-9_.]+)'`)
	noNetwork = lazyregexp.New(`(?i)Temporary failure in name resolution|Could not resolve host|Network is unreachable|Couldn't resolve host|` +
		`download of config\.json failed|dial (?:tcp|udp)[^\n]*(?:lookup|connect:)|no such host`)

	// What compilers and those who drive them say when the kernel killed one.
	killedText = lazyregexp.New(`(?i)Killed signal terminated program|fatal error: Killed|died due to signal 9|virtual memory exhausted|out of memory allocating|cc1plus: out of memory`)
)

func killed(f *execop.Failure) bool {
	return slices.ContainsFunc(f.Tail, killedText.MatchString)
}

// outOfMemory says how many compilers would have fit.
func (s *site) outOfMemory(f *execop.Failure, g grant) error {
	const gib = 1 << 30
	at := s.builder.Jobs.memory
	err := fmt.Errorf("compile %s: killed for lack of memory, with %s at once (%.1f GiB were there): %w", s.pkg.Label(), units.Number(g.jobs, "compiler"), float64(at)/gib, f)
	if g.jobs == 1 && g.threads == 1 {
		return fault.Hint(err, "a single compiler did not fit: build it on a machine with more memory, and share it through [cache] registry")
	}
	// Its largest process, where that is known; else each took more than its share, and twice that is safe to assume.
	took := f.Peak
	if took <= 0 && g.jobs > 0 {
		took = 2 * at / int64(g.jobs)
	}
	fit := max(1, g.jobs/2)
	if took > 0 && at > 0 {
		fit = min(fit, max(1, int(at/took)))
	}
	return fault.Hint(err, fmt.Sprintf("%s would fit: jobs = %d under [python.compile.%s], or memory-per-job = \"%dGiB\"",
		units.Number(fit, "compiler"), fit, s.pkg.Name, max(1, (at/int64(fit)+gib-1)/gib)))
}
