package condalock

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
)

// Facts are what is known of the machine that an environment is for. A package asks for it by the names of virtual packages
// (CEP 30, and CEP 46 for __cuda_arch).
type Facts struct {
	Platform string // "linux-64", "linux-aarch64"
	Glibc    string // of the base image: "2.28"; "" when it has none
	CUDA     string // the highest that the target's driver runs: "12.9"; "" when no driver is known
	CUDAArch string // the lowest of the target's GPUs: "8.0"; "" when none is known
	CPU      string // as archspec names it: "zen4"; "" for any of the platform
	Kernel   string // "5.14.0"; "" for usualKernel

	// Set is what the user says of virtual packages: by name, "__cuda" = "12.9"; "" means that there is none.
	Set map[string]string
}

// usualKernel is the Linux that is assumed when nobody says, the same as conda-lock's.
const usualKernel = "5.10"

// VirtualPackage is what a machine offers in the form of a package.
type VirtualPackage struct {
	Name    string `json:"name"` // "__glibc"
	Version string `json:"version"`
	Build   string `json:"build"`
}

// String writes it as locks do: "__cuda=12.9=0".
func (v VirtualPackage) String() string { return v.Name + "=" + v.Version + "=" + v.Build }

// Machine is what the solver is told of the machine.
type Machine struct {
	Packages []VirtualPackage // by name
	Without  []string         // names that somebody said are not there, as opposed to unknown ones
}

// Has reports whether a virtual package is there.
func (m *Machine) Has(name string) bool { return m.version(name) != "" }

// version returns the version of a virtual package, or "".
func (m *Machine) version(name string) string {
	for _, v := range m.Packages {
		if v.Name == name {
			return v.Version
		}
	}
	return ""
}

// overrides are the variables by which conda, mamba and rattler are told of virtual packages (CEP 30).
var overrides = map[string]string{
	"CONDA_OVERRIDE_GLIBC": "__glibc", "CONDA_OVERRIDE_CUDA": "__cuda", "CONDA_OVERRIDE_CUDA_ARCH": "__cuda_arch",
	"CONDA_OVERRIDE_LINUX": "__linux", "CONDA_OVERRIDE_ARCHSPEC": "__archspec",
}

var virtualVersion = lazyregexp.New(`^[0-9]+(\.[0-9A-Za-z_]+)*$`)

// Virtual returns the virtual packages for facts. CONDA_OVERRIDE_… variables, of which lookup ([os.LookupEnv]) tells, go before what
// the user has set, and that before the facts. An empty value means that there is no such package.
func Virtual(f Facts, lookup func(string) (string, bool)) (*Machine, error) {
	said := maps.Clone(f.Set)
	if said == nil {
		said = map[string]string{}
	}
	source := map[string]string{}
	for _, variable := range slices.Sorted(maps.Keys(overrides)) {
		if value, ok := lookup(variable); ok {
			said[overrides[variable]] = strings.TrimSpace(value)
			source[overrides[variable]] = variable
		}
	}
	m := &Machine{}
	found := f.packages()
	for _, name := range slices.Sorted(maps.Keys(said)) {
		if said[name] == "" {
			m.Without = append(m.Without, name)
			delete(found, name)
			continue
		}
		v, err := parseVirtual(name, said[name])
		if err != nil {
			return nil, fmt.Errorf("%s=%s: %w", cmp.Or(source[name], name), said[name], err)
		}
		found[name] = v
	}
	if _, ok := found["__cuda"]; !ok {
		delete(found, "__cuda_arch") // it says more of a __cuda (CEP 46)
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		m.Packages = append(m.Packages, found[name])
	}
	return m, nil
}

// packages are those that follow from facts alone.
func (f Facts) packages() map[string]VirtualPackage {
	found := map[string]VirtualPackage{}
	add := func(name, version, build string) {
		if version != "" {
			found[name] = VirtualPackage{name, version, build}
		}
	}
	system, machine, _ := strings.Cut(f.Platform, "-")
	if system == "linux" {
		add("__unix", "0", "0")
		add("__linux", cmp.Or(f.Kernel, usualKernel), "0")
	}
	add("__glibc", f.Glibc, "0")
	add("__cuda", f.CUDA, "0")
	add("__cuda_arch", f.CUDAArch, "0")
	if f.CPU != "" {
		add("__archspec", "1", f.CPU)
	} else {
		add("__archspec", "0", map[string]string{"64": "x86_64"}[machine]+strings.TrimPrefix(machine, "64"))
	}
	return found
}

// parseVirtual reads what a user says: "12.9", "12.9=0", and for __archspec the CPU alone, "zen4".
func parseVirtual(name, text string) (VirtualPackage, error) {
	if !strings.HasPrefix(name, "__") {
		return VirtualPackage{}, fmt.Errorf("the names of virtual packages begin with two underscores")
	}
	version, build, _ := strings.Cut(text, "=")
	if name == "__archspec" && build == "" && !virtualVersion.MatchString(version) {
		version, build = "1", text
	}
	if !virtualVersion.MatchString(version) {
		return VirtualPackage{}, fmt.Errorf("%q is no version", version)
	}
	return VirtualPackage{name, version, cmp.Or(build, "0")}, nil
}
