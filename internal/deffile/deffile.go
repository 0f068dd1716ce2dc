// Package deffile reads definition files, the build files of Apptainer and SingularityCE, and says what they mean. It runs
// nothing.
//
// [Parse] checks the form and fills in templates; [File.Evaluate] makes of the stages the same plain data that a Containerfile
// becomes, so that both go through the same steps. The meaning is that of Apptainer's user guide, "Definition Files". What cannot
// be done is an error with file, line and what to write instead.
package deffile

import (
	"context"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/containerfile"
)

// Options says what a definition file leaves open.
type Options struct {
	Target   string // stage to build, by name; "" is the last
	Platform v1.Platform

	// Bootstrap gives the reference of the base that a distribution's packages make.
	Bootstrap func(Bootstrap) (reference string)
}

// ConfigFunc gives the configuration of an image that a header names.
type ConfigFunc func(ctx context.Context, reference string, platform v1.Platform) (*v1.ConfigFile, error)

// File is a parsed definition file.
type File struct {
	Name   string
	text   []byte
	stages []*stage
}

// stage is one part of a file that begins with Bootstrap.
type stage struct {
	line     int // of its first header
	header   map[string]field
	goesOn   string // the header whose value goes on in the next line; "": none
	sections []*section
}

type field struct {
	value string
	line  int
}

// section is the text below a line that begins with %.
type section struct {
	name, args string
	line       int
	body       []string
}

// text is the section's lines, each with its end.
func (s *section) text() string {
	if len(s.body) == 0 {
		return ""
	}
	return strings.Join(s.body, "\n") + "\n"
}

// empty reports whether the section has nothing but comments and blank lines.
func (s *section) empty() bool {
	return !slices.ContainsFunc(s.body, func(line string) bool {
		line = strings.TrimSpace(line)
		return line != "" && !strings.HasPrefix(line, "#")
	})
}

// Error is a mistake in a definition file.
type Error = containerfile.Error

func (f *File) wrong(line int, hint, format string, args ...any) error {
	return containerfile.Errorf(f.Name, line, hint, format, args...)
}
