// Package edf reads Environment Definition Files, in which users of CSCS's Container Engine and of the Sarus Suite say which image a
// job runs in, what is mounted there and which hooks are on: TOML, with a few keys.
//
// A [File] is one file with the places of everything in it, for messages and for edits that leave the rest alone. An [Environment] is
// a file put over those that it names as its bases. Nothing here judges: package lint does.
//
// Sources: docs.cscs.ch, "Container Engine"; for the other dialect the JSON Schema and the behaviour of the public tool sarusctl.
package edf

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// Dialect is whose rules a file is read by.
type Dialect string

// The dialects.
const (
	ContainerEngine Dialect = "container-engine" // srun --environment=
	Sarus           Dialect = "sarus"            // srun --edf=
)

// The keys at the top level. Base, Image and Workdir are strings, Base perhaps a list of them; Mounts and Devices are lists of strings;
// Env and Annotations are tables.
const (
	Base        = "base_environment"
	Image       = "image"
	Workdir     = "workdir"
	Entrypoint  = "entrypoint"
	Writable    = "writable"
	Mounts      = "mounts"
	Devices     = "devices" // of the Sarus Suite alone
	Env         = "env"
	Annotations = "annotations"
)

// Keys are the keys at the top level.
var Keys = []string{Base, Image, Workdir, Entrypoint, Writable, Mounts, Devices, Env, Annotations}

// File is one EDF as it is written.
type File struct {
	Path    string // as somebody named it
	Data    []byte
	Entries []Entry  // in the order of the file
	Headers []Header // likewise
}

// Span is a range of a file, in bytes.
type Span struct{ Offset, Length int }

// Entry is a key with its value. Of an inline table each key is an entry, and an empty one is an entry itself.
type Entry struct {
	Name  []string // from the top: annotations, com, hooks, cxi, enabled
	Key   Span     // of the key as it is written here, without the part that a header gives
	Value Value
}

// Dotted is the name of an entry below its table: "com.hooks.cxi.enabled".
func (e *Entry) Dotted() string { return strings.Join(e.Name[1:], ".") }

// Header is the line that opens a table.
type Header struct {
	Name  []string
	Key   Span
	Array bool // [[name]]
}

// Kind is the type of a value, as messages name it.
type Kind string

// The kinds of values.
const (
	String  Kind = "a string"
	Integer Kind = "a number"
	Float   Kind = "a decimal number"
	Bool    Kind = "true or false"
	List    Kind = "a list"
	Table   Kind = "a table"
	Time    Kind = "a date or time"
)

// Value is what stands behind a key.
type Value struct {
	Kind  Kind
	Text  string  // of a string what it stands for; of what is no list or table as it is written
	Items []Value // of a list
	At    Span    // with the quotes; of a list or table only its beginning
}

// SyntaxError says where a file is no TOML.
type SyntaxError struct {
	Line, Column int // from 1 on
	Message      string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Message) }

// MaxSize bounds a file, in bytes: what people write is a hundredth of it.
const MaxSize = 1 << 20

// Parse reads a file. An error is a *[SyntaxError].
func Parse(path string, data []byte) (*File, error) {
	if len(data) > MaxSize {
		return nil, &SyntaxError{1, 1, fmt.Sprintf("the file is larger than %d KiB", MaxSize>>10)}
	}
	var all map[string]any
	if err := toml.Unmarshal(data, &all); err != nil {
		return nil, syntaxError(err)
	}
	r := reader{file: &File{Path: path, Data: data}}
	r.Reset(data)
	for r.NextExpression() {
		r.expression(r.Expression())
	}
	if err := r.Error(); err != nil {
		return nil, syntaxError(err)
	}
	return r.file, nil
}

func syntaxError(err error) *SyntaxError {
	e := &SyntaxError{1, 1, strings.TrimPrefix(err.Error(), "toml: ")}
	if at := (*toml.DecodeError)(nil); errors.As(err, &at) {
		e.Line, e.Column = at.Position()
	}
	return e
}

// reader builds a file from a document that has been found to be valid TOML.
type reader struct {
	unstable.Parser
	file  *File
	table []string // that the last header has opened
}

func (r *reader) expression(e *unstable.Node) {
	switch e.Kind {
	case unstable.Table, unstable.ArrayTable:
		names, at := keyOf(e)
		r.table = names
		r.file.Headers = append(r.file.Headers, Header{names, at, e.Kind == unstable.ArrayTable})
	case unstable.KeyValue:
		r.keyValue(r.table, e)
	}
}

func (r *reader) keyValue(table []string, e *unstable.Node) {
	names, at := keyOf(e)
	names = slices.Concat(table, names)
	v := e.Value()
	if v.Kind == unstable.InlineTable && v.Child() != nil {
		for it := v.Children(); it.Next(); {
			r.keyValue(names, it.Node())
		}
		return
	}
	end := at.Offset + at.Length
	r.file.Entries = append(r.file.Entries, Entry{names, at, valueOf(v, Span{end, 0})})
}

func keyOf(e *unstable.Node) ([]string, Span) {
	var names []string
	var at Span
	for keys := e.Key(); keys.Next(); {
		k := keys.Node()
		if names == nil {
			at.Offset = int(k.Raw.Offset)
		}
		at.Length = int(k.Raw.Offset+k.Raw.Length) - at.Offset
		names = append(names, string(k.Data))
	}
	return names, at
}

// valueOf converts a value. start is where to point when the parser does not tell.
func valueOf(v *unstable.Node, start Span) Value {
	value := Value{Kind: kindOf(v.Kind), Text: string(v.Data), At: start}
	if v.Raw.Length > 0 {
		value.At = Span{int(v.Raw.Offset), int(v.Raw.Length)}
	}
	if v.Kind == unstable.Array {
		for it := v.Children(); it.Next(); {
			value.Items = append(value.Items, valueOf(it.Node(), start))
		}
	}
	return value
}

func kindOf(k unstable.Kind) Kind {
	switch k {
	case unstable.String:
		return String
	case unstable.Integer:
		return Integer
	case unstable.Float:
		return Float
	case unstable.Bool:
		return Bool
	case unstable.Array:
		return List
	case unstable.InlineTable:
		return Table
	default:
		return Time
	}
}

// Place is the line and column of an offset in a text, both from 1 on; columns count bytes.
func Place(data []byte, offset int) (line, column int) {
	before := data[:min(max(offset, 0), len(data))]
	return 1 + bytes.Count(before, []byte("\n")), len(before) - bytes.LastIndexByte(before, '\n')
}

// Find returns the entry at the top level that has a name, or nil.
func (f *File) Find(name string) *Entry {
	for i := range f.Entries {
		if e := &f.Entries[i]; len(e.Name) == 1 && e.Name[0] == name {
			return e
		}
	}
	return nil
}

// In lists the entries of a table at the top level.
func (f *File) In(table string) []*Entry {
	var all []*Entry
	for i := range f.Entries {
		if e := &f.Entries[i]; len(e.Name) > 1 && e.Name[0] == table {
			all = append(all, e)
		}
	}
	return all
}

// Strings are the values of a key that is a string or a list of strings; what is no string is left out.
func (f *File) Strings(name string) []Value {
	e := f.Find(name)
	if e == nil {
		return nil
	}
	if e.Value.Kind == String {
		return []Value{e.Value}
	}
	return slices.DeleteFunc(slices.Clone(e.Value.Items), func(v Value) bool { return v.Kind != String })
}
