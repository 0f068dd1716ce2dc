package rpm

import (
	"embed"
	"strings"
)

// releaseKeys are the keys with which distributions sign packages or repositories, as the package distribution-gpg-keys has them, which
// is in the public domain (CC0). docs/guide/bootstrap.md lists the fingerprints.
//
//go:embed keys/*.gpg
var releaseKeys embed.FS

// Keys returns the files of keys that came with this program for a release, such as rocky-9, by their names.
func Keys(release string) map[string][]byte {
	files, err := releaseKeys.ReadDir("keys")
	if err != nil {
		panic(err) // it is a part of the program
	}
	keys := map[string][]byte{}
	for _, f := range files {
		of, _, _ := strings.Cut(strings.TrimSuffix(f.Name(), ".gpg"), "_")
		if of != release {
			continue
		}
		if keys[f.Name()], err = releaseKeys.ReadFile("keys/" + f.Name()); err != nil {
			panic(err) // likewise
		}
	}
	return keys
}
