package export

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/clusterfile"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/store"
)

// UenvOptions say which part of an image becomes a uenv, and what it says of itself.
type UenvOptions struct {
	Root        string // directory of the image; "": its Python environment's
	Mount       string // where it is mounted on the nodes; "": at Root, which its scripts name
	Name        string // "": the image's name
	Description string
	View        string // name of the view; "": default
}

// uenvMeta is meta/env.json (uenv 9, github.com/eth-cscs/uenv2; stackinator, "meta data").
type uenvMeta struct {
	Name        string              `json:"name"`
	Description *string             `json:"description"`
	Mount       string              `json:"mount"`
	Views       map[string]uenvView `json:"views"`
}

type uenvView struct {
	Description string  `json:"description"`
	Root        string  `json:"root"`
	Env         uenvEnv `json:"env"`
}

type uenvEnv struct {
	Version int        `json:"version"`
	Type    string     `json:"type"`
	Values  uenvValues `json:"values"`
}

// uenvValues are what a view does to lists of paths and to other variables; nil unsets one.
type uenvValues struct {
	List   map[string][]uenvChange `json:"list"`
	Scalar map[string]*string      `json:"scalar"`
}

type uenvChange struct {
	Op    string   `json:"op"`
	Value []string `json:"value"`
}

const uenvMetaFile = "meta/env.json"

// describeUenv chooses the part of an image that becomes a uenv, and adds its description.
func describeUenv(ctx context.Context, in *clusterfile.Input, im *image.Image, o Options) error {
	tree, err := im.Tree(ctx, o.Store)
	if err != nil {
		return err
	}
	u := o.Uenv
	u.Root = cmp.Or(u.Root, environmentOf(in.Config.Config.Env))
	u.Mount = cmp.Or(u.Mount, u.Root)
	u.Name = cmp.Or(u.Name, in.Name, "uenv")
	u.View = cmp.Or(u.View, "default")
	for _, text := range []string{u.Name, u.View, u.Mount, strings.ReplaceAll(u.Description, "\n", " ")} {
		if strings.ContainsFunc(text, quote.Harmful) {
			return fault.Usage(fmt.Errorf("%q holds a control character, and is shown to all who start the uenv", text))
		}
	}
	root, err := uenvRoot(tree, u)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(u.meta(root), "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	in.Root = root.Path
	in.Files = map[string][]byte{path.Join(root.Path, uenvMetaFile): text}
	in.Digest = store.DigestOf(fmt.Appendf(nil, "%s %s %s", in.Digest, in.Root, text))
	u.warn(ctx, tree, root)
	return nil
}

// environmentOf is the directory of the Python environment that an image's variables name.
func environmentOf(env []string) string {
	for _, name := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		for _, kv := range env {
			if dir, ok := strings.CutPrefix(kv, name+"="); ok && path.IsAbs(dir) {
				return path.Clean(dir)
			}
		}
	}
	return ""
}

func uenvRoot(tree *image.Tree, u UenvOptions) (*image.Node, error) {
	switch {
	case u.Root == "":
		return nil, fault.Hint(errors.New("the image has no Python environment that it names in VIRTUAL_ENV or CONDA_PREFIX"),
			"choose the directory with `sconce export uenv --root DIR`")
	case !path.IsAbs(u.Mount) || path.Clean(u.Mount) != u.Mount || u.Mount == "/":
		return nil, fault.Usage(fmt.Errorf("mount point %q: it has to be an absolute path, without a slash at the end", u.Mount))
	}
	root, err := tree.Lookup(u.Root)
	switch {
	case err != nil:
		return nil, fmt.Errorf("directory of the uenv: %w", err)
	case root.Type != layer.Dir || root == tree.Root():
		return nil, fmt.Errorf("%s is no directory below the image's root", u.Root)
	}
	if meta, err := root.Child("meta"); err == nil {
		if meta.Type != layer.Dir {
			return nil, fmt.Errorf("%s/meta is no directory, and uenv wants its description there", u.Root)
		}
		if env, err := meta.Child("env.json"); err == nil && env.Type == layer.Dir {
			return nil, fmt.Errorf("%s/%s is a directory, and uenv wants its description there", u.Root, uenvMetaFile)
		}
	}
	return root, nil
}

// meta is the description. PYTHONPATH and packages in the home directory would go before those of the environment.
func (u UenvOptions) meta(root *image.Node) uenvMeta {
	has := func(name string) bool { _, err := root.Child(name); return err == nil }
	one := "1"
	values := uenvValues{
		List:   map[string][]uenvChange{},
		Scalar: map[string]*string{"PYTHONPATH": nil, "PYTHONNOUSERSITE": &one},
	}
	if has("bin") {
		values.List["PATH"] = []uenvChange{{Op: "prepend", Value: []string{u.Mount + "/bin"}}}
	}
	if has("pyvenv.cfg") {
		values.Scalar["VIRTUAL_ENV"] = &u.Mount
	}
	if has("conda-meta") {
		values.Scalar["CONDA_PREFIX"] = &u.Mount
	}
	m := uenvMeta{Name: u.Name, Mount: u.Mount, Views: map[string]uenvView{u.View: {
		Description: "programs and Python packages of " + u.Name, Root: u.Mount,
		Env: uenvEnv{Version: 1, Type: "augment", Values: values},
	}}}
	if u.Description != "" {
		m.Description = &u.Description
	}
	return m
}

// warn tells of what will not work on the nodes: paths of another place, and links to files that only the image has.
func (u UenvOptions) warn(ctx context.Context, tree *image.Tree, root *image.Node) {
	if u.Mount != u.Root {
		progress.Warn(ctx, fmt.Sprintf("%s is mounted at %s: scripts in it that name their own path do not find it", u.Root, u.Mount),
			fmt.Sprintf("make the environment at %s, with prefix under [conda] for instance", u.Mount))
	}
	var first string
	count := 0
	_ = tree.Walk(func(n *image.Node) error { // visits without an error
		if below(n.Path, root.Path) && n.Type == layer.Symlink && !u.leadsInside(n, root) {
			if count++; count == 1 {
				first = fmt.Sprintf("%s leads to %s", n.Path[len(root.Path)+1:], n.Link)
			}
		}
		return nil
	})
	if count > 0 {
		progress.Warn(ctx, fmt.Sprintf("links lead out of the uenv, to whatever the nodes have there: %s (%d in all)", first, count),
			"a conda environment has its own Python; a virtual environment needs that of the nodes at the same path")
	}
}

func (u UenvOptions) leadsInside(n, root *image.Node) bool {
	if path.IsAbs(n.Link) {
		return below(path.Clean(n.Link), u.Mount)
	}
	target := filepath.Join("/", path.Dir(n.Path), n.Link)
	return target == "/"+root.Path || below(target, "/"+root.Path)
}

func below(name, dir string) bool { return strings.HasPrefix(name, dir+"/") }
