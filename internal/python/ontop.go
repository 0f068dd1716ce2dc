package python

import (
	"bufio"
	"bytes"
	"context"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
)

// Base is what an environment on top of an image's own is based on: the image's Python as its commands find it, a virtual environment of it
// included.
type Base struct {
	Python   Interpreter  `json:"python"`             // with the packages of the environment and of what it sees
	System   bool         `json:"system"`             // the interpreter's own packages are seen
	Chain    []string     `json:"chain,omitempty"`    // directories of the virtual environment's packages, absolute; none: there is no such environment
	Commands []EntryPoint `json:"commands,omitempty"` // that the packages bring, by name
	Root     string       `json:"root,omitempty"`     // the virtual environment's directory, absolute
}

// Limits of what is read of an image's virtual environment.
const (
	maxVenvConfig = 64 << 10 // bytes
	maxChain      = 16       // environments on top of each other
	maxCommands   = 10_000   // of all packages of the base
)

// FindBase is [Find] with what a virtual environment sees that the image's PATH leads to: its interpreter is only a link to the one that
// Find describes.
func FindBase(ctx context.Context, tree *image.Tree, found Interpreter, searchPath []string) (*Base, error) {
	f := finder{tree}
	b := &Base{Python: found, System: true}
	if root := f.venvOf(searchPath, found); root != "" {
		b.Root, b.Chain = root, f.chainOf(root, found, nil)
		b.System = f.seesSystem(root)
		b.Python.SitePackages = slices.Clone(b.Chain)
		if b.System {
			b.Python.SitePackages = append(b.Python.SitePackages, found.SitePackages...)
		}
	}
	var err error
	if b.Python.Packages, err = f.packages(b.Python.SitePackages); err != nil {
		return nil, err
	}
	b.Commands = f.commands(b.Python.Packages)
	return b, ctx.Err()
}

// venvOf returns the virtual environment, absolute, whose python is the first of the PATH; "" when that is none, or one of another Python.
func (f finder) venvOf(searchPath []string, found Interpreter) string {
	for _, dir := range append(slices.Clone(searchPath), searchDirs...) {
		for _, name := range []string{"python3", "python"} {
			n, err := f.tree.Lookup(dir + "/" + name)
			if err != nil || n.Type != layer.Regular || n.Mode&0o111 == 0 {
				continue
			}
			root := path.Join("/", path.Dir(path.Clean("/"+dir)))
			if "/"+n.Path == found.Executable && f.exists(root+"/pyvenv.cfg") {
				return root
			}
			return ""
		}
	}
	return ""
}

// chainLine is a line by which an environment that sconce made sees another one.
var chainLine = lazyregexp.New(`^import site; site\.addsitedir\('(/[^'\\]*)'\)$`)

// chainOf lists the directories of an environment's packages, and those of the environments that it is based on.
func (f finder) chainOf(root string, found Interpreter, seen []string) []string {
	dir := root + "/lib/python" + found.Minor() + "/site-packages"
	if n, err := f.tree.Lookup(dir); err != nil || n.Type != layer.Dir || slices.Contains(seen, dir) || len(seen) == maxChain {
		return seen
	}
	seen = append(seen, dir)
	data, err := f.tree.ReadFile(dir+"/"+chainFile, maxVenvConfig)
	if err != nil {
		return seen
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if m := chainLine.FindStringSubmatch(lines.Text()); m != nil && !slices.Contains(seen, m[1]) && len(seen) < maxChain {
			seen = append(seen, path.Clean(m[1]))
		}
	}
	return slices.DeleteFunc(seen, func(dir string) bool {
		n, err := f.tree.Lookup(dir)
		return err != nil || n.Type != layer.Dir
	})
}

// seesSystem reads include-system-site-packages of pyvenv.cfg (PEP 405).
func (f finder) seesSystem(root string) bool {
	data, err := f.tree.ReadFile(root+"/pyvenv.cfg", maxVenvConfig)
	if err != nil {
		return false
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		key, value, ok := strings.Cut(lines.Text(), "=")
		if ok && strings.EqualFold(strings.TrimSpace(key), "include-system-site-packages") {
			return strings.EqualFold(strings.TrimSpace(value), "true")
		}
	}
	return false
}

// commands lists what packages of the base declare as commands. Of two of one name, the first counts; what cannot be read is left out.
func (f finder) commands(packages []Installed) []EntryPoint {
	byName := make(map[string]EntryPoint)
	for _, p := range packages {
		data, err := f.tree.ReadFile(p.Path+"/"+entryPointsFile, maxPkgInfo)
		if err != nil {
			continue
		}
		declared, err := ParseEntryPoints(data)
		if err != nil {
			continue
		}
		for _, c := range append(slices.Clone(declared.Console), declared.GUI...) {
			if _, there := byName[c.Name]; !there && len(byName) < maxCommands {
				byName[c.Name] = c
			}
		}
	}
	var all []EntryPoint
	for _, name := range sortedKeys(byName) {
		all = append(all, byName[name])
	}
	return all
}
