package slim

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
	"slices"
	"strings"
)

// A distribution's RECORD (packaging.python.org, "Recording installed projects") lists its files with their hashes: CSV lines of
// path, ALGORITHM=URL-SAFE-BASE64-WITHOUT-PADDING and size. Paths count from the directory that holds the .dist-info directory.
// Only SHA-256 is looked for: pip and uv write nothing else.

// rehash is a file whose content changed.
type rehash struct {
	Names []string `json:"names"` // all the file has in its layer
	Old   string   `json:"old"`   // SHA-256 as RECORD writes it, without the algorithm
	New   string   `json:"new"`

	Lists []string `json:"lists,omitempty"` // the RECORDs of its own layer that have it
}

// mayBeIn reports whether a RECORD of another layer may list the file: one that takes the place of that of its own layer, as a package
// that was asked for has it when sconce or pip mark it so later; or any, when its own layer has none.
func (r *rehash) mayBeIn(record string) bool {
	if len(r.Lists) == 0 {
		return r.isBelow(recordRoot(record))
	}
	return slices.Contains(r.Lists, record)
}

// isBelow reports whether the file has a name below a directory.
func (r *rehash) isBelow(dir string) bool {
	return slices.ContainsFunc(r.Names, func(name string) bool { return dir == "." || strings.HasPrefix(name, dir+"/") })
}

const recordAlgorithm = "sha256="

func recordHash(h hash.Hash) string { return base64.RawURLEncoding.EncodeToString(h.Sum(nil)) }

// isRecord reports whether a file of an image is a RECORD.
func isRecord(p string) bool {
	dir, name := path.Split(p)
	return name == "RECORD" && strings.HasSuffix(dir, ".dist-info/")
}

// recordRoot is where the paths in a RECORD start.
func recordRoot(p string) string { return path.Dir(path.Dir(p)) }

// maxRecord is the largest RECORD that is changed, in bytes. That of torch, one of the largest, has 1.5 MB.
const maxRecord = 32 << 20

// changes are changed files by name. A layer may have several of one name, the last of which counts; so all are kept.
type changes map[string][]*rehash

func newChanges(list []*rehash) changes {
	c := changes{}
	for _, r := range list {
		for _, n := range r.Names {
			c[n] = append(c[n], r)
		}
	}
	return c
}

// fix puts the new hashes of changed files into a RECORD, where it has their old ones, and returns which it has. A line with another
// hash was wrong before, and stays so. Everything else of the RECORD is kept as it is written, and so is its size.
func (c changes) fix(name string, record []byte) (fixed []byte, listed []*rehash, err error) {
	lines := csv.NewReader(bytes.NewReader(record))
	lines.FieldsPerRecord, lines.LazyQuotes, lines.ReuseRecord = -1, true, true
	root := recordRoot(name)
	for start := int64(0); ; start = lines.InputOffset() {
		fields, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return fixed, listed, nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		if len(fields) < 2 || !strings.HasPrefix(fields[1], recordAlgorithm) {
			continue
		}
		r := c.find(path.Join(root, fields[0]), strings.TrimRight(fields[1][len(recordAlgorithm):], "="))
		if r == nil {
			continue
		}
		if fixed == nil {
			fixed = bytes.Clone(record)
		}
		line := fixed[start:lines.InputOffset()]
		copy(line[bytes.LastIndex(line, []byte(r.Old)):], r.New)
		listed = append(listed, r)
	}
}

func (c changes) find(name, old string) *rehash {
	for _, r := range c[name] {
		if r.Old == old {
			return r
		}
	}
	return nil
}

// hashes are those of a file before and after.
func (p *Plan) hashes(r io.Reader) (before, after string, err error) {
	old, changed := sha256.New(), sha256.New()
	// What is changed is changed in place, so the old bytes have to be hashed first: the tee is below.
	if _, err := io.CopyBuffer(struct{ io.Writer }{changed}, p.Reader(io.TeeReader(r, old)), make([]byte, hashBuffer)); err != nil {
		return "", "", err
	}
	return recordHash(old), recordHash(changed), nil
}

const hashBuffer = 256 << 10 // bytes
