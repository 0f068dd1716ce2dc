package audit

import (
	"fmt"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/facts"
)

// shadowing is a distribution that another version of it hides.
type shadowing struct{ by, d *facts.Distribution }

// shadowedPackages is the rule python-shadowed.
func shadowedPackages(s *Subject, report func(Finding)) error {
	seen := map[string]bool{}
	envs := s.Facts.Environments()
	for _, e := range envs {
		for i, front := range e.Path {
			for _, back := range e.Path[i+1:] {
				key := front.Dir + "\n" + back.Dir
				if list := hiddenBy(front, back); len(list) > 0 && !seen[key] {
					seen[key] = true
					report(shadowFinding(e, front, back, list))
				}
			}
		}
	}
	otherPythonPath(s.Facts, envs, report)
	return s.Context.Err()
}

// hiddenBy lists the distributions of back of which front has another version, those with compiled code first. Installers
// are left out: every virtual environment has its own.
func hiddenBy(front, back *facts.Python) []shadowing {
	var list []shadowing
	for i := range back.Distributions {
		d := &back.Distributions[i]
		switch d.Name {
		case "pip", "setuptools", "wheel", "uv":
			continue
		}
		same := func(by *facts.Distribution) bool { return by.Version == d.Version }
		if by := front.Find(d.Name); len(by) > 0 && !slices.ContainsFunc(by, same) {
			list = append(list, shadowing{by[0], d})
		}
	}
	slices.SortStableFunc(list, func(a, b shadowing) int {
		switch x, y := a.compiled(), b.compiled(); {
		case x && !y:
			return -1
		case y && !x:
			return 1
		}
		return 0
	})
	return list
}

// compiled says whether one of the two versions is, as far as the wheels say, for one kind of machine.
func (h shadowing) compiled() bool {
	for _, tag := range slices.Concat(h.by.Tags, h.d.Tags) {
		if !strings.HasSuffix(tag, "-any") {
			return true
		}
	}
	return false
}

func shadowFinding(e *facts.Environment, front, back *facts.Python, list []shadowing) Finding {
	first := list[0]
	f := Finding{
		Path: first.by.Dir,
		Message: fmt.Sprintf("%s %s in /%s hides version %s in /%s",
			first.by.Name, first.by.Version, front.Dir, first.d.Version, back.Dir),
	}
	if more := len(list) - 1; more > 0 {
		f.Message += fmt.Sprintf(", and %d more of its packages are hidden by other versions", more)
	}
	for _, h := range list {
		f.Seen = append(f.Seen, fmt.Sprintf("%s: %s before %s", h.by.Name, h.by.Version, h.d.Version))
	}
	f.Seen = someFiles(f.Seen)
	if !first.compiled() {
		f.Severity = Note
		f.Why = "The version that comes first is imported in " + e.Label() + ", whichever a package of the other directory was tested with."
	}
	return f
}

// otherPythonPath reports directories on PYTHONPATH that are for another version of Python.
func otherPythonPath(f *facts.Facts, envs []*facts.Environment, report func(Finding)) {
	versions := map[string]bool{}
	for _, e := range envs {
		versions[e.Version] = true
	}
	seen := map[string]bool{}
	for _, dir := range f.PythonPath() {
		i := slices.IndexFunc(f.Pythons, func(p facts.Python) bool { return p.Dir == dir })
		if i < 0 || f.Pythons[i].Version == "" {
			continue
		}
		for _, e := range envs {
			if e.Version == "" || e.Version == f.Pythons[i].Version || seen[dir] {
				continue
			}
			seen[dir] = true
			found := Finding{
				Path: dir,
				Message: fmt.Sprintf("PYTHONPATH puts /%s, which is for Python %s, on the path of %s",
					dir, f.Pythons[i].Version, e.Label()),
				Seen:   []string{"PYTHONPATH has /" + dir},
				Why:    "Every Python in the container imports from there first, before its own packages, and cannot use what is compiled for another version.",
				Remedy: "take the directory out of PYTHONPATH; call the program of the environment that it belongs to, or put that environment's bin in front of PATH",
			}
			if versions[f.Pythons[i].Version] {
				found.Severity = Note // the Python it is for is there too
			}
			report(found)
		}
	}
}
