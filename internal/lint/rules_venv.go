package lint

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/sbatch"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/units"
	packed "sconce.dev/sconce/internal/venv"
)

// venvRules are about virtual environments on top of an image, as far as they can be judged where they lie: as directories that a
// script activates, and as packed files that are mounted.
var venvRules = []Rule{
	{
		Rule: audit.Rule{
			ID: "venv-base-changed", Severity: audit.Error,
			Title: "Virtual environments of another image",
			Why: "The environment was made with a Python that the image does not have: its python is a link that leads nowhere, or sees no packages of the image. " +
				"A packed one says which image its packages were chosen for, and they may not fit those of another.",
			Remedy: "make the environment again, on this image",
		},
		any: func(s *subject) {
			lookVenvBase(s)
			lookPackedBase(s)
		},
	},
	{
		Rule: audit.Rule{
			ID: "venv-two-torch", Severity: audit.Error,
			Title:  "A second PyTorch in the virtual environment",
			Why:    "The environment's torch goes before the image's, which was built for the cluster; extensions of the image are linked with the other one.",
			Remedy: "remove torch and its nvidia packages from the environment, and install with the image's versions as constraints",
		},
		any: func(s *subject) {
			lookTwoTorch(s)
			lookPackedTorch(s)
		},
	},
	{
		Rule: audit.Rule{
			ID: "venv-shadows", Severity: audit.Warning,
			Title:  "Packages of the image in another version in the virtual environment",
			Why:    "The environment's version is imported, and the image's packages, which were built and tested with theirs, get it too.",
			Remedy: "install with the image's versions as constraints, as `sconce venv add` does, or uninstall the package from the environment",
		},
		script: lookVenvShadows,
	},
	{
		Rule: audit.Rule{
			ID: "venv-absolute-path", Severity: audit.Warning,
			Title:  "Virtual environments that were moved",
			Why:    "activate and the programs of an environment name the directory that it was made in. Elsewhere they lead to another Python, or to none.",
			Remedy: "mount it where it was made, make it with `uv venv --relocatable`, or let `sconce venv` keep it, which works in any directory",
		},
		script: lookVenvMoved,
	},
	{
		Rule: audit.Rule{
			ID: "venv-stale-pyc", Severity: audit.Warning,
			Title:  "Byte code that no longer counts",
			Why:    "Byte code has the time of its source in it. Where copying or packing has changed the times, every process compiles every module again at every start.",
			Remedy: "compile it again where it is used, by hashes: python -m compileall --invalidation-mode unchecked-hash; `sconce venv pack` does so",
		},
		script: lookStaleByteCode,
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
	if s.script == nil {
		return nil
	}
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

func lookPackedBase(s *subject) {
	for _, v := range s.packedVenvs() {
		if v.image.Digest == "" {
			continue // nothing tells which image a file is that sconce has not written
		}
		if err := v.record.Base.CheckBase(v.file, v.name, []store.Digest{store.Digest(v.image.Digest)}); err != nil {
			s.tell(v.at, "%s", err)
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

func lookPackedTorch(s *subject) {
	for _, v := range s.packedVenvs() {
		i := slices.IndexFunc(v.record.Packages, func(p packed.Package) bool { return p.Name == "torch" })
		if i < 0 {
			continue
		}
		if at, there := v.image.has(isTorch); there {
			s.tell(v.at, "%s has torch %s, and the image another", v.file, v.record.Packages[i].Version).Seen = []string{at}
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

// packages are the versions of an environment's own packages, by their normalized names.
func (v venv) packages() map[string]string {
	found, err := filepath.Glob(filepath.Join(v.dir, "lib", "python3*", "site-packages", "*.dist-info"))
	if err != nil {
		return nil
	}
	all := map[string]string{}
	for _, dir := range found {
		if name, version, ok := distInfo(dir); ok {
			all[name] = version
		}
	}
	return all
}

// distInfo reads the name of a directory NAME-VERSION.dist-info, in which both are escaped so that a dash can only be between them
// (PyPA, "Recording installed projects").
func distInfo(dir string) (name, version string, ok bool) {
	base, is := strings.CutSuffix(path.Base(filepath.ToSlash(dir)), ".dist-info")
	name, version, ok = strings.Cut(base, "-")
	return python.NormalizeName(name), version, ok && is
}

// notShadows are packages that environments have for themselves, and torch, which has a rule of its own.
var notShadows = []string{"pip", "setuptools", "wheel", "torch"}

// seesImage reports whether an environment sees the packages of the Python that it was made with.
func (v venv) seesImage() bool {
	links, err := filepath.Glob(filepath.Join(v.dir, "lib", "python3*", "site-packages", "*.pth"))
	return v.config("include-system-site-packages") == "true" || err == nil && len(links) > 0
}

// maxNamed is how many examples a finding names.
const maxNamed = 5

func lookVenvShadows(s *subject) {
	for _, v := range s.venvs() {
		own := v.packages()
		if len(own) == 0 || !v.seesImage() {
			continue
		}
		var seen []string
		for _, p := range v.image.Paths {
			name, version, ok := distInfo(p.Path)
			if !ok || !strings.HasSuffix(path.Dir(p.Path), "-packages") || slices.Contains(notShadows, name) || own[name] == "" || own[name] == version {
				continue
			}
			seen = append(seen, fmt.Sprintf("%s %s before %s", name, own[name], version))
		}
		slices.Sort(seen)
		if seen = slices.Compact(seen); len(seen) > 0 {
			s.tell(s.in(v.call.At), "in %s, %s of the image %s covered by another version", v.dir, units.Number(len(seen), "package"), isOrAre(len(seen))).Seen = seen[:min(len(seen), maxNamed)]
		}
	}
}

func isOrAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

var (
	ownDirectory = lazyregexp.New(`(?m)^\s*(?:export\s+)?VIRTUAL_ENV=['"]?(/[^'"$\n]*?)['"]?\s*$`)
	shebang      = lazyregexp.New(`^#!\s*(/\S+)/bin/python[0-9.]*\s*\n`)
)

// maxLines is how much of a file is read for its first lines.
const maxLines = 4 << 10

func lookVenvMoved(s *subject) {
	for _, v := range s.venvs() {
		seen := map[string]string{} // the program by the directory that it names
		programs, err := filepath.Glob(filepath.Join(v.dir, "bin", "*"))
		if err != nil {
			continue
		}
		for _, name := range programs {
			head := headOf(name)
			m := shebang.FindSubmatch(head)
			if filepath.Base(name) == "activate" {
				m = ownDirectory.FindSubmatch(head)
			}
			if m != nil && !samePlace(string(m[1]), v.dir) && seen[string(m[1])] == "" {
				seen[string(m[1])] = name
			}
		}
		for _, dir := range slices.Sorted(maps.Keys(seen)) {
			s.tell(s.in(v.call.At), "%s was made in %s, and is used elsewhere", v.dir, dir).Seen = []string{seen[dir]}
		}
	}
}

// headOf is the beginning of a regular file.
func headOf(name string) []byte {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	head, _ := io.ReadAll(io.LimitReader(f, maxLines)) // what there is of it
	return head
}

// samePlace reports whether two paths lead to one directory.
func samePlace(a, b string) bool {
	x, err := filepath.EvalSymlinks(a)
	y, err2 := filepath.EvalSymlinks(b)
	return filepath.Clean(a) == filepath.Clean(b) || err == nil && err2 == nil && x == y
}

// maxByteCode is how many files of byte code are looked at: times change for all of them.
const maxByteCode = 500

func lookStaleByteCode(s *subject) {
	for _, v := range s.venvs() {
		looked, first, stale := 0, "", 0
		err := filepath.WalkDir(filepath.Join(v.dir, "lib"), func(name string, e fs.DirEntry, err error) error {
			if err != nil || looked >= maxByteCode {
				return fs.SkipAll
			}
			if e.Type().IsRegular() && strings.HasSuffix(name, ".pyc") {
				looked++
				if isStale(name) {
					stale++
					first = cmp.Or(first, name)
				}
			}
			return nil
		})
		if err == nil && stale > 0 {
			s.tell(s.in(v.call.At), "%d of %s of byte code in %s %s not those of their sources", stale, units.Number(looked, "file"), v.dir, isOrAre(stale)).Seen = []string{first}
		}
	}
}

// isStale reports whether a file of byte code goes by the time and size of a source that has others (PEP 552).
func isStale(name string) bool {
	module, _, _ := strings.Cut(filepath.Base(name), ".")
	source, err := os.Stat(filepath.Join(filepath.Dir(filepath.Dir(name)), module+".py"))
	head := headOf(name)
	if err != nil || filepath.Base(filepath.Dir(name)) != "__pycache__" || len(head) < 16 {
		return false
	}
	field := func(i int) uint32 { return binary.LittleEndian.Uint32(head[4*i:]) }
	const byTime = 0
	return field(1) == byTime && (field(2) != uint32(source.ModTime().Unix()) || field(3) != uint32(source.Size()))
}
