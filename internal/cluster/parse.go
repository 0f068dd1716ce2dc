package cluster

import (
	"bytes"
	"errors"
	"fmt"
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
		known := make([]string, len(keys))
		for i, k := range keys {
			known[i] = k.Name
		}
		hint := "the keys are " + strings.Join(known, ", ")
		if near := spelling.Nearest(key, known); near != "" {
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
	var all []error
	for _, k := range keys {
		all = append(all, k.check(p))
	}
	return errors.Join(all...)
}
