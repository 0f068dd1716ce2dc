// Package tomltext reads small TOML files strictly, and writes their strings.
package tomltext

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/quote"
)

// Decode reads data into a struct. A key that it has no field for is an error, with a hint that names the keys there are, or the one
// that nearest says was meant: "" is none of them. Errors begin with the line.
func Decode(data []byte, into any, keys []string, nearest func(key string) string) error {
	d := toml.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
		e := &unknown.Errors[0]
		line, _ := e.Position()
		key := strings.Join(e.Key(), ".")
		hint := "the keys are " + strings.Join(keys, ", ")
		if near := nearest(key); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		return fault.Hint(fmt.Errorf("line %d: unknown key %q", line, key), hint)
	}
	var wrong *toml.DecodeError
	if errors.As(err, &wrong) {
		line, _ := wrong.Position()
		return fmt.Errorf("line %d: %s", line, strings.TrimPrefix(wrong.Error(), "toml: "))
	}
	return err
}

// String writes a basic string (TOML 1.0, "String"): what is [quote.Harmful], which no terminal should meet, as \u and four digits.
func String(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case quote.Harmful(r):
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String() + `"`
}
