package runtimefiles

import (
	"strings"

	"sconce.dev/sconce/internal/quote"
)

// single returns s as one word of a shell that stands for s itself (POSIX.1-2017, Shell Command Language, 2.2.2).
func single(s string) string { return "'" + strings.ReplaceAll(s, "'", `'"'"'`) + "'" }

// singles returns words for a shell, joined by spaces.
func singles(words ...string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = single(w)
	}
	return strings.Join(quoted, " ")
}

// escapeDouble makes s stand for itself between double quotes (2.2.3).
var escapeDouble = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", `$`, `\$`)

// doubles returns words in double quotes, joined by spaces: what a shell makes them of again when it evaluates the text.
func doubles(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = `"` + escapeDouble.Replace(w) + `"`
	}
	return strings.Join(quoted, " ")
}

// oneLine makes s fit behind a # or into a header: what is [quote.Harmful], newlines first of all, becomes spaces.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if quote.Harmful(r) {
			return ' '
		}
		return r
	}, s)
}
