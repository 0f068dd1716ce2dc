package lock

import (
	"fmt"
	"strings"

	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/lazyregexp"
)

var (
	// What uv says of a package that no index has, of a version that the package has not, and of an index that nobody vouches for, or
	// that does not answer.
	noPackage = lazyregexp.New("Because `?([A-Za-z0-9._-]+)`? was not found in the package registry")
	noVersion = lazyregexp.New("there (?:is|are) no versions? of `?([A-Za-z0-9._-]+)")
	untrusted = lazyregexp.New(`invalid peer certificate: UnknownIssuer`)
	noAnswer  = lazyregexp.New(`(?s)Failed to fetch: .*(?:error sending request|client error|dns error|timed out)`)
	// What uv says of hashes that it does not take, of a directory or file that is not there, and of a host that nobody knows.
	weakHash   = lazyregexp.New(`Unsupported hash algorithm`)
	notThere   = lazyregexp.New(`Distribution not found at: (\S+)`)
	notFetched = lazyregexp.New(`was not found in the cache|network was disabled`)
)

// remedyOf says what can be done when packages cannot be found, or "".
func remedyOf(text string) string {
	if notFetched.MatchString(text) {
		return "run it once without --offline: what uv has read then is in its cache"
	}
	if weakHash.MatchString(text) {
		return "uv takes no such hashes: name another index or mirror in a uv.toml beside the recipe, [[index]] with url = \"…\", or the file by its address: NAME @ https://…"
	}
	if m := notThere.FindStringSubmatch(text); m != nil {
		return "a path in packages is relative to the recipe's directory: there is nothing at " + strings.TrimPrefix(m[1], "file://")
	}
	if untrusted.MatchString(text) {
		return host.UntrustedFix
	}
	if noAnswer.MatchString(text) {
		return "is there a way to the index from here? A proxy is taken from HTTPS_PROXY, a mirror from UV_DEFAULT_INDEX or a uv.toml beside the recipe; " +
			"where there is none, lock on another machine and build here with the lock"
	}
	if m := noPackage.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("look at the spelling of %s; when it is on an index of your own, name that in a uv.toml beside the recipe: [[index]] with url = \"…\"", m[1])
	}
	if m := noVersion.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("ask for a version of %s that there is, or for none: `sconce lock` takes the newest that fits and keeps it", m[1])
	}
	return ""
}
