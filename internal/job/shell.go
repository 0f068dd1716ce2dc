package job

import (
	"fmt"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
)

// variable is a reference that all that reads our texts expands alike: bash, and both readers of environment definition files.
// An apostrophe in what stands for an unset variable opens a quotation for bash, even between double quotes.
var variable = lazyregexp.New(`\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^{}"'$\x60\\]*)?\}`)

// plain is a word that means itself in a shell.
var plain = lazyregexp.New(`^[A-Za-z0-9_@%+=:,./-]+$`)

// word writes text as one word of a shell, in which ${NAME} is expanded and nothing else.
func word(text string) string {
	if plain.MatchString(text) {
		return text
	}
	var b strings.Builder
	b.WriteByte('"')
	at := 0
	for _, m := range variable.Regexp().FindAllStringIndex(text, -1) {
		b.WriteString(escape(text[at:m[0]]) + text[m[0]:m[1]])
		at = m[1]
	}
	b.WriteString(escape(text[at:]) + `"`)
	return b.String()
}

// escape makes text mean itself between double quotes (POSIX.1-2024, XCU 2.2.3).
func escape(text string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", `$`, `\$`).Replace(text)
}

// single quotes text for a shell that shall not look into it.
func single(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// comment writes text as lines of comment, no wider than width.
func comment(text string) string {
	const width = 100
	var lines []string
	for _, paragraph := range strings.Split(text, "\n") {
		line := "#"
		for w := range strings.FieldsSeq(paragraph) {
			if len(line)+1+len(w) > width && line != "#" {
				lines, line = append(lines, line), "#"
			}
			line += " " + w
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// fileName is a name as files and jobs have it: "team/llm:25.11" is "team+llm+25.11". It means itself to a shell and to sbatch, whoever has
// named the image.
func fileName(name string) string {
	return unusual.ReplaceAllString(strings.NewReplacer("/", "+", ":", "+", "@", "+").Replace(name), "-")
}

// unusual are the characters that names of files and jobs do without.
var unusual = lazyregexp.New(`[^A-Za-z0-9_@%+=:,.-]`)

// Words writes words so that a shell reads the same words.
func Words(words []string) (string, error) {
	quoted := make([]string, len(words))
	for i, w := range words {
		var err error
		if quoted[i], err = syntax.Quote(w, syntax.LangBash); err != nil {
			return "", fault.Usage(fmt.Errorf("%q cannot be a part of a command: %w", w, err))
		}
	}
	return strings.Join(quoted, " "), nil
}
