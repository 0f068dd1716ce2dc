package lock

import (
	"cmp"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/condalock"
	"sconce.dev/sconce/internal/cuda"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
)

// Conda says what a conda environment is made of. The packages are in a file of their own that other tools read too; what that has
// no room for is here.
type Conda struct {
	File     string         `toml:"file"`   // the packages: beside this lock, or, the user's own, relative to the recipe
	Digest   store.Digest   `toml:"digest"` // of that file
	Prefix   string         `toml:"prefix"`
	Platform string         `toml:"platform"` // as channels call it: "linux-64"
	Channels []string       `toml:"channels,multiline"`
	Machine  []string       `toml:"machine,multiline"`         // the virtual packages that were there, NAME=VERSION=BUILD
	Specs    []string       `toml:"specs,omitempty,multiline"` // what was asked for
	Glibc    string         `toml:"glibc,omitempty"`           // of the base
	Packages []CondaPackage `toml:"package,omitempty"`
}

// CondaPackage is what the file of packages does not say of one.
type CondaPackage struct {
	File         string       `toml:"file"` // name of the archive
	Size         int64        `toml:"size,omitempty"`
	SHA256       store.Digest `toml:"sha256,omitempty"` // of one of which channel and lock know the MD5 alone
	BuildNumber  int          `toml:"build-number,omitempty"`
	Noarch       string       `toml:"noarch,omitempty"`
	License      string       `toml:"license,omitempty"`
	SitePackages string       `toml:"site-packages,omitempty"`
	Constrains   []string     `toml:"constrains,omitempty"`
}

// condaLockPath is where the packages of r's conda environment are locked: conda-lock.yml, or NAME.conda-lock.yml.
func condaLockPath(r *recipe.Recipe) string {
	if name := stem(r); name != defaultStem {
		return besideLock(r, name+".conda-lock.yml")
	}
	return besideLock(r, "conda-lock.yml")
}

func (c *Conda) path(r *recipe.Recipe) string {
	if r.Conda.Lock != "" {
		return r.Resolve(c.File)
	}
	return besideLock(r, c.File)
}

// selection is what counts of a lock. One that sconce wrote has main alone.
func selection(r *recipe.Recipe) condalock.Selection {
	return condalock.Selection{Environment: r.Conda.LockEnvironment, Categories: r.Conda.LockCategories}
}

// merge adds to packages what this lock knows of them.
func (c *Conda) merge(packages []conda.Package) []conda.Package {
	known := make(map[string]CondaPackage)
	for _, k := range c.Packages {
		known[k.File] = k
	}
	merged := slices.Clone(packages)
	for i := range merged {
		p := &merged[i]
		if k, ok := known[p.File]; ok {
			p.Size, p.BuildNumber, p.Noarch, p.License = k.Size, k.BuildNumber, k.Noarch, k.License
			p.SitePackages, p.Constrains, p.SHA256 = k.SitePackages, k.Constrains, cmp.Or(p.SHA256, k.SHA256)
		}
	}
	return merged
}

// note keeps what the file of packages has no room for.
func (c *Conda) note(packages []conda.Package, inFile func(conda.Package) bool) {
	c.Packages = nil
	for _, p := range packages {
		k := CondaPackage{
			File: p.File, Size: p.Size, BuildNumber: p.BuildNumber, Noarch: p.Noarch, License: p.License, SitePackages: p.SitePackages,
			Constrains: p.Constrains,
		}
		if !inFile(p) {
			k.SHA256 = p.SHA256
		}
		c.Packages = append(c.Packages, k)
	}
	slices.SortFunc(c.Packages, func(a, b CondaPackage) int { return strings.Compare(a.File, b.File) })
}

// condaInputs are the inputs of the conda environment that are in and beside the recipe.
func condaInputs(r *recipe.Recipe) ([]string, error) {
	c := r.Conda
	if !c.Asked() {
		return nil, nil
	}
	lines := []string{"prefix " + c.Prefix}
	add := func(name string, values ...string) {
		for _, v := range values {
			lines = append(lines, name+" "+fetch.WithoutLogins(v))
		}
	}
	for _, file := range c.Environment {
		data, err := readFile(r.Resolve(file))
		if err != nil {
			return nil, fmt.Errorf("read what the recipe names under [conda] environment: %w", err)
		}
		add("environment", fmt.Sprintf("%s (%s)", file, store.DigestOf(data).Short()))
	}
	add("packages", c.Packages...)
	add("channels", c.Channels...)
	if c.Lock != "" {
		data, err := readFile(r.Resolve(c.Lock))
		if err != nil {
			return nil, fmt.Errorf("read what the recipe names under [conda] lock: %w", err)
		}
		add("lock", fmt.Sprintf("%s (%s)", c.Lock, store.DigestOf(data).Short()))
		add("lock-categories", slices.Sorted(slices.Values(c.LockCategories))...)
		if c.LockEnvironment != "" {
			add("lock-environment", c.LockEnvironment)
		}
		return lines, nil
	}
	add("channel-priority", cmp.Or(c.ChannelPriority, recipe.DefaultPriority)) // that of the user is no input, as their channels are none
	if c.Client {
		add("client", "true")
	}
	machine, err := machineOf(r, "")
	if err != nil {
		return nil, err
	}
	for _, v := range machine.Packages {
		add("machine", v.String())
	}
	for _, name := range machine.Without {
		add("machine", "without "+name)
	}
	return lines, nil
}

// machineOf is what the solver is told of the target, given the C library of the base.
func machineOf(r *recipe.Recipe, glibc string) (*condalock.Machine, error) {
	t := r.Target
	facts := condalock.Facts{Platform: condalock.Subdir(t.Platform), Glibc: glibc, Set: r.Conda.Virtual}
	if t.Driver != "" {
		facts.CUDA = cuda.Newest(cuda.ParseDriver(t.Driver)).String()
	}
	facts.CUDAArch = lowestGPU(t.GPU)
	if t.CPULevel > 0 && t.Platform == "linux/amd64" {
		facts.CPU = fmt.Sprintf("x86_64_v%d", t.CPULevel)
	}
	return condalock.Virtual(facts, os.LookupEnv)
}

// lowestGPU returns the lowest of compute capabilities, such as "9.0".
func lowestGPU(all []string) string {
	lowest, least := "", -1
	for _, text := range all {
		text = strings.TrimRight(text, "af") // what is compiled for one kind alone runs on that
		major, minor, _ := strings.Cut(text, ".")
		a, err1 := strconv.Atoi(major)
		b, err2 := strconv.Atoi(minor)
		if n := 100*a + b; err1 == nil && err2 == nil && (least < 0 || n < least) {
			lowest, least = text, n
		}
	}
	return lowest
}

// libcFormat is part of the keys of records of C libraries.
const libcFormat = "-libc-1"

// libc finds the C library of a base, reading the base only the first time.
func libc(ctx context.Context, st *store.Store, im *image.Image, platform v1.Platform) (python.CLibrary, error) {
	once := store.Once[python.CLibrary]{
		Kind: store.KindInterpreter, Key: im.Digest.Hex() + libcFormat,
		Refs: func(python.CLibrary) []store.Digest { return []store.Digest{im.Digest} },
	}
	found, _, err := once.Do(ctx, st, func(ctx context.Context) (python.CLibrary, error) {
		tree, err := im.Tree(ctx, st)
		if err != nil {
			return python.CLibrary{}, err
		}
		return python.FindCLibrary(tree, platform), nil
	})
	return found, err
}

// condaLocker locks the conda packages of one recipe.
type condaLocker struct {
	recipe *recipe.Recipe
	old    *Files // nil: none
	inputs Inputs
	opts   Options
	config *condalock.Config
	client *http.Client // for packages of channels
	solver *condalock.Solver
	conda  Conda
}

// lockConda decides on the conda packages of r. The text is that of the file of packages, nil when the user brings it.
func lockConda(ctx context.Context, r *recipe.Recipe, old *Files, inputs Inputs, im *image.Image, o Options) (*Conda, []conda.Package, []byte, error) {
	c := im.Platform()
	lib, err := libc(ctx, o.Store, im, c)
	if err != nil {
		return nil, nil, nil, err
	}
	if lib.Musl != "" && lib.Glibc == "" {
		return nil, nil, nil, fault.Hint(fmt.Errorf("the base has musl %s as its C library, and conda packages need glibc", lib.Musl), `take a base of another distribution, such as "debian:12"`)
	}
	config, err := condaConfig(r)
	if err != nil {
		return nil, nil, nil, err
	}
	way, err := config.Way()
	if err != nil {
		return nil, nil, nil, err
	}
	files, err := readRequirements(r)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := checkCondaWheels(r); err != nil {
		return nil, nil, nil, err
	}
	if err := warnOfEnvironments(ctx, r); err != nil {
		return nil, nil, nil, err
	}
	k := &condaLocker{recipe: r, old: old, inputs: inputs, opts: o, config: config, client: o.Fetch.Over(way), solver: &condalock.Solver{
		Store: o.Store, Config: config, Offline: o.Offline, UV: o.uv(r).Path, Env: indexEnvironment(r, files),
	}}
	k.conda = Conda{Prefix: r.Conda.Prefix, Platform: condalock.Subdir(r.Target.Platform), Glibc: lib.Glibc}
	if kept, packages, text := k.kept(); kept {
		return &k.conda, packages, text, nil
	}
	machine, err := machineOf(r, lib.Glibc)
	if err != nil {
		return nil, nil, nil, fault.Usage(err)
	}
	for _, v := range machine.Packages {
		k.conda.Machine = append(k.conda.Machine, v.String())
	}
	packages, text, err := k.lock(ctx, machine)
	return &k.conda, packages, text, err
}

// kept takes what the earlier lock has, when nothing else is asked for: the base's C library is what may have changed besides.
func (k *condaLocker) kept() (bool, []conda.Package, []byte) {
	old := k.old
	if old == nil || old.Conda == nil || k.opts.Upgrade || len(k.opts.UpgradePackages) > 0 || old.Platform != k.recipe.Target.Platform ||
		old.Conda.Glibc != k.conda.Glibc || !slices.Equal(old.Inputs.Conda, k.inputs.Conda) {
		return false, nil, nil
	}
	data := old.conda.text
	if old.conda.err != nil || store.DigestOf(data) != old.Conda.Digest {
		return false, nil, nil
	}
	packages, err := old.condaPackages(k.recipe)
	if err != nil {
		return false, nil, nil
	}
	k.conda = *old.Conda
	return true, packages, data
}

func (k *condaLocker) lock(ctx context.Context, machine *condalock.Machine) ([]conda.Package, []byte, error) {
	if k.recipe.Conda.Lock != "" {
		return k.take(ctx)
	}
	request, err := k.request(machine)
	if err != nil {
		return nil, nil, err
	}
	answer, err := k.solver.Solve(ctx, request)
	if err != nil {
		return nil, nil, err
	}
	for _, w := range answer.Warnings {
		progress.Warn(ctx, w.Text, w.Hint)
	}
	if err := reachConda(k.recipe, answer.Packages); err != nil {
		return nil, nil, err
	}
	for _, c := range answer.Channels {
		k.conda.Channels = append(k.conda.Channels, c.URL)
	}
	return k.settle(ctx, answer.Packages)
}

// condaClient is what a client in the image is.
var condaClient = []condalock.Spec{{Text: "conda"}, {Text: "mamba"}}

// request says what is to be solved: the environment files in order, then the recipe's own packages.
func (k *condaLocker) request(machine *condalock.Machine) (condalock.Request, error) {
	c := k.recipe.Conda
	files, err := readEnvironments(k.recipe)
	if err != nil {
		return condalock.Request{}, err
	}
	r := condalock.Request{
		Platform: k.conda.Platform, Priority: cmp.Or(c.ChannelPriority, k.config.Priority, recipe.DefaultPriority), Machine: machine, WantsCUDA: len(k.recipe.Target.GPU) > 0,
		AcceptLicenses: c.AcceptLicenses,
		AddPip:         len(files) > 0, // they are written for conda, with which a Python has pip
	}
	if len(c.Channels) == 0 {
		r.Defaults = k.config.UsualChannels()
	}
	r.Sources = condaSources(k.recipe, files)
	for _, s := range r.Sources {
		for _, spec := range s.Specs {
			k.conda.Specs = append(k.conda.Specs, fetch.WithoutLogins(spec.Text))
		}
	}
	if k.old != nil && k.old.Conda != nil && !k.opts.Upgrade {
		if r.Locked, err = k.old.condaPackages(k.recipe); err != nil {
			r.Locked = nil // it is made anew
		}
		for _, name := range k.opts.UpgradePackages {
			r.Upgrade = append(r.Upgrade, strings.ToLower(name))
		}
	}
	return r, nil
}

// condaSources are what names channels and packages: the environment files in order, then the recipe itself, if it has any.
func condaSources(r *recipe.Recipe, files []*condalock.Environment) []condalock.Source {
	c := r.Conda
	var all []condalock.Source
	for i, e := range files {
		source := e.Source()
		source.Name = c.Environment[i]
		all = append(all, source)
	}
	// A recipe cannot say nodefaults: what its files agree on goes for what it adds to them.
	closed := len(files) > 0 && !slices.ContainsFunc(files, func(e *condalock.Environment) bool { return !e.NoDefaults })
	own := condalock.Source{Name: filepath.Base(r.Path), Dir: r.Dir, Channels: c.Channels, NoDefaults: closed}
	for _, text := range c.Packages {
		own.Specs = append(own.Specs, condalock.Spec{Text: text})
	}
	if c.Client {
		own.Specs = append(own.Specs, condaClient...)
	}
	if len(own.Specs)+len(own.Channels) > 0 {
		all = append(all, own)
	}
	return all
}

// checkCondaWheels makes sure that [python] asks for the Python packages that the user's own lock has beside conda's: only conda's are
// taken from it.
func checkCondaWheels(r *recipe.Recipe) error {
	if r.Conda.Lock == "" || r.Python.Lock != "" {
		return nil
	}
	all, err := condalock.Read(r.Resolve(r.Conda.Lock), selection(r))
	if err != nil {
		return err
	}
	part, err := all.For(condalock.Subdir(r.Target.Platform))
	if err != nil {
		return err
	}
	asked, err := requested(r)
	if err != nil {
		return err
	}
	var left []string
	for _, w := range part.Wheels {
		if !slices.Contains(requestedNames(asked), w.Name) {
			left = append(left, strings.TrimSuffix(w.Name+"=="+w.Version, "=="))
		}
	}
	if len(left) == 0 {
		return nil
	}
	return fault.Hint(fault.Usage(fmt.Errorf("%s locks Python packages for pip, and only conda packages are taken from it: %s", r.Conda.Lock, strings.Join(left, ", "))),
		fmt.Sprintf("name them under [python]: packages = [\"%s\"]", strings.Join(left, `", "`)))
}

// take takes the user's own lock as it is.
func (k *condaLocker) take(ctx context.Context) ([]conda.Package, []byte, error) {
	k.conda.File = k.recipe.Conda.Lock
	file := k.recipe.Resolve(k.conda.File)
	data, err := readFile(file)
	if err != nil {
		return nil, nil, err
	}
	k.conda.Digest = store.DigestOf(data)
	all, err := condalock.Parse(file, data, selection(k.recipe))
	if err != nil {
		return nil, nil, err
	}
	part, err := all.For(k.conda.Platform)
	if err != nil {
		return nil, nil, err
	}
	if err := reachConda(k.recipe, part.Packages); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", k.recipe.Conda.Lock, err)
	}
	k.conda.Channels = all.Channels
	k.config.Learn(nil, part.Packages)
	hashed := make(map[string]bool)
	for _, p := range part.Packages {
		hashed[p.File] = p.SHA256 != ""
	}
	packages, err := k.lookUp(ctx, part.Packages)
	if err != nil {
		return nil, nil, err
	}
	if packages, err = k.hash(ctx, packages); err != nil {
		return nil, nil, err
	}
	if packages, err = k.measure(ctx, packages); err != nil {
		return nil, nil, err
	}
	k.conda.note(packages, func(p conda.Package) bool { return hashed[p.File] })
	return k.conda.merge(packages), data, nil
}

// lookUp asks channels about packages of which the user's lock has no SHA-256. Where they cannot be asked, an MD5 has to do.
func (k *condaLocker) lookUp(ctx context.Context, packages []conda.Package) ([]conda.Package, error) {
	var bare []conda.Package
	for _, p := range packages {
		if p.SHA256 == "" {
			bare = append(bare, p)
		}
	}
	found, err := k.solver.Complete(ctx, k.conda.Platform, bare)
	switch {
	case err == nil:
	case ctx.Err() != nil || slices.ContainsFunc(bare, func(p conda.Package) bool { return p.MD5 == "" }):
		return nil, err
	default:
		found = bare
	}
	known := make(map[string]conda.Package)
	for _, p := range found {
		known[p.URL] = p
	}
	packages = slices.Clone(packages)
	for i := range packages {
		p := &packages[i]
		if c, ok := known[p.URL]; ok { // what it depends on is for the lock to say, which is read again and says nothing
			p.SHA256, p.Size, p.License, p.SitePackages, p.Constrains = c.SHA256, c.Size, c.License, c.SitePackages, c.Constrains
			p.Noarch, p.BuildNumber = c.Noarch, c.BuildNumber
		}
	}
	return packages, nil
}

// settle makes the lock of packages that were chosen.
func (k *condaLocker) settle(ctx context.Context, packages []conda.Package) ([]conda.Package, []byte, error) {
	packages, err := k.hash(ctx, packages)
	if err != nil {
		return nil, nil, err
	}
	if packages, err = k.measure(ctx, packages); err != nil {
		return nil, nil, err
	}
	file := condalock.Lock{
		Channels: k.conda.Channels, Sources: slices.Clone(k.recipe.Conda.Environment),
		Platforms: []condalock.Platform{{Name: k.conda.Platform, Packages: packages}},
	}
	text, err := file.Write()
	if err != nil {
		return nil, nil, err
	}
	k.conda.File, k.conda.Digest = filepath.Base(condaLockPath(k.recipe)), store.DigestOf(text)
	k.conda.note(packages, func(conda.Package) bool { return true })
	return packages, text, nil
}

// hash brings the packages of which only the MD5 is known, and notes the SHA-256 of what has that.
func (k *condaLocker) hash(ctx context.Context, packages []conda.Package) ([]conda.Package, error) {
	packages = slices.Clone(packages)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(k.opts.Fetch.Jobs())
	for i := range packages {
		p := &packages[i]
		if p.SHA256 != "" {
			continue
		}
		if p.MD5 == "" {
			return nil, fault.Hint(fmt.Errorf("the lock has no hash of %s", p.File), "lock again with hashes: `conda list --explicit --sha256`, `conda-lock`, `pixi`")
		}
		g.Go(func() error {
			digest, err := k.opts.Fetch.Unpinned(ctx, placesOf(k.config, k.client, *p))
			if err != nil {
				return err
			}
			if err := k.checkMD5(digest, *p); err != nil {
				return err
			}
			p.SHA256 = digest
			return nil
		})
	}
	return packages, g.Wait()
}

// checkMD5 compares a file of the store with what a channel says of it.
func (k *condaLocker) checkMD5(d store.Digest, p conda.Package) error {
	f, err := k.opts.Store.OpenBlob(d)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := md5.New()
	_, err = io.Copy(sum, f)
	if found := hex.EncodeToString(sum.Sum(nil)); err == nil && found != p.MD5 {
		err = fmt.Errorf("%s has the MD5 %s, and %s was to be there", p.File, found, p.MD5)
	}
	return err
}

// measure asks for the sizes that are not known: which layer a package goes to must not depend on what happens to be downloaded.
func (k *condaLocker) measure(ctx context.Context, packages []conda.Package) ([]conda.Package, error) {
	packages = slices.Clone(packages)
	known := make(map[string]int64)
	if k.old != nil && k.old.Conda != nil {
		for _, p := range k.old.Conda.Packages {
			known[p.File] = p.Size
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(k.opts.Fetch.Jobs())
	for i := range packages {
		p := &packages[i]
		if p.Size = cmp.Or(p.Size, known[p.File]); p.Size != 0 {
			continue
		}
		g.Go(func() (err error) {
			if k.opts.Store.HasBlob(p.SHA256) {
				p.Size, err = k.opts.Store.BlobSize(p.SHA256)
				return err
			}
			p.Size, err = k.opts.Fetch.Size(ctx, placesOf(k.config, k.client, *p))
			return err
		})
	}
	return packages, g.Wait()
}

// condaConfig is conda's and rattler's configuration for a recipe.
func condaConfig(r *recipe.Recipe) (*condalock.Config, error) {
	config, err := condalock.ReadConfig(os.LookupEnv)
	if err == nil {
		config.Hosts, config.Reach = r.LoginHosts, r.Reach
	}
	return config, err
}

// CondaLoginHint says where logins for channels are looked for.
const CondaLoginHint = "logins for channels are looked for in netrc, in the addresses of channels, in RATTLER_AUTH_FILE and in ~/.rattler/credentials.json"

// placesOf is how a package is asked for.
func placesOf(c *condalock.Config, client *http.Client, p conda.Package) fetch.Request {
	url, header := c.Logins.Authorize(c.Places(p.URL)[0])
	return fetch.Request{URL: url, Digest: p.SHA256, Size: p.Size, Name: p.Name + " " + p.Version, Header: header, Client: client, Login: CondaLoginHint}
}

// CondaRequests says how f downloads packages of a recipe for this user: from which mirror, with which login, through which proxy.
func CondaRequests(f *fetch.Client, r *recipe.Recipe, packages []conda.Package) ([]fetch.Request, error) {
	config, err := condaConfig(r)
	if err != nil {
		return nil, err
	}
	way, err := config.Way()
	if err != nil {
		return nil, err
	}
	files, err := readEnvironments(r)
	if err != nil {
		return nil, err
	}
	config.Learn(condaSources(r, files), packages)
	requests, client := make([]fetch.Request, len(packages)), f.Over(way)
	for i, p := range packages {
		requests[i] = placesOf(config, client, p)
	}
	return requests, nil
}

// condaPython is the Python that a conda environment brings, as the Python packages that go on top see it.
func (c *Conda) condaPython(packages []conda.Package) (*python.Interpreter, error) {
	i := slices.IndexFunc(packages, func(p conda.Package) bool { return p.Name == "python" })
	if i < 0 {
		return nil, fault.Hint(errors.New("the conda environment has no Python, and Python packages are to go there"), `add "python" to packages under [conda], or to the dependencies of the environment file`)
	}
	p := packages[i]
	if strings.Contains(p.Build, "pypy") || strings.Contains(p.Build, "graalpy") {
		return nil, fault.Hint(fmt.Errorf("the conda environment's Python is %s, and only CPython is known here", p.Build), `ask for "python=*=*_cpython"`)
	}
	t := conda.Target{Prefix: c.Prefix, Python: conda.PythonOf(packages)}
	return &python.Interpreter{
		Executable: t.Executable(), Version: p.Version, Prefix: c.Prefix, Implementation: "cpython", Platform: machines[c.Platform],
		Glibc: c.Glibc, SitePackages: []string{c.Prefix + "/" + t.Python.SitePackages},
	}, nil
}

// machines are what wheels call platforms.
var machines = map[string]string{"linux-64": "x86_64", "linux-aarch64": "aarch64"}
