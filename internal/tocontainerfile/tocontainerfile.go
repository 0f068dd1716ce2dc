// Package tocontainerfile writes a locked recipe as a Containerfile, for sites that build with BuildKit or buildah.
//
// What the lock pins stays pinned: the base by digest, system packages by version, Python packages by the hashes in the
// standard lock (PEP 751), which uv installs, conda packages by theirs, which rattler lays down. What a Containerfile has no words for (the layers' determinism, slimming, the
// check for a target) is said in comments. One of a bootstrapped base starts from the distribution's own image instead.
package tocontainerfile

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/ospackages"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/recipe"
)

// Options say what a recipe leaves open.
type Options struct {
	Base string   // instead of the recipe's: an image reference; "" is the recipe's, or one of a bootstrapped base's distribution
	UV   string   // image that has uv at /uv; "" is DefaultUV
	GPU  []string // compute capabilities that steps compile for
}

// DefaultUV is uv's own image.
const DefaultUV = "ghcr.io/astral-sh/uv:latest"

// Write returns the Containerfile of r as l pins it. It is built with the recipe's directory as its context.
func Write(r *recipe.Recipe, l *lock.Locked, o Options) (string, error) {
	if len(r.Component) > 0 {
		return "", fault.Hint(fmt.Errorf("%s: a Containerfile has no way to pin and patch sources as [component] does", r.Path),
			"build the image with `sconce build`, and begin the Containerfile with it")
	}
	if l.Python != nil && l.Python.Environment != "" {
		return "", fault.Hint(fmt.Errorf("%s: packages are added to the base's own environment, %s, which a Containerfile would make anew", r.Path, l.Python.Environment),
			"build the image with `sconce build`, and begin the Containerfile with it")
	}
	w := &writer{recipe: r, lock: l, opts: o}
	python, err := w.readPython()
	if err != nil {
		return "", err
	}
	w.header()
	w.compileStage(python)
	if err := w.base(); err != nil {
		return "", err
	}
	if err := w.system(); err != nil {
		return "", err
	}
	if err := w.conda(python); err != nil {
		return "", err
	}
	if l.Conda == nil {
		w.python(python)
	}
	for _, s := range r.Steps {
		if err := w.step(s); err != nil {
			return "", fmt.Errorf("%s:%d: step %q: %w", r.Path, s.Line, s.Title(), err)
		}
	}
	w.image()
	return w.out.String(), nil
}

type writer struct {
	recipe *recipe.Recipe
	lock   *lock.Locked
	opts   Options
	out    strings.Builder
}

func (w *writer) line(format string, args ...any) { fmt.Fprintf(&w.out, format+"\n", args...) }

func (w *writer) header() {
	w.line("# syntax=docker/dockerfile:1")
	w.line("# %s:%s, from %s as %s pins it.", w.recipe.Name, w.recipe.Version, filepath.Base(w.recipe.Path), filepath.Base(lock.Path(w.recipe)))
	w.line("# The context is the recipe's directory.")
	if w.recipe.Slim.GPU || w.recipe.Slim.Strip || w.recipe.Slim.PackageCaches || len(w.recipe.Slim.Remove) > 0 {
		w.line("# Slimming, which the recipe asks for, is not in here: `sconce slim` does it to the finished image.")
	}
}

func (w *writer) base() error {
	w.line("")
	pinned := w.lock.Base
	switch {
	case w.opts.Base != "":
		w.line("FROM %s", w.opts.Base)
	case pinned.Bootstrap != nil && pinned.Bootstrap.Manager != "":
		return w.rpmBase(pinned.Bootstrap.Suite)
	case pinned.Bootstrap != nil:
		w.line("# The recipe's base is made from packages of %s; this is the distribution's own image of it.", pinned.Bootstrap.Suite)
		w.line("FROM %s", distributionImage(pinned.Bootstrap.Suite))
		w.aptInstall("", w.recipe.Base.Bootstrap.Packages)
	default:
		w.line("FROM %s", reference(pinned, w.recipe.Base.Image))
	}
	return nil
}

// rpmImages are the distributions' own images, by how recipes name their releases.
var rpmImages = map[string]string{
	"rocky": "docker.io/rockylinux/rockylinux", "alma": "docker.io/library/almalinux", "fedora": "docker.io/library/fedora", "opensuse": "docker.io/opensuse/leap",
}

// rpmBase stands for a base that is made from RPM packages.
func (w *writer) rpmBase(suite string) error {
	name, release, _ := strings.Cut(suite, ":")
	image, ok := rpmImages[name]
	if !ok {
		return fault.Hint(fmt.Errorf("the recipe's base is made from packages of %s, of which no image is known that a Containerfile could begin with", suite),
			"--base names one")
	}
	w.line("# The recipe's base is made from packages of %s; this is the distribution's own image of it.", suite)
	w.line("FROM %s:%s", image, release)
	packages := w.recipe.Base.Bootstrap.Packages
	switch {
	case len(packages) == 0:
	case name == "opensuse":
		w.zypperInstall("", packages)
	default:
		w.dnfInstall(packages)
	}
	return nil
}

// reference is how FROM names a pinned image: one of a registry by its digest, another one as the recipe says it.
func reference(pinned base.Pinned, said string) string {
	if pinned.Name == "" {
		return said
	}
	return fmt.Sprintf("%s@%s", withoutTag(pinned.Name), pinned.Digest)
}

// ubuntu are the suites that are not Debian's.
var ubuntu = map[string]bool{"focal": true, "jammy": true, "noble": true, "oracular": true, "plucky": true, "questing": true, "resolute": true}

func distributionImage(suite string) string {
	if ubuntu[suite] {
		return "docker.io/library/ubuntu:" + suite
	}
	return "docker.io/library/debian:" + suite + "-slim"
}

// withoutTag leaves the repository of a reference: beside a digest a tag says nothing, and not every tool takes both.
func withoutTag(name string) string {
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		return name[:i]
	}
	return name
}

const aptMounts = "--mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt/lists,sharing=locked"

// aptInstall writes an installation by apt. before is a command that comes first, with what joins it, or "".
func (w *writer) aptInstall(before string, packages []string) {
	if len(packages) > 0 {
		w.line("RUN %s \\\n    %sapt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \\\n        %s",
			aptMounts, before, strings.Join(packages, " \\\n        "))
	}
}

func (w *writer) system() error {
	pinned := w.lock.System
	if pinned == nil || pinned.Empty() {
		return nil
	}
	w.line("")
	w.line("# System packages")
	switch pinned.Manager {
	case "apt":
		w.aptPinned(pinned)
	case "dnf":
		w.dnfPinned(pinned)
	case "zypper":
		w.zypperPinned(pinned)
	default:
		return fmt.Errorf("a Containerfile for packages of %q cannot be written", pinned.Manager)
	}
	return nil
}

// aptPinned installs what apt was asked for: NAME=VERSION, with the architecture when it is another than the image's.
func (w *writer) aptPinned(pinned *ospackages.Pinned) {
	_, native, _ := strings.Cut(w.lock.Platform, "/")
	var packages, foreign []string
	for _, p := range pinned.Packages {
		name := p.Name
		if p.Architecture != native && p.Architecture != "all" {
			name += ":" + p.Architecture
			foreign = append(foreign, p.Architecture)
		}
		packages = append(packages, name+"="+p.Version)
	}
	for _, name := range pinned.Remove { // apt-get(8): a hyphen after the name removes
		packages = append(packages, name+"-")
	}
	before := ""
	slices.Sort(foreign)
	for _, architecture := range slices.Compact(foreign) {
		before += "dpkg --add-architecture " + architecture + " && "
	}
	w.aptInstall(before, packages)
}

// dnfPinned installs what dnf was asked for: NAME-[EPOCH:]VERSION-RELEASE.ARCHITECTURE.
func (w *writer) dnfPinned(pinned *ospackages.Pinned) {
	var packages []string
	for _, p := range pinned.Packages {
		packages = append(packages, p.Name+"-"+p.Version+"."+p.Architecture)
	}
	w.dnfInstall(packages)
}

// dnfInstall writes an installation by dnf, which wants NAME-VERSION where recipes have NAME=VERSION.
func (w *writer) dnfInstall(packages []string) {
	w.line("RUN --mount=type=cache,target=/var/cache/dnf,sharing=locked \\\n    dnf install -y --setopt=install_weak_deps=False \\\n        %s",
		strings.ReplaceAll(strings.Join(packages, " \\\n        "), "=", "-"))
}

// zypperPinned installs what zypper was asked for: NAME.ARCHITECTURE=[EPOCH:]VERSION-RELEASE.
func (w *writer) zypperPinned(pinned *ospackages.Pinned) {
	var packages []string
	for _, p := range pinned.Packages {
		packages = append(packages, p.Name+"."+p.Architecture+"="+p.Version)
	}
	w.zypperInstall(" --oldpackage", packages)
}

func (w *writer) zypperInstall(options string, packages []string) {
	w.line("RUN zypper --non-interactive install --no-recommends%s \\\n        %s", options, strings.Join(packages, " \\\n        "))
}

func (w *writer) step(s recipe.Step) error {
	w.line("")
	w.line("# %s", s.Title())
	for _, text := range s.Copy {
		c, err := s.ParseCopy(text)
		if err != nil {
			return err
		}
		if err := w.copy(s, c); err != nil {
			return err
		}
	}
	for _, text := range s.Patch {
		p, err := s.ParsePatch(text)
		if err != nil {
			return err
		}
		if !filepath.IsLocal(p.File) {
			return outside(p.File)
		}
		if err := plain(p.File); err != nil {
			return err
		}
		w.line("# This needs the program patch in the image, which sconce itself does without.")
		w.line("RUN --mount=type=bind,source=%s,target=/run/sconce.patch patch -p1 -d %s -i /run/sconce.patch", p.File, quote.Word(p.Dir))
	}
	for _, text := range s.Link {
		l, err := s.ParseLink(text)
		if err != nil {
			return err
		}
		if err := w.link(l, s.User); err != nil {
			return err
		}
	}
	if s.Run == "" {
		return nil
	}
	return w.run(s)
}

// link makes a link by the image's own programs, and the directory that it is in.
func (w *writer) link(l recipe.Link, owner string) error {
	script, args := `mkdir -p "$0" && ln -sfn "$1" "$2"`, []string{path.Dir(l.Path), l.Target, l.Path}
	if owner != "" {
		script, args = script+` && chown -h "$3" "$2"`, append(args, owner)
	}
	command, err := quote.JSON(append([]string{"/bin/sh", "-c", script}, args...), "")
	w.line("RUN %s", command)
	return err
}

// outside says that a file cannot be reached: a Containerfile sees nothing but its context.
func outside(file string) error {
	return fmt.Errorf("%s is not below the recipe's directory, which is the Containerfile's context", file)
}

func (w *writer) copy(s recipe.Step, c recipe.Copy) error {
	dir, pattern := w.recipe.CopySource(c)
	if dir != w.recipe.Dir {
		return outside(c.Source)
	}
	chown := ""
	if s.User != "" {
		chown = "--chown=" + s.User + " "
	}
	paths, err := quote.JSON([]string{literal(pattern), literal(c.Dest)}, "")
	if err != nil {
		return err
	}
	w.line("COPY %s%s", chown, paths)
	return nil
}

func (w *writer) run(s recipe.Step) error {
	flags, env, err := w.mounts(s)
	if err != nil {
		return err
	}
	if !s.HasNetwork() {
		flags += "--network=none "
	}
	env = append(env, recipe.StepEnv(s.Env, w.opts.GPU)...)
	args := s.Args()
	if len(env) > 0 {
		args = slices.Concat([]string{"env"}, env, args)
	}
	if s.Workdir != "" {
		args = append([]string{"/bin/sh", "-c", `mkdir -p "$0" && cd "$0" && exec "$@"`, s.Workdir}, args...)
	}
	command, err := quote.JSON(args, "")
	if err != nil {
		return err
	}
	w.user(s.User, func() { w.line("RUN %s%s", flags, command) })
	return nil
}

// user runs as another user, and goes back to root.
func (w *writer) user(name string, do func()) {
	if name == "" {
		do()
		return
	}
	w.line("USER %s", name)
	do()
	w.line("USER root")
}

// mounts are a step's mounts as RUN has them, and the variables that come with them.
func (w *writer) mounts(s recipe.Step) (flags string, env []string, err error) {
	for _, text := range s.Mounts {
		mounts, err := w.recipe.ParseMount(text)
		if err != nil {
			return "", nil, err
		}
		for _, m := range mounts {
			flag, err := w.mount(m)
			if err != nil {
				return "", nil, err
			}
			flags += flag + " "
			env = append(env, m.Variables...)
		}
	}
	return flags, env, nil
}

func (w *writer) mount(m recipe.Mount) (string, error) {
	f := []string{"type=" + m.Kind}
	add := func(name, value string) {
		if value != "" {
			f = append(f, name+"="+value)
		}
	}
	source := m.Source
	if m.Kind == "bind" {
		rel, err := filepath.Rel(w.recipe.Dir, m.Source)
		if err != nil || !filepath.IsLocal(rel) {
			return "", outside(m.Source)
		}
		source = rel
	}
	for _, text := range []string{source, m.Target, m.ID} {
		if err := plain(text); err != nil {
			return "", err
		}
	}
	add("id", m.ID)
	add("source", source)
	add("target", m.Target)
	if m.Sharing != "shared" {
		add("sharing", m.Sharing)
	}
	add("env", m.Env)
	if m.Required {
		add("required", "true")
	}
	if m.ReadOnly && m.Kind == "cache" {
		f = append(f, "readonly")
	}
	if !m.ReadOnly && m.Kind == "bind" {
		f = append(f, "rw")
	}
	if m.Size > 0 {
		add("size", strconv.FormatInt(m.Size, 10))
	}
	if m.Mode > 0 {
		add("mode", "0"+strconv.FormatUint(uint64(m.Mode), 8))
	}
	if m.UID > 0 {
		add("uid", strconv.Itoa(m.UID))
	}
	if m.GID > 0 {
		add("gid", strconv.Itoa(m.GID))
	}
	return "--mount=" + strings.Join(f, ","), nil
}

// plain refuses what a mount cannot hold: its values end at a comma and its words at a space, and variables are replaced.
func plain(text string) error {
	if strings.ContainsAny(text, " ,$\"'\\") {
		return fmt.Errorf("%q cannot stand in a mount of a Containerfile", text)
	}
	return nil
}

// literal makes a word of which nothing is replaced, by variables or as quotes.
func literal(s string) string {
	return strings.NewReplacer(`\`, `\\`, `$`, `\$`, `"`, `\"`, `'`, `\'`).Replace(s)
}

func (w *writer) image() {
	c := w.recipe.Image
	w.line("")
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		w.line("ENV %s=%s", name, value(c.Env[name]))
	}
	labels := map[string]string{
		"org.opencontainers.image.title": w.recipe.Name, "org.opencontainers.image.version": w.recipe.Version,
	}
	maps.Copy(labels, c.Labels)
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		w.line("LABEL %s=%s", value(name), value(labels[name]))
	}
	for _, v := range c.Volumes {
		w.list("VOLUME", []string{literal(v)})
	}
	if c.Workdir != "" {
		w.line("WORKDIR %s", literal(c.Workdir))
	}
	if c.User != "" {
		w.line("USER %s", c.User)
	}
	if c.Entrypoint != nil {
		w.list("ENTRYPOINT", c.Entrypoint)
	}
	if c.Cmd != nil {
		w.list("CMD", c.Cmd)
	}
}

func (w *writer) list(instruction string, words []string) {
	data, err := quote.JSON(words, "")
	if err == nil { // strings always marshal
		w.line("%s %s", instruction, data)
	}
}

// value quotes what stands after an equals sign so that nothing in it is expanded.
func value(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`, "\n", `\n`).Replace(s) + `"`
}
