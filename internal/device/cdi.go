package device

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/quote"
)

// spec is a specification (CDI SPEC.md, "CDI JSON Specification"), as far as it can be followed without being root. JSON is
// YAML.
type spec struct {
	Version string     `yaml:"cdiVersion"`
	Kind    string     `yaml:"kind"`
	Edits   edits      `yaml:"containerEdits"`
	Devices []specUnit `yaml:"devices"`

	file string
}

type specUnit struct {
	Name  string `yaml:"name"`
	Edits edits  `yaml:"containerEdits"`
}

type edits struct {
	Env     []string `yaml:"env"`
	Devices []struct {
		Path     string `yaml:"path"`
		HostPath string `yaml:"hostPath"`
	} `yaml:"deviceNodes"`
	Mounts []struct {
		HostPath      string   `yaml:"hostPath"`
		ContainerPath string   `yaml:"containerPath"`
		Options       []string `yaml:"options"`
	} `yaml:"mounts"`
	Hooks []hook `yaml:"hooks"`
}

// specs are all specifications of a machine, those of higher priority first.
type specs []*spec

// maxSpecSize is far above the size of any specification, in bytes.
const maxSpecSize = 8 << 20

func (h Host) specs() (specs, error) {
	dirs := h.SpecDirs
	if dirs == nil {
		dirs = specDirs
	}
	var found specs
	for _, dir := range slices.Backward(dirs) {
		entries, err := os.ReadDir(h.path(dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
		for _, e := range entries {
			if ext := path.Ext(e.Name()); ext != ".yaml" && ext != ".yml" && ext != ".json" {
				continue
			}
			s, err := readSpec(filepath.Join(h.path(dir), e.Name()))
			if err != nil {
				return nil, err
			}
			found = append(found, s)
		}
	}
	return found, nil
}

func readSpec(file string) (*spec, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxSpecSize {
		return nil, fmt.Errorf("%s is too large for a CDI specification: %d bytes", file, info.Size())
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s, err := parseSpec(data)
	if err != nil {
		return nil, fault.Hint(fmt.Errorf("CDI specification %s: %w", file, err),
			"make it anew: nvidia-ctk cdi generate --output="+quote.Word(file))
	}
	s.file = file
	return s, nil
}

func parseSpec(data []byte) (*spec, error) {
	s := new(spec)
	if err := yaml.NewDecoder(bytes.NewReader(data)).Decode(s); err != nil {
		return nil, err
	}
	if s.Version == "" || s.Kind == "" || len(s.Devices) == 0 {
		return nil, errors.New("it names no version, kind or devices")
	}
	return s, nil
}

func (all specs) has(kind string) bool {
	return slices.ContainsFunc(all, func(s *spec) bool { return s.Kind == kind })
}

// find collects the edits for devices of a kind. "all" is what the vendor's tool calls the device that has everything;
// where there is none, each device is taken.
func (all specs) find(h Host, kind string, names []string) (*Edits, error) {
	e := &Edits{}
	var wanted []*edits
	for _, name := range names {
		units, s := all.device(kind, name)
		if s == nil {
			return nil, all.unknown(kind, name)
		}
		if !slices.Contains(wanted, &s.Edits) {
			wanted = append(wanted, &s.Edits)
		}
		wanted = append(wanted, units...)
		e.From = "CDI specification " + s.file
	}
	for _, w := range wanted {
		e.apply(h, w)
	}
	for _, w := range wanted { // links lead to what is mounted
		for i := range w.Hooks {
			e.hook(&w.Hooks[i])
		}
	}
	return e, nil
}

func (all specs) device(kind, name string) ([]*edits, *spec) {
	for _, s := range all {
		if s.Kind != kind {
			continue
		}
		var each []*edits
		for i := range s.Devices {
			if s.Devices[i].Name == name {
				return []*edits{&s.Devices[i].Edits}, s
			}
			each = append(each, &s.Devices[i].Edits)
		}
		if name == All {
			return each, s
		}
	}
	return nil, nil
}

func (all specs) unknown(kind, name string) error {
	var have []string
	for _, s := range all {
		for _, d := range s.Devices {
			have = append(have, s.Kind+"="+d.Name)
		}
	}
	slices.Sort(have)
	err := fmt.Errorf("no CDI specification of this machine has the device %s=%s", kind, name)
	if len(have) == 0 {
		return fault.Hint(err, "have one made: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml")
	}
	return fault.Hint(err, "there are "+strings.Join(slices.Compact(have), ", "))
}

// apply adds the devices, mounts and variables of a part of a specification. What is not on this machine is passed over:
// specifications list what a driver may have.
func (e *Edits) apply(h Host, from *edits) {
	e.Env = append(e.Env, from.Env...)
	for _, d := range from.Devices {
		source := d.HostPath
		if source == "" {
			source = d.Path
		}
		if h.exists(source) {
			e.bind(h.path(source), d.Path, false)
		}
	}
	for _, m := range from.Mounts {
		if !h.exists(m.HostPath) {
			continue
		}
		e.bind(h.path(m.HostPath), m.ContainerPath, !slices.Contains(m.Options, "rw"))
		if isLibrary(m.ContainerPath) {
			e.searched(path.Dir(m.ContainerPath))
		}
	}
}

// isLibrary is whether a name is that of a shared library.
func isLibrary(name string) bool {
	base := path.Base(name)
	return strings.HasPrefix(base, "lib") && strings.Contains(base, ".so")
}
