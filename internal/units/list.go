package units

import (
	"fmt"
	"strconv"
	"strings"
)

// List names the first of a list in a sentence, at most so many: "a, b and 3 more".
func List(names []string, most int) string {
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// Quoted names all of a list, in quotes: `"a", "b"`.
func Quoted(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = strconv.Quote(n)
	}
	return strings.Join(quoted, ", ")
}
