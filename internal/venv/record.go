package venv

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/squashfs"
)

// RecordFile is in the root of a packed environment.
const RecordFile = "sconce-venv.json"

const (
	recordVersion = 1
	maxRecord     = 8 << 20 // bytes
	maxPackages   = 50_000
)

// Record is what a packed environment says of itself.
type Record struct {
	Version  int       `json:"version"`
	Base     Base      `json:"base"`
	Packages []Package `json:"packages"` // by name
	Shadows  []Shadow  `json:"shadows,omitempty"`
}

// Package is one package of an environment.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Shadow is a package that goes before one of the base.
type Shadow struct {
	Name string `json:"name"`
	Own  string `json:"own"`  // its version
	Base string `json:"base"` // that of the base's
}

// Encode writes the record as [ReadRecord] reads it.
func (r Record) Encode() ([]byte, error) {
	r.Version = recordVersion
	data, err := json.MarshalIndent(r, "", "  ")
	return append(data, '\n'), err
}

// ErrNoRecord says that a file system does not say of itself that it is an environment. Somebody may have packed one in another way.
var ErrNoRecord = errors.New("it is no packed environment: it has no " + RecordFile)

// ReadRecord reads what a file system says of the environment that it is. Nothing of it is believed that could lead elsewhere. The error
// wraps [ErrNoRecord] where it says nothing.
func ReadRecord(r *squashfs.Reader) (*Record, error) {
	f, err := r.Lookup(RecordFile, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Hint(ErrNoRecord, "`sconce venv pack DIR -o FILE.sqsh` writes one")
	}
	if err != nil {
		return nil, err
	}
	if f.Type != squashfs.Regular || f.Size > maxRecord {
		return nil, fmt.Errorf("%s is no file of a record", RecordFile)
	}
	data, err := io.ReadAll(io.LimitReader(f.Content(), maxRecord))
	if err != nil {
		return nil, err
	}
	rec := &Record{}
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(rec); err != nil {
		return nil, fmt.Errorf("read %s: %w", RecordFile, err)
	}
	if rec.Version != recordVersion {
		return nil, fmt.Errorf("%s has version %d, and this sconce knows %d", RecordFile, rec.Version, recordVersion)
	}
	if len(rec.Packages) > maxPackages {
		return nil, fmt.Errorf("%s lists more than %d packages", RecordFile, maxPackages)
	}
	if err := rec.Base.check(); err != nil {
		return nil, fmt.Errorf("read %s: %w", RecordFile, err)
	}
	for _, name := range []string{"pyvenv.cfg", "bin"} {
		if _, err := r.Lookup(name, false); err != nil {
			return nil, fmt.Errorf("it is no virtual environment: %w", err)
		}
	}
	return rec, nil
}
