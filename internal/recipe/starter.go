package recipe

import (
	_ "embed"
	"strings"
)

//go:embed starter.toml
var starter string

// Starter returns a commented recipe that works as it is, for an image of this name. A name that is no image name, such
// as that of a directory, becomes one.
func Starter(name string) []byte {
	return []byte(strings.ReplaceAll(starter, "my-image", ImageName(name)))
}

// ImageName makes s fit formComponent.
func ImageName(s string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(s) {
		switch {
		case 'a' <= r && r <= 'z' || '0' <= r && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	if out := strings.TrimRight(b.String(), "-"); out != "" {
		return out
	}
	return "my-image"
}
