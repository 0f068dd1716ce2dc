package audit

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/cuda"
	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/units"
)

// condaRules are about the packages that conda, mamba, pixi or sconce laid down: whether they were chosen for the target, and are whole.
var condaRules = []Rule{
	{
		ID: "conda-architecture", Severity: Error,
		Title:  "Conda packages for another processor",
		Why:    "Programs and libraries of another architecture do not start: \"exec format error\", or \"wrong ELF class\" at an import.",
		Remedy: "solve the environment for the target: [target] platform in the recipe, or CONDA_SUBDIR=linux-aarch64 for conda",
		look:   condaArchitecture,
	},
	{
		ID: "conda-cpu-level", Severity: Error,
		Title:  "Conda packages for newer processors than the target's",
		Why:    "The build was compiled with instructions that the oldest nodes do not have: they stop with \"illegal instruction\", sooner or later.",
		Remedy: "let the solver know the processor: [target] cpu-level in the recipe, or CONDA_OVERRIDE_ARCHSPEC for conda",
		look:   condaCPULevel,
	},
	{
		ID: "conda-glibc", Severity: Warning,
		Title:  "Conda packages that want a newer C library than the image's",
		Why:    "Conda packages use the C library of the base image. An older one lacks versions of symbols: \"version `GLIBC_2.34' not found\".",
		Remedy: "take a newer base image, or lock the environment against this one, with CONDA_OVERRIDE_GLIBC set to its version for conda",
		look:   condaGlibc,
	},
	{
		ID: "conda-cuda", Severity: Warning,
		Title:  "Conda packages that want a newer CUDA than the target's driver has",
		Why:    "__cuda in a package's requirements is the newest CUDA that the driver was made for. Whoever made this build says that an older driver is not enough.",
		Remedy: "solve the environment for the target: [target] driver in the recipe, or CONDA_OVERRIDE_CUDA for conda",
		look:   condaCUDA,
	},
	{
		ID: "conda-files", Severity: Warning,
		Title:  "Conda packages of which files are missing",
		Why:    "The environment says that the package is installed, so nothing brings the files back. What needs them fails when it does, possibly hours into a job.",
		Remedy: "install the package again, or remove it with conda and not by hand: conda install --force-reinstall NAME",
		look:   condaFiles,
	},
	{
		ID: "conda-clobbered", Severity: Warning,
		Title:  "Files that several conda packages have",
		Why:    "Only one of them is there, and the other package runs with a file that was not made for it. Which one it is depends on who installed them.",
		Remedy: "leave one of the packages out, or take builds of one channel",
		look:   condaClobbered,
	},
	{
		ID: "conda-prefix", Severity: Error,
		Title: "Conda environments whose files name another directory",
		Why: "Packages are built with a placeholder, which the installer replaces by the environment's directory. A script that still has it, or the directory that the environment " +
			"was copied from, names an interpreter that does not exist. A library or program that has it looks for its own files where nothing is, and so does what reads a .pc or .cmake file: a warning.",
		Remedy: "install the environment again, where it is to be, with conda, mamba, pixi or sconce, or run conda-unpack if it was packed by conda-pack",
		look:   condaPrefix,
	},
	{
		ID: "conda-defaults", Severity: Note,
		Title:  "Conda packages of Anaconda's channels",
		Why:    "Anaconda's terms ask organisations of 200 people and more for a paid licence of these channels; for teaching, research and non-profit work there are terms of their own.",
		Remedy: `find out whether your organisation may use them, or take the packages of conda-forge: channels = ["conda-forge"] in the recipe, nodefaults in an environment.yml`,
		look:   condaDefaults,
	},
	{
		ID: "duplicate-conda-pip", Severity: Warning,
		Title:  "Packages that both conda and pip installed",
		Why:    "pip and conda do not know of each other's files: what is imported may be a mixture, and the next update by either breaks the other's copy.",
		Remedy: "install it by one of them: leave it out of pip's list, or out of conda's together with what needs it",
		look:   condaAndPip,
	},
}

// condaSubdirs are the names of conda's platforms by processor.
var condaSubdirs = map[string]string{"amd64": "linux-64", "arm64": "linux-aarch64", "ppc64le": "linux-ppc64le", "riscv64": "linux-riscv64", "s390x": "linux-s390x"}

// label names a package as conda does.
func condaLabel(p *facts.CondaPackage) string { return p.Name + " " + p.Version }

// condaPackages reports one finding for each environment that has packages for which judge says what is wrong: a line that is
// shown as evidence. format is the message, with a verb for what says which packages and where.
func (s *Subject) condaPackages(report func(Finding), format string, judge func(*facts.CondaPackage) string) {
	for i := range s.Conda {
		e := &s.Conda[i]
		f := Finding{}
		count, first := 0, ""
		for j := range e.Packages {
			p := &e.Packages[j]
			seen := judge(p)
			if seen == "" {
				continue
			}
			if count++; count == 1 {
				f.Path, first = p.Record, condaLabel(p)
			}
			if count <= maxCondaSeen {
				f.Seen = append(f.Seen, condaLabel(p)+" "+seen)
			}
		}
		if count == 0 {
			continue
		}
		packages := first + " in " + rooted(e.Prefix)
		if count > 1 {
			packages = fmt.Sprintf("%d packages in %s (%s and others)", count, rooted(e.Prefix), first)
		}
		f.Message = fmt.Sprintf(format, packages)
		report(f)
	}
}

// maxCondaSeen is how many packages or files are shown as evidence.
const maxCondaSeen = 10

// condaArchitecture compares packages with the image. That the image is for the target is the rule link-cpu-architecture's to say.
func condaArchitecture(s *Subject, report func(Finding)) error {
	want := condaSubdirs[s.Arch()]
	if want == "" {
		return nil
	}
	s.condaPackages(report, "%s cannot run on "+want, func(p *facts.CondaPackage) string {
		if p.Subdir == "" || p.Subdir == "noarch" || p.Subdir == want {
			return ""
		}
		return "is a package of " + p.Subdir
	})
	return nil
}

var (
	cpuLevelPackage = lazyregexp.New(`^_?x86_64-microarch-level[ =]*>?=*([1-4])\b`)
	archspecLevel   = lazyregexp.New(`^__archspec\b.*\bx86_64_v([1-4])$`)
)

// condaLevel is the x86-64 level that a package says it needs, 0 when it says nothing.
func condaLevel(p *facts.CondaPackage) (level int, seen string) {
	if p.Name == "_x86_64-microarch-level" { // conda-forge's, which others depend on
		n, err := strconv.Atoi(strings.SplitN(p.Version, ".", 2)[0])
		if err == nil && n <= 4 {
			return n, "stands for x86-64-v" + strconv.Itoa(n)
		}
	}
	for _, d := range p.Depends {
		for _, re := range []*lazyregexp.Regexp{cpuLevelPackage, archspecLevel} {
			if m := re.FindStringSubmatch(d); m != nil {
				if n, _ := strconv.Atoi(m[1]); n > level {
					level, seen = n, "requires "+d
				}
			}
		}
	}
	return level, seen
}

func condaCPULevel(s *Subject, report func(Finding)) error {
	if s.Target.CPULevel == 0 || s.Arch() != "amd64" {
		return nil
	}
	format := fmt.Sprintf("%%s cannot run on x86-64-v%d, the level of the target's processors", s.Target.CPULevel)
	s.condaPackages(report, format, func(p *facts.CondaPackage) string {
		if level, seen := condaLevel(p); level > s.Target.CPULevel {
			return seen
		}
		return ""
	})
	return nil
}

// atLeast is the lower bound that a package sets for a virtual package: "__glibc >=2.28,<3.0.a0".
var atLeast = lazyregexp.New(`^(__[a-z]+)\s.*>=\s*([0-9]+(?:\.[0-9]+)*)`)

// wantsAtLeast returns the first of the requirements of a virtual package that older says are not met.
func wantsAtLeast(requirements []string, virtual string, older func(bound string) bool) string {
	for _, d := range requirements {
		if m := atLeast.FindStringSubmatch(d); m != nil && m[1] == virtual && !strings.Contains(d, "|") && older(m[2]) {
			return "requires " + d
		}
	}
	return ""
}

func condaGlibc(s *Subject, report func(Finding)) error {
	version, at := s.glibc()
	if version == "" {
		return nil
	}
	format := fmt.Sprintf("the image's glibc, %s, is older than what is wanted by %%s", strings.TrimPrefix(version, "GLIBC_"))
	s.condaPackages(report, format, func(p *facts.CondaPackage) string {
		seen := wantsAtLeast(p.Depends, "__glibc", func(bound string) bool {
			return elfx.CompareVersions(symbolsOf("GLIBC_"+bound), version) > 0
		})
		if seen != "" {
			seen += ", and " + rooted(at) + " has symbols up to " + version
		}
		return seen
	})
	return nil
}

func condaCUDA(s *Subject, report func(Finding)) error {
	driver := s.userDriver()
	if driver == nil {
		return nil
	}
	newest := cuda.Newest(driver)
	if newest == (cuda.Version{}) || newest == cuda.Newest(cuda.Driver{math.MaxInt}) { // the driver may be newer than what is known of CUDA
		return nil
	}
	format := fmt.Sprintf("the target's driver, %s, was made for CUDA %s at most, and a newer one is wanted by %%s", driver, newest)
	s.condaPackages(report, format, func(p *facts.CondaPackage) string {
		return wantsAtLeast(slices.Concat(p.Depends, p.Constrains), "__cuda", func(bound string) bool {
			v, ok := cuda.ParseVersion(bound)
			return ok && v.Compare(newest) > 0
		})
	})
	return nil
}

// condaFiles reports what is gone from the packages, unless pip has taken it out to put its own in the place.
func condaFiles(s *Subject, report func(Finding)) error {
	for i := range s.Conda {
		e := &s.Conda[i]
		for j := range e.Packages {
			p := &e.Packages[j]
			if p.Missing.Count+p.Altered.Count == 0 || len(s.pipCopies(e, p)) > 0 {
				continue
			}
			f := Finding{Path: p.Record}
			for _, name := range p.Missing.First {
				f.Seen = append(f.Seen, rooted(name)+" is missing")
			}
			for _, name := range p.Altered.First {
				f.Seen = append(f.Seen, rooted(name)+" has another size than recorded")
			}
			f.Seen = f.Seen[:min(len(f.Seen), maxCondaSeen)]
			if p.Missing.Count > 0 {
				f.Message = fmt.Sprintf("%s in %s lacks %s", condaLabel(p), rooted(e.Prefix), units.Number(p.Missing.Count, "file"))
			} else {
				f.Severity = Note
				f.Message = fmt.Sprintf("%s of %s in %s changed since the installation", units.Number(p.Altered.Count, "file"), condaLabel(p), rooted(e.Prefix))
				f.Why = "Somebody changed them after the installation, or something else was installed over them. The next installation of the package takes the change back."
				f.Remedy = "make the change a package or a patch of its own, if it is wanted"
			}
			report(f)
		}
	}
	return nil
}

func condaClobbered(s *Subject, report func(Finding)) error {
	for i := range s.Conda {
		e := &s.Conda[i]
		var pairs []string
		files := map[string][]string{}
		vital := map[string]bool{}
		for _, c := range e.Clobbers {
			pair := strings.Join(c.Packages, " and ")
			if len(files[pair]) == 0 {
				pairs = append(pairs, pair)
			}
			if c.Vital && !vital[pair] { // what matters stands first
				vital[pair] = true
				files[pair] = slices.Insert(files[pair], 0, c.Path)
				continue
			}
			files[pair] = append(files[pair], c.Path)
		}
		slices.Sort(pairs)
		for _, pair := range pairs {
			f := Finding{
				Path:    path.Join(e.Prefix, files[pair][0]),
				Message: fmt.Sprintf("%s have %s in common that are not the same", pair, units.Number(len(files[pair]), "file")),
			}
			if len(files[pair]) == 1 {
				f.Message = fmt.Sprintf("%s both have %s, and not the same", pair, rooted(path.Join(e.Prefix, files[pair][0])))
			}
			if !vital[pair] {
				f.Severity = Note
				f.Why = "Only one of them is there. It is no program, library or module, so mostly that does no harm."
			}
			for _, name := range files[pair][:min(len(files[pair]), maxCondaSeen)] {
				f.Seen = append(f.Seen, rooted(path.Join(e.Prefix, name)))
			}
			report(f)
		}
	}
	return nil
}

func condaPrefix(s *Subject, report func(Finding)) error {
	s.condaPackages(report, "a placeholder stands for the prefix in scripts of %s", func(p *facts.CondaPackage) string {
		if p.Unpatched.Count == 0 {
			return ""
		}
		return "has it in " + rooted(p.Unpatched.First[0])
	})
	s.condaPackages(func(f Finding) {
		f.Severity = Warning
		report(f)
	}, "a placeholder stands for the prefix in files of %s", func(p *facts.CondaPackage) string {
		switch p.Held.Count {
		case 0:
			return ""
		case 1:
			return "has it in " + rooted(p.Held.First[0])
		}
		return fmt.Sprintf("has it in %s and %s", rooted(p.Held.First[0]), units.Number(p.Held.Count-1, "other file"))
	})
	s.condaPackages(report, "the environment was somewhere else before, for scripts of %s", func(p *facts.CondaPackage) string {
		if p.Moved.Count == 0 {
			return ""
		}
		return "has " + rooted(p.Moved.First[0]) + ", which begins with #!" + p.Interpreter
	})
	return nil
}

// defaultsChannel is the address of one of Anaconda's channels, or of a copy of it.
var defaultsChannel = lazyregexp.New(`^defaults$|^https?://repo\.(anaconda\.com|continuum\.io)/|(^|/)pkgs/(main|r|free|pro|msys2)(/|$)`)

func condaDefaults(s *Subject, report func(Finding)) error {
	s.condaPackages(report, "channels of Anaconda brought %s", func(p *facts.CondaPackage) string {
		for _, from := range []string{p.Channel, p.URL} {
			if defaultsChannel.MatchString(from) {
				return "is of " + withoutLogin(from)
			}
		}
		return ""
	})
	return nil
}

// loginInAddress are a name and password, or conda's token, in the address of a channel.
var loginInAddress = lazyregexp.New(`^(https?://)[^/@]*@|/t/[^/]+`)

func withoutLogin(address string) string { return loginInAddress.ReplaceAllString(address, "$1") }

// twins are libraries that have other names in conda's channels than on the Python package index.
var twins = []struct {
	conda *lazyregexp.Regexp
	pip   *lazyregexp.Regexp
	told  func(*Subject, func(Finding)) error // the rule that says when they meet in a process
}{
	{lazyregexp.New(`^(pytorch|pytorch-gpu|pytorch-cpu|libtorch)$`), lazyregexp.New(`^torch$`), nil},
	{lazyregexp.New(`^nccl$`), lazyregexp.New(`^nvidia-nccl-cu\d+$`), duplicateNCCL},
	{lazyregexp.New(`^(intel-openmp|llvm-openmp)$`), lazyregexp.New(`^intel-openmp$`), duplicateOpenMP},
}

// condaAndPip is the rule duplicate-conda-pip. What duplicate-nccl and duplicate-openmp say is not said again.
func condaAndPip(s *Subject, report func(Finding)) error {
	for i := range s.Conda {
		e := &s.Conda[i]
		reported := map[string]bool{}
		for j := range e.Packages {
			p := &e.Packages[j]
			for _, d := range s.pipCopies(e, p) {
				if !reported[d.Dir] {
					reported[d.Dir] = true
					report(copyFinding(p, d, Note))
				}
			}
		}
		if err := s.twinLibraries(e, reported, report); err != nil {
			return err
		}
	}
	return nil
}

func copyFinding(p *facts.CondaPackage, d *facts.Distribution, severity Severity) Finding {
	if d.Name == "torch" {
		severity = Warning
	}
	return Finding{
		Severity: severity, Path: d.Dir,
		Message: fmt.Sprintf("conda installed %s, and pip %s %s", condaLabel(p), d.Name, d.Version),
		Seen:    []string{rooted(p.Record), rooted(d.Dir)},
	}
}

// twinLibraries reports the libraries that have other names with pip.
func (s *Subject) twinLibraries(e *facts.CondaEnvironment, reported map[string]bool, report func(Finding)) error {
	byPip := s.byPip(e)
	for _, twin := range twins {
		i := slices.IndexFunc(e.Packages, func(p facts.CondaPackage) bool { return twin.conda.MatchString(p.Name) })
		j := slices.IndexFunc(byPip, func(d *facts.Distribution) bool { return twin.pip.MatchString(d.Name) })
		if i < 0 || j < 0 || reported[byPip[j].Dir] {
			continue
		}
		told := false
		if twin.told != nil {
			if err := twin.told(s, func(Finding) { told = true }); err != nil {
				return err
			}
		}
		if told {
			continue
		}
		f := copyFinding(&e.Packages[i], byPip[j], Note)
		if twin.told != nil {
			f.Why = "There are two copies of the library. Nothing was found that loads both into one process, but they take room, and a change of LD_LIBRARY_PATH may mix them."
		}
		report(f)
	}
	return nil
}

// byPip returns the distributions in an environment's site directories that no conda package brought.
func (s *Subject) byPip(e *facts.CondaEnvironment) []*facts.Distribution {
	owned := map[string]bool{}
	for i := range e.Packages {
		for _, dir := range e.Packages[i].Distributions {
			owned[dir] = true
		}
	}
	var list []*facts.Distribution
	for i := range s.Pythons {
		p := &s.Pythons[i]
		if rest, ok := strings.CutPrefix(p.Dir, path.Join(e.Prefix, "lib")+"/"); !ok || strings.Count(rest, "/") != 1 {
			continue
		}
		for j := range p.Distributions {
			if d := &p.Distributions[j]; !owned[d.Dir] {
				list = append(list, d)
			}
		}
	}
	return list
}

// pipCopies returns the distributions that pip has put in the place of those of a conda package, or beside them.
func (s *Subject) pipCopies(e *facts.CondaEnvironment, p *facts.CondaPackage) []*facts.Distribution {
	var list []*facts.Distribution
	for _, dir := range p.Distributions {
		name, _, _ := strings.Cut(strings.TrimSuffix(strings.TrimSuffix(path.Base(dir), ".dist-info"), ".egg-info"), "-")
		for _, d := range s.byPip(e) {
			if path.Dir(d.Dir) == path.Dir(dir) && d.Name == python.NormalizeName(name) {
				list = append(list, d)
			}
		}
	}
	return list
}

// condaPackageOf returns the conda package that brought a distribution, nil for any other.
func (s *Subject) condaPackageOf(d *facts.Distribution) *facts.CondaPackage {
	for i := range s.Conda {
		for j := range s.Conda[i].Packages {
			if p := &s.Conda[i].Packages[j]; slices.Contains(p.Distributions, d.Dir) {
				return p
			}
		}
	}
	return nil
}
