package job

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
)

// sealLine is the line that says of what a text was before somebody edited it.
var sealLine = lazyregexp.New(`(?m)^# sconce: sha256 ([0-9a-f]{64}) of what sconce wrote: an edited file is not overwritten\n`)

// Seal puts a line into a text that has the hash of all the rest: the first line, or the second where the first one names the program
// that reads it.
func Seal(text string) string {
	at := 0
	if strings.HasPrefix(text, "#!") {
		at = strings.IndexByte(text, '\n') + 1
	}
	return text[:at] + "# sconce: sha256 " + hash(text) + " of what sconce wrote: an edited file is not overwritten\n" + text[at:]
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Untouched reports whether a file is as [Seal] has left it.
func Untouched(text string) bool {
	m := sealLine.Regexp().FindStringSubmatchIndex(text)
	return m != nil && text[m[2]:m[3]] == hash(text[:m[0]]+text[m[1]:])
}
