package audit

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/elfx"
)

// ncclCopy is a libnccl of the image.
type ncclCopy struct {
	path    string // without a slash in front
	version string // "2.27.5"; "" when nothing tells
}

// nccls returns the copies of NCCL that are shared libraries.
func (s *Subject) nccls() []ncclCopy {
	var copies []ncclCopy
	for _, o := range s.Objects {
		if o.Soname == "libnccl.so.2" {
			copies = append(copies, ncclCopy{o.Path, s.ncclVersion(o.Path)})
		}
	}
	return copies
}

// ncclVersion takes the version from the file's name, as NVIDIA's packages for distributions have it, or else from the Python
// package that the file is of.
func (s *Subject) ncclVersion(name string) string {
	if v := strings.TrimPrefix(path.Base(name), "libnccl.so."); strings.Count(v, ".") == 2 {
		return v
	}
	for _, p := range s.Pythons {
		if !isBelow(name, p.Dir+"/nvidia/nccl") && !isBelow(name, p.Dir+"/nvidia/cu13") {
			continue
		}
		for _, d := range p.Distributions {
			if strings.HasPrefix(d.Name, "nvidia-nccl-cu") {
				v, _, _ := strings.Cut(d.Version, ".post")
				return v
			}
		}
	}
	return ""
}

// ncclAPIs are the versions of the network plugin's interface that each NCCL looks for, from the sources of its releases
// 2.4.2 to 2.30.7 (src/net.cc, later src/plugin/net).
var ncclAPIs = []struct{ since, lowest, highest int }{
	{204, 2, 2}, {206, 3, 3}, {208, 4, 4}, {212, 4, 5}, {213, 4, 6}, {219, 5, 7}, {220, 5, 8}, {224, 5, 9}, {226, 6, 10}, {228, 6, 11}, {230, 6, 12},
}

const newestKnownNCCL = 230

// apisOf returns the versions of the plugin's interface for a version of NCCL. It is not known for those that came after the table.
func apisOf(version string) (lowest, highest int, known bool) {
	parts := strings.Split(version, ".")
	if len(parts) < 2 {
		return 0, 0, false
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	number := 100*major + minor
	if err1 != nil || err2 != nil || minor > 99 || number > newestKnownNCCL {
		return 0, 0, false
	}
	for _, a := range ncclAPIs {
		if number >= a.since {
			lowest, highest, known = a.lowest, a.highest, true
		}
	}
	return lowest, highest, known
}

// pluginAPIs returns the versions of the interface that a plugin has: the N of ncclNetPlugin_vN, in order.
func (s *Subject) pluginAPIs(o *elfx.Object) ([]int, error) {
	h, err := s.Root.Open(o.Real)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	f, err := elfx.Open(h, h.Size())
	if err != nil {
		return nil, nil // damaged, which other rules are about
	}
	var versions []int
	for symbol, err := range f.Exported() {
		if err != nil {
			return nil, nil // the same
		}
		if n, ok := strings.CutPrefix(symbol.Name, "ncclNetPlugin_v"); ok {
			if v, err := strconv.Atoi(n); err == nil {
				versions = append(versions, v)
			}
		}
	}
	slices.Sort(versions)
	return versions, nil
}

// loader is the dynamic loader in the image's environment.
func (s *Subject) loader() *elfx.Loader {
	libraryPath, _ := s.Env("LD_LIBRARY_PATH")
	return &elfx.Loader{FS: s.Root, LibraryPath: libraryPath}
}

// dlopen returns what a library gets that opens the first of these names there is; nil when there is none. The search is that
// of a library to be preloaded, which follows the same rules.
func (s *Subject) dlopen(by string, names ...string) (*elfx.Object, error) {
	for _, name := range names {
		l := s.loader()
		l.Preload = name
		c, err := l.Closure(path.Join("/", by))
		if err != nil {
			return nil, fmt.Errorf("look for %s: %w", name, err)
		}
		for _, link := range c.Links {
			if link.Name == name && link.Rule.Kind == elfx.FromPreload && link.To != nil {
				return link.To, nil
			}
		}
	}
	return nil, nil
}

// pluginNames returns what NCCL tries to open, in order (src/plugin/plugin_open.cc): the default, or what NCCL_NET_PLUGIN lists.
func (s *Subject) pluginNames() []string {
	value, set := s.Env("NCCL_NET_PLUGIN")
	if !set {
		return []string{"libnccl-net.so"}
	}
	if strings.EqualFold(value, "none") {
		return nil
	}
	var names []string
	for _, n := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' || r == ':' }) {
		isFile := strings.Contains(n, "/") || strings.HasPrefix(n, "lib") && strings.HasSuffix(n, ".so")
		if names = append(names, n); !isFile {
			names = append(names, "libnccl-net-"+n+".so")
		}
	}
	return names
}

// plugin returns the network plugin that a copy of NCCL loads; nil when there is none.
func (s *Subject) plugin(n ncclCopy) (*elfx.Object, error) {
	return s.dlopen(n.path, s.pluginNames()...)
}

// anyPlugin reports whether some NCCL of the image loads a network plugin.
func (s *Subject) anyPlugin() (bool, error) {
	for _, n := range s.nccls() {
		if p, err := s.plugin(n); p != nil || err != nil {
			return p != nil, err
		}
	}
	return false, nil
}

// fabricProvider is the provider of libfabric for a fabric, and the library that it needs.
func fabricProvider(f cluster.Fabric) (provider, library string) {
	switch f {
	case cluster.Slingshot:
		return "cxi", "libcxi.so.1"
	case cluster.EFA:
		return "efa", "libefa.so.1"
	}
	return "", ""
}

// hasProvider reports whether a libfabric has a provider: built in, when it needs the provider's library, or in a file beside it
// (fi_provider(7): lib<name>-fi.so in the directory libfabric).
func (s *Subject) hasProvider(libfabric *elfx.Object, provider, library string) bool {
	if slices.Contains(libfabric.File.Needed, library) {
		return true
	}
	dirs := []string{path.Join(path.Dir(libfabric.Real), "libfabric")}
	if own, _ := s.Env("FI_PROVIDER_PATH"); own != "" {
		dirs = append(dirs, elements(own)...)
	}
	return slices.ContainsFunc(dirs, func(d string) bool { return s.exists(path.Join(d, "lib"+provider+"-fi.so")) })
}

// fabricName is how a sentence calls a fabric.
func fabricName(f cluster.Fabric) string {
	switch f {
	case cluster.Slingshot:
		return "Slingshot"
	case cluster.InfiniBand:
		return "InfiniBand"
	case cluster.RoCE:
		return "RoCE"
	case cluster.EFA:
		return "EFA"
	}
	return "Ethernet"
}

func lookNCCLNet(s *Subject, report func(Finding)) error {
	value, _ := s.Env("NCCL_NET")
	fabric := s.Target.Fabric
	switch strings.ToLower(value) {
	case "":
	case "socket":
		if fabric != "" && fabric != cluster.Ethernet {
			report(Finding{Message: "NCCL_NET=" + value + " has NCCL use TCP although the nodes have " + fabricName(fabric)})
		}
	case "ib":
		if fabric == cluster.Slingshot || fabric == cluster.Ethernet {
			report(Finding{Severity: Error, Message: "NCCL_NET=" + value + " asks for InfiniBand, but the nodes have " + fabricName(fabric) + ": NCCL will stop"})
		}
	default:
		return lookNCCLNetPlugin(s, value, report)
	}
	return nil
}

// lookNCCLNetPlugin judges a network that only a plugin can have.
func lookNCCLNetPlugin(s *Subject, net string, report func(Finding)) error {
	if len(s.nccls()) == 0 || s.Target.NCCLNet != "" {
		return nil
	}
	if found, err := s.anyPlugin(); found || err != nil {
		return err
	}
	f := Finding{Message: fmt.Sprintf("NCCL_NET=%s needs a network plugin, and NCCL finds none in the image", quoteValue(net))}
	if s.Target.Fabric != "" {
		f.Severity = Error // nor does the runtime bring one
	}
	report(f)
	return nil
}

func lookNCCLPlugin(s *Subject, report func(Finding)) error {
	value, set := s.Env("NCCL_NET_PLUGIN")
	if !set || value == "" {
		return nil
	}
	if provider, _ := fabricProvider(s.Target.Fabric); strings.EqualFold(value, "none") {
		if provider != "" {
			report(Finding{Message: "NCCL_NET_PLUGIN=" + value + " keeps NCCL from loading the plugin for " + fabricName(s.Target.Fabric)})
		}
		return nil
	}
	if injected := s.Target.NCCLNet; injected != "" {
		if !slices.ContainsFunc(s.pluginNames(), func(n string) bool { return n == injected || path.Base(n) == "libnccl-net-"+injected+".so" }) {
			report(Finding{Message: fmt.Sprintf("NCCL_NET_PLUGIN=%s hides the plugin %s that the runtime brings", quoteValue(value), injected)})
		}
		return nil
	}
	if len(s.nccls()) == 0 {
		return nil
	}
	found, err := s.anyPlugin()
	if err == nil && !found {
		report(Finding{Message: "NCCL_NET_PLUGIN=" + quoteValue(value) + " names a plugin that NCCL does not find in the image"})
	}
	return err
}
