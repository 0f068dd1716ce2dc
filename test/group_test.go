package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Two members of a group, with the strictest umask, work in one store that a third keeps: they use the base that is there, build the same
// image to the same bytes, which lie there once, and neither's clean-up takes anything from the other.
func TestStoreOfAGroup(t *testing.T) {
	begin(t)
	needRoot(t)
	b := base(t)
	ada := newPlace(t, ordinary(t))
	ben := newPlace(t, &account{"nobody", 65534, ada.user.gid})
	keeper := newPlace(t, nil)
	dir := keeper.path("shared", "store")
	if err := os.Mkdir(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*place{ada, ben, keeper} {
		p.store, p.umask = dir, "077"
	}
	keeper.must("cache", "init", "--group", ada.user.name)
	keeper.must("pull", b.ref, "--name", "common:1")
	var digests []string
	var blobs []int
	for _, p := range []*place{ada, ben} {
		p.writeStepped("common:1")
		digests = append(digests, p.build("app"))
		found, err := filepath.Glob(filepath.Join(dir, "blobs-v1", "sha256", "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		blobs = append(blobs, len(found))
	}
	if digests[0] != digests[1] || blobs[0] != blobs[1] {
		t.Errorf("the same recipe makes %v, and %v blobs after each build", digests, blobs)
	}
	for _, p := range []*place{ada, ben} {
		if r := p.must("run", "stepped:1", "--", "hello"); !strings.Contains(r.stdout, "HELLO world") {
			t.Errorf("%s: %v", p.user.name, r)
		}
	}
	ada.must("images", "rm", "stepped:1")
	ada.must("cache", "prune", "--all")
	if r := ben.must("run", "stepped:1", "--", "hello"); !strings.Contains(r.stdout, "HELLO world") {
		t.Errorf("after ada's clean-up: %v", r)
	}
	ada.fails(1, []string{"is in the shared store"}, "images", "rm", "common:1")
	for _, p := range []*place{ada, ben, keeper} {
		p.wantSound()
	}
	left, err := filepath.Glob(filepath.Join(dir, "users-v1", "*", "tmp-v1", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
