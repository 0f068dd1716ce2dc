package tocontainerfile

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/wheelbuild"
)

const (
	venv      = "/opt/venv"
	lockDir   = "/run/sconce" // where the package lock is mounted, and what it names by path
	workDir   = "/tmp/sconce" // its copy: a directory is built where it lies
	stageName = "compiled"    // where packages are compiled that the recipe compiles in another image
)

// packages are the Python packages that the lock pins.
type packages struct {
	compiled []lock.Compile    // in the order in which they are built
	versions map[string]string // of those that have a wheel, by normalised name
	local    []string          // what lies in the context, relative to the package lock
}

// readPython reads the package lock; nil when there is none.
func (w *writer) readPython() (*packages, error) {
	if w.lock.Python == nil {
		return nil, nil
	}
	p := &packages{versions: make(map[string]string)}
	for _, wheel := range w.lock.Wheels {
		p.versions[python.NormalizeName(wheel.Name)] = wheel.Version
		if err := w.addLocal(p, wheel.URL); err != nil {
			return nil, fmt.Errorf("%s: %w", wheel.Name, err)
		}
	}
	var err error
	if p.compiled, err = inOrder(w.lock.Compiles); err != nil {
		return nil, err
	}
	for i := range p.compiled {
		c := &p.compiled[i]
		c.Requires = slices.DeleteFunc(slices.Clone(c.Requires), func(r wheelbuild.Wheel) bool { return p.versions[python.NormalizeName(r.Name)] == r.Version })
		if c.Source.Kind == python.SourceGit && (filepath.IsAbs(c.Source.URL) || strings.HasPrefix(c.Source.URL, "file:")) {
			return nil, fmt.Errorf("%s: %s is a repository of this machine, which a Containerfile does not see", c.Name, c.Source.URL)
		}
		for _, place := range append([]string{c.Source.Path}, urls(c.Requires)...) {
			if err := w.addLocal(p, place); err != nil {
				return nil, fmt.Errorf("%s: %w", c.Name, err)
			}
		}
	}
	slices.Sort(p.local)
	p.local = slices.Compact(p.local)
	return p, nil
}

func urls(wheels []wheelbuild.Wheel) (all []string) {
	for _, w := range wheels {
		all = append(all, w.URL)
	}
	return all
}

// addLocal notes a file or directory of this machine, which the build has to see. It ignores addresses.
func (w *writer) addLocal(p *packages, place string) error {
	place = strings.TrimPrefix(place, "file://")
	if !filepath.IsAbs(place) {
		return nil
	}
	rel, err := w.relative(place)
	if err != nil {
		return err
	}
	p.local = append(p.local, rel)
	return plain(rel)
}

// relative is where something of this machine is, as seen from the package lock.
func (w *writer) relative(file string) (string, error) {
	rel, err := filepath.Rel(filepath.Dir(w.recipe.Resolve(w.lock.Python.File)), file)
	if err != nil || !filepath.IsLocal(rel) {
		return "", outside(file)
	}
	return filepath.ToSlash(rel), nil
}

// inOrder puts packages after those that they are built against.
func inOrder(all []lock.Compile) ([]lock.Compile, error) {
	plain := make([]wheelbuild.Package, len(all))
	for i, c := range all {
		plain[i] = c.Package
	}
	order, err := wheelbuild.Order(plain)
	if err != nil {
		return nil, err
	}
	sorted := make([]lock.Compile, len(all))
	for i, at := range order {
		sorted[i] = all[at]
	}
	return sorted, nil
}

// compileStage writes a stage for packages that the recipe compiles in another image. All packages are installed there, and
// the image takes them over.
func (w *writer) compileStage(p *packages) {
	from := p.elsewhere()
	if from == nil {
		return
	}
	w.line("")
	w.line("# Packages are compiled in this image, and none of it but them is in the last one.")
	w.line("FROM %s AS %s", w.builder(*from), stageName)
	for _, c := range p.compiled {
		if c.Base != nil && w.builder(c) != w.builder(*from) {
			w.line("# The recipe compiles %s in %s; here one image has to do.", c.Name, w.builder(c))
		}
	}
	w.installPython(p, from.Base.Executable)
}

// elsewhere is the first package that is compiled in another image, nil when there is none.
func (p *packages) elsewhere() *lock.Compile {
	if p == nil {
		return nil
	}
	i := slices.IndexFunc(p.compiled, func(c lock.Compile) bool { return c.Base != nil })
	if i < 0 {
		return nil
	}
	return &p.compiled[i]
}

// builder is the image that the recipe compiles c in.
func (w *writer) builder(c lock.Compile) string {
	return reference(c.Base.Image, w.recipe.Python.Compile[c.Name].Base)
}

func (w *writer) python(p *packages) {
	if p == nil {
		return
	}
	from := p.elsewhere()
	if from == nil {
		w.installPython(p, w.lock.Python.Executable)
		return
	}
	w.line("")
	w.line("# Python packages")
	w.environment()
	w.line("COPY --from=%s %s %s", stageName, venv, venv)
	if own := w.lock.Python.Executable; own != from.Base.Executable {
		w.line("RUN --mount=type=bind,from=%s,source=/uv,target=/usr/local/bin/uv uv venv --allow-existing --python %s%s %s", w.uv(), own, w.site(), venv)
	}
}

func (w *writer) environment() { w.line("ENV VIRTUAL_ENV=%s PATH=%s/bin:$PATH", venv, venv) }

func (w *writer) site() string {
	if w.lock.Python.SystemSitePackages {
		return " --system-site-packages"
	}
	return ""
}

func (w *writer) uv() string {
	if w.opts.UV != "" {
		return w.opts.UV
	}
	return DefaultUV
}

func (w *writer) bytecode() string {
	if w.recipe.Python.CompilesBytecode() {
		return " --compile-bytecode"
	}
	return ""
}

// installPython makes the environment with all packages.
func (w *writer) installPython(p *packages, executable string) {
	w.line("")
	w.line("# Python packages, each with the hash that the lock has")
	w.environment()
	if len(p.compiled) > 0 {
		w.explainCompiling(p)
	}
	file := filepath.ToSlash(w.lock.Python.File)
	w.line("RUN --mount=type=bind,from=%s,source=/uv,target=/usr/local/bin/uv \\", w.uv())
	w.mountLock(p)
	create := fmt.Sprintf("uv venv --python %s%s %s", quote.Word(executable), w.site(), quote.Word(venv))
	if len(p.compiled) == 0 {
		at := path.Join(lockDir, path.Base(file))
		commands := []string{create, "export UV_LINK_MODE=copy", "uv pip sync" + w.bytecode() + " " + quote.Word(at)}
		w.line("    %s", strings.Join(append(commands, w.preferred(at)...), " && \\\n    "))
		return
	}
	w.line("    set -e; export UV_LINK_MODE=copy; \\")
	w.line("    %s; \\", create)
	w.compile(p, path.Base(file))
}

// mountLock shows a command the package lock and what that names by path.
func (w *writer) mountLock(p *packages) {
	file := filepath.ToSlash(w.lock.Python.File)
	for _, name := range append([]string{path.Base(file)}, p.local...) {
		w.line("    --mount=type=bind,source=%s,target=%s \\", path.Join(path.Dir(file), name), path.Join(lockDir, name))
	}
	w.line("    --mount=type=cache,target=/root/.cache/uv \\")
}

// preferred installs packages once more whose files go before those of others: what is installed last overwrites.
func (w *writer) preferred(file string) []string {
	var commands []string
	for _, name := range slices.Backward(w.recipe.Python.Prefer) {
		commands = append(commands, fmt.Sprintf("uv pip sync%s --no-build --reinstall-package %s %s", w.bytecode(), name, file))
	}
	return commands
}

// explainCompiling says what a reader has to know of the packages that have no wheel.
func (w *writer) explainCompiling(p *packages) {
	var names []string
	var memory int64
	git := false
	for _, c := range p.compiled {
		names = append(names, c.Label())
		memory = max(memory, c.MemoryPerJob)
		git = git || c.Source.Kind == python.SourceGit
	}
	w.line("# These have no wheel and are compiled: %s.", strings.Join(names, ", "))
	w.line("# What has one comes first, then they, one after the other, each with what its build needs, which goes when it is done.")
	w.line("# uv's cache does not tell what a wheel was compiled against, and is not used for them.")
	if git {
		w.line("# A source is a repository: this needs the program git in the image, which sconce itself does without.")
	}
	if memory > 0 {
		w.line("# One compiler takes up to %d GiB; `--build-arg MAX_JOBS=4` lets four run at once.", (memory+1<<30-1)>>30)
	} else {
		w.line("# `--build-arg MAX_JOBS=4` lets four compilers run at once.")
	}
	w.line("ARG MAX_JOBS")
}

// without prints a package lock without some packages, as text: no Python writes TOML. A package's own keys stand above its tables.
const without = `without() { python -c 'import re, sys; top, *all = open(sys.argv[1]).read().split("[[packages]]\n"); ` +
	`name = lambda p: re.sub("[-_.]+", "-", re.search("^name *= *[^\\w]([\\w.-]+)", p, re.M)[1]).lower(); ` +
	`print(top, *(p for p in all if name(p) not in sys.argv[2:]), sep="[[packages]]\n", end="")' "$@"; }`

// compile installs what has a wheel and compiles the others, one after the other. Packages that are built in isolation see the
// image's as well: what uv would put into an environment of their own is not what the lock pins.
func (w *writer) compile(p *packages, file string) {
	w.line("    cp -r %s %s; cd %s; \\", lockDir, workDir, workDir)
	w.line("    %s; \\", without)
	var names []string
	for _, c := range p.compiled {
		names = append(names, c.Name)
	}
	w.line("    without %s %s > pylock.0.toml; \\", quote.Word(file), strings.Join(names, " "))
	w.line("    uv pip sync --no-build --allow-empty-requirements pylock.0.toml; \\")
	for _, again := range w.preferred("pylock.0.toml") {
		w.line("    %s; \\", again)
	}
	for i, c := range p.compiled {
		w.line("%s", quote.Comment(c.Label()))
		next, flags := file, w.bytecode()
		if rest := names[i+1:]; len(rest) > 0 {
			next, flags = fmt.Sprintf("pylock.%d.toml", i+1), ""
			w.line("    without %s %s > %s; \\", quote.Word(file), strings.Join(rest, " "), next)
		}
		w.compileOne(c, fmt.Sprintf("uv pip sync --no-cache --no-build-isolation --no-binary %s%s %s", c.Name, flags, quote.Word(next)))
	}
	w.line("    cd /; rm -r %s", workDir)
}

// compileOne writes how to install what a build needs, and the build itself, which is what sync does.
func (w *writer) compileOne(c lock.Compile, sync string) {
	if len(c.Requires) > 0 {
		var words []string
		for _, r := range c.Requires {
			words = append(words, quote.Word(w.requirement(r)))
		}
		w.line("    uv pip install --no-deps \\\n        %s; \\", strings.Join(words, " \\\n        "))
	}
	toolkit := slices.Contains(c.Against, wheelbuild.CUDACompiler) ||
		slices.ContainsFunc(c.Requires, func(r wheelbuild.Wheel) bool { return python.NormalizeName(r.Name) == wheelbuild.CUDACompiler })
	if toolkit {
		w.line("# nvcc comes as packages, which lack the links that an installed CUDA has.")
		w.line("    nvcc=$(echo %s/lib/python*/site-packages/nvidia/*/bin/nvcc); export CUDA_HOME=\"${nvcc%%/bin/nvcc}\"; \\", venv)
		w.line("    ln -s lib \"$CUDA_HOME/lib64\"; \\")
		w.line("    for so in \"$CUDA_HOME\"/lib/lib*.so.*; do [ -e \"${so%%%%.so.*}.so\" ] || ln -s \"${so##*/}\" \"${so%%%%.so.*}.so\"; done; \\")
	}
	var words []string
	for _, v := range variables(c.Package) {
		words = append(words, quote.Word(v))
	}
	if len(words) > 0 {
		words = append([]string{"env"}, words...)
	}
	w.line("    %s; \\", strings.Join(append(words, sync), " \\\n        "))
	if toolkit {
		w.line("    find \"$CUDA_HOME\" -type l -delete; unset CUDA_HOME; \\")
	}
}

// requirement names the very file of a build requirement (PEP 508).
func (w *writer) requirement(r wheelbuild.Wheel) string {
	url := r.URL
	if file := strings.TrimPrefix(url, "file://"); filepath.IsAbs(file) {
		if rel, err := w.relative(file); err == nil { // readPython has looked
			url = "file://" + path.Join(workDir, rel)
		}
	}
	return fmt.Sprintf("%s @ %s#sha256=%s", r.Name, url, r.Digest.Hex())
}

// variables are what sconce sets for a build and who builds by hand would not think of; see package wheelbuild.
func variables(p wheelbuild.Package) []string {
	env := p.Variables()
	if p.Jobs > 0 {
		for _, name := range []string{"MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL", "CARGO_BUILD_JOBS"} {
			env[name] = strconv.Itoa(p.Jobs)
		}
		env["MAKEFLAGS"] = "-j" + strconv.Itoa(p.Jobs)
	}
	maps.Copy(env, p.Env)
	var all []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		all = append(all, name+"="+env[name])
	}
	return all
}
