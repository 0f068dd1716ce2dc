package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/spelling"
)

// parse reads a profile. Keys that it does not know are errors, and so are values that nothing could be judged by.
func parse(data []byte) (Profile, error) {
	var p Profile
	d := toml.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return Profile{}, explain(err)
	}
	err := p.Normalize()
	return p, err
}

// explain says where a file is wrong, and which key was meant.
func explain(err error) error {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
		e := &unknown.Errors[0]
		line, _ := e.Position()
		key := strings.Join(e.Key(), ".")
		hint := "the keys are " + strings.Join(keys(), ", ")
		if near := spelling.Nearest(key, keys()); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		return fault.Hint(fmt.Errorf("line %d: unknown key %q", line, key), hint)
	}
	var wrong *toml.DecodeError
	if errors.As(err, &wrong) {
		line, _ := wrong.Position()
		return fmt.Errorf("line %d: %s", line, strings.TrimPrefix(wrong.Error(), "toml: "))
	}
	return err
}

// keys returns the keys of a profile in the order of its fields.
func keys() []string {
	var names []string
	for f := range reflect.TypeFor[Profile]().Fields() {
		names = append(names, f.Tag.Get("toml"))
	}
	return names
}

// The values that keys of a fixed choice may have.
var (
	Platforms = []string{"linux/amd64", "linux/arm64"}
	Runtimes  = []Runtime{ContainerEngine, Pyxis, Enroot, Apptainer, Podman, Uenv}
	Fabrics   = []Fabric{Slingshot, InfiniBand, RoCE, EFA, Ethernet}
	MPIs      = []string{"mpich", "openmpi"}
	PMIs      = []string{"pmix", "pmi2", "cray"}
)

// CPULevels is the number of x86-64 levels, of which 1 is what every processor has (psABI, "Micro-Architecture Levels").
const CPULevels = 4

var (
	formDriver = regexp.MustCompile(`^[0-9]{3,4}(\.[0-9]+){0,2}$`)
	formGlibc  = regexp.MustCompile(`^2\.[0-9]{1,2}$`)
)

// Normalize writes the GPUs as "9.0", and says which field holds something that nothing could be judged by. Fields are named as
// in a file.
func (p *Profile) Normalize() error {
	if len(p.GPU) > 0 {
		gpus, err := fatbin.ParseGPUs(p.GPU)
		if err != nil {
			return fmt.Errorf("gpu: %w", err)
		}
		p.GPU = nil
		for _, sm := range gpus {
			p.GPU = append(p.GPU, fatbin.Capability(sm))
		}
	}
	if p.CPULevel < 0 || p.CPULevel > CPULevels {
		return fmt.Errorf("cpu-level: %d is not between 1 and %d", p.CPULevel, CPULevels)
	}
	for _, dir := range p.Hides {
		if !strings.HasPrefix(dir, "/") {
			return fmt.Errorf("hides: %q is not an absolute path", dir)
		}
	}
	for _, lib := range p.Injects {
		if lib == "" || strings.Contains(lib, "/") {
			return fmt.Errorf("injects: %q is not the name of a library, such as \"libcuda.so.1\"", lib)
		}
	}
	return errors.Join(
		matches("driver", p.Driver, formDriver, `a version of NVIDIA's driver, such as "550.54.15"`),
		matches("glibc", p.Glibc, formGlibc, `a version of glibc, such as "2.31"`),
		oneOf("platform", p.Platform, Platforms),
		oneOf("runtime", p.Runtime, Runtimes),
		oneOf("fabric", p.Fabric, Fabrics),
		oneOf("mpi", p.MPI, MPIs),
		oneOf("pmi", p.PMI, PMIs),
	)
}

func matches(key, value string, form *regexp.Regexp, what string) error {
	if value == "" || form.MatchString(value) {
		return nil
	}
	return fmt.Errorf("%s: %q is not %s", key, value, what)
}

func oneOf[T ~string](key string, value T, known []T) error {
	if value == "" || slices.Contains(known, value) {
		return nil
	}
	names := make([]string, 0, len(known))
	for _, k := range known {
		names = append(names, strconv.Quote(string(k)))
	}
	return fmt.Errorf("%s: %q is none of %s", key, value, strings.Join(names, ", "))
}
