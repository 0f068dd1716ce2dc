package audit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/facts"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
)

// maxConsumers bounds how many files are followed to the library they get.
const maxConsumers = 200

// supplied says which file a consumer gets for a library that it needs.
type supplied struct {
	consumer string // its path
	need     string // "libnccl.so.2"
	file     string // without links and without a slash in front
	version  string // of the file, "" when nothing tells
	byEnv    bool   // LD_LIBRARY_PATH decided
	runpath  bool   // file has a RUNPATH, so that LD_LIBRARY_PATH goes before it for what file loads
}

func (c supplied) String() string {
	version := cmp.Or(c.version, "unknown version")
	text := fmt.Sprintf("%s gets %s (%s)", rooted(c.consumer), rooted(c.file), version)
	if c.byEnv {
		text += " by LD_LIBRARY_PATH"
	}
	return text
}

// suppliers follows what the files of site directories need to the files they get, with the given LD_LIBRARY_PATH.
func (s *Subject) suppliers(dirs []string, libraryPath string, wants func(need string) bool) ([]supplied, error) {
	loader := &elfx.Loader{FS: s.Root, LibraryPath: libraryPath, ISALevel: s.Target.CPULevel}
	var all []supplied
	for _, o := range s.Objects {
		if len(all) >= maxConsumers || siteContaining(dirs, o.Path) == "" || !slices.ContainsFunc(o.Needed, wants) {
			continue
		}
		c, err := loader.Closure("/" + o.Path)
		if err != nil {
			if s.Context.Err() != nil || !errors.Is(err, elfx.ErrFormat) {
				return nil, err
			}
			continue
		}
		for _, l := range c.Links {
			if l.By != c.Objects[0] || !wants(l.Name) || l.To == nil {
				continue
			}
			file := strings.TrimPrefix(l.To.Real, "/")
			all = append(all, supplied{
				consumer: o.Path, need: l.Name, file: file, version: s.libraryVersion(file),
				byEnv: l.Rule.Kind == elfx.FromEnv, runpath: l.To.File.Runpath != "",
			})
		}
	}
	return all, nil
}

// followsTorch says whether an object is loaded after PyTorch's libraries, whose copy of a library it then gets.
func (s *Subject) followsTorch(name string) bool {
	i, ok := slices.BinarySearchFunc(s.Objects, name, func(o facts.Object, name string) int { return cmp.Compare(o.Path, name) })
	return ok && !strings.Contains(name, "/torch/lib/") && slices.ContainsFunc(s.Objects[i].Needed, func(need string) bool {
		return strings.HasPrefix(need, "libtorch") || strings.HasPrefix(need, "libc10")
	})
}

// inFileName is the version that a library's file name ends in: libnccl.so.2.21.5.
var inFileName = lazyregexp.New(`\.so\.([0-9]+\.[0-9]+[0-9.]*)$`)

// inNVIDIAPackage is a library of one of NVIDIA's wheels.
var inNVIDIAPackage = lazyregexp.New(`^(.*)/nvidia/(nccl|cudnn|cu[0-9]+)/lib/lib(nccl|cudnn)[^/]*$`)

// libraryVersion returns the version of a copy of NCCL or cuDNN: by its name, or by the wheel that brought it.
func (s *Subject) libraryVersion(file string) string {
	if m := inFileName.FindStringSubmatch(file); m != nil {
		return m[1]
	}
	m := inNVIDIAPackage.FindStringSubmatch(file)
	if m == nil {
		return ""
	}
	for _, p := range s.Pythons {
		if p.Dir != m[1] {
			continue
		}
		for _, d := range p.Distributions {
			if strings.HasPrefix(d.Name, "nvidia-"+m[3]) {
				return d.Version
			}
		}
	}
	return ""
}

// duplicated looks for versions of one library that meet in a process.
type duplicated struct {
	s      *Subject
	report func(Finding)
	title  string // "NCCL"
	stem   string // "nccl"
	prefix string // of the file names: "libnccl.so."
}

func duplicateNCCL(s *Subject, report func(Finding)) error {
	d := duplicated{s, report, "NCCL", "nccl", "libnccl.so."}
	return d.look(nil)
}

func duplicateCuDNN(s *Subject, report func(Finding)) error {
	d := duplicated{s, report, "cuDNN", "cudnn", "libcudnn.so."}
	return d.look(d.parts)
}

func (d duplicated) wants(need string) bool { return strings.HasPrefix(need, d.prefix) }

// look goes through the Pythons of the image; more looks at what each consumer of one gets.
func (d duplicated) look(more func([]supplied)) error {
	d.overwritten()
	d.twoMajors()
	libraryPath, _ := d.s.Env("LD_LIBRARY_PATH")
	seen := map[string]bool{}
	for _, e := range d.s.Environments() {
		dirs := sitesOf(e)
		key := strings.Join(dirs, "\n")
		if seen[key] {
			continue
		}
		seen[key] = true
		got, err := d.s.suppliers(dirs, libraryPath, d.wants)
		if err != nil {
			return err
		}
		alone := got
		if slices.ContainsFunc(got, func(c supplied) bool { return c.byEnv }) {
			if alone, err = d.s.suppliers(dirs, "", d.wants); err != nil {
				return err
			}
		}
		if !d.overridden(got, alone) {
			d.disagree(e, got)
		}
		if more != nil {
			more(got)
		}
	}
	return d.s.Context.Err()
}

func sitesOf(e *facts.Environment) []string {
	var dirs []string
	for _, p := range e.Path {
		dirs = append(dirs, p.Dir)
	}
	return dirs
}

// overwritten reports packages for several versions of CUDA that lay their library in the same place.
func (d duplicated) overwritten() {
	for _, p := range d.s.Pythons {
		var names []string
		var first *facts.Distribution
		for i := range p.Distributions {
			if x := &p.Distributions[i]; strings.HasPrefix(x.Name, "nvidia-"+d.stem+"-cu") {
				first = cmp.Or(first, x)
				names = append(names, x.Name+" "+x.Version)
			}
		}
		if len(names) < 2 {
			continue
		}
		d.report(Finding{
			Path: first.Dir,
			Message: fmt.Sprintf("%s lay their library in one place, /%s/nvidia/%s/lib, where the one installed last is left",
				strings.Join(names, " and "), p.Dir, d.stem),
			Seen:   names,
			Why:    "The file that is left is of one version and one CUDA, and the package that wanted the other gets it too.",
			Remedy: "uninstall both, then install again the one that belongs to the CUDA version of PyTorch",
		})
	}
}

// overridden reports that LD_LIBRARY_PATH leads a consumer to another version than its own.
func (d duplicated) overridden(got, alone []supplied) bool {
	var worst *Finding
	for _, c := range got {
		i := slices.IndexFunc(alone, func(a supplied) bool { return a.consumer == c.consumer && a.need == c.need })
		if !c.byEnv || i < 0 || alone[i].file == c.file {
			continue
		}
		order, known := compareLibraries(c.version, alone[i].version)
		if !known || order == 0 {
			continue
		}
		f := Finding{
			Path: c.file,
			Message: fmt.Sprintf("LD_LIBRARY_PATH puts %s %s before version %s, which %s would get by itself",
				d.title, c.version, alone[i].version, path.Base(c.consumer)),
			Seen:   []string{c.String(), rooted(alone[i].file) + " has version " + alone[i].version},
			Remedy: "take /" + path.Dir(c.file) + " out of LD_LIBRARY_PATH in the image's environment",
		}
		if order < 0 {
			f.Severity = Error
			f.Why = "A program compiled for the newer version calls functions that the older one does not have: undefined symbol."
		}
		if worst == nil || worst.Severity == "" {
			worst = &f
		}
	}
	if worst != nil {
		d.report(*worst)
	}
	return worst != nil
}

// compareLibraries compares versions as far as both have numbers: the wheel's 9.1.0.70 is the file's 9.1.0.
func compareLibraries(a, b string) (order int, known bool) {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	n := min(len(x), len(y), 3)
	v, errV := python.ParseVersion(strings.Join(x[:n], "."))
	w, errW := python.ParseVersion(strings.Join(y[:n], "."))
	if a == "" || b == "" || errV != nil || errW != nil {
		return 0, false
	}
	return v.Compare(w), true
}

// disagree reports that the packages of one Python get different versions of a library.
func (d duplicated) disagree(e *facts.Environment, got []supplied) {
	got = slices.DeleteFunc(slices.Clone(got), func(c supplied) bool { return d.s.followsTorch(c.consumer) })
	slices.SortStableFunc(got, func(a, b supplied) int { return cmp.Compare(a.need, b.need) })
	for i, a := range got {
		for _, b := range got[i+1:] {
			order, known := compareLibraries(a.version, b.version)
			if a.need != b.need || a.file == b.file || !known || order == 0 {
				continue
			}
			d.report(Finding{
				Path: a.file,
				Message: fmt.Sprintf("packages of %s get different versions of %s: %s gets %s, and %s gets %s",
					e.Label(), d.title, facts.GroupOf(a.consumer), a.version, facts.GroupOf(b.consumer), b.version),
				Seen: []string{a.String(), b.String()},
			})
			return
		}
	}
}

// twoMajors reports packages of which parts need one major version of a library, and parts another.
func (d duplicated) twoMajors() {
	needs := map[string]map[string]string{} // by package: who needs each name
	for _, o := range d.s.Objects {
		for _, need := range o.Needed {
			if !d.wants(need) {
				continue
			}
			at := packageDir(o.Path)
			if needs[at] == nil {
				needs[at] = map[string]string{}
			}
			needs[at][need] = cmp.Or(needs[at][need], o.Path)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(needs)) {
		by := needs[at]
		if len(by) < 2 || at == "" {
			continue
		}
		var names, seen []string
		for name, file := range by {
			names = append(names, name)
			seen = append(seen, rooted(file)+" needs "+name)
		}
		slices.Sort(names)
		slices.Sort(seen)
		d.report(Finding{
			Path:    at,
			Message: fmt.Sprintf("parts of /%s need %s, and both may be loaded", at, strings.Join(names, " and ")),
			Seen:    seen,
		})
	}
}

// packageDir returns the directory of the Python package that a file is in, "" for other files.
func packageDir(name string) string {
	for _, kind := range []string{"/site-packages/", "/dist-packages/"} {
		if i := strings.LastIndex(name, kind); i >= 0 {
			first, _, _ := strings.Cut(name[i+len(kind):], "/")
			return name[:i+len(kind)] + first
		}
	}
	return ""
}

// parts reports that LD_LIBRARY_PATH has parts of another cuDNN than the one that is loaded. The main library loads its
// parts by name, and its RUNPATH, if it has one, comes after that variable.
func (d duplicated) parts(got []supplied) {
	libraryPath, _ := d.s.Env("LD_LIBRARY_PATH")
	seen := map[string]bool{}
	for _, c := range got {
		if c.byEnv || !c.runpath || seen[c.file] {
			continue
		}
		seen[c.file] = true
		for dir := range strings.SplitSeq(libraryPath, ":") {
			if !path.IsAbs(dir) {
				continue
			}
			part := d.part(dir, c)
			order, known := compareLibraries(d.s.libraryVersion(part), c.version)
			if part == "" || !known || order == 0 {
				continue
			}
			d.report(Finding{
				Severity: Error, Path: part,
				Message: fmt.Sprintf("LD_LIBRARY_PATH has parts of cuDNN %s, which %s %s loads in place of its own",
					d.s.libraryVersion(part), path.Base(c.file), c.version),
				Seen:   []string{c.String(), rooted(part)},
				Remedy: "take " + dir + " out of LD_LIBRARY_PATH in the image's environment",
			})
			return
		}
	}
}

// part returns a library that cuDNN loads by name, if dir has one of the same major version that is not the loaded one's.
func (d duplicated) part(dir string, c supplied) string {
	_, major, _ := strings.Cut(c.need, ".so.")
	for _, name := range []string{"libcudnn_graph", "libcudnn_ops", "libcudnn_ops_infer", "libcudnn_cnn", "libcudnn_cnn_infer"} {
		real, err := d.s.Root.Resolve(path.Join(dir, name+".so."+major))
		if err == nil && path.Dir(real) != "/"+path.Dir(c.file) {
			return strings.TrimPrefix(real, "/")
		}
	}
	return ""
}

// openMPFamily names the runtime that a library is, "" for any other. The copies that wheels bring have a hash in their
// names: libgomp-a34b3233.so.1.
func openMPFamily(name string) string {
	stem, _, _ := strings.Cut(path.Base(name), ".so")
	stem, _, _ = strings.Cut(stem, "-")
	switch stem {
	case "libgomp":
		return "GNU (libgomp)"
	case "libiomp5":
		return "Intel (libiomp5)"
	case "libomp":
		return "LLVM (libomp)"
	}
	return ""
}

// duplicateOpenMP is the rule duplicate-openmp. Copies of one family are not reported: under names of their own, as wheels
// bring them, they are common and do no harm, and of those with one name the loader takes only the first.
func duplicateOpenMP(s *Subject, report func(Finding)) error {
	libraryPath, _ := s.Env("LD_LIBRARY_PATH")
	seen := map[string]bool{}
	for _, e := range s.Facts.Environments() {
		got, err := s.suppliers(sitesOf(e), libraryPath, func(need string) bool { return openMPFamily(need) != "" })
		if err != nil {
			return err
		}
		byFamily := map[string]supplied{}
		for _, c := range got {
			family := openMPFamily(c.file) // conda's libgomp.so.1 may be a link to another family's
			if _, there := byFamily[family]; !there && family != "" {
				byFamily[family] = c
			}
		}
		f, many := openMPFinding(e, byFamily)
		if key := strings.Join(f.Seen, "\n"); many && !seen[key] {
			seen[key] = true
			report(f)
		}
	}
	return s.Context.Err()
}

func openMPFinding(e *facts.Environment, byFamily map[string]supplied) (f Finding, many bool) {
	names := slices.Sorted(maps.Keys(byFamily))
	for _, name := range names {
		c := byFamily[name]
		f.Path = cmp.Or(f.Path, c.consumer)
		f.Seen = append(f.Seen, fmt.Sprintf("%s gets %s", rooted(c.consumer), rooted(c.file)))
	}
	f.Message = fmt.Sprintf("packages of %s load %d OpenMP runtimes: %s", e.Label(), len(names), strings.Join(names, ", "))
	return f, len(names) > 1
}
