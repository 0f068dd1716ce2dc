package source

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/lazyregexp"
)

// PlatformError says that there is no image for the platform wanted.
type PlatformError struct {
	Want v1.Platform
	Have []v1.Platform
}

func (e *PlatformError) Error() string {
	have := make([]string, len(e.Have))
	for i, p := range e.Have {
		have[i] = p.String()
	}
	slices.Sort(have)
	if have = slices.Compact(have); len(have) == 0 {
		return fmt.Sprintf("there is no image for %s, nor for any other platform", e.Want)
	}
	return fmt.Sprintf("there is no image for %s; there is %s", e.Want, strings.Join(have, ", "))
}

// Hint implements the interface that package fault reads.
func (e *PlatformError) Hint() string {
	return "choose the platform with `platform` under [target] in the recipe, or with --platform"
}

// platformWord is an operating system, an architecture, a variant or a version as images have it. They are printed and compared, and are
// nobody's free text.
var platformWord = lazyregexp.New(`^[A-Za-z0-9._+-]*$`)

func platformOfConfig(c *v1.ConfigFile) v1.Platform {
	return v1.Platform{OS: c.OS, Architecture: c.Architecture, Variant: c.Variant, OSVersion: c.OSVersion}
}

func checkPlatform(p v1.Platform) error {
	for _, word := range []string{p.OS, p.Architecture, p.Variant, p.OSVersion} {
		if !platformWord.MatchString(word) {
			return fmt.Errorf("%q cannot be a part of a platform such as linux/amd64", word)
		}
	}
	return nil
}

// defaultVariants are the variants that are meant when none is named (OCI image-spec, image-index, "platform variants";
// containerd's normalisation).
var defaultVariants = map[string]string{"arm64": "v8", "arm": "v7", "amd64": "v1"}

func variant(p v1.Platform) string {
	return cmp.Or(p.Variant, defaultVariants[p.Architecture])
}

// matches reports whether an image for platform have is what is wanted.
func matches(have, want v1.Platform) bool {
	if want.OS != "" && have.OS != want.OS {
		return false
	}
	if want.Architecture == "" {
		return true
	}
	return have.Architecture == want.Architecture && variant(have) == variant(want) &&
		(want.OSVersion == "" || have.OSVersion == want.OSVersion)
}

// known leaves out entries that are no images of a platform: attestations call theirs "unknown".
func known(p *v1.Platform) bool {
	return p != nil && p.OS != "" && p.OS != "unknown" && p.Architecture != ""
}
