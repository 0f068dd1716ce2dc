package audit

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/units"
)

// The families of MPI, as [cluster.Profile] has them.
const (
	mpich   = "mpich"
	openMPI = "openmpi"
)

// sharedKind is the [Object.Kind] of a library.
const sharedKind = "shared"

// mpiSonames are the libraries that programs of a family need.
var mpiSonames = map[string]string{
	"libmpi.so.40": openMPI, "libmpi.so.20": openMPI,
	"libmpi.so.12": mpich, "libmpich.so.12": mpich, "libmpi_gnu_123.so.12": mpich, "libmpi_gnu_112.so.12": mpich, "libmpi_gnu_91.so.12": mpich,
}

// mpiName is how a sentence calls a family.
func mpiName(family string) string {
	if family == openMPI {
		return "Open MPI"
	}
	return "MPICH's family"
}

// mpiCopy is an MPI library of the image.
type mpiCopy struct {
	object *facts.Object
	family string
	five   bool // Open MPI 5 or later, by its libopen-pal.so.80
	pmix   bool // it needs a PMIx library
}

func (s *Subject) mpis() []mpiCopy {
	var copies []mpiCopy
	for i := range s.Objects {
		o := &s.Objects[i]
		family := mpiSonames[o.Soname]
		if family == "" || o.Kind != sharedKind {
			continue
		}
		m := mpiCopy{object: o, family: family}
		for _, n := range o.Needed {
			switch {
			case strings.HasPrefix(n, "libopen-"):
				m.family = openMPI // 1.10 has MPICH's soname
				m.five = m.five || n == "libopen-pal.so.80"
			case strings.HasPrefix(n, "libpmix.so."):
				m.pmix = true
			}
		}
		copies = append(copies, m)
	}
	return copies
}

// mpiUsers returns the files that need an MPI library and are of no MPI themselves, and of no library that has a variant for
// each MPI and loads one when it is asked to.
func (s *Subject) mpiUsers() map[string][]string {
	users := map[string][]string{}
	for _, o := range s.Objects {
		base := path.Base(o.Path)
		if strings.HasPrefix(base, "libmpi") || strings.HasPrefix(base, "libmca_") || strings.HasPrefix(base, "mca_") ||
			strings.HasPrefix(base, "liboshmem") || strings.Contains(base, "bootstrap_mpi") || strings.Contains(base, "distributed_interface_mpi") ||
			strings.HasPrefix(base, "MPI.") || strings.HasPrefix(base, "ompi") || strings.HasPrefix(base, "oshmem") || strings.Contains(o.Path, "/openmpi/") {
			continue
		}
		for _, n := range o.Needed {
			if mpiSonames[n] != "" && !slices.Contains(users[n], "/"+o.Path) {
				users[n] = append(users[n], "/"+o.Path)
			}
		}
	}
	return users
}

func lookMPIFamily(s *Subject, report func(Finding)) error {
	if s.Target.MPI != mpich && s.Target.MPI != openMPI {
		return nil
	}
	copies := s.mpis()
	for _, soname := range []string{"libmpi.so.40", "libmpi.so.20", "libmpi.so.12", "libmpich.so.12"} {
		users := s.mpiUsers()[soname]
		if len(users) == 0 {
			continue
		}
		family, own := mpiSonames[soname], ""
		for _, m := range copies {
			if m.object.Soname == soname {
				family, own = m.family, m.object.Path
			}
		}
		if family == s.Target.MPI {
			continue
		}
		f := Finding{Path: own, Seen: users}
		if own == "" {
			f.Message = fmt.Sprintf("%s needs %s of %s, which is not in the image, and the cluster's MPI is of %s",
				units.Number(len(users), "file"), soname, mpiName(family), mpiName(s.Target.MPI))
		} else {
			f.Message = fmt.Sprintf("%s uses the image's %s (/%s), which the cluster's MPI of %s cannot replace",
				units.Number(len(users), "file"), mpiName(family), own, mpiName(s.Target.MPI))
		}
		if len(users) > 1 {
			f.Message = strings.NewReplacer(" needs ", " need ", " uses ", " use ").Replace(f.Message)
		}
		report(f)
	}
	return nil
}

func lookMPILaunch(s *Subject, report func(Finding)) error {
	if s.Target.PMI == "" {
		return nil
	}
	for _, m := range s.mpis() {
		if message := s.judgeLaunch(m); message != "" {
			report(Finding{Message: message, Path: m.object.Path})
		}
	}
	return nil
}

// judgeLaunch says why srun cannot start processes of an MPI. Open MPI has done without PMI since 5.0 and knows PMIx only;
// before, it had a component for each kind. MPICH knows PMIx when it was built with it.
func (s *Subject) judgeLaunch(m mpiCopy) string {
	name := "/" + m.object.Path
	switch pmi := s.Target.PMI; {
	case m.family == openMPI && m.five && pmi != "pmix":
		return fmt.Sprintf("%s is Open MPI 5, which needs PMIx, and srun speaks %s", name, pmi)
	case m.family == openMPI && !m.five && pmi != "pmix":
		components := s.pmixComponents()
		wanted := map[string][]string{"pmi2": {"mca_pmix_s2.so", "mca_pmix_s1.so"}, "cray": {"mca_pmix_cray.so"}}[pmi]
		if len(components) > 0 && wanted != nil && !slices.ContainsFunc(wanted, func(w string) bool { return slices.Contains(components, w) }) {
			return fmt.Sprintf("%s is Open MPI without %s, and srun speaks %s", name, wanted[0], pmi)
		}
	case m.family == mpich && !m.pmix && pmi == "pmix":
		return fmt.Sprintf("%s is of MPICH's family and built without PMIx, and srun speaks pmix", name)
	}
	return ""
}

// pmixComponents are the names of Open MPI's plugins for PMI; none when they are built into its libraries.
func (s *Subject) pmixComponents() []string {
	var names []string
	for _, o := range s.Objects {
		if base := path.Base(o.Path); strings.HasPrefix(base, "mca_pmix_") {
			names = append(names, base)
		}
	}
	return names
}
