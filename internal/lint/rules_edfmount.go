package lint

import (
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/edf"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/spelling"
)

// edfMountRules are about what environments mount.
var edfMountRules = []Rule{
	{
		Rule: audit.Rule{
			ID: "edf-mount-form", Severity: audit.Error,
			Title:  "Mounts that are not SOURCE:TARGET",
			Why:    "The start ends with an error. A source alone is taken by the Container Engine and refused by the Sarus Suite.",
			Remedy: "write SOURCE:TARGET or SOURCE:TARGET:FLAGS; paths begin with / or ./",
		},
		edf: lookMountForm,
	},
	{
		Rule: audit.Rule{
			ID: "edf-mount-flags", Severity: audit.Warning,
			Title:  "Flags of mounts that are not understood",
			Why:    "The Container Engine puts a plus sign between flags, the Sarus Suite a comma; with the other one the two are taken for one flag that nobody knows.",
			Remedy: "write ro+private for the Container Engine, ro,private for the Sarus Suite; sqsh stands alone",
		},
		edf: lookMountFlags,
	},
	{
		Rule: audit.Rule{
			ID: "edf-mount-home", Severity: audit.Warning,
			Title: "Homes that are mounted whole",
			Why: "Programs in the container then read the host's dotfiles, ~/.local and caches: packages of another Python come first, and " +
				"caches on a shared file system are slow and clash between nodes.",
			Remedy: "mount the directories that the job needs, such as ${SCRATCH} or one below the home",
		},
		edf: lookMountHome,
	},
	{
		Rule: audit.Rule{
			ID: "edf-expansion-in-mount", Severity: audit.Error,
			Title:  "Defaults of variables in mounts",
			Why:    "The Sarus Suite cuts a mount at its colons before it replaces variables, so the colon of ${NAME:-value} cuts the variable in two.",
			Remedy: "write ${NAME}, or the path",
		},
		edf: lookMountExpansion,
	},
}

func (s *subject) mounts() []edf.Value {
	if e := s.edf.Find(edf.Mounts); e == nil || e.Value.Kind != edf.List {
		return nil
	}
	return s.edf.Strings(edf.Mounts)
}

// special are sources that are no paths (pyxis, --container-mounts).
var special = []string{"tmpfs", "umount"}

func lookMountForm(s *subject) {
	for _, v := range s.mounts() {
		m := edf.ParseMount(v.Text)
		at := s.in(v.At.Offset)
		switch {
		case len(m.Fields) > 3:
			s.tell(at, "mount %s has %d parts", quote(v.Text), len(m.Fields))
		case slices.Contains(m.Fields, ""):
			s.tell(at, "a part of mount %s is empty", quote(v.Text))
		case !isPath(m.Source()) && !slices.Contains(special, m.Source()):
			f := s.tell(at, "%s is mounted, and is no path", quote(m.Source()))
			f.Remedy = "write / or ./ in front of it"
		case !isPath(m.Target()) && len(m.Fields) > 1:
			s.tell(at, "%s is mounted at %s, which is no path", quote(m.Source()), quote(m.Target())).Remedy = "write / in front of it"
		case len(m.Fields) == 1:
			s.bareMount(v, at)
		}
	}
}

func (s *subject) bareMount(v edf.Value, at place) {
	f := s.tell(at, "mount %s has no target; its own path is taken", quote(v.Text))
	f.Severity = audit.Note
	if s.dialect == edf.Sarus {
		f.Severity = audit.Error
		f.Message = "mount " + quote(v.Text) + " has no target"
	}
	f.Why = "The Container Engine takes such a mount, and the Sarus Suite refuses it: the file is not valid there."
	if v.At.Length == len(v.Text)+2 {
		quoted := string(s.data[v.At.Offset])
		f.edits = s.replace(v.At, quoted+v.Text+":"+v.Text+quoted)
	}
}

// isPath reports whether a text is a path: absolute, from here on, in the home, or behind a variable.
func isPath(text string) bool {
	return strings.HasPrefix(text, "/") || strings.HasPrefix(text, ".") || strings.HasPrefix(text, "~") || strings.HasPrefix(text, "$")
}

// mountFlags are the flags of mounts that are near enough to be meant (mount(8); enroot; podman).
var mountFlags = []string{
	"ro", "rw", "bind", "rbind", "private", "rprivate", "shared", "rshared", "slave", "rslave", "nosuid", "nodev", "noexec", "suid", "dev", "exec", "sqsh",
	"x-create=auto", "x-create=dir", "x-create=file", "noatime", "relatime",
}

func lookMountFlags(s *subject) {
	for _, v := range s.mounts() {
		m := edf.ParseMount(v.Text)
		if len(m.Fields) != 3 {
			continue
		}
		flags, at := m.Flags(), s.in(v.At.Offset)
		other, right := ",", "+"
		if s.dialect == edf.Sarus {
			other, right = "+", ","
		}
		if strings.Contains(m.Fields[2], other) {
			s.tell(at, "the flags %s are joined by %q, and here it is %q", quote(m.Fields[2]), other, right)
			continue
		}
		if slices.Contains(flags, "sqsh") && len(flags) > 1 {
			s.tell(at, "sqsh stands with other flags in %s", quote(m.Fields[2]))
		}
		for _, flag := range flags {
			if flag == "readonly" || flag == "read-only" {
				s.tell(at, "%s is no flag of a mount", quote(flag)).Remedy = "write ro"
			} else if near := spelling.Nearest(flag, mountFlags); len(flag) > 3 && near != "" && !slices.Contains(mountFlags, flag) {
				s.tell(at, "%s is no flag of a mount", quote(flag)).Remedy = "write " + near
			}
		}
	}
}

// homes are directories of homes, or a whole home.
var homes = lazyregexp.New(`^(/users|/home|~|\$\{?HOME\}?)(/(\$\{?USER\}?|[A-Za-z0-9_.-]+)?)?$`)

func wholeHome(source string) bool {
	source = path.Clean(source)
	m := homes.FindStringSubmatch(source)
	if m == nil {
		return false
	}
	below := m[3] != ""
	return !below || m[1] == "/users" || m[1] == "/home"
}

func lookMountHome(s *subject) {
	for _, v := range s.mounts() {
		if m := edf.ParseMount(v.Text); wholeHome(m.Source()) {
			s.tell(s.in(v.At.Offset), "%s is mounted whole", m.Source())
		}
	}
}

func lookMountExpansion(s *subject) {
	if s.dialect != edf.Sarus {
		return
	}
	for _, v := range s.mounts() {
		for _, r := range edf.References(v.Text) {
			if strings.Contains(v.Text[r.Start:r.End], ":") {
				s.tell(s.in(v.At.Offset), "mount %s is cut at the colon of %s", quote(v.Text), v.Text[r.Start:r.End])
			}
		}
	}
}
