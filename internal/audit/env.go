package audit

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/facts"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/layer"
)

// setting is a variable of an image's environment.
type setting struct{ name, value string }

func (v setting) String() string { return v.name + "=" + quoteValue(v.value) }

// quoteValue shows a value in a line, and not too much of it.
func quoteValue(value string) string {
	const enough = 80 // bytes
	if len(value) > enough {
		value = value[:enough] + "…"
	}
	if strings.ContainsAny(value, " \t\r\n\"'`$") || value == "" || strings.ToValidUTF8(value, "") != value {
		return fmt.Sprintf("%q", value)
	}
	return value
}

// environment returns the variables by name. Of a name that comes twice the last counts.
func (s *Subject) environment() []setting {
	values := map[string]string{}
	for _, kv := range s.Config.Env {
		if k, v, ok := strings.Cut(kv, "="); ok {
			values[k] = v
		}
	}
	vars := make([]setting, 0, len(values))
	for k, v := range values {
		vars = append(vars, setting{k, v})
	}
	slices.SortFunc(vars, func(a, b setting) int { return cmp.Compare(a.name, b.name) })
	return vars
}

// isOn reports whether a value is what programs take for yes.
func isOn(value string) bool {
	return slices.Contains([]string{"1", "true", "yes", "y", "on", "t"}, strings.ToLower(value))
}

// underEnroot reports whether enroot starts the containers, by itself or for another program.
func (s *Subject) underEnroot() bool {
	r := s.Target.Runtime
	return r == cluster.Enroot || r == cluster.Pyxis || r == cluster.ContainerEngine
}

// runtimeName is how a sentence calls the runtime of the target.
func (s *Subject) runtimeName() string {
	switch s.Target.Runtime {
	case cluster.ContainerEngine:
		return "the Container Engine"
	case cluster.Apptainer:
		return "Apptainer"
	case cluster.Podman:
		return "Podman"
	case "":
		return "a container runtime"
	}
	return string(s.Target.Runtime)
}

// isDir reports whether a name, absolute or not, leads to a directory of the image.
func (s *Subject) isDir(name string) bool {
	info, err := s.Root.Stat(path.Join("/", name))
	return err == nil && info.Type == layer.Dir
}

// exists reports whether a name leads to anything in the image.
func (s *Subject) exists(name string) bool {
	_, err := s.Root.Stat(path.Join("/", name))
	return err == nil
}

// injects reports whether the runtime brings a library of the host along.
func (s *Subject) injects(library string) bool { return slices.Contains(s.Target.Injects, library) }

// readSmallFile returns a file of at most limit bytes, and nil when there is none.
func (s *Subject) readSmallFile(name string, limit int64) ([]byte, error) {
	h, err := s.Root.Open(path.Join("/", name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer h.Close()
	if h.Size() > limit {
		return nil, nil
	}
	text := make([]byte, h.Size())
	if n, err := h.ReadAt(text, 0); n < len(text) {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return text, nil
}

// usesGPU reports whether the image has code for GPUs that its programs run.
func (s *Subject) usesGPU() bool {
	return s.GPU != nil && slices.ContainsFunc(s.GPU.Libraries, func(l facts.Library) bool {
		return l.Linked && len(l.SASS)+len(l.PTX) > 0
	})
}

// elements splits a search path.
func elements(value string) []string {
	if value == "" {
		return nil
	}
	return strings.Split(value, ":")
}

// enough is how many of a list a sentence names.
const enough = 4
