package engine

import (
	"testing"

	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/recipe"
)

// The registry that a recipe names is read, and what is built goes there, only where the user lets it.
func TestPermissionsOfCaches(t *testing.T) {
	no := false
	within := []string{"r.example.org/team"}
	beside := []string{"r.example.org/te", "r.example", "r.example.org/team/cache/x"}
	for _, test := range []struct {
		may        CachePermissions
		push       *bool // of the recipe
		read, sent bool
	}{
		{},
		{push: &no},
		{may: CachePermissions{Read: beside, Push: beside}},
		{may: CachePermissions{ReadAll: true}, read: true},
		{may: CachePermissions{Read: within}, read: true},
		{may: CachePermissions{Read: []string{"r.example.org"}, Push: beside}, read: true},
		{may: CachePermissions{PushAll: true}, read: true, sent: true},
		{may: CachePermissions{Push: within}, read: true, sent: true},
		{may: CachePermissions{Push: []string{"r.example.org"}}, read: true, sent: true},
		{may: CachePermissions{PushAll: true}, push: &no, read: true},
		{may: CachePermissions{Push: within}, push: &no, read: true},
	} {
		r := &recipe.Recipe{Cache: recipe.Cache{Registry: "r.example.org/team/cache", Push: test.push}}
		o, err := (&Session{cache: test.may}).means(&Recipe{Recipe: r, pinned: r}, &Locked{Locked: &lock.Locked{Lock: &lock.Lock{}}})
		if err != nil || o.Shared == nil {
			t.Fatalf("%+v: %+v, %v", test.may, o.Shared, err)
		}
		if x := o.Shared; (x.Remote != nil) != test.read || (x.Unread == nil) != test.read || x.Push != test.sent || (x.Unsent != "") != (test.read && !test.sent && test.push == nil) {
			t.Errorf("%+v: %+v", test, o.Shared)
		}
	}
}
