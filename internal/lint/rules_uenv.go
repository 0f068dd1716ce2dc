package lint

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/sbatch"
	"sconce.dev/sconce/internal/source"
)

// uenvRules are about uenvs, as files and in job scripts. Their source is the behaviour of uenv 9 (github.com/eth-cscs/uenv2).
var uenvRules = []Rule{
	{
		Rule: audit.Rule{
			ID: "uenv-meta", Severity: audit.Error,
			Title:  "Descriptions that uenv does not understand",
			Why:    "uenv refuses the file, or leaves out the view or variable with no more than a line in its log.",
			Remedy: "write meta/env.json with mount, and with views that have env.values.list and env.values.scalar",
		},
		uenv: lookUenvMeta,
	},
	{
		Rule: audit.Rule{
			ID: "uenv-foreign-meta", Severity: audit.Warning,
			Title:  "A description beside the file",
			Why:    "uenv takes meta/env.json of the directory that the file is in before the one inside the file, also where it belongs to something else.",
			Remedy: "give the file a directory of its own, or remove meta there",
		},
		uenv: lookForeignMeta,
	},
	{
		Rule: audit.Rule{
			ID: "uenv-mount-point", Severity: audit.Warning,
			Title:  "Mount points that may not be there",
			Why:    "uenv mounts on directories that exist on the nodes, by absolute paths. Elsewhere, the start fails.",
			Remedy: "mount at /user-environment or /user-tools, or see that the directory exists on all nodes",
		},
		uenv: lookMountPoint,
	},
	{
		Rule: audit.Rule{
			ID: "uenv-pythonpath", Severity: audit.Warning,
			Title:  "Views that set PYTHONPATH",
			Why:    "PYTHONPATH goes before the packages of every virtual environment on top of the view: what is installed there is not what is imported.",
			Remedy: `write "PYTHONPATH": null among the view's scalars, or unset it before the environment is activated`,
		},
		uenv: lookViewPythonPath,
	},
	{
		Rule: audit.Rule{
			ID: "uenv-label-tag", Severity: audit.Warning,
			Title:  "Labels of uenvs without a tag",
			Why:    "A label in --uenv is name/version:tag. Without the tag, what stands behind the colon is taken for it, or the label fits several files.",
			Remedy: "write name/version:tag, and behind another colon the mount point where it is needed",
		},
		script: lookLabel,
	},
	{
		Rule: audit.Rule{
			ID: "uenv-nccl-net", Severity: audit.Warning,
			Title:  "NCCL's network in a uenv",
			Why:    "Nothing is injected into a uenv: without NCCL_NET, NCCL falls back to TCP without a word, and NCCL_NET_PLUGIN=ofi beside it keeps the plugin from loading.",
			Remedy: `export NCCL_NET="AWS Libfabric", and leave NCCL_NET_PLUGIN out`,
		},
		script: lookUenvNCCL,
	},
}

// uenvFile is a uenv, or its description.
type uenvFile struct {
	squash string // the file's path; "" for a description alone
	meta   *value // nil: there is none
	data   []byte // of the description
	path   string // of the description, in the file where it is there
	err    error
}

func readUenv(d *document) *uenvFile {
	u := &uenvFile{data: d.data, path: d.path}
	if d.kind == Uenv {
		u.squash, u.path = d.path, path.Join(d.path, metaFile)
		u.data, u.err = metaOf(d.path)
		d.data = nil // what is told is of the file as a whole
	}
	if u.err == nil {
		u.meta, u.err = readJSON(u.data)
	}
	return u
}

const metaFile = "meta/env.json"

// metaOf reads a uenv's description in its squashfs.
func metaOf(name string) ([]byte, error) {
	c, err := source.OpenClusterFile(name)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	root, err := facts.RootOf(c)
	if err != nil {
		return nil, err
	}
	if _, err := root.Stat("/" + metaFile); errors.Is(err, fs.ErrNotExist) {
		return nil, errNoMeta
	}
	return facts.ReadText(root, metaFile), nil
}

var errNoMeta = errors.New("there is no " + metaFile + " in it")

// at is the place of a part of the description.
func (s *subject) at(v *value) place {
	if s.uenv.squash != "" {
		return place{path: s.path}
	}
	return s.in(v.at)
}

func lookUenvMeta(s *subject) {
	u := s.uenv
	var wrong *jsonError
	switch {
	case errors.As(u.err, &wrong):
		s.tell(s.at(&value{at: wrong.at}), "the description is no JSON: %s", wrong.message)
		return
	case errors.Is(u.err, errNoMeta):
		f := s.tell(place{path: s.path}, "%s", u.err)
		if _, err := os.Stat(beside(s.path)); err == nil {
			f.Severity = audit.Note
			f.Message += ", and the one beside it is taken"
			return
		}
		f.Remedy = "a file that is an image is judged by `sconce check`; a uenv has " + metaFile
		return
	case u.err != nil:
		s.tell(place{path: s.path}, "%s", u.err)
		return
	case u.meta.object == nil:
		s.tell(s.at(u.meta), "the description is %s, and has to be an object", u.meta.kind())
		return
	}
	mount := u.meta.object["mount"]
	switch {
	case mount == nil:
		s.tell(s.at(u.meta), "mount is missing")
	case mount.kind() != "a string":
		s.tell(s.at(mount), "mount is %s, and has to be a string", mount.kind())
	}
	s.views(func(name string, view *value) {
		if s.isKind(view, "view "+name, "an object") {
			s.view(name, view)
		}
	})
}

// isKind tells of a value of the wrong kind.
func (s *subject) isKind(v *value, what, kind string) bool {
	if v.kind() == kind {
		return true
	}
	s.tell(s.at(v), "%s is %s, and has to be %s", what, v.kind(), kind)
	return false
}

// views visits the views of a description.
func (s *subject) views(visit func(name string, view *value)) {
	if s.uenv.meta == nil {
		return
	}
	views := s.uenv.meta.object["views"]
	if views == nil {
		return
	}
	for _, name := range views.names {
		visit(name, views.object[name])
	}
}

// operations are what a view does with a list (uenv, "envvars").
var operations = []string{"set", "prepend", "append", "unset"}

func (s *subject) view(name string, view *value) {
	env := view.object["env"]
	if env == nil {
		f := s.tell(s.at(view), "view %s has no env", name)
		f.Severity = audit.Warning
		return
	}
	values := env.object["values"]
	if values == nil {
		return
	}
	if scalars := values.object["scalar"]; scalars != nil {
		for _, v := range scalars.names {
			if k := scalars.object[v].kind(); k != "a string" && k != "null" {
				s.tell(s.at(scalars.object[v]), "%s of view %s is %s, and has to be a string or null", v, name, k)
			}
		}
	}
	if lists := values.object["list"]; lists != nil {
		for _, v := range lists.names {
			s.listVariable(v+" of view "+name, lists.object[v])
		}
	}
}

func (s *subject) listVariable(what string, v *value) {
	if !s.isKind(v, what, "a list") {
		return
	}
	for _, change := range v.list {
		if !s.isKind(change, "a change of "+what, "an object") {
			continue
		}
		op := change.object["op"]
		if text := stringOf(op); op == nil || !slices.Contains(operations, text) {
			s.tell(s.at(change), "%s has the operation %s, and uenv takes it for unset", what, quote(text))
		}
		if list := change.object["value"]; list != nil {
			s.isKind(list, "the value of "+what, "a list")
		}
	}
}

func stringOf(v *value) string {
	if v == nil {
		return ""
	}
	text, _ := v.scalar.(string)
	return text
}

// beside is the description that goes before the one in a file.
func beside(squash string) string { return filepath.Join(filepath.Dir(squash), metaFile) }

func lookForeignMeta(s *subject) {
	if s.uenv.squash == "" || s.uenv.meta == nil {
		return
	}
	data, err := os.ReadFile(beside(s.path))
	if err != nil || string(data) == string(s.uenv.data) {
		return
	}
	s.tell(place{path: s.path}, "%s differs from the description in the file, and is taken", beside(s.path))
}

func lookMountPoint(s *subject) {
	if s.uenv.meta == nil || s.uenv.meta.object["mount"] == nil {
		return
	}
	mount := s.uenv.meta.object["mount"]
	switch text := stringOf(mount); {
	case text == "" || text == "/user-environment" || text == "/user-tools" || isDir(text):
	case !strings.HasPrefix(text, "/"):
		s.tell(s.at(mount), "mount is %s, which is no absolute path", quote(text)).Severity = audit.Error
	default:
		s.tell(s.at(mount), "mount is %s", text)
	}
}

func lookViewPythonPath(s *subject) {
	s.views(func(name string, view *value) {
		env := view.object["env"]
		if env == nil || env.object["values"] == nil {
			return
		}
		values := env.object["values"]
		for _, kind := range []string{"list", "scalar"} {
			if table := values.object[kind]; table != nil {
				if v := table.object["PYTHONPATH"]; v != nil && v.kind() != "null" && !onlyUnset(v) {
					s.tell(s.at(v), "view %s sets PYTHONPATH", name)
				}
			}
		}
	})
}

func onlyUnset(v *value) bool {
	return v.list != nil && !slices.ContainsFunc(v.list, func(c *value) bool { return stringOf(c.object["op"]) != "unset" })
}

// uenvOption is the option that names uenvs, of the job or of a step.
func (s *subject) uenvOption() (sbatch.Option, bool) {
	if o, ok := sbatch.Find(s.script.Options(), "uenv"); ok {
		return o, true
	}
	for _, c := range s.sruns() {
		if o, ok := sbatch.Find(c.Options, "uenv"); ok {
			return o, true
		}
	}
	return sbatch.Option{}, false
}

func lookLabel(s *subject) {
	o, ok := s.uenvOption()
	if !ok || !o.Fixed {
		return
	}
	for text := range strings.SplitSeq(o.Value, ",") {
		label, rest, _ := strings.Cut(text, ":")
		if isPath(label) || !strings.Contains(label, "/") || strings.HasSuffix(label, ".squashfs") || strings.HasSuffix(label, ".sqsh") {
			continue
		}
		if rest == "" || strings.HasPrefix(rest, "/") {
			s.tell(s.in(o.At), "the label %s has no tag", quote(label))
		}
	}
}

func lookUenvNCCL(s *subject) {
	o, ok := s.uenvOption()
	if !ok {
		return
	}
	net, set := s.set("NCCL_NET")
	if plugin, also := s.set("NCCL_NET_PLUGIN"); also && plugin.Value == "ofi" {
		s.tell(s.in(plugin.At), "NCCL_NET_PLUGIN is ofi in a uenv")
		return
	}
	if nodes, known := s.number(nil, "nodes"); set && net.Value != "" || !known || nodes < 2 || !s.trains() || s.sources() {
		return
	}
	s.tell(s.in(o.At), "PyTorch runs on several nodes in a uenv, and NCCL_NET is not set")
}

// trains reports whether a script is known to start PyTorch on several ranks.
func (s *subject) trains() bool {
	if _, set := s.set("MASTER_ADDR"); set {
		return true
	}
	return slices.ContainsFunc(s.script.Calls, func(c *sbatch.Call) bool { _, ok := launched(c); return ok })
}

// sources reports whether a script reads other files, which may set variables.
func (s *subject) sources() bool {
	return slices.ContainsFunc(s.script.Calls, func(c *sbatch.Call) bool {
		return (c.Name == "source" || c.Name == ".") && !activates(c)
	})
}
