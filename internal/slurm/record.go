package slurm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
)

// Record is a job that was submitted from here.
type Record struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Cluster   string    `json:"cluster,omitempty"`
	Image     string    `json:"image"`
	Digest    string    `json:"digest,omitempty"` // of its manifest
	File      string    `json:"file,omitempty"`   // that the nodes read
	Dir       string    `json:"dir"`              // from which it was submitted
	Script    string    `json:"script"`
	Log       string    `json:"log"` // of an array a pattern
	Submitted time.Time `json:"submitted"`

	Token string `json:"token,omitempty"` // by which the job is found that nobody has noted the number of
}

// Dir is the directory of the records.
func Dir() (string, error) {
	state, err := StateDir()
	return filepath.Join(state, "jobs"), err
}

// StateDir is what sconce keeps of jobs for this user alone: sconce in the user's state directory (XDG Base Directory Specification). What
// lies there, and nothing in a directory that jobs are submitted from, says what this user has submitted and collected.
func StateDir() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "sconce"), nil
}

// keep writes a record.
func (r Record) keep() error {
	dir, err := Dir()
	if err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, fileOf(r)), append(data, '\n'), 0o600)
}

// unsafe is what no file's name shall have.
var unsafe = lazyregexp.New(`[^A-Za-z0-9._-]`)

// fileOf is the name of a record's file: clusters that share a home count their jobs each for itself.
func fileOf(r Record) string {
	if r.ID == "" {
		return begunPrefix + r.Token + ".json"
	}
	return unsafe.ReplaceAllString(cmp.Or(r.Cluster, "cluster"), "_") + "-" + r.ID + ".json"
}

// maxRecord bounds a record in bytes.
const maxRecord = 64 << 10

// Records lists what was submitted from here, the newest first.
func Records(ctx context.Context) ([]Record, error) {
	read, err := readRecords()
	if err != nil {
		return nil, err
	}
	all, begun := read[:0:0], read[:0:0]
	for _, r := range read {
		if r.ID == "" {
			begun = append(begun, r)
		} else {
			all = append(all, r)
		}
	}
	all = append(all, complete(ctx, begun, all)...)
	slices.SortFunc(all, func(a, b Record) int { // numbers grow, where two were submitted at once
		return cmp.Or(b.Submitted.Compare(a.Submitted), cmp.Compare(len(b.ID), len(a.ID)), cmp.Compare(b.ID, a.ID))
	})
	return all, nil
}

// readRecords reads all records, also those that are only begun. A file that is no record is passed over.
func readRecords() ([]Record, error) {
	dir, err := Dir()
	if err != nil {
		return nil, err
	}
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []Record
	for _, f := range files {
		info, err := f.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxRecord || strings.HasPrefix(f.Name(), ".") {
			continue
		}
		var r Record
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil || json.Unmarshal(data, &r) != nil || !jobID.MatchString(r.ID) && (r.ID != "" || !token.MatchString(r.Token)) {
			continue
		}
		all = append(all, r)
	}
	return all, nil
}

// Find returns the record that somebody means: the job of that number, the newest of that name, or without either the newest of all.
func Find(ctx context.Context, what string) (Record, error) {
	all, err := Records(ctx)
	if err != nil {
		return Record{}, err
	}
	i := slices.IndexFunc(all, func(r Record) bool { return what == "" || r.ID == what || r.Name == what })
	switch {
	case i >= 0:
		return all[i], nil
	case len(all) == 0:
		return Record{}, fault.Usage(fault.Hint(errors.New("nothing was submitted from here"), "`sconce submit` does that"))
	}
	return Record{}, fault.Usage(fault.Hint(fmt.Errorf("no job %q was submitted from here", what), "`sconce jobs` lists them"))
}
