package lint

import (
	"bufio"
	"bytes"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/sbatch"
)

// venvRules are about virtual environments on top of an image, as far as they can be judged where they lie: as directories that a
// script activates.
var venvRules = []Rule{
	{
		Rule: audit.Rule{
			ID: "venv-base-changed", Severity: audit.Error,
			Title:  "Virtual environments of another Python",
			Why:    "The environment was made with a Python that the image does not have: its python is a link that leads nowhere, or sees no packages of the image.",
			Remedy: "make the environment again, in a container of this image",
		},
		script: lookVenvBase,
	},
	{
		Rule: audit.Rule{
			ID: "venv-two-torch", Severity: audit.Warning,
			Title:  "A second PyTorch in the virtual environment",
			Why:    "The environment's torch goes before the image's, which was built for the cluster; extensions of the image are linked with the other one.",
			Remedy: "remove torch and its nvidia packages from the environment, and install with the image's versions as constraints",
		},
		script: lookTwoTorch,
	},
}

// venv is a virtual environment that a script activates in a container.
type venv struct {
	call  *sbatch.Call
	dir   string
	image *opened
}

// venvs are the environments that are here to look at, each with the image of its step, where that is known with its files.
func (s *subject) venvs() []venv {
	var all []venv
	for _, c := range s.script.Calls {
		if !activates(c) || !c.Command[0].Fixed || c.Inside == nil {
			continue
		}
		dir := filepath.Dir(filepath.Dir(c.Command[0].Text))
		if _, err := os.Stat(filepath.Join(dir, "pyvenv.cfg")); err != nil || !filepath.IsAbs(dir) {
			continue
		}
		if im := s.imageOfStep(c.Inside); im.filesKnown() {
			all = append(all, venv{c, dir, im})
		}
	}
	return all
}

// imageOfStep is the image of the environment that a step names.
func (s *subject) imageOfStep(srun *sbatch.Call) *opened {
	for _, u := range s.environments {
		if u.call == srun && u.doc != nil {
			return u.doc.image
		}
	}
	if runtimeOf(srun) == pyxis {
		if f := s.imageIn(srun); f != nil {
			return &opened{Facts: f}
		}
	}
	return nil
}

// config reads a key of pyvenv.cfg (PEP 405).
func (v venv) config(key string) string {
	data, err := os.ReadFile(filepath.Join(v.dir, "pyvenv.cfg"))
	if err != nil {
		return ""
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), "="); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func lookVenvBase(s *subject) {
	for _, v := range s.venvs() {
		home := v.config("home")
		if home == "" {
			continue
		}
		if _, err := v.image.Root.Stat(home); err != nil {
			s.tell(s.in(v.call.At), "%s was made with the Python in %s, which the image does not have", v.dir, home)
		}
	}
}

func lookTwoTorch(s *subject) {
	for _, v := range s.venvs() {
		own, err := filepath.Glob(filepath.Join(v.dir, "lib", "python3*", "site-packages", "torch-*.dist-info"))
		if err != nil || len(own) == 0 {
			continue
		}
		if at, there := v.image.has(isTorch); there {
			s.tell(s.in(v.call.At), "the environment has %s, and the image another", torchName(own[0])).Seen = []string{own[0], at}
		}
	}
}

func isTorch(name string) bool {
	base := path.Base(name)
	return strings.HasPrefix(base, "torch-") && strings.HasSuffix(base, ".dist-info") && strings.HasSuffix(path.Dir(name), "-packages")
}

func torchName(dir string) string {
	return strings.Replace(strings.TrimSuffix(filepath.Base(dir), ".dist-info"), "-", " ", 1)
}
