package slim

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
)

// fileChanges are what trimming did to the files of an image, by path.
type fileChanges struct {
	gone    map[string]bool
	changed map[string][]*strippedEntry // of several layers
}

// isList reports whether a file lists those of a package with their hashes.
func isList(p string) bool { return isRecord(p) || isChecksums(p) }

// isChecksums reports whether a file is a list of dpkg's (deb-md5sums(5)).
func isChecksums(p string) bool {
	dir, name := path.Split(p)
	return strings.HasSuffix(name, ".md5sums") && (dir == "var/lib/dpkg/info/" || dir == "var/lib/dpkg/status.d/")
}

// fix brings a list up to date; nil when nothing in it changes.
func (c *fileChanges) fix(name string, data []byte) ([]byte, error) {
	if isChecksums(name) {
		return c.fixChecksums(data), nil
	}
	return c.fixRecord(name, data)
}

// fixChecksums rewrites lines of the form "MD5  PATH".
func (c *fileChanges) fixChecksums(data []byte) []byte {
	var out bytes.Buffer
	changed := false
	for line := range bytes.Lines(data) {
		sum, name, ok := strings.Cut(strings.TrimRight(string(line), "\n"), "  ")
		name = path.Clean(strings.TrimPrefix(name, "/"))
		switch {
		case ok && c.gone[name]:
			changed = true
			continue
		case ok:
			for _, s := range c.changed[name] {
				if s.OldMD5 == sum {
					line = append([]byte(s.NewMD5), line[len(sum):]...)
					changed = true
					break
				}
			}
		}
		out.Write(line)
	}
	if !changed {
		return nil
	}
	return out.Bytes()
}

// fixRecord leaves out the lines of a RECORD whose files are gone, and gives others their new hash and size.
func (c *fileChanges) fixRecord(name string, data []byte) ([]byte, error) {
	lines := csv.NewReader(bytes.NewReader(data))
	lines.FieldsPerRecord, lines.LazyQuotes, lines.ReuseRecord = -1, true, true
	root := recordRoot(name)
	var out bytes.Buffer
	changed := false
	for start := int64(0); ; start = lines.InputOffset() {
		fields, err := lines.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		line := data[start:lines.InputOffset()]
		p := path.Join(root, fields[0])
		if c.gone[p] {
			changed = true
			continue
		}
		if s := c.listed(p, fields); s != nil {
			at := bytes.LastIndex(line, []byte(s.Old))
			tail := line[at+len(s.Old):]
			if old := "," + strconv.FormatInt(s.Size, 10); len(fields) > 2 && bytes.HasPrefix(tail, []byte(old)) {
				tail = append([]byte(","+strconv.FormatInt(s.NewSize, 10)), tail[len(old):]...)
			}
			line = append(append(bytes.Clone(line[:at]), s.New...), tail...)
			changed = true
		}
		out.Write(line)
	}
	if !changed {
		return nil, nil
	}
	return out.Bytes(), nil
}

// listed finds the changed file that a line of a RECORD has with its old hash.
func (c *fileChanges) listed(p string, fields []string) *strippedEntry {
	if len(fields) < 2 || !strings.HasPrefix(fields[1], recordAlgorithm) {
		return nil
	}
	for _, s := range c.changed[p] {
		if s.Old == strings.TrimRight(fields[1][len(recordAlgorithm):], "=") {
			return s
		}
	}
	return nil
}
