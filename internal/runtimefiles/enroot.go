package runtimefiles

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
)

// The files that enroot reads of a root file system (enroot, doc/image-format.md), and the one that pyxis writes into it.
const (
	rcPath          = "etc/rc"
	rcLocalPath     = "etc/rc.local"
	environmentPath = "etc/environment"
	fstabPath       = "etc/fstab"
)

func enrootFiles() []file {
	kept := func(f *facts) bool { return f.fromEnroot }
	return []file{
		{path: fstabPath, mode: 0o644, text: fstab},
		{path: environmentPath, mode: 0o644, text: environment},
		{path: rcPath, mode: 0o644, text: rc, kept: kept},
		{path: rcLocalPath, mode: 0o644, text: fixed(rcLocal), kept: kept},
	}
}

func fixed(text string) func(*facts) (string, error) {
	return func(*facts) (string, error) { return text, nil }
}

// rcLocal is replaced by pyxis, which puts exec "$@" there to leave out the entrypoint.
const rcLocal = `# /etc/rc reads this file before it starts the entrypoint. What is set here is set for the whole container.
`

// fstab mounts each volume over itself, which keeps it writable when the rest is not.
func fstab(f *facts) (string, error) {
	var b strings.Builder
	for _, v := range f.volumes() {
		v = fstabEscape.Replace(v)
		fmt.Fprintf(&b, "${ENROOT_ROOTFS}%s %s none x-create=dir,bind,rw,nosuid,nodev\n", v, v)
	}
	return b.String(), nil
}

// volumes returns the image's volumes that enroot can mount, absolute and clean, in the order of their names.
func (f *facts) volumes() []string {
	var all []string
	for v := range f.image.Config.Config.Volumes {
		v = path.Join("/", v)
		// enroot would put a variable of the host there, and has no way to say that it should not.
		if v != "/" && !hostVariable.MatchString(v) && !strings.Contains(v, "\x00") {
			all = append(all, v)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// fstabEscape writes what would end a field (fstab(5)).
var fstabEscape = strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`)

// environment has the variables that enroot reads back as they are. The others are set by /etc/rc.
func environment(f *facts) (string, error) {
	var b strings.Builder
	for _, v := range f.env {
		if !isReserved(v.name) && !v.bare && v.survives() {
			fmt.Fprintf(&b, "%s=%s\n", v.name, v.value)
		}
	}
	return b.String(), nil
}

// hostVariable is what enroot replaces in /etc/environment and /etc/fstab by a value of the host's environment.
var hostVariable = lazyregexp.New(`\$\{[A-Za-z_][A-Za-z0-9_]*\}`)

// quotedValue is what enroot takes a pair of quotes from. Its pattern counts backslashes among those.
var quotedValue = lazyregexp.New(`^[\\"'](.*)[\\"'][\s\v]*$`)

// isReserved reports whether enroot drops the variable because it is one of its own.
func isReserved(name string) bool { return strings.HasPrefix(name, "ENROOT_") }

// survives reports whether enroot reads the variable back from /etc/environment as it is.
func (v variable) survives() bool {
	return !strings.Contains(v.value, "\n") && !hostVariable.MatchString(v.value) && !quotedValue.MatchString(v.value)
}

// rc is the script that enroot starts a container with, by $SHELL or /bin/sh and with the user's command as its arguments.
func rc(f *facts) (string, error) {
	entrypoint, cmd := f.command(f.fromEnroot)
	var b strings.Builder
	b.WriteString("# sconce: enroot starts a container with this script, and gives it the command as its arguments.\n")
	labels := f.image.Config.Config.Labels
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(&b, "# %s %s\n", oneLine(k), oneLine(labels[k]))
	}
	b.WriteString(rcVariables(f.env))
	if f.start != "" {
		b.WriteString("\n# What the image wants done when a container starts. pyxis leaves the entrypoint out.\n" + sourceStart(f.start))
	}
	dir := single(f.workDir)
	fmt.Fprintf(&b, rcBody, dir, dir, singles(slices.Concat(entrypoint, cmd)...), strings.TrimLeft(singles(entrypoint...)+` "$@"`, " "))
	return b.String(), nil
}

// rcVariables sets what /etc/environment cannot carry. What the user asks enroot for is set before, and stays.
func rcVariables(env []variable) string {
	var b strings.Builder
	for _, v := range env {
		if v.name == "PATH" {
			b.WriteString(rcPathBack)
		}
		if !isReserved(v.name) && !v.bare && !v.survives() {
			fmt.Fprintf(&b, "\nif [ -z \"${%s+set}\" ]; then\n    %s=%s\n    export %s\nfi\n", v.name, v.name, single(v.value), v.name)
		}
	}
	return b.String()
}

// rcPathBack undoes what Debian's /etc/profile does, which sets PATH whatever it was. Without it the image's programs in
// /opt are not found. /proc has what enroot started the shell with; without tr and sed all stays as it is.
const rcPathBack = `
# enroot uses a login shell, and /etc/profile may have replaced PATH: what the container was started with goes first.
sconce_path=$( { tr '\0' '\n' < "/proc/$$/environ" | sed -n '/^PATH=/{s///p;q;}'; } 2> /dev/null)
case ":$PATH:" in
*":$sconce_path:"*) ;;
*) PATH=${sconce_path:+$sconce_path:}$PATH ;;
esac
export PATH
unset sconce_path
`

const rcBody = `
mkdir -p %s 2> /dev/null
cd %s || exit 1
unset OLDPWD

# Whoever starts the container may put a script of their own there, as pyxis does.
if [ -s /etc/rc.local ]; then
    . /etc/rc.local
fi

if [ $# -eq 0 ]; then
    exec %s
fi
exec %s
`
