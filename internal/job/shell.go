package job

import (
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/quote"
)

// variable is a reference that all that reads our texts expands alike: bash, and both readers of environment definition files.
// An apostrophe in what stands for an unset variable opens a quotation for bash, even between double quotes.
var variable = lazyregexp.New(`\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^{}"'$\x60\\]*)?\}`)

// word writes text as one word of a shell, in which ${NAME} is expanded and nothing else. Text without variables is [quote.Word]'s.
func word(text string) string {
	variables := variable.Regexp().FindAllStringIndex(text, -1)
	if variables == nil {
		return quote.Word(text)
	}
	var b strings.Builder
	b.WriteByte('"')
	at := 0
	for _, m := range variables {
		b.WriteString(escape(text[at:m[0]]) + text[m[0]:m[1]])
		at = m[1]
	}
	b.WriteString(escape(text[at:]) + `"`)
	return b.String()
}

// escape makes text mean itself between double quotes (POSIX.1-2024, XCU 2.2.3). A ! ends them for itself: an interactive shell looks it up in
// its history there.
func escape(text string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", `$`, `\$`, "!", `"'!'"`).Replace(text)
}

// option is what an option begins with whose value stands behind a =.
var option = lazyregexp.New(`^--?[A-Za-z][A-Za-z0-9-]*=`)

// optionWord is [word] for one of the words that a program is started with, of which the value alone is quoted where that is all it takes.
func optionWord(text string) string {
	name := option.FindString(text)
	return name + word(strings.TrimPrefix(text, name))
}

// comment writes text as lines of comment, no wider than width.
func comment(text string) string {
	const width = 100
	var lines []string
	for _, paragraph := range strings.Split(text, "\n") {
		line := "#"
		for w := range strings.FieldsSeq(quote.Clean(paragraph)) {
			if len(line)+1+len(w) > width && line != "#" {
				lines, line = append(lines, line), "#"
			}
			line += " " + w
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// fileName is a name as files and jobs have it, in which a shell and Slurm see nothing else: "team/llm:25.11" is "team+llm+25.11".
func fileName(name string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x80 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._+-", r)) {
			return r
		}
		return '+'
	}, name)
}

// Path writes a path that may hold variables as one word of a shell, in which ${NAME} is expanded and nothing else.
func Path(text string) string { return word(text) }

// Variable returns the first variable that is expanded in a path of a job, "" for none.
func Variable(text string) string { return variable.FindString(text) }
