package test

import (
	"strings"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// lookFrom says where Python and two packages are, of which the base has none and the environment both.
const lookFrom = "import sys, six, idna; print(sys.version_info.major, sys.prefix, sys.base_prefix, *(m.__file__.split('/lib/')[0] for m in (six, idna)))"

// An ordinary user makes an environment on top of Debian's own Python, packs it, runs it as directory and as file, on the image in the
// store and on its file, and merges it. On an image that has changed it is refused.
func TestVenv(t *testing.T) {
	begin(t)
	tooltest.Path(t, "uv")
	p := newPlace(t, ordinary(t))
	newIndex(t).use(p)
	p.must("pull", base(t).ref, "--name", "base:1")
	p.must("venv", "new", "base:1", "exp")
	p.must("venv", "add", "exp", "six", "idna")
	p.must("venv", "pack", "exp", "-o", "exp.sqsh")
	p.must("copy", "base:1", "base.sqsh")
	p.must("venv", "merge", "exp", "base:1", "--name", "merged:1")
	for name, args := range map[string][]string{
		"a directory":        {"--venv", "exp", "base:1"},
		"a file":             {"--venv", "exp.sqsh", "base:1"},
		"a file on a file":   {"--venv", "exp.sqsh", "base.sqsh"},
		"a merged one":       {"merged:1"},
		"a file, other base": {"--venv", "exp.sqsh", "--any-base", "merged:1"},
	} {
		out := p.must(append(append([]string{"--offline", "run"}, args...), "--", "python", "-c", lookFrom)...).stdout
		if want := "3 /venv /usr /venv /venv\n"; out != want {
			t.Errorf("%s: %q, want %q", name, out, want)
		}
	}
	p.must("venv", "check", "exp.sqsh", "base.sqsh")

	p.write("changed/sconce.toml", "name = \"base\"\nversion = \"1\"\nbase.image = \"base:1\"\nimage.env.NEW = \"1\"\n")
	p.build("changed") // which base:1 is from now on
	for _, args := range [][]string{{"run", "--venv", "exp.sqsh", "base:1", "--", "true"}, {"venv", "check", "exp.sqsh", "base:1"}} {
		if r := p.sconce(args...); r.code == 0 || !strings.Contains(r.stderr, "another image") {
			t.Errorf("on a base that has changed: %v", r)
		}
	}
	p.wantTidy()
}
