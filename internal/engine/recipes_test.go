package engine

import (
	"testing"

	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/recipe"
)

// What is built goes to the registry that a recipe names only where the user lets it.
func TestCacheIsWrittenByPermission(t *testing.T) {
	no := false
	for _, test := range []struct {
		session *Session
		cache   recipe.Cache
		push    bool
	}{
		{&Session{}, recipe.Cache{Registry: "r.example.org/team/cache"}, false},
		{&Session{pushAll: true}, recipe.Cache{Registry: "r.example.org/team/cache"}, true},
		{&Session{pushAll: true}, recipe.Cache{Registry: "r.example.org/team/cache", Push: &no}, false},
		{&Session{push: []string{"r.example.org/team"}}, recipe.Cache{Registry: "r.example.org/team/cache"}, true},
		{&Session{push: []string{"r.example.org"}}, recipe.Cache{Registry: "r.example.org/team/cache"}, true},
		{&Session{push: []string{"r.example.org/te", "r.example", "r.example.org/team/cache/x"}}, recipe.Cache{Registry: "r.example.org/team/cache"}, false},
	} {
		r := &recipe.Recipe{Cache: test.cache}
		o, err := test.session.means(&Recipe{Recipe: r, pinned: r}, &Locked{Locked: &lock.Locked{Lock: &lock.Lock{}}})
		if err != nil || o.Shared == nil || o.Shared.Push != test.push || (o.Shared.Unsent == "") != (test.push || test.cache.Push == &no) {
			t.Errorf("%+v: %+v, %v", test.cache, o.Shared, err)
		}
	}
}
