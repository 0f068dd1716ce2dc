package lint

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/edf"
	quoting "sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/sbatch"
)

// edit puts a text in place of a range of a file.
type edit struct {
	at   edf.Span
	text string
}

func (s *subject) replace(at edf.Span, text string) []edit { return []edit{{at, text}} }

// Fix is a file in which that is mended which can only have been meant in one way.
type Fix struct {
	Path        string
	Rules       []string // of what was mended
	Before, now []byte
}

// Fixes mends files in memory. What is allowed stays, and so does a file that nobody named, or that could no longer be read.
func (r *Result) Fixes() []Fix {
	var all []Fix
	for _, file := range r.Files {
		var edits []edit
		var rules []string
		for _, f := range r.Findings {
			if f.Path == file.Path && f.Allowed == "" && f.Fixable {
				edits = append(edits, f.edits...)
				rules = append(rules, f.Rule)
			}
		}
		before := r.texts[file.Path]
		now := apply(before, edits)
		if len(edits) > 0 && !bytes.Equal(before, now) && readable(file, before, now) {
			slices.Sort(rules)
			all = append(all, Fix{file.Path, slices.Compact(rules), before, now})
		}
	}
	return all
}

// readable reports whether a mended file can be read as before.
func readable(file File, before, now []byte) bool {
	switch file.Kind {
	case EDF:
		_, err := edf.Parse(file.Path, now)
		return err == nil
	case Script:
		return sbatch.Parse(file.Path, before).Err != nil || sbatch.Parse(file.Path, now).Err == nil
	}
	return true
}

// apply makes edits, of which none may overlap one before it: the first counts.
func apply(data []byte, edits []edit) []byte {
	edits = slices.Clone(edits)
	slices.SortStableFunc(edits, func(a, b edit) int { return a.at.Offset - b.at.Offset })
	var out []byte
	at := 0
	last := edit{at: edf.Span{Offset: -1}}
	for _, e := range edits {
		if e.at.Offset < at || e == last || e.at.Offset+e.at.Length > len(data) {
			continue
		}
		out = append(append(out, data[at:e.at.Offset]...), e.text...)
		at, last = e.at.Offset+e.at.Length, e
	}
	return append(out, data[at:]...)
}

// Write puts the mended file in place of the other at once. A link stays one, and the file keeps its permissions.
func (f Fix) Write() error {
	path, err := filepath.EvalSymlinks(f.Path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if data, err := os.ReadFile(path); err != nil || !bytes.Equal(data, f.Before) {
		return fmt.Errorf("fix %s: it was changed meanwhile", f.Path)
	}
	err = atomicfile.Fill(path, 0o600, func(to *os.File) error {
		_, err := to.Write(f.now)
		return errors.Join(err, to.Chmod(info.Mode().Perm()))
	})
	if err != nil {
		return fmt.Errorf("fix %s: %w", f.Path, err)
	}
	return nil
}

// around is how many lines a diff shows around what was changed.
const around = 3

// Diff is what was changed as a unified diff. No edit adds or removes a line.
func (f Fix) Diff() string {
	before, now := strings.SplitAfter(string(f.Before), "\n"), strings.SplitAfter(string(f.now), "\n")
	if len(before) != len(now) {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "--- %[1]s\n+++ %[1]s\n", quoting.Clean(f.Path))
	for i := 0; i < len(before); {
		if before[i] == now[i] {
			i++
			continue
		}
		from, to := max(i-around, 0), i
		for gap := 0; to < len(before) && gap <= 2*around; to++ {
			if gap++; before[to] != now[to] {
				gap = 0
			}
		}
		for to > from && before[to-1] == now[to-1] {
			to--
		}
		end := min(to+around, len(before))
		if end == len(before) && before[end-1] == "" {
			end--
		}
		fmt.Fprintf(&b, "@@ -%d,%d +%d,%d @@\n", from+1, end-from, from+1, end-from)
		hunk(&b, before[from:end], now[from:end])
		i = end
	}
	return b.String()
}

// hunk writes lines, those that follow each other and were changed first as they were and then as they are.
func hunk(b *strings.Builder, before, now []string) {
	line := func(mark, text string) {
		b.WriteString(mark + strings.TrimSuffix(text, "\n") + "\n")
		if !strings.HasSuffix(text, "\n") {
			b.WriteString("\\ No newline at end of file\n")
		}
	}
	for i := 0; i < len(before); {
		if before[i] == now[i] {
			line(" ", before[i])
			i++
			continue
		}
		end := i
		for end < len(before) && before[end] != now[end] {
			end++
		}
		for _, text := range before[i:end] {
			line("-", text)
		}
		for _, text := range now[i:end] {
			line("+", text)
		}
		i = end
	}
}
