package recipe

import (
	_ "embed"
	"strings"
)

//go:embed starter.toml
var starter string

// StarterSuite is what the starting recipe bootstraps.
const StarterSuite = "bookworm"

// Starter returns a commented recipe that works as it is, for an image of this name. A name that is no image name, such
// as that of a directory, becomes one. onImage has it stand on an image, for a machine that knows no mirror of [StarterSuite].
func Starter(name string, onImage bool) []byte {
	text := starter
	if onImage {
		before, rest, _ := strings.Cut(text, "# A Debian root")
		_, after, _ := strings.Cut(rest, "\n\n")
		text = before + imageBase + after
	}
	return []byte(strings.ReplaceAll(text, "my-image", ImageName(name)))
}

// imageBase is the base of a starting recipe on an image.
const imageBase = `# An image that brings a Python; also oci:DIR, docker-archive:FILE, tar:FILE, dir:DIR.
image = "docker://python:3.12-slim-bookworm"
# Or a Debian root file system from the distribution's packages. This machine knows no mirror of them: name one.
# bootstrap = { suite = "bookworm", packages = ["python3", "ca-certificates"], mirror = "http://HOST/debian" }

`

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
