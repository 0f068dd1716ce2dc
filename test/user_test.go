package test

import (
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// An ordinary user, without subordinate ids, without sudo and without a line in any configuration, goes the whole way:
// bootstraps the base, which becomes the very image that root made of the same lock, locks packages on it, builds, writes
// an archive and runs it.
func TestOrdinaryUserGoesTheWholeWay(t *testing.T) {
	begin(t)
	tooltest.Path(t, "uv")
	b := base(t)
	p := newPlace(t, ordinary(t))
	newIndex(t).use(p)
	p.take(b.recipe, "base")
	if got := p.build("--locked", "base", "-o", "oci:"+p.path("base.oci")+":base"); got != b.digest {
		t.Errorf("an ordinary user's base is %s, root's is %s", got, b.digest)
	}
	p.write("app/sconce.toml", recipe("oci:../base.oci:base", everything))
	p.must("lock", "app")
	p.build("--locked", "app", "-o", p.path("app.tar"))
	if r := p.must("run", p.path("app.tar"), "--", "python", "-c", "import numpy; print(numpy.arange(4).sum())"); r.stdout != "6\n" {
		t.Errorf("the image printed %v", r)
	}
	if r := p.sconce("run", "app:1", "--", "sh", "-c", "exit 42"); r.code != 42 {
		t.Errorf("the command's exit code is lost: %v", r)
	}
	p.wantSound()
	p.wantTidy()
}
