package registry

import (
	"slices"

	"sconce.dev/sconce/internal/store"
)

// origin is the record, a [store.KindOrigin], that says in which repositories a blob was seen. A push to another repository of the
// same registry has the registry take it from there.
type origin struct {
	Repositories []string `json:"repositories"` // HOST/REPOSITORY, the last seen last
}

// maxOrigins is how many repositories are remembered for a blob: one is enough, and some may be gone.
const maxOrigins = 16

// RememberOrigin notes that repository, HOST/REPOSITORY, holds blob d.
func RememberOrigin(st *store.Store, d store.Digest, repository string) error {
	known := Origins(st, d)
	if slices.Contains(known, repository) {
		return nil
	}
	known = append(known, repository)
	known = known[max(0, len(known)-maxOrigins):]
	return st.PutRecord(store.KindOrigin, d.Hex(), []store.Digest{d}, origin{known})
}

// Origins returns the repositories that blob d was seen in.
func Origins(st *store.Store, d store.Digest) []string {
	var o origin
	if ok, err := st.GetRecord(store.KindOrigin, d.Hex(), &o); !ok || err != nil {
		return nil // only makes a push slower
	}
	return o.Repositories
}
