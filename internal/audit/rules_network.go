package audit

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/facts"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/elfx"
)

// networkRules are about what talks to other nodes: NCCL and its plugins, libfabric, verbs, MPI.
var networkRules = []Rule{
	{
		ID: "network-plugin-missing", Severity: Warning,
		Title: "NCCL has no plugin for the fabric",
		Why: "NCCL itself knows InfiniBand and TCP. On other fabrics it needs a plugin, libnccl-net.so, and without one it uses TCP: several " +
			"nodes are then slower than one.",
		Remedy: "build aws-ofi-nccl and libfabric with the fabric's provider into the image, or have the runtime bring the host's (for the " +
			"Container Engine: the annotation com.hooks.aws_ofi_nccl.enabled)",
		look: lookPluginMissing,
	},
	{
		ID: "network-verbs-missing", Severity: Warning,
		Title: "NCCL cannot use InfiniBand",
		Why: "NCCL opens libibverbs.so.1 when it runs, and that opens the driver of the adapter. Without either NCCL uses TCP: several nodes " +
			"are then slower than one.",
		Remedy: `add the adapters' drivers: [system] packages = ["ibverbs-providers"] in the recipe, on Enterprise Linux ["libibverbs"]`,
		look:   lookVerbs,
	},
	{
		ID: "network-plugin-version", Severity: Warning,
		Title: "NCCL's network plugin is for another NCCL",
		Why: "A plugin offers versions of an interface, and each NCCL looks for a few of them. When none fits, NCCL ignores the plugin, says so " +
			"only with NCCL_DEBUG=INFO, and uses TCP.",
		Remedy: "take a release of the plugin that is made for this NCCL; aws-ofi-nccl says in its release notes for which it is",
		look:   lookPluginVersion,
	},
	{
		ID: "network-plugin-provider", Severity: Warning,
		Title: "NCCL's network plugin is for another fabric",
		Why: "NCCL loads the first plugin it finds. One that is for another network finds no adapter, and NCCL uses TCP; some versions crash. " +
			"Images of NVIDIA bring plugins for EFA and InfiniBand.",
		Remedy: "remove the plugin's directory from LD_LIBRARY_PATH and /etc/ld.so.conf.d, and use one whose libfabric has the fabric's provider",
		look:   lookPluginProvider,
	},
	{
		ID: "network-copies", Severity: Note,
		Title: "Several copies of a network library",
		Why: "A process may load two of them, one for MPI and one for NCCL, and both open the adapter. Which one is found depends on the order of " +
			"search paths.",
		Remedy: "keep one copy, and let all that use it find it by /etc/ld.so.conf.d",
		look:   lookNetworkCopies,
	},
	{
		ID: "network-mpi-family", Severity: Warning,
		Title: "MPI of another family than the cluster's",
		Why: "Programs are compiled for one family: MPICH's ABI (libmpi.so.12: MPICH, Cray MPICH, Intel MPI, MVAPICH) or Open MPI " +
			"(libmpi.so.40). The host's MPI, which knows the fabric, can only take the place of the image's within a family.",
		Remedy: "build the programs with the cluster's family, in the image, or install the image's own MPI with support for the fabric",
		look:   lookMPIFamily,
	},
	{
		ID: "network-mpi-launch", Severity: Warning,
		Title: "MPI that srun cannot start",
		Why: "srun tells each process its rank through PMI. When the image's MPI speaks another kind of it, MPI_Init fails, or every process " +
			"takes itself for the only one.",
		Remedy: "see what the cluster has with srun --mpi=list; install an MPI that speaks it, or start the processes with torchrun, without MPI",
		look:   lookMPILaunch,
	},
}

func lookPluginMissing(s *Subject, report func(Finding)) error {
	provider, _ := fabricProvider(s.Target.Fabric)
	if _, named := s.Env("NCCL_NET_PLUGIN"); provider == "" || s.Target.NCCLNet != "" || named {
		return nil
	}
	for _, n := range s.nccls() {
		p, err := s.plugin(n)
		if err != nil {
			return err
		}
		if p != nil {
			continue
		}
		f := Finding{
			Message: fmt.Sprintf("/%s finds no network plugin for %s: between nodes it will use TCP", n.path, fabricName(s.Target.Fabric)),
			Path:    n.path,
		}
		for _, o := range s.Objects {
			if strings.HasPrefix(path.Base(o.Path), "libnccl-net") {
				f.Seen = append(f.Seen, "/"+o.Path+" is not on the search path")
			}
		}
		report(f)
	}
	return nil
}

func lookVerbs(s *Subject, report func(Finding)) error {
	if s.Target.Fabric != cluster.InfiniBand && s.Target.Fabric != cluster.RoCE || s.injects("libibverbs.so.1") {
		return nil
	}
	for _, n := range s.nccls() {
		verbs, err := s.dlopen(n.path, "libibverbs.so", "libibverbs.so.1")
		if err != nil {
			return err
		}
		if verbs == nil {
			report(Finding{Message: fmt.Sprintf("/%s finds no libibverbs.so.1: between nodes it will use TCP", n.path), Path: n.path})
			continue
		}
		isDriver := func(o facts.Object) bool { return strings.Contains(path.Base(o.Path), "-rdmav") }
		if !slices.ContainsFunc(s.Objects, isDriver) && !slices.ContainsFunc(s.Target.Injects, func(l string) bool { return strings.Contains(l, "-rdmav") }) {
			report(Finding{
				Message: fmt.Sprintf("%s is there, but no driver of any adapter (such as libmlx5-rdmav34.so)", verbs.Real), Path: strings.TrimPrefix(verbs.Real, "/"),
			})
			return nil
		}
	}
	return nil
}

// eachPlugin visits the plugin that each NCCL loads.
func (s *Subject) eachPlugin(visit func(ncclCopy, *elfx.Object) error) error {
	for _, n := range s.nccls() {
		p, err := s.plugin(n)
		if err != nil {
			return err
		}
		if p == nil {
			continue
		}
		if err := visit(n, p); err != nil {
			return err
		}
	}
	return nil
}

func lookPluginVersion(s *Subject, report func(Finding)) error {
	return s.eachPlugin(func(n ncclCopy, p *elfx.Object) error {
		lowest, highest, known := apisOf(n.version)
		has, err := s.pluginAPIs(p)
		if err != nil || !known || slices.ContainsFunc(has, func(v int) bool { return lowest <= v && v <= highest }) {
			return err
		}
		f := Finding{
			Message: fmt.Sprintf("%s has no version of the plugin's interface that NCCL %s looks for (%d to %d)", p.Real, n.version, lowest, highest),
			Path:    strings.TrimPrefix(p.Real, "/"),
			Seen:    []string{fmt.Sprintf("/%s: NCCL %s", n.path, n.version), fmt.Sprintf("%s: %s", p.Real, apiList(has))},
		}
		if net, _ := s.Env("NCCL_NET"); net != "" && !strings.EqualFold(net, "IB") && !strings.EqualFold(net, "Socket") {
			f.Severity = Error
			f.Message += ", and NCCL_NET=" + quoteValue(net) + " allows no other network"
		}
		report(f)
		return nil
	})
}

func apiList(versions []int) string {
	if len(versions) == 0 {
		return "exports no ncclNetPlugin_v… at all"
	}
	var names []string
	for _, v := range versions {
		names = append(names, fmt.Sprintf("v%d", v))
	}
	return "exports ncclNetPlugin_" + strings.Join(names, ", ")
}

func lookPluginProvider(s *Subject, report func(Finding)) error {
	provider, library := fabricProvider(s.Target.Fabric)
	if provider == "" || s.injects("libfabric.so.1") {
		return nil
	}
	seen := map[string]bool{}
	return s.eachPlugin(func(n ncclCopy, p *elfx.Object) error {
		if seen[p.Real] {
			return nil
		}
		seen[p.Real] = true
		c, err := s.loader().Closure(p.Real)
		if err != nil {
			return err
		}
		if message := s.judgeProvider(c, provider, library); message != "" {
			report(Finding{
				Message: fmt.Sprintf("NCCL will load %s, %s", p.Real, message), Path: strings.TrimPrefix(p.Real, "/"),
				Seen: []string{"/" + n.path + " loads " + p.Real},
			})
		}
		return nil
	})
}

// judgeProvider says what keeps a plugin from using the fabric.
func (s *Subject) judgeProvider(c *elfx.Closure, provider, library string) string {
	const libfabric = "libfabric.so.1"
	for _, l := range c.Links {
		if l.Name != libfabric {
			continue
		}
		switch {
		case l.To == nil:
			return "which needs a " + libfabric + " that the image does not have"
		case s.hasProvider(l.To, provider, library):
			return ""
		}
		return fmt.Sprintf("whose %s has no provider %s for %s", l.To.Real, provider, fabricName(s.Target.Fabric))
	}
	return "which does not use libfabric and so cannot use " + fabricName(s.Target.Fabric)
}

// sharedOnce are libraries of which a process should have one.
var sharedOnce = []string{"libfabric.so.1", "libucp.so.0", "libibverbs.so.1", "libpmix.so.2", "libmpi.so.40", "libmpi.so.12", "libnccl-net.so"}

func lookNetworkCopies(s *Subject, report func(Finding)) error {
	for _, soname := range sharedOnce {
		var paths []string
		for _, o := range s.Objects {
			if o.Kind == sharedKind && o.Soname == soname {
				paths = append(paths, "/"+o.Path)
			}
		}
		if len(paths) > 1 {
			report(Finding{Message: fmt.Sprintf("the image has %d copies of %s", len(paths), soname), Seen: paths})
		}
	}
	return nil
}
