package runtimefiles

import (
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/units"
)

// enough is how many of a list a sentence names.
const enough = 4

// Warning is something of an image that a user of its file will miss, and what to do about it.
type Warning struct {
	Text string
	Hint string
}

// Warnings returns what of an image Apptainer or enroot will not show as it is: one warning of each kind.
func Warnings(c v1.ConfigFile, tree *image.Tree) []Warning {
	var all []Warning
	for _, w := range []func(v1.ConfigFile, *image.Tree) *Warning{badNames, enrootNames, ownNames, lostByOldRC, hiddenFiles, noShell} {
		if found := w(c, tree); found != nil {
			all = append(all, *found)
		}
	}
	return all
}

func badNames(c v1.ConfigFile, _ *image.Tree) *Warning {
	var names []string
	for _, e := range c.Config.Env {
		if name, _, _ := strings.Cut(e, "="); !validName.MatchString(name) {
			names = append(names, fmt.Sprintf("%.40q", name))
		}
	}
	if names == nil {
		return nil
	}
	return &Warning{
		"neither Apptainer nor enroot will set " + units.List(names, enough) + ": a name must be letters, digits and _",
		"rename it in the image's environment; programs that need such names can be started with env(1)",
	}
}

// namesOf returns the variables that pick chooses.
func namesOf(c v1.ConfigFile, pick func(variable) bool) []string {
	var names []string
	for _, v := range variables(c.Config.Env) {
		if pick(v) {
			names = append(names, v.name)
		}
	}
	return names
}

func enrootNames(c v1.ConfigFile, _ *image.Tree) *Warning {
	names := namesOf(c, func(v variable) bool { return isReserved(v.name) })
	if names == nil {
		return nil
	}
	return &Warning{
		"enroot will not set " + units.List(names, enough) + ": it keeps names that begin with ENROOT_ to itself",
		"settings of enroot belong in the environment of the job, not in the image",
	}
}

// ownNames are those that Apptainer sets itself. All others that an image sets
// win over the host's: Apptainer clears those first, and what is given with --env comes last.
func ownNames(c v1.ConfigFile, _ *image.Tree) *Warning {
	names := namesOf(c, func(v variable) bool {
		return v.name == "HOME" && v.value != "/root" || slices.Contains(ownedByShell, v.name)
	})
	if names == nil {
		return nil
	}
	return &Warning{
		"Apptainer will not use the image's " + units.List(names, enough) + ": it sets that itself",
		"HOME can be given when the container starts: apptainer run --home SRC:DEST",
	}
}

// LostByEnroot returns the variables whose values enroot's import writes to /etc/environment, from where they do not come back
// as they were: values of several lines, in quotes, or with a ${NAME}. [Layer] has /etc/rc set them.
func LostByEnroot(c v1.ConfigFile) []string {
	return namesOf(c, func(v variable) bool { return !isReserved(v.name) && !v.bare && !v.survives() })
}

// EnvironmentWarnings returns what of an image's environment a runtime will not set, whatever the image holds.
func EnvironmentWarnings(c v1.ConfigFile, apptainer, enroot bool) []Warning {
	kinds := []func(v1.ConfigFile, *image.Tree) *Warning{badNames}
	if enroot {
		kinds = append(kinds, enrootNames)
	}
	if apptainer {
		kinds = append(kinds, ownNames)
	}
	var all []Warning
	for _, w := range kinds {
		if found := w(c, nil); found != nil {
			all = append(all, *found)
		}
	}
	return all
}

// lostByOldRC is about images that bring enroot's own /etc/rc along: ours sets what /etc/environment cannot.
func lostByOldRC(c v1.ConfigFile, tree *image.Tree) *Warning {
	if !slices.Equal(c.Config.Entrypoint, enrootEntrypoint) || !hasFile(tree, rcPath) {
		return nil
	}
	names := LostByEnroot(c)
	if names == nil {
		return nil
	}
	return &Warning{
		"enroot cannot set " + units.List(names, enough) + ": its value has several lines, quotes around it, or a ${NAME} that enroot would fill in from the host",
		"set an entrypoint of your own, so that sconce writes an /etc/rc that sets it",
	}
}

// The directories of an image that a runtime mounts something over, without a slash in front: /tmp and /var/tmp Apptainer
// (mount tmp in apptainer.conf), /tmp, /var/run, which mostly is /run, and /var/lock enroot (conf/mounts/10-system.fstab), and
// the last three all of them.
var (
	HiddenByApptainer = []string{"tmp", "var/tmp", "dev", "proc", "sys"}
	HiddenByEnroot    = []string{"tmp", "run", "var/run", "var/lock", "dev", "proc", "sys"}
	HiddenByAll       = []string{"dev", "proc", "sys"}
)

// hidingDirs are those of all runtimes.
var hidingDirs = []string{"tmp", "run", "var/tmp", "var/run", "var/lock", "dev", "proc", "sys"}

// harmless are files that base images have there and nobody misses.
var harmless = []string{"run/systemd/container", "run/.containerenv", "dev/.lxc-boot-id", "dev/null"}

func hiddenFiles(_ v1.ConfigFile, tree *image.Tree) *Warning {
	count, example := 0, ""
	var seen []string
	for _, d := range hidingDirs {
		n, err := tree.Lookup(d)
		counted := func(dir string) bool { return n.Path == dir || strings.HasPrefix(n.Path, dir+"/") }
		if err != nil || n.Type != layer.Dir || n == tree.Root() || slices.ContainsFunc(seen, counted) {
			continue
		}
		seen = append(seen, n.Path)
		countFiles(tree, n, &count, &example)
	}
	if count == 0 {
		return nil
	}
	what := fmt.Sprintf("a file (/%s)", example)
	if count > 1 {
		what = fmt.Sprintf("%d files (such as /%s)", count, example)
	}
	return &Warning{
		"the image has " + what + " where Apptainer or enroot mounts something over it: a container will not see it",
		"put what is needed elsewhere, such as /opt, and remove the rest from the image",
	}
}

// Harmless reports whether a file, named without a slash in front, is one that base images have below a hidden directory.
func Harmless(p string) bool { return slices.Contains(harmless, p) }

// countFiles counts the regular files below a directory that have content.
func countFiles(tree *image.Tree, dir *image.Node, count *int, example *string) {
	children, err := tree.ReadDir(dir.Path)
	if err != nil {
		return
	}
	for _, n := range children {
		switch {
		case n.Type == layer.Dir:
			countFiles(tree, n, count, example)
		case n.Type == layer.Regular && n.Size > 0 && !Harmless(n.Path):
			if *count++; *example == "" {
				*example = oneLine(n.Path)
			}
		}
	}
}

func noShell(_ v1.ConfigFile, tree *image.Tree) *Warning {
	n, err := tree.Lookup("bin/sh")
	if err == nil && n.Type == layer.Regular && n.Mode&0o111 != 0 {
		return nil
	}
	return &Warning{
		"the image has no /bin/sh: enroot and pyxis cannot start a container of it, and of Apptainer's commands only some work",
		"add a shell to the image; busybox-static is a small one",
	}
}
