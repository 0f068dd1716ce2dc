package python

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/csv"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/progress"
)

// RECORD (packaging.python.org, "Recording installed projects", section "The RECORD file") is a CSV file of path, hash
// and size: one line for every file, the hash as ALGORITHM=URL-SAFE-BASE64-WITHOUT-PADDING.

type hasher = hash.Hash

// recordHash is the hash that a line of RECORD gives.
type recordHash struct {
	algorithm string
	value     string // URL-safe base64 without padding
}

// algorithms are the hashes that may vouch for a file: SHA-256 or better (PEP 427).
var algorithms = map[string]func() hash.Hash{
	"sha256": sha256.New,
	"sha384": sha512.New384,
	"sha512": sha512.New,
}

// discard stands in where there is nothing to check.
type discard struct{ io.Writer }

func (discard) Sum(b []byte) []byte { return b }
func (discard) Reset()              {}
func (discard) Size() int           { return 0 }
func (discard) BlockSize() int      { return 1 }

func (h recordHash) new() hasher {
	if make, ok := algorithms[h.algorithm]; ok {
		return make()
	}
	return discard{io.Discard}
}

func parseRecordHash(s string) (recordHash, error) {
	if s == "" {
		return recordHash{}, nil
	}
	algorithm, value, _ := strings.Cut(s, "=")
	make, ok := algorithms[algorithm]
	if !ok {
		return recordHash{}, fmt.Errorf("hash algorithm %q; only sha256, sha384 and sha512 vouch for a file", algorithm)
	}
	value = strings.TrimRight(value, "=")
	if raw, err := base64.RawURLEncoding.DecodeString(value); err != nil || len(raw) != make().Size() {
		return recordHash{}, fmt.Errorf("%q is not a %s in URL-safe base64", value, algorithm)
	}
	return recordHash{algorithm, value}, nil
}

// encodeSHA256 writes a SHA-256 as RECORD does, without the algorithm's name.
func encodeSHA256(sum []byte) string { return base64.RawURLEncoding.EncodeToString(sum) }

func sha256Of(data []byte) string {
	sum := sha256.Sum256(data)
	return encodeSHA256(sum[:])
}

// recordLine is a line of a wheel's RECORD.
type recordLine struct {
	hash recordHash
	size int64 // -1 when not given
}

// parseRecord reads a wheel's RECORD into lines by path. Lines that say nothing of use are complained about and left out, or
// lose their hash: installers do not look at them, so wheels have them. Only what is no CSV of three fields is an error.
func parseRecord(data []byte) (map[string]recordLine, complaints, error) {
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = -1
	r.ReuseRecord = true
	lines := make(map[string]recordLine)
	var found complaints
	for {
		fields, err := r.Read()
		if errors.Is(err, io.EOF) {
			return lines, found, nil
		}
		if err != nil {
			return nil, found, err
		}
		row, _ := r.FieldPos(0)
		if len(fields) != 3 {
			return nil, found, fmt.Errorf("line %d: it has %d fields; expected path, hash and size", row, len(fields))
		}
		name := strings.Clone(fields[0])
		if err := checkPath(name); err != nil {
			found.add(fmt.Sprintf("line %d of RECORD", row), "%q: %v", name, err)
			continue
		}
		line, err := parseRecordLine(fields)
		if err != nil {
			found.add(name, "RECORD says %v", err)
		}
		if _, twice := lines[name]; twice {
			found.add(name, "RECORD lists it twice")
			continue
		}
		if len(lines) == maxMembers {
			return nil, found, fmt.Errorf("it has more than %d lines", maxMembers)
		}
		lines[name] = line
	}
}

// parseRecordLine reads hash and size. With an error it returns what can be believed nevertheless.
func parseRecordLine(fields []string) (line recordLine, err error) {
	line.size = -1
	if line.hash, err = parseRecordHash(strings.Clone(fields[1])); err != nil {
		return line, err
	}
	if fields[2] != "" {
		size, err := strconv.ParseInt(fields[2], 10, 64)
		if err != nil || size < 0 {
			return line, fmt.Errorf("%q, which is not a size in bytes", fields[2])
		}
		line.size = size
	}
	return line, nil
}

// complaints are what is wrong with a wheel and does not keep it from being installed.
type complaints struct {
	first string // the first, naming its file
	more  int    // further ones
}

func (c *complaints) add(member, format string, args ...any) {
	if c.first == "" {
		c.first = member + ": " + fmt.Sprintf(format, args...)
	} else {
		c.more++
	}
}

// warn tells of the complaints about a wheel.
func (c *complaints) warn(ctx context.Context, file string) {
	if c.first == "" {
		return
	}
	text := fmt.Sprintf("wheel %s: %s", file, c.first)
	if c.more > 0 {
		text += fmt.Sprintf(" (and %d more faults)", c.more)
	}
	progress.Warn(ctx, text, "it is installed as it is, as pip and uv do: its own list of its files is wrong, and the lock has the hash of the whole wheel")
}

// recordEntry is a line of the RECORD that we write.
type recordEntry struct {
	path string // relative to site-packages
	hash string // SHA-256; empty for RECORD itself
	size int64
}

// formatRecord writes a RECORD: sorted by path, so that it depends on nothing but its lines.
func formatRecord(entries []recordEntry) []byte {
	slices.SortFunc(entries, func(a, b recordEntry) int { return strings.Compare(a.path, b.path) })
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	for _, e := range entries {
		fields := []string{e.path, "", ""}
		if e.hash != "" {
			fields[1], fields[2] = "sha256="+e.hash, strconv.FormatInt(e.size, 10)
		}
		_ = w.Write(fields) // a bytes.Buffer does not fail
	}
	w.Flush()
	return out.Bytes()
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
