package audit

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/facts"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/units"
)

// linkRules are about what the dynamic loader does when programs start and libraries are loaded.
var linkRules = []Rule{
	{
		ID: "link-undefined-symbol", Severity: Error,
		Title: "Symbols that no library defines",
		Why:   "Python loads an extension module with all its symbols at once, so that the import fails: \"undefined symbol\". PyTorch's C++ interface changes with every release, and a module compiled against one fits no other.",
		Remedy: "install the package in the version that belongs to the PyTorch of the image, or have it " +
			"compiled against that: [python.compile.NAME] with isolation = false in the recipe",
		look: undefinedSymbols,
	},
	{
		ID: "link-missing-library", Severity: Error,
		Title: "Libraries that are needed and not found",
		Why:   "The loader stops: \"error while loading shared libraries\", or an ImportError with \"cannot open shared object file\".",
		Remedy: "install the package that has the library ([system] packages in the recipe), or add its directory " +
			"to LD_LIBRARY_PATH in [image] env",
		look: missingLibraries,
	},
	{
		ID: "link-missing-version", Severity: Error,
		Title:  "Libraries older than what was built for them",
		Why:    "The loader compares versions of symbols before anything runs and stops: \"version `GLIBC_2.34' not found\". A file runs with the C library that it was built with or a newer one, never with an older one.",
		Remedy: "take a base image whose distribution is as new as the one that the file was built on, or a build of the package for the older one (a manylinux wheel)",
		look:   missingVersions,
	},
	{
		ID: "link-host-glibc", Severity: Warning,
		Title:  "A C library older than that of the host, whose libraries are brought in",
		Why:    "The container runtime mounts libraries of the host into the container. They were built for the host's C library, and with the image's older one the loader may refuse them: \"version `GLIBC_2.34' not found\".",
		Remedy: "take a base image whose C library is at least as new as the host's",
		look:   hostGlibc,
	},
	{
		ID: "link-cpu-architecture", Severity: Error,
		Title:  "Programs for another processor",
		Why:    "The kernel does not start them: \"exec format error\".",
		Remedy: "build or pull the image for the target's platform: [target] platform in the recipe, --platform elsewhere",
		look:   otherArchitecture,
	},
	{
		ID: "link-cpu-level", Severity: Error,
		Title:  "Files for a newer processor than the target's",
		Why:    "The loader refuses them (\"CPU ISA level is lower than required\"), or they stop with an illegal instruction.",
		Remedy: "install builds for a lower x86-64 level, or take another base image: Enterprise Linux 10 needs x86-64-v3, Enterprise Linux 9 x86-64-v2",
		look:   processorLevel,
	},
	{
		ID: "link-unusable-library", Severity: Warning,
		Title:  "Libraries that are damaged",
		Why:    "The loader stops where it meets such a file (\"file too short\", \"invalid ELF header\") and does not look for another one.",
		Remedy: "install the package again; for files of Git LFS, run git lfs pull before they are copied",
		look:   unusableLibraries,
	},
	{
		ID: "link-program-interpreter", Severity: Error,
		Title:  "Programs whose loader is not in the image",
		Why:    "The kernel starts a program by the loader that it names. Where that is missing, it says \"no such file or directory\", as if the program itself were not there. A program built for glibc does not run on Alpine, nor the other way round.",
		Remedy: "install a build for the C library of the image, or take a base image with the other one",
		look:   missingInterpreters,
	},
}

// linkGroup is problems that are one finding.
type linkGroup struct {
	severity Severity
	name     string // of the package or directory
	problems []facts.LinkProblem
}

// groupLinks puts the problems of a kind together by package and severity, which judge gives; "" leaves one out.
func groupLinks(s *Subject, kind string, judge func(facts.LinkProblem) Severity) []*linkGroup {
	var groups []*linkGroup
	by := map[[2]string]*linkGroup{}
	for _, p := range s.Links {
		if p.Kind != kind {
			continue
		}
		severity := judge(p)
		if severity == "" {
			continue
		}
		key := [2]string{string(severity), facts.GroupOf(p.In)}
		if by[key] == nil {
			by[key] = &linkGroup{severity: severity, name: key[1]}
			groups = append(groups, by[key])
		}
		by[key].problems = append(by[key].problems, p)
	}
	for _, g := range groups {
		slices.SortStableFunc(g.problems, func(a, b facts.LinkProblem) int {
			return cmp.Or(slices.Index(facts.Roles, a.Role)-slices.Index(facts.Roles, b.Role), strings.Compare(a.In, b.In))
		})
	}
	return groups
}

// subject is what a finding is about: the file, or the package when there are several. needs is it with the verb.
func (g *linkGroup) subject() string {
	files := distinctOf(g.problems, func(p facts.LinkProblem) string { return p.In })
	if len(files) == 1 {
		return rooted(files[0])
	}
	return fmt.Sprintf("%d files in %s", len(files), g.name)
}

func (g *linkGroup) needs() string {
	if subject := g.subject(); subject != rooted(g.problems[0].In) {
		return subject + " need"
	}
	return rooted(g.problems[0].In) + " needs"
}

func (g *linkGroup) finding(message string) Finding {
	seen := distinctOf(g.problems, func(p facts.LinkProblem) string { return p.Text })
	if len(seen) > shownFiles {
		seen = append(seen[:shownFiles], fmt.Sprintf("and %d more", len(seen)-shownFiles))
	}
	return Finding{Severity: g.severity, Message: message, Path: g.problems[0].In, Seen: seen}
}

const shownFiles = 12 // lines of evidence

func distinctOf(problems []facts.LinkProblem, of func(facts.LinkProblem) string) []string {
	var list []string
	for _, p := range problems {
		if text := of(p); !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	return list
}

// undefinedSymbols: where PyTorch's own are missing the module was built for another PyTorch, and its import fails. Others
// may still come from what the program has loaded by then.
func undefinedSymbols(s *Subject, report func(Finding)) error {
	torch := func(p facts.LinkProblem) bool {
		return p.Provider != "" && (p.Role == facts.RoleImport || p.Role == facts.RoleModule)
	}
	for _, g := range groupLinks(s, "symbol", func(p facts.LinkProblem) Severity {
		switch {
		case torch(p) && s.hasVariant(p):
			return Warning
		case torch(p), p.Role == facts.RoleImport:
			return Error
		}
		return Warning
	}) {
		symbols := distinctOf(g.problems, func(p facts.LinkProblem) string { return symbolName(p.Symbol) })
		if !torch(g.problems[0]) {
			f := g.finding(fmt.Sprintf("%s symbols that nothing defines: %s", g.needs(), units.List(symbols, enough)))
			f.Remedy = "install the package and the libraries that it needs in versions that belong together"
			report(f)
			continue
		}
		name := g.name
		if d := s.distributionOf(g.problems[0].In); d != nil {
			name = d.Name + " " + d.Version
		}
		f := g.finding(fmt.Sprintf("%s was built for another PyTorch than the image's%s, which lacks %s", name, s.torchVersion(g.problems[0]), units.List(symbols, enough)))
		if d := s.distributionOf(g.problems[0].In); d != nil {
			f.Remedy = fmt.Sprintf("install the version of %[1]s for this PyTorch, or have it compiled against it: [python.compile.%[1]s] with "+
				"isolation = false in the recipe", d.Name)
		}
		report(f)
	}
	return nil
}

// symbolName leaves the arguments of a function out.
func symbolName(symbol string) string {
	if i := strings.Index(symbol, "("); i > 0 && symbol[i-1] != ' ' {
		return symbol[:i]
	}
	return symbol
}

var digits = lazyregexp.New(`\d+`)

// hasVariant says whether there is the same file for other versions beside it, one of which may be chosen at the import.
func (s *Subject) hasVariant(p facts.LinkProblem) bool {
	name, dir := path.Base(p.In), path.Dir(p.In)
	name, _, _ = strings.Cut(name, ".")
	if !digits.MatchString(name) {
		return false
	}
	for i := range s.Objects {
		other := s.Objects[i].Path
		stem, _, _ := strings.Cut(path.Base(other), ".")
		if path.Dir(other) == dir && stem != name && digits.ReplaceAllString(stem, "") == digits.ReplaceAllString(name, "") {
			return true
		}
	}
	return false
}

// torchVersion is the version of PyTorch in the directory of a problem's, in words; "" when it is not known.
func (s *Subject) torchVersion(p facts.LinkProblem) string {
	for _, python := range s.Pythons {
		if !isIn(p.Provider, python.Dir) {
			continue
		}
		for _, d := range python.Distributions {
			if d.Name == "torch" {
				return " (" + d.Version + ")"
			}
		}
	}
	return ""
}

// distributionOf returns the installed package that has the name of the file's package; nil when there is none.
func (s *Subject) distributionOf(name string) *facts.Distribution {
	normal := func(n string) string { return strings.ToLower(strings.NewReplacer("-", "_", ".", "_").Replace(n)) }
	wanted := normal(facts.GroupOf(name))
	for _, python := range s.Pythons {
		if !isIn(name, python.Dir) {
			continue
		}
		var best *facts.Distribution
		for i := range python.Distributions {
			d := &python.Distributions[i]
			n := normal(d.Name) // flash_attn of flash_attn_2_cuda
			if (n == wanted || strings.HasPrefix(wanted, n+"_")) && (best == nil || len(d.Name) > len(best.Name)) {
				best = d
			}
		}
		if best != nil {
			return best
		}
	}
	return nil
}

var (
	// optionalFiles are loaded by who tries several, or by nobody on most machines: transports of NVSHMEM, UCX and
	// cuFile, thread pools of Numba, variants for versions of FFmpeg, MPI and CUDA, what NumPy-like packages try to import.
	optionalFiles = lazyregexp.New(`^(?:libcufile_rdma|nvshmem_(?:bootstrap|transport)_|libuct_|libucx_|libucm_|libplugin_|libmca_|mca_|_torio_ffmpeg|libtorio_ffmpeg|libtorchaudio_sox|_torchaudio_sox|libtorchcodec_|(?:tbb|omp)pool\.|libonnxruntime_providers_|libbitsandbytes_|MPI\.)`)
	// optionalModules of Python's own library are left out where a distribution splits it.
	optionalModules = lazyregexp.New(`^(?:_tkinter|_gdbm|_dbm|_curses|_curses_panel|readline|nis|_lzma|_bz2|_sqlite3|_test\w*|_crypt|ossaudiodev)\.`)
	// optionalLibraries are those of networks and of CUDA that plugins look for.
	optionalLibraries = lazyregexp.New(`^lib(?:mlx\d|ibverbs|rdmacm|gdrapi|uc[pstm]|fabric|mpi|pmix|oshmem|pmi2?|cutensor|cutensorMg|nccl|cudnn|cusparseLt|nvinfer\w*|nvonnxparser|tbb|rocm\w*|amdhip64|hsa-runtime64|ze_loader|sycl|mkl_\w+)\.so`)
)

// isOptional says whether a file is made to stay away where its library does.
func isOptional(p facts.LinkProblem) bool {
	base := path.Base(p.In)
	switch p.Role {
	case facts.RoleLibrary:
		return optionalFiles.MatchString(base) || optionalLibraries.MatchString(p.Library)
	case facts.RoleModule:
		if path.Base(path.Dir(p.In)) == "lib-dynload" && optionalModules.MatchString(base) {
			return true
		}
		return optionalFiles.MatchString(base) || optionalLibraries.MatchString(p.Library)
	}
	return false
}

func missingLibraries(s *Subject, report func(Finding)) error {
	for _, g := range groupLinks(s, "library", s.missingSeverity) {
		names := distinctOf(g.problems, func(p facts.LinkProblem) string { return p.Library })
		f := g.finding(g.needs() + " " + units.List(names, enough) + ", which the loader does not find in the image")
		for _, name := range names {
			if there := s.otherVersion(name); there != "" {
				f.Seen = append(f.Seen, fmt.Sprintf("there is %s instead of %s", there, name))
			}
		}
		report(f)
	}
	return nil
}

func (s *Subject) missingSeverity(p facts.LinkProblem) Severity {
	if s.injects(p.Library) || isOptional(p) {
		return ""
	}
	graphics := slices.ContainsFunc(graphicsLibraries, func(g string) bool { return strings.HasPrefix(p.Library, g) })
	switch {
	case graphics && s.Target.Runtime == cluster.Apptainer, p.Role == facts.RoleLibrary:
		return Note
	case p.Role == facts.RoleStart, p.Role == facts.RoleImport:
		return Error
	}
	return Warning
}

// otherVersion returns a library of the same name with another version, with its place.
func (s *Subject) otherVersion(name string) string {
	for i := range s.Objects {
		o := &s.Objects[i]
		base := cmp.Or(o.Soname, path.Base(o.Path))
		if base != name && facts.SonameStem(base) == facts.SonameStem(name) && strings.Contains(base, ".so.") {
			return base + " (" + rooted(o.Path) + ")"
		}
	}
	return ""
}

func missingVersions(s *Subject, report func(Finding)) error {
	for _, g := range groupLinks(s, "version", func(p facts.LinkProblem) Severity {
		switch p.Role {
		case facts.RoleStart, facts.RoleImport, facts.RoleModule:
			return Error
		}
		return Warning
	}) {
		worst := slices.MaxFunc(g.problems, func(a, b facts.LinkProblem) int { return elfx.CompareVersions(a.Version, b.Version) })
		has := "has none of that kind"
		if worst.Has != "" {
			has = "has versions up to " + worst.Has
		}
		report(g.finding(fmt.Sprintf("%s version %s of %s, but the image's (%s) %s", g.needs(), worst.Version, worst.Library, rooted(worst.Provider), has)))
	}
	return nil
}

// hostGlibc compares the C libraries. The driver's own libraries were built for a very old one; those that Apptainer brings
// in besides, and those that a profile names, were built on the host.
func hostGlibc(s *Subject, report func(Finding)) error {
	if s.Target.Glibc == "" {
		return nil
	}
	version, at := s.glibc()
	host := "GLIBC_" + s.Target.Glibc
	if version == "" || elfx.CompareVersions(version, symbolsOf(host)) >= 0 {
		return nil
	}
	f := Finding{Path: at, Seen: []string{fmt.Sprintf("%s: %s; the host's: %s", rooted(at), version, host)}}
	var beyond []string
	for _, name := range s.Target.Injects {
		if !facts.IsDriverLibrary(name) {
			beyond = append(beyond, name)
		}
	}
	brought := "libraries of NVIDIA's driver"
	f.Severity = Note
	switch {
	case len(beyond) > 0:
		f.Severity, brought = Error, units.List(beyond, enough)
	case s.Target.Runtime == cluster.Apptainer:
		f.Severity, brought = Warning, "the driver's libraries and, with --nv, the host's OpenGL and OpenCL"
	}
	f.Message = fmt.Sprintf("the image's C library has versions up to %s, the host's is %s, and the runtime brings in %s", version, host, brought)
	report(f)
	return nil
}

// symbolsOf is the highest version of symbols in a release of glibc: some have added none (glibc's Versions files).
func symbolsOf(release string) string {
	if release == "GLIBC_2.37" {
		return "GLIBC_2.36"
	}
	return release
}

// glibcParts are the files of glibc in whose symbols each release shows, of which the first was in one file only until 2.34.
var glibcParts = []string{"libc.so.6", "libpthread.so.0", "libm.so.6"}

// systemLibraries are the directories of the loader's own libraries.
var systemLibraries = lazyregexp.New(`^(?:usr/)?lib(?:32|64)?(?:/[\w-]+-linux-gnu)?$`)

// glibc returns the highest version of symbols in the image's C library, and its path; "" when it has none.
func (s *Subject) glibc() (version, at string) {
	for i := range s.Objects {
		o := &s.Objects[i]
		if !slices.Contains(glibcParts, o.Soname) || !systemLibraries.MatchString(path.Dir(o.Path)) || o.Arch != s.Arch() {
			continue
		}
		for _, v := range o.Provides {
			if number, ok := strings.CutPrefix(v, "GLIBC_"); ok && number[0] >= '0' && number[0] <= '9' && (version == "" || elfx.CompareVersions(v, version) > 0) {
				version = v
			}
		}
		if o.Soname == glibcParts[0] {
			at = o.Path
		}
	}
	if at == "" {
		return "", ""
	}
	return version, at
}

// otherArchitecture compares the platforms, and what most programs are for. A few files for another processor are common.
func otherArchitecture(s *Subject, report func(Finding)) error {
	if s.Target.Platform != "" && s.Platform != "" && platformOf(s.Target.Platform) != platformOf(s.Platform) {
		report(Finding{Message: fmt.Sprintf("the image is for %s, the target is %s", s.Platform, s.Target.Platform)})
		return nil
	}
	count, own := map[string][]string{}, s.Arch()
	for i := range s.Objects {
		o := &s.Objects[i]
		dir := path.Dir(o.Path)
		if o.IsProgram() && (dir == "bin" || strings.HasSuffix(dir, "/bin") || strings.HasSuffix(dir, "sbin")) && !strings.Contains(o.Path, "site-packages/") {
			count[o.Arch] = append(count[o.Arch], o.Path)
		}
	}
	for arch, files := range count {
		if arch == own || arch == "386" && own == "amd64" || arch == "arm" && own == "arm64" || len(files) <= len(count[own]) {
			continue
		}
		report(Finding{
			Path: files[0], Seen: rootedAll(files[:min(len(files), shownFiles)]),
			Message: fmt.Sprintf("the image says that it is for %s, but %s are for %s and %d for %s", own, units.Number(len(files), "program"), arch, len(count[own]), own),
		})
	}
	return nil
}

// platformOf leaves the variant out: linux/arm64/v8 is linux/arm64.
func platformOf(p string) string {
	parts := strings.SplitN(p, "/", 3)
	return strings.Join(parts[:min(len(parts), 2)], "/")
}

func processorLevel(s *Subject, report func(Finding)) error {
	if s.Target.CPULevel == 0 || s.Arch() != "amd64" {
		return nil
	}
	f := Finding{Severity: Warning}
	highest, count := 0, 0
	for i := range s.Objects {
		o := &s.Objects[i]
		if o.ISALevel <= s.Target.CPULevel || facts.IsAside(o.Path) {
			continue
		}
		if o.IsProgram() || systemLibraries.MatchString(path.Dir(o.Path)) || facts.IsTagged(o.Path) {
			f.Severity = Error
		}
		if count++; count <= shownFiles {
			f.Seen = append(f.Seen, fmt.Sprintf("%s: x86-64-v%d", rooted(o.Path), o.ISALevel))
		}
		f.Path = cmp.Or(f.Path, o.Path)
		highest = max(highest, o.ISALevel)
	}
	if count > 0 {
		f.Message = fmt.Sprintf("up to x86-64-v%d is needed by %s of the image, the target's processors have x86-64-v%d", highest, units.Number(count, "file"), s.Target.CPULevel)
		report(f)
	}
	return nil
}

func unusableLibraries(s *Subject, report func(Finding)) error {
	for _, g := range groupLinks(s, "unusable", func(p facts.LinkProblem) Severity {
		if p.Role == facts.RoleStart || p.Role == facts.RoleImport {
			return Error
		}
		return Warning
	}) {
		report(g.finding(g.subject() + " cannot be loaded"))
	}
	return nil
}

func missingInterpreters(s *Subject, report func(Finding)) error {
	for _, g := range groupLinks(s, "interpreter", func(p facts.LinkProblem) Severity {
		if p.Role == facts.RoleStart {
			return Error
		}
		return Warning
	}) {
		names := distinctOf(g.problems, func(p facts.LinkProblem) string { return p.Library })
		report(g.finding(fmt.Sprintf("%s the loader %s, which the image does not have", g.needs(), units.List(names, enough))))
	}
	return nil
}

// graphicsLibraries are the host's that Apptainer brings in with --nv where the host has them (nvliblist.conf).
var graphicsLibraries = []string{
	"libGL.so.", "libGLX.so.", "libEGL.so.", "libOpenGL.so.", "libGLdispatch.so.", "libGLESv1_CM.so.", "libGLESv2.so.", "libOpenCL.so.",
}

func isIn(name, dir string) bool { return strings.HasPrefix(name, dir+"/") }
