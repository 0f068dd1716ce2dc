package runtimefiles

import (
	"encoding/json"
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/store"
)

// RecordPath is the file that keeps what neither runtime reads, so that a file of theirs can become the same image again.
const RecordPath = "/" + recordPath

const recordPath = metaDir + "/sconce.json"

// Record is the content of [RecordPath].
type Record struct {
	Format   int             `json:"format"`             // RecordFormat
	Manifest store.Digest    `json:"manifest,omitempty"` // of the image that the file was made from; "" when it had none
	Name     string          `json:"name,omitempty"`     // that the image went by, without a tag; "" when it had none
	Start    store.Digest    `json:"start,omitempty"`    // of the list of files that stand in the order in which a start reads them; "" when none do
	Config   json.RawMessage `json:"config"`             // its configuration file (OCI image-spec, config), with everything in it
}

// RecordFormat is the only version of the record so far. Another one means that older versions of sconce cannot read it.
const RecordFormat = 1

// maxRecord is the largest record that is read, in bytes: twice the largest configuration of an image, for its encoding.
const maxRecord = 16 << 20

func recordFile() file { return file{path: recordPath, mode: 0o644, text: recordText} }

func recordText(f *facts) (string, error) {
	config, err := f.image.configFile()
	if err != nil {
		return "", err
	}
	if !json.Valid(config) {
		return "", errors.New("the image's configuration is no JSON")
	}
	data, err := json.Marshal(Record{Format: RecordFormat, Manifest: f.image.Digest, Name: f.image.Name, Start: f.image.Start, Config: config})
	if err != nil {
		return "", fmt.Errorf("encode %s: %w", RecordPath, err)
	}
	return string(data) + "\n", nil
}

// ParseRecord reads a record and checks all of it: the digest, and that Config is an image's configuration.
func ParseRecord(data []byte) (Record, error) {
	r, _, err := parseRecord(data)
	return r, err
}

func parseRecord(data []byte) (Record, v1.ConfigFile, error) {
	var r Record
	var c v1.ConfigFile
	if len(data) > maxRecord {
		return Record{}, c, fmt.Errorf("%s: its %d bytes are more than the %d accepted", RecordPath, len(data), maxRecord)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, c, fmt.Errorf("%s: %w", RecordPath, err)
	}
	if r.Format != RecordFormat {
		return Record{}, c, fmt.Errorf("%s: format %d is not %d; a newer sconce wrote it", RecordPath, r.Format, RecordFormat)
	}
	if r.Manifest != "" {
		if _, err := store.ParseDigest(string(r.Manifest)); err != nil {
			return Record{}, c, fmt.Errorf("%s: manifest: %w", RecordPath, err)
		}
	}
	if err := json.Unmarshal(r.Config, &c); err != nil {
		return Record{}, c, fmt.Errorf("%s: config: %w", RecordPath, err)
	}
	return r, c, nil
}

// ConfigFile returns the image's configuration.
func (r Record) ConfigFile() (*v1.ConfigFile, error) {
	var c v1.ConfigFile
	if err := json.Unmarshal(r.Config, &c); err != nil {
		return nil, fmt.Errorf("%s: config: %w", RecordPath, err)
	}
	return &c, nil
}
