package audit

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/facts"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/quote"
)

// unmet is a requirement that the installed packages do not meet.
type unmet struct {
	env   *facts.Environment
	site  *facts.Python       // where the requirer is
	by    *facts.Distribution // who has the requirement
	need  python.Requirement
	extra string              // of by, for which it is needed
	found *facts.Distribution // what an import would find; nil: nothing
}

func (u unmet) String() string {
	by := u.by.Name
	if u.extra != "" {
		by += "[" + u.extra + "]"
	}
	text := fmt.Sprintf("%s %s requires %s", by, u.by.Version, needText(u.need))
	if u.found == nil {
		return text + ", which is not installed"
	}
	return fmt.Sprintf("%s, but %s %s is installed", text, u.found.Name, u.found.Version)
}

func needText(r python.Requirement) string {
	if len(r.Specifiers) == 0 {
		return r.Name
	}
	return r.Name + r.Specifiers.String()
}

// unmetRequirements does what `pip check` does, for each Python of the image. Beyond that, extras count that an installed
// package asks for: when A requires B[x], what B requires for x must be there.
func unmetRequirements(f *facts.Facts) []unmet {
	var all []unmet
	seen := map[string]bool{}
	envs := f.Environments()
	shared := map[string]int{} // problems of what is on PYTHONPATH, which only some of the Pythons have to be able to use
	for _, e := range envs {
		for _, u := range unmetOf(e, f.Platform) {
			key := u.by.Dir + "\n" + u.String()
			if slices.Contains(f.PythonPath(), u.site.Dir) {
				if shared[key]++; shared[key] < len(envs) {
					continue
				}
			}
			if !seen[key] {
				seen[key] = true
				all = append(all, u)
			}
		}
	}
	return all
}

// wanted is a distribution with one of its extras, "" for what it always requires.
type wanted struct {
	site  *facts.Python
	d     *facts.Distribution
	extra string
}

// unmetOf returns the requirements that are not met in an environment.
func unmetOf(e *facts.Environment, platform string) []unmet {
	markers := e.Markers(platform)
	var queue []wanted
	e.Visible(func(p *facts.Python, d *facts.Distribution) { queue = append(queue, wanted{p, d, ""}) })
	done := map[string]bool{}
	var all []unmet
	for len(queue) > 0 {
		w := queue[0]
		queue = queue[1:]
		for _, line := range w.d.Requires {
			r, err := python.ParseRequirement(line)
			if err != nil || !applies(r, markers, w.extra) {
				continue
			}
			name := python.NormalizeName(r.Name)
			candidates := e.Find(name)
			if found, ok := meets(r, candidates); !ok && (found != nil || e.Whole) {
				all = append(all, unmet{e, w.site, w.d, r, w.extra, found})
			}
			for _, extra := range r.Extras {
				for _, d := range candidates {
					if key := name + "[" + extra + "]"; !done[key] {
						done[key] = true
						queue = append(queue, wanted{e.SiteOf(d), d, extra})
					}
				}
			}
		}
	}
	return all
}

// applies says whether a requirement holds in all environments; for an extra, whether it holds because of that.
func applies(r python.Requirement, markers []python.MarkerEnvironment, extra string) bool {
	if r.Marker == nil {
		return extra == ""
	}
	for _, m := range markers {
		if ok, err := r.Marker.Evaluate(m.WithExtra(extra)); err != nil || !ok {
			return false
		}
		if extra == "" {
			continue
		}
		if ok, err := r.Marker.Evaluate(m.WithExtra("")); err != nil || ok {
			return false // looked at already, as it holds without the extra
		}
	}
	return true
}

// meets says whether one of the candidates meets a requirement. A version that is not one is taken for right.
func meets(r python.Requirement, candidates []*facts.Distribution) (*facts.Distribution, bool) {
	for _, d := range candidates {
		v, err := python.ParseVersion(d.Version)
		if err != nil || r.Specifiers.Contains(v) {
			return d, true
		}
	}
	if len(candidates) == 0 {
		return nil, false
	}
	return candidates[0], false
}

// requirementUnmet is the rule python-requirement-unmet.
func requirementUnmet(s *Subject, report func(Finding)) error {
	for _, u := range unmetRequirements(s.Facts) {
		if u.torchPair() {
			continue // a rule of its own
		}
		report(u.finding(s))
	}
	for _, e := range s.Facts.Environments() {
		pythonTooOld(e, report)
	}
	return s.Context.Err()
}

func (u unmet) finding(s *Subject) Finding {
	f := Finding{
		Message: u.String(),
		Path:    u.by.Dir,
		Seen:    []string{rooted(u.by.Dir) + " is on the path of " + u.env.Label()},
		Remedy:  u.remedy(),
	}
	if u.found != nil {
		f.Seen = append(f.Seen, rooted(u.found.Dir)+" has version "+u.found.Version)
	}
	name := python.NormalizeName(u.need.Name)
	switch {
	case strings.HasSuffix(u.site.Dir, "lib/python3/dist-packages"):
		f.Severity = Note
		f.Why = "The package is one of the Linux distribution's, which patches the code and not always what the metadata says."
	case u.found == nil && u.by.Name == "torch" && strings.HasPrefix(name, "nvidia-"):
		if lib, by := u.torchLacks(s); lib != "" {
			f.Severity = Error
			f.Seen = append(f.Seen, rooted(by)+" needs "+lib+", which is nowhere in the image")
			f.Why = "PyTorch's libraries need those of NVIDIA's packages: import torch fails."
		}
	case u.found == nil && u.by.Name == "torch" && name == "triton":
		f.Why = "torch.compile, and the kernels that other packages write in Triton, fail without it."
	case name == "numpy" && u.found != nil && strings.HasPrefix(u.found.Version, "2.") && acceptsNumPy1(u.need):
		f.Why = "Modules compiled for NumPy 1 do not work with NumPy 2: it changed its binary interface, and an import fails or crashes."
	}
	return f
}

// acceptsNumPy1 says whether a requirement can be met by the last release of NumPy 1.
func acceptsNumPy1(r python.Requirement) bool {
	last, err := python.ParseVersion("1.26.4")
	return err == nil && r.Specifiers.Contains(last)
}

// neededVersions are versions that a remedy repeats. PEP 440 lets anything stand behind ===, and what an image says there is not for pasting.
var neededVersions = lazyregexp.New(`^[A-Za-z0-9.*+!_,<>=~ -]*$`)

func (u unmet) remedy() string {
	need := needText(u.need)
	if !neededVersions.MatchString(u.need.Specifiers.String()) {
		need = u.need.Name
	}
	if u.found == nil {
		return fmt.Sprintf("add %q to [python] packages in the recipe, or install it: python -m pip install %s", need, quote.Word(need))
	}
	return fmt.Sprintf("put %q beside %q in [python] packages and lock again, so that both fit",
		need, u.by.Name)
}

// torchLacks returns a library that torch's libraries need and that no file of the image is, and who needs it. Without
// knowledge of the libraries, all are thought to be missing.
func (u unmet) torchLacks(s *Subject) (lib, by string) {
	if len(s.Objects) == 0 {
		return "the libraries of " + u.need.Name, path.Join(u.site.Dir, "torch/lib")
	}
	there := map[string]bool{}
	for _, o := range s.Objects {
		there[o.Soname] = true
		there[path.Base(o.Path)] = true
	}
	for _, p := range s.Paths { // links
		there[path.Base(p.Path)] = true
	}
	for _, o := range s.Objects {
		if !strings.HasPrefix(o.Path, u.site.Dir+"/torch/lib/") {
			continue
		}
		for _, need := range o.Needed {
			if !there[need] && isCUDALibrary(need) {
				return need, o.Path
			}
		}
	}
	return "", ""
}

// isCUDALibrary says whether a library is one that NVIDIA's Python packages bring, in contrast to the driver's.
func isCUDALibrary(name string) bool {
	for _, p := range []string{
		"libcublas", "libcudart", "libcudnn", "libcufft", "libcufile", "libcupti", "libcurand", "libcusolver", "libcusparse",
		"libnccl", "libnvJitLink", "libnvrtc", "libnvToolsExt", "libnvshmem",
	} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// pythonTooOld reports packages that are not for the version of Python they are installed for.
func pythonTooOld(e *facts.Environment, report func(Finding)) {
	if e.Version == "" {
		return
	}
	low, errLow := python.ParseVersion(e.Version + ".0")
	high, errHigh := python.ParseVersion(e.Version + ".99")
	if errLow != nil || errHigh != nil {
		return
	}
	for _, p := range e.Own {
		for _, d := range p.Distributions {
			ss, err := python.ParseSpecifiers(d.RequiresPython)
			if err != nil || ss.Contains(low) || ss.Contains(high) {
				continue
			}
			report(Finding{
				Message: fmt.Sprintf("%s %s is for Python %s and is installed for Python %s", d.Name, d.Version, ss, e.Version),
				Path:    d.Dir,
				Seen:    []string{rooted(d.Dir) + "/METADATA has Requires-Python: " + d.RequiresPython},
				Why:     "Its code may use what this version of Python does not have, and an import then fails.",
				Remedy:  fmt.Sprintf("install %s with %s's own pip or uv, which take a version that fits", d.Name, e.Label()),
			})
		}
	}
}
