package cotainr

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/spelling"
)

// system is a machine that images are built for, as systems.json knows it.
type system struct {
	name  string
	image string // that containers for it are built from
}

const (
	systemsName     = "systems.json"
	systemsVariable = "SCONCE_COTAINR_SYSTEMS"
	maxSystems      = 1 << 20 // bytes: such a file has some lines
)

// systemsFile is where the systems are listed, "" when nobody lists any: the file that the environment names, else systems.json in
// the directory above the program's own, as it was called and as it is. That is where cotainr's installations have it: ROOT/bin/cotainr
// and ROOT/systems.json.
func systemsFile(program string) string {
	if file := os.Getenv(systemsVariable); file != "" {
		return file
	}
	var programs []string
	if called, err := exec.LookPath(program); err == nil {
		programs = append(programs, called)
	}
	if self, err := os.Executable(); err == nil {
		programs = append(programs, self)
	}
	for _, p := range programs {
		p, err := filepath.Abs(p)
		if err != nil {
			continue
		}
		file := filepath.Join(filepath.Dir(filepath.Dir(p)), systemsName)
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() {
			return file
		}
	}
	return ""
}

// readSystems reads a list of systems, in its order. Every system needs its "base-image", whichever is asked for; other keys are
// nobody's business.
func readSystems(file string) ([]system, error) {
	if file == "" {
		return nil, nil
	}
	st, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.Hint(fmt.Errorf("%s: there is no such file", file), systemsVariable+" names it")
	case err != nil:
		return nil, err
	case st.Size() > maxSystems:
		return nil, fmt.Errorf("%s is larger than 1 MiB: is it a list of systems?", file)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	systems, err := parseSystems(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return systems, nil
}

func parseSystems(data []byte) ([]system, error) {
	names, err := keysInOrder(data)
	if err != nil {
		return nil, fault.Hint(err, `write {"NAME": {"base-image": "docker://..."}}`)
	}
	all := make(map[string]map[string]any)
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("a system is an object with the key \"base-image\": %w", err)
	}
	systems := make([]system, len(names))
	for i, name := range names {
		image, there := all[name]["base-image"]
		text, isText := image.(string)
		if !there || !isText {
			return nil, fmt.Errorf("%s missing argument base-image", name)
		}
		systems[i] = system{name, text}
	}
	return systems, nil
}

// keysInOrder returns the keys of a JSON object, each once.
func keysInOrder(data []byte) ([]string, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.Join(errors.New("it is no JSON object"), err)
	}
	var names []string
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("it is no JSON: %w", err)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, fmt.Errorf("it is no JSON: %w", err)
		}
		if name, ok := key.(string); ok && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// findSystem returns the base image of a system.
func findSystem(systems []system, name, file string) (string, error) {
	var names []string
	for _, s := range systems {
		if s.name == name {
			return s.image, nil
		}
		names = append(names, s.name)
	}
	err := fmt.Errorf("System does not exist: %q", name) //nolint:staticcheck // cotainr's words
	switch near := spelling.Nearest(name, names); {
	case file == "":
		return "", fault.Hint(err, "there is no "+systemsName+": "+systemsVariable+" names one, or --base-image the image itself")
	case near != "":
		return "", fault.Hint(err, fmt.Sprintf("did you mean %q?", near))
	default:
		return "", fault.Hint(err, "`cotainr info` lists those of "+file)
	}
}
