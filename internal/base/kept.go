package base

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
)

// keptFor is how long the packages that a base was resolved to are good for the next try of a lock that has failed after that.
const keptFor = time.Hour

// kept is a [store.KindBaseAnswer].
type kept struct {
	At     time.Time `json:"at"`
	Pinned *Pinned   `json:"pinned"`
}

// Keep notes what the packages of r's base were resolved to, for who asks [Kept] within the hour. Other bases are asked for quickly.
func Keep(st *store.Store, r *recipe.Recipe, platform v1.Platform, p *Pinned) error {
	if p.Bootstrap == nil || st.ReadOnly() {
		return nil
	}
	key, err := keptKey(r, platform)
	if err != nil {
		return err
	}
	var before kept
	if found, err := st.GetRecord(store.KindBaseAnswer, key, &before); err == nil && found && before.good() && before.Pinned.Key() == p.Key() {
		return nil // it does not become younger
	}
	return st.PutRecord(store.KindBaseAnswer, key, nil, kept{At: time.Now(), Pinned: p})
}

// Kept returns what [Keep] has noted of r's base, and when that was asked; nil: nothing.
func Kept(st *store.Store, r *recipe.Recipe, platform v1.Platform) (*Pinned, time.Time) {
	if r.Base.Bootstrap == nil {
		return nil, time.Time{}
	}
	key, err := keptKey(r, platform)
	if err != nil {
		return nil, time.Time{}
	}
	var k kept
	if found, err := st.GetRecord(store.KindBaseAnswer, key, &k); err != nil || !found || !k.good() {
		return nil, time.Time{}
	}
	return k.Pinned, k.At
}

// Forget drops what is noted: a lock was made of it.
func Forget(st *store.Store, r *recipe.Recipe, platform v1.Platform) error {
	if r.Base.Bootstrap == nil || st.ReadOnly() {
		return nil
	}
	key, err := keptKey(r, platform)
	if err != nil {
		return err
	}
	return st.DeleteRecord(store.KindBaseAnswer, key)
}

func (k kept) good() bool {
	age := time.Since(k.At)
	return k.Pinned != nil && k.Pinned.Bootstrap != nil && age >= 0 && age < keptFor
}

// keptKey names everything that decides about the answer but the mirrors themselves: the request, the keys that it was believed by, and where
// this machine looks for packages.
func keptKey(r *recipe.Recipe, platform v1.Platform) (string, error) {
	keys := make([]store.Digest, len(r.Base.Bootstrap.Keys))
	for i, file := range r.Base.Bootstrap.Keys {
		data, err := os.ReadFile(r.Resolve(file))
		if err != nil {
			return "", err
		}
		keys[i] = store.DigestOf(data)
	}
	c, err := config.Load()
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(struct {
		Request  *recipe.Bootstrap
		Remove   []string
		Platform string
		Keys     []store.Digest
		Mirrors  map[string]string
	}{r.Base.Bootstrap, r.Base.Remove, platform.String(), keys, c.Mirrors})
	if err != nil {
		return "", fmt.Errorf("name the base: %w", err)
	}
	return store.DigestOf(text).Hex(), nil
}
