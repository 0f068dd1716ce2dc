// Package report writes what is known of an image as one HTML page for people to look at: where its bytes are, which GPUs it has
// code for, and what the audit found.
//
// The page stands alone. Its policy (CSP level 3) allows its own script and style, by their hashes, and nothing else: it loads
// nothing, sends nothing and works from a disk. What comes from the image is hostile text, which gets onto the page as text only:
// by html/template, or by JSON that the script shows through textContent. The same report gives the same bytes.
package report

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/fault"
)

// Report is what a page shows. Its facts must not be closed yet.
type Report struct {
	Facts    *facts.Facts
	Findings []audit.Finding // the worst first, as [audit.Check] returns them

	Target     cluster.Profile // that the findings are for
	TargetFrom string          // where its profile is from, "" for none
	NotJudged  []string        // what the target does not say

	Format string  // what it is: "OCI image", "squashfs file"
	Stored int64   // bytes: all layers as they are stored, or the file
	Layers []Layer // lowest first; none in a squashfs or SIF file
	Files  []File  // regular files that the image shows, each once, whatever names it has
}

// Layer is a layer of an image.
type Layer struct {
	Digest    string
	CreatedBy string // the step that made it
	Stored    int64  // bytes, as it is stored
	Unpacked  int64  // bytes of its files, those that upper layers hide included
}

// File is a regular file.
type File struct {
	Path  string // without a slash in front
	Size  int64  // bytes
	Layer int    // index in Report.Layers
}

// mark is how every page begins, so that a page may be replaced by a newer one and nothing else is.
const mark = "<!DOCTYPE html>\n<!-- A report of sconce inspect -->\n"

// Free returns an error when there is something at name that is no page of this package and is not to be replaced.
func Free(name string, force bool) error {
	info, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("write %s: it is a directory", name)
	case force:
		return nil
	}
	if info.Mode().IsRegular() {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		head := make([]byte, len(mark))
		if n, err := io.ReadFull(f, head); string(head) == mark || n == 0 && errors.Is(err, io.EOF) {
			return nil
		}
	}
	return fault.Hint(fmt.Errorf("write %s: something else is there", name), "choose another name, or replace it with --force")
}

// WriteFile writes the page beside its final name and moves it there when it is whole. An older page is replaced, anything else
// only with force.
func (r *Report) WriteFile(name string, force bool) error {
	if err := Free(name, force); err != nil {
		return err
	}
	err := atomicfile.Fill(name, 0o666, func(f *os.File) error {
		w := bufio.NewWriter(f)
		return errors.Join(r.Write(w), w.Flush())
	})
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// Write writes the page.
func (r *Report) Write(w io.Writer) error {
	p, err := r.page()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	b.WriteString(mark)
	if err := pageTemplate().Execute(&b, p); err != nil {
		return err
	}
	_, err = w.Write(b.Bytes())
	return err
}
