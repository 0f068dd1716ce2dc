// Package device finds what a container needs to use the GPUs of this machine: device files, the driver's libraries, which
// must be those of the kernel's driver and so cannot be in the image, and variables.
//
// What administrators wrote down in a specification of the Container Device Interface (CDI) goes first; without one the
// driver's own files are looked for, as runtimes before CDI did.
//
//	device.go  what callers use     cdi.go     specifications
//	nvidia.go  NVIDIA's driver      amd.go     AMD's
//	hook.go    what hooks of a specification would do
package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fault"
)

// Edits are what makes devices usable in a container.
type Edits struct {
	Binds       []Bind
	Env         []string // KEY=VALUE
	LibraryDirs []string // of the container, that the loader must search
	From        string   // where this was learnt, for people
}

// Bind makes a file or directory of the host visible in the container.
type Bind struct {
	Source   string // absolute, on the host
	Target   string // absolute, in the container
	ReadOnly bool
}

// All asks for every GPU.
const All = "all"

// Host is where to look. The zero value is this machine.
type Host struct {
	Root     string   // of the file system, for tests; "" is /
	SpecDirs []string // nil: those of the CDI specification
}

// The directories of specifications, the later ones above the earlier (CDI specification, "Discovery").
var specDirs = []string{"/etc/cdi", "/var/run/cdi"}

// Find finds what the GPUs asked for need: "all", numbers in the order of nvidia-smi ("0,1"), or a device's qualified CDI
// name ("nvidia.com/gpu=0"). Errors say what is missing on this machine.
func (h Host) Find(request string) (*Edits, error) {
	specs, err := h.specs()
	if err != nil {
		return nil, err
	}
	if kind, _, qualified := strings.Cut(request, "="); qualified {
		return specs.find(h, kind, strings.Split(request[len(kind)+1:], ","))
	}
	names, err := parseRequest(request)
	if err != nil {
		return nil, err
	}
	for _, kind := range []string{"nvidia.com/gpu", "amd.com/gpu"} {
		if specs.has(kind) {
			return specs.find(h, kind, names)
		}
	}
	switch e, err := h.nvidia(names); {
	case err == nil || !errors.Is(err, fs.ErrNotExist):
		return e, err
	case h.exists("/dev/kfd"):
		return h.amd(names)
	default:
		return nil, fault.Hint(fmt.Errorf("this machine has no GPU that a container could use: %w", err),
			"run where there is one, or ask the administrators for a CDI specification in /etc/cdi")
	}
}

// parseRequest returns the names in "all" or "0,1".
func parseRequest(request string) ([]string, error) {
	names := strings.Split(request, ",")
	for _, n := range names {
		if n == "" || strings.ContainsAny(n, " /\t\n") {
			return nil, fault.Usage(fault.Hint(fmt.Errorf("%q names no GPU", request),
				`write "all", numbers such as "0,1", or a CDI name such as "nvidia.com/gpu=0"`))
		}
	}
	if slices.Contains(names, All) {
		return []string{All}, nil
	}
	return names, nil
}

// path returns the path of a file of the host.
func (h Host) path(name string) string { return filepath.Join("/", h.Root, name) }

func (h Host) exists(name string) bool {
	_, err := os.Stat(h.path(name))
	return err == nil
}

// bind adds a file or directory under the same name, or another one in the container.
func (e *Edits) bind(source, target string, readOnly bool) {
	b := Bind{Source: source, Target: path.Clean("/" + target), ReadOnly: readOnly}
	if !slices.ContainsFunc(e.Binds, func(have Bind) bool { return have.Target == b.Target }) {
		e.Binds = append(e.Binds, b)
	}
}

// searched adds a directory for the loader.
func (e *Edits) searched(dir string) {
	if !slices.Contains(e.LibraryDirs, dir) {
		e.LibraryDirs = append(e.LibraryDirs, dir)
	}
}
