package conda

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"unicode/utf16"

	"sconce.dev/sconce/internal/fault"
)

// How a placeholder of the prefix is replaced.
const (
	modeText   = "text"
	modeBinary = "binary"
)

// patcher writes a file with the prefix in the place of its placeholder. Close writes what is held back and leaves the writer
// below open. Memory is bounded by the length of the placeholder, whatever comes.
type patcher interface {
	io.WriteCloser
	// count is how many placeholders were replaced.
	count() int
}

// newPatcher returns a patcher of a file for which paths.json gives the mode and the placeholder.
//
// In a text each placeholder is replaced, also in UTF-16 and UTF-32. In a binary the length stays: within a string, which ends with
// a NUL or the file, all placeholders are replaced, what follows moves up, and NULs fill the end of the string. Programs for .NET have
// their strings in UTF-16.
func newPatcher(w io.Writer, mode, placeholder, prefix string) patcher {
	if mode == modeBinary {
		chain := &binaryPatcher{w: w, old: []byte(placeholder), new: []byte(prefix), unit: 1}
		for _, wide := range wideEncodings {
			chain = &binaryPatcher{w: chain, old: wide.encode(placeholder), new: wide.encode(prefix), unit: wide.unit, next: chain}
		}
		return chain
	}
	chain := &textPatcher{w: w, old: []byte(placeholder), new: []byte(prefix)}
	for _, wide := range wideEncodings {
		chain = &textPatcher{w: chain, old: wide.encode(placeholder), new: wide.encode(prefix), next: chain}
	}
	return chain
}

// wideEncodings are what conda looks for besides UTF-8, and how many bytes a NUL has in them.
var wideEncodings = []struct {
	unit   int
	encode func(string) []byte
}{
	{2, func(s string) []byte { return encodeUTF16(s, binary.LittleEndian) }},
	{2, func(s string) []byte { return encodeUTF16(s, binary.BigEndian) }},
	{4, func(s string) []byte { return encodeUTF32(s, binary.LittleEndian) }},
	{4, func(s string) []byte { return encodeUTF32(s, binary.BigEndian) }},
}

func encodeUTF16(s string, order binary.AppendByteOrder) (b []byte) {
	for _, u := range utf16.Encode([]rune(s)) {
		b = order.AppendUint16(b, u)
	}
	return b
}

func encodeUTF32(s string, order binary.AppendByteOrder) (b []byte) {
	for _, r := range s {
		b = order.AppendUint32(b, uint32(r))
	}
	return b
}

// textPatcher replaces each occurrence of old by new.
type textPatcher struct {
	w        io.Writer
	old, new []byte
	next     *textPatcher // closed after this one
	held     []byte       // what may begin an occurrence that the next write ends
	found    int
}

func (t *textPatcher) Write(p []byte) (int, error) {
	data := append(t.held, p...) //nolint:gocritic // held is taken over
	for {
		i := bytes.Index(data, t.old)
		if i < 0 {
			break
		}
		if err := writeAll(t.w, data[:i], t.new); err != nil {
			return 0, err
		}
		data = data[i+len(t.old):]
		t.found++
	}
	keep := beginning(data, t.old)
	if err := writeAll(t.w, data[:len(data)-keep]); err != nil {
		return 0, err
	}
	t.held = append(t.held[:0], data[len(data)-keep:]...)
	return len(p), nil
}

func (t *textPatcher) Close() error {
	err := writeAll(t.w, t.held)
	t.held = nil
	if err == nil && t.next != nil {
		err = t.next.Close()
	}
	return err
}

func (t *textPatcher) count() int {
	if t.next != nil {
		return t.found + t.next.count()
	}
	return t.found
}

// binaryPatcher replaces each occurrence of old by new and fills the end of the string.
type binaryPatcher struct {
	w        io.Writer
	old, new []byte
	unit     int            // bytes of a character, and so of the NUL that ends a string
	next     *binaryPatcher // closed after this one
	held     []byte
	owed     int // bytes of NULs that go to the end of this string
	phase    int // bytes since the last occurrence, modulo unit
	found    int
}

func (b *binaryPatcher) Write(p []byte) (int, error) {
	data := append(b.held, p...) //nolint:gocritic // held is taken over
	for {
		i := bytes.Index(data, b.old)
		// An occurrence has no NUL, so none that begins before the end of the string ends behind it.
		if end := b.stringEnd(data, i); end >= 0 {
			if err := writeAll(b.w, data[:end], make([]byte, b.owed)); err != nil {
				return 0, err
			}
			data, b.owed = data[end:], 0
			continue
		}
		if i < 0 {
			break
		}
		if len(b.new) > len(b.old) {
			return 0, b.errTooLong()
		}
		if err := writeAll(b.w, data[:i], b.new); err != nil {
			return 0, err
		}
		data = data[i+len(b.old):]
		b.owed += len(b.old) - len(b.new)
		b.phase = 0
		b.found++
	}
	keep := max(beginning(data, b.old), (b.phase+len(data))%b.unit) // a NUL may be torn
	if err := writeAll(b.w, data[:len(data)-keep]); err != nil {
		return 0, err
	}
	b.phase = (b.phase + len(data) - keep) % b.unit
	b.held = append(b.held[:0], data[len(data)-keep:]...)
	return len(p), nil
}

// stringEnd returns where the string ends to which NULs are owed, if that is before the next occurrence; else -1.
func (b *binaryPatcher) stringEnd(data []byte, next int) int {
	if b.owed == 0 {
		return -1
	}
	if next >= 0 {
		data = data[:next]
	}
	if b.unit == 1 {
		return bytes.IndexByte(data, 0)
	}
	end := make([]byte, b.unit)
	for i := (b.unit - b.phase) % b.unit; i+b.unit <= len(data); i += b.unit {
		if bytes.Equal(data[i:i+b.unit], end) {
			return i
		}
	}
	return -1
}

func (b *binaryPatcher) Close() error {
	err := writeAll(b.w, b.held, make([]byte, b.owed))
	b.held, b.owed = nil, 0
	if err == nil && b.next != nil {
		err = b.next.Close()
	}
	return err
}

func (b *binaryPatcher) count() int {
	if b.next != nil {
		return b.found + b.next.count()
	}
	return b.found
}

func (b *binaryPatcher) errTooLong() error {
	err := fmt.Errorf("it has room for a prefix of %d bytes, and that of the environment has %d", len(b.old)/b.unit, len(b.new)/b.unit)
	return fault.Hint(err, "choose a shorter prefix for the environment, or another build of the package")
}

// beginning returns the length of the longest end of data that old begins with, all of old excepted.
func beginning(data, old []byte) int {
	for n := min(len(data), len(old)-1); n > 0; n-- {
		if data[len(data)-n] == old[0] && bytes.HasPrefix(old, data[len(data)-n:]) {
			return n
		}
	}
	return 0
}

func writeAll(w io.Writer, parts ...[]byte) error {
	for _, p := range parts {
		if len(p) == 0 {
			continue
		}
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	return nil
}
