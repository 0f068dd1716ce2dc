package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sconce.dev/sconce/internal/lazyregexp"
)

// Kind is a family of records.
type Kind string

// keyForm is what a record's key may look like: a hash, or a name made of safe characters.
var keyForm = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._@+-]{2,250}$`)

// envelope is a record on disk. Refs are the blobs it needs: while the record lives, so do they, and a record whose blobs
// are gone is as good as absent.
type envelope struct {
	Refs  []Digest        `json:"refs,omitempty"`
	Value json.RawMessage `json:"value"`
}

func (s *Store) recordPath(kind Kind, key string) (string, error) {
	if !keyForm.MatchString(key) {
		return "", fmt.Errorf("%q cannot be a record's key", key)
	}
	return s.path(recordBucket, string(kind), key[:2], key), nil
}

// PutRecord stores v, as JSON, under key. refs are the blobs it is based on.
func (s *Store) PutRecord(kind Kind, key string, refs []Digest, v any) error {
	if err := s.writable(); err != nil {
		return err
	}
	path, err := s.recordPath(kind, key)
	if err != nil {
		return err
	}
	value, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("store %s record %s: %w", kind, key, err)
	}
	data, err := json.Marshal(envelope{Refs: refs, Value: value})
	if err != nil {
		return fmt.Errorf("store %s record %s: %w", kind, key, err)
	}
	f, err := s.tempFile("record-*")
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		f.Close()
		os.Remove(f.Name())
		return fmt.Errorf("store %s record %s: %w", kind, key, err)
	}
	return s.publish(f, path)
}

// GetRecord reads the record under key into v and reports whether there is one. A record that cannot be read, or that
// is based on a blob that is gone, is no record.
func (s *Store) GetRecord(kind Kind, key string, v any) (bool, error) {
	for _, at := range s.all() {
		path, err := at.recordPath(kind, key)
		if err != nil {
			return false, err
		}
		env, err := readEnvelope(path)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamaged) {
				continue
			}
			return false, err
		}
		if !s.hasAll(env.Refs) || env.decode(v) != nil {
			continue
		}
		at.touch(path)
		return true, nil
	}
	return false, nil
}

// DeleteRecord removes the record under key, if there is one.
func (s *Store) DeleteRecord(kind Kind, key string) error {
	if err := s.writable(); err != nil {
		return err
	}
	path, err := s.recordPath(kind, key)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Keys lists the keys of all records of a kind in this store, in no particular order.
func (s *Store) Keys(kind Kind) ([]string, error) {
	var keys []string
	err := walkFiles(s.path(recordBucket, string(kind)), func(path string, _ fs.FileInfo) error {
		keys = append(keys, filepath.Base(path))
		return nil
	})
	return keys, err
}

// walkFiles calls fn for every file below dir that is not a directory. What vanishes meanwhile is passed over, and so is
// a dir that does not exist.
func walkFiles(dir string, fn func(path string, info fs.FileInfo) error) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			return nil
		}
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return fn(path, info)
	})
}

var errDamaged = errors.New("the record is damaged")

func readEnvelope(path string) (envelope, error) {
	var env envelope
	data, err := os.ReadFile(path)
	if err != nil {
		return env, err
	}
	if err := json.Unmarshal(data, &env); err != nil || len(env.Value) == 0 {
		return env, fmt.Errorf("%s: %w", path, errDamaged)
	}
	for _, d := range env.Refs {
		if d.valid() != nil {
			return env, fmt.Errorf("%s: %w", path, errDamaged)
		}
	}
	return env, nil
}

func (e envelope) decode(v any) error { return json.Unmarshal(e.Value, v) }

func (s *Store) hasAll(refs []Digest) bool {
	for _, d := range refs {
		if at, _ := s.findBlob(d); at == nil {
			return false
		}
	}
	return true
}
