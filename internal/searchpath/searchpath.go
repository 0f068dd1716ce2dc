// Package searchpath says along which directories commands are looked up.
package searchpath

import "strings"

// Default is the PATH where an environment sets none. Container engines and runtimes give the same to an image that does not say.
const Default = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Of returns the PATH of an environment, of which the last counts, or [Default]. One that is set and empty stays empty.
func Of(env []string) string {
	search := Default
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			search = v
		}
	}
	return search
}
