package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// value is a JSON value with its place.
type value struct {
	at     int // in the file, in bytes
	scalar any // string, json.Number, bool or nil, when it is no list or object
	list   []*value
	object map[string]*value
	names  []string // of the object, in the order of the file
}

// maxJSONDepth bounds values within values.
const maxJSONDepth = 32

// jsonError says where a text is no JSON.
type jsonError struct {
	at      int
	message string
}

func (e *jsonError) Error() string { return e.message }

// readJSON reads one value and nothing behind it. An error is a *jsonError.
func readJSON(data []byte) (*value, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	r := jsonReader{d, data}
	v, err := r.value(0)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = fmt.Errorf("there is more behind the value")
		}
	}
	if err == nil {
		return v, nil
	}
	at := int(d.InputOffset())
	if wrong := (*json.SyntaxError)(nil); errors.As(err, &wrong) {
		at = int(wrong.Offset) - 1
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the file ends within a value")
	}
	return nil, &jsonError{min(max(at, 0), len(data)), err.Error()}
}

type jsonReader struct {
	*json.Decoder
	data []byte
}

func (r jsonReader) value(depth int) (*value, error) {
	at := int(r.InputOffset())
	for at < len(r.data) && bytes.IndexByte([]byte(" \t\r\n,:"), r.data[at]) >= 0 {
		at++
	}
	t, err := r.Token()
	if err != nil {
		return nil, err
	}
	v := &value{at: at, scalar: t}
	if depth == maxJSONDepth {
		return nil, fmt.Errorf("values are nested more than %d deep", maxJSONDepth)
	}
	switch t {
	case json.Delim('['):
		v.scalar, v.list = nil, []*value{}
		for r.More() {
			item, err := r.value(depth + 1)
			if err != nil {
				return nil, err
			}
			v.list = append(v.list, item)
		}
		_, err = r.Token()
	case json.Delim('{'):
		v.scalar, v.object = nil, map[string]*value{}
		err = r.members(v, depth)
	}
	return v, err
}

func (r jsonReader) members(v *value, depth int) error {
	for r.More() {
		name, err := r.Token()
		if err != nil {
			return err
		}
		member, err := r.value(depth + 1)
		if err != nil {
			return err
		}
		text, _ := name.(string)
		v.names = append(v.names, text)
		v.object[text] = member
	}
	_, err := r.Token()
	return err
}

// kind is what a value is, in words.
func (v *value) kind() string {
	switch {
	case v.list != nil:
		return "a list"
	case v.object != nil:
		return "an object"
	}
	switch v.scalar.(type) {
	case string:
		return "a string"
	case json.Number:
		return "a number"
	case bool:
		return "true or false"
	}
	return "null"
}
