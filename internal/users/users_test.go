package users

import "testing"

// root is known on every machine, by name and by number; what nobody knows stays the number that it is.
func TestNames(t *testing.T) {
	if id, ok := ID("root"); !ok || id != 0 || Name(0) != "root" {
		t.Errorf("root is %d, %v; 0 is %s", id, ok, Name(0))
	}
	if id, ok := GroupID("0"); !ok || id != 0 {
		t.Errorf("group 0 is %d, %v", id, ok)
	}
	if got := Name(3999999999); got != "3999999999" {
		t.Errorf("a user without a name is %q", got)
	}
	if id, ok := ID("no such user"); ok {
		t.Errorf("a user that there is not: %d", id)
	}
}
