// Package quote puts text that somebody else chose into what others read: words of a shell, comments, lines of a terminal and JSON.
//
// Names of files, values of recipes and all that images, registries and programs say may hold anything. Whoever writes a script, a line
// to paste or a message passes such text through this package, and through nothing else: [Word] for a shell, [Comment] behind a #, [Clean]
// and [Sprintf] for a terminal, [JSON] for a program that may hand it to a terminal. None of them lets a [Harmful] character through.
package quote

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"

	"sconce.dev/sconce/internal/lazyregexp"
)

// Harmful reports whether a terminal or a reader may be misled by r: control characters of C0 and C1, the separators of lines and
// paragraphs, and the bidi controls of Unicode (UAX #9).
func Harmful(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// HarmfulInLines is [Harmful] for text of several lines, which may hold newlines and tabs.
func HarmfulInLines(r rune) bool { return Harmful(r) && r != '\n' && r != '\t' }

// Plain is a word that means itself in every shell. zsh looks for a program where a word begins with =.
var Plain = lazyregexp.New(`^[A-Za-z0-9_@%+:,./-][A-Za-z0-9_@%+=:,./-]*$`)

// Word returns text as one word of a shell that looks for nothing in it, for people to read: text that means itself is left as it is.
// What is [Harmful], or not UTF-8, is written as $'\033', which bash, zsh and busybox read, and fish refuses. A \ stands outside of apostrophes,
// between which it means something to fish.
func Word(text string) string {
	switch {
	case Plain.MatchString(text):
		return text
	case utf8.ValidString(text) && !strings.ContainsFunc(text, Harmful):
		return "'" + strings.NewReplacer("'", `'\''`, `\`, `'\\'`).Replace(text) + "'"
	}
	var b strings.Builder
	b.WriteString("$'")
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\'' || r == '\\' || r == '!' || Harmful(r) || r == utf8.RuneError && n <= 1:
			for _, c := range []byte(text[:n]) {
				fmt.Fprintf(&b, `\%03o`, c)
			}
		default:
			b.WriteString(text[:n])
		}
		text = text[n:]
	}
	return b.String() + "'"
}

// Operand returns a path that no program takes for an option: ./ goes before a -.
func Operand(path string) string {
	if strings.HasPrefix(path, "-") {
		return "./" + path
	}
	return path
}

// Single returns text between apostrophes, in which a shell looks for nothing, whether it needs them or not: for lines of several and for files
// whose bytes are not to change.
func Single(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// Words returns words as [Word] does, joined by blanks.
func Words(words ...string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = Word(w)
	}
	return strings.Join(quoted, " ")
}

// Comment returns text as one line behind a #, which is a comment to shells, TOML and YAML.
func Comment(text string) string { return "# " + Clean(text) }

// Sprintf is fmt.Sprintf for a terminal: the lines are those of format, since every text among args is made [Clean].
func Sprintf(format string, args ...any) string {
	cleaned := make([]any, len(args))
	for i, arg := range args {
		cleaned[i] = cleanArg(arg)
	}
	return CleanLines(fmt.Sprintf(format, cleaned...))
}

func cleanArg(arg any) any {
	switch v := arg.(type) {
	case error:
		return Clean(v.Error())
	case fmt.Stringer:
		return Clean(v.String())
	}
	switch v := reflect.ValueOf(arg); {
	case v.Kind() == reflect.String:
		return Clean(v.String())
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.String:
		list := make([]string, v.Len())
		for i := range list {
			list[i] = Clean(v.Index(i).String())
		}
		return list
	}
	return arg
}

// JSON returns v as JSON, in lines that begin with indent, or in one line without it. What is [Harmful] is escaped, and what only a browser
// needs to have escaped is not.
func JSON(v any, indent string) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return EscapeJSON(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}

// EscapeJSON escapes what is [Harmful] in JSON, where it can only be a part of strings.
func EscapeJSON(data []byte) []byte {
	if !bytes.ContainsFunc(data, HarmfulInLines) {
		return data
	}
	var b bytes.Buffer
	for _, r := range string(data) {
		if HarmfulInLines(r) {
			fmt.Fprintf(&b, `\u%04x`, r) // all of them are in the basic plane
		} else {
			b.WriteRune(r)
		}
	}
	return b.Bytes()
}
