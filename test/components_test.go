package test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// stack is a recipe of three components: whole needs part, and alone needs nothing. All are "compiled" by leaving comments out.
const stack = `name = "stack"
version = "1"

[base]
image = %q

[source.part]
url = "part.tar.gz"
sha256 = %q
patch = ["patches/part.patch"]

[source.alone]
git = "alone"
commit = "main"

[source.whole]
url = "whole.tar.gz"
sha256 = %q

[component.part]
run = """
mkdir -p $PREFIX/lib
grep -v '^#' part.txt > $PREFIX/lib/part.txt
echo "$JOBS" > /build/jobs
test "$JOBS" -ge 1
"""

[component.alone]
run = "mkdir $PREFIX; cp alone.txt $PREFIX; cp -r sub $PREFIX"
prefix = "/opt/by-itself"

[component.whole]
needs = ["part"]
run = """
test ! -e /opt/by-itself
mkdir -p $PREFIX
cat $PART_PREFIX/lib/part.txt whole.txt > $PREFIX/whole.txt
"""

[[step]]
name = "look"
run = "cat /opt/whole/whole.txt /opt/by-itself/alone.txt > /etc/seen; test ! -e /build"
%s`

const partPatch = `--- a/part.txt
+++ b/part.txt
@@ -1,2 +1,3 @@
 # the part
 first
+%s
`

// packed is an archive of files below one directory.
func packed(t testing.TB, top string, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: top + "/" + name, Mode: 0o644, Size: int64(len(text)), Uid: 1234, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// git runs git in a directory of the place, as its user.
func (p *place) git(dir string, args ...string) {
	p.t.Helper()
	cmd := exec.Command(tooltest.Path(p.t, "git"), append([]string{"-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main"}, args...)...)
	cmd.Dir = p.path(dir)
	cmd.Env = p.environ()
	if p.user != nil { // git takes nothing of a directory that is another's
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: p.user.uid, Gid: p.user.gid}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

// writeStack writes the recipe and its sources. added is the line that the patch adds; more are further lines of the recipe.
func (p *place) writeStack(ref, added, more string) {
	p.t.Helper()
	part := packed(p.t, "part-1.0", map[string]string{"part.txt": "# the part\nfirst\n"})
	whole := packed(p.t, "whole-2", map[string]string{"whole.txt": "whole\n"})
	p.write("app/part.tar.gz", string(part))
	p.write("app/whole.tar.gz", string(whole))
	p.write("app/patches/part.patch", fmt.Sprintf(partPatch, added))
	p.write("app/sconce.toml", fmt.Sprintf(stack, ref, store.DigestOf(part).Hex(), store.DigestOf(whole).Hex(), more))
}

// writeRepository makes the repository of alone, with a submodule, and a hook and a configuration that must not count.
func (p *place) writeRepository() {
	p.t.Helper()
	p.write("app/sub/in.txt", "submodule\n")
	p.git("app/sub", "init", "-q")
	p.git("app/sub", "add", ".")
	p.git("app/sub", "commit", "-qm", "one")
	p.write("app/alone/alone.txt", "alone\n")
	p.git("app/alone", "init", "-q")
	p.git("app/alone", "add", ".")
	p.git("app/alone", "submodule", "--quiet", "add", p.path("app/sub"), "sub")
	p.git("app/alone", "commit", "-qm", "one")
	p.own()
}

// ran lists the steps that a build with --progress json has run to their end, sorted, those alone whose names begin with prefix,
// without it.
func ran(r result, prefix string) []string {
	names := []string{}
	for line := range strings.Lines(r.stderr) {
		var e struct{ Kind, Verb, Name string }
		if json.Unmarshal([]byte(line), &e) != nil || e.Kind != "done" || e.Verb != "step" {
			continue
		}
		if name, ok := strings.CutPrefix(e.Name, prefix); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// making runs sconce build and says what happens as JSON.
func (p *place) making(args ...string) result {
	p.t.Helper()
	return p.must(append([]string{"--progress", "json", "build"}, args...)...)
}

func wantBuilt(t *testing.T, when string, r result, want ...string) {
	t.Helper()
	if got := ran(r, "build "); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("%s: built %q, want %q: %v", when, got, want, r)
	}
}

// A change builds what it touches; what comes out the same builds nothing after it; root and an ordinary user come to the same image.
func TestComponents(t *testing.T) {
	begin(t)
	ref := small(t)
	digests := make(map[string]string)
	for name, user := range map[string]*account{"root": nil, "ordinary": ordinary(t)} {
		p := newPlace(t, user)
		p.writeRepository()
		p.writeStack(ref, "second", "")
		first := p.making("app")
		wantBuilt(t, name+", at first", first, "part", "alone", "whole")
		digests[name] = digestOf(t, first)
		const want = "first\nsecond\nwhole\nalone\n"
		if r := p.must("run", "stack:1", "--", "cat", "/etc/seen"); r.stdout != want {
			t.Errorf("%s: %v", name, r)
		}
		p.must("run", "stack:1", "--", "sh", "-c", "test -e /opt/by-itself/sub/in.txt && test ! -e /opt/by-itself/.git && test ! -e /build")
		if r := p.must("build", "--offline", "app"); !strings.Contains(r.stderr, "up to date") {
			t.Errorf("%s: the second build: %v", name, r)
		}

		p.writeStack(ref, "# a comment\n+second", "")
		p.write("app/patches/part.patch", strings.Replace(fmt.Sprintf(partPatch, "# a comment\n+second"), "+1,3", "+1,4", 1))
		plan := p.must("plan", "--why", "app")
		if !strings.Contains(plan.stdout, "patch") || !strings.Contains(plan.stdout, "if changed") {
			t.Errorf("%s: the plan does not say what may stay: %v", name, plan)
		}
		comment := p.making("app")
		wantBuilt(t, name+", with a comment", comment, "part")
		if digestOf(t, comment) != digests[name] {
			t.Errorf("%s: a comment makes another image: %v", name, comment)
		}
		if !strings.Contains(comment.stderr, "came out the same") {
			t.Errorf("%s: nobody says why nothing else is built: %v", name, comment)
		}
		wantBuilt(t, name+", again", p.making("app"))

		p.writeStack(ref, "another", "")
		changed := p.making("app")
		wantBuilt(t, name+", with another patch", changed, "part", "whole")
		p.writeStack(ref, "second", "")
		back := p.making("app")
		wantBuilt(t, name+", back again", back)
		if digestOf(t, back) != digests[name] {
			t.Errorf("%s: back again is another image", name)
		}
		p.wantSound()
		p.wantTidy()
	}
	if digests["root"] != digests["ordinary"] {
		t.Errorf("root's image is %s, an ordinary user's %s", digests["root"], digests["ordinary"])
	}
}

// A component finds the compilers that go through ccache before all others, with a cache that outlives the build, and as many of them run as
// its memory-per-job allows. The compiler is another component, which lies where distributions have ccache's links.
func TestComponentCompiler(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	archive := packed(t, "x", map[string]string{"x.txt": "x\n"})
	p.write("app/x.tar.gz", string(archive))
	write := func(comment string) {
		p.write("app/sconce.toml", fmt.Sprintf(`name = "compiled"
version = "1"
base.image = %q
source.x = { url = "x.tar.gz", sha256 = %q }
[component.compiler]
sources = ["x"]
prefix = "/usr/lib/ccache"
run = """
mkdir $PREFIX
printf '#!/bin/sh\\necho call >> $CCACHE_DIR/calls\\n' > $PREFIX/testcc
chmod 755 $PREFIX/testcc
"""
[component.program]
sources = ["x"]
needs = ["compiler"]
memory-per-job = "100GiB"
run = """
%s
testcc
mkdir $PREFIX
cp $CCACHE_DIR/calls $PREFIX
echo jobs $JOBS > $PREFIX/jobs
"""
`, small(t), store.DigestOf(archive).Hex(), comment))
	}
	write("# first")
	p.making("app")
	if r := p.must("run", "compiled:1", "--", "cat", "/opt/program/calls", "/opt/program/jobs"); r.stdout != "call\njobs 1\n" {
		t.Errorf("%v", r)
	}
	write("# second")
	p.making("app")
	if r := p.must("run", "compiled:1", "--", "cat", "/opt/program/calls"); r.stdout != "call\ncall\n" {
		t.Errorf("the cache did not stay: %v", r)
	}
}

// What a component came to on one machine is another's download, and so is that a step came out the same.
func TestComponentsFromTheRegistry(t *testing.T) {
	begin(t)
	ref := small(t)
	more := fmt.Sprintf("[cache]\nregistry = %q\n", registrytest.Start(t, false)+"/team/cache")
	first, second := newPlace(t, nil), newPlace(t, nil)
	first.writeRepository()
	first.writeStack(ref, "second", more)
	want := first.build("app", "--push-cache")
	second.take(first.path("app"), "app")
	r := second.making("app", "--read-cache")
	wantBuilt(t, "what the other built", r)
	if got := ran(r, "source "); len(got) > 0 {
		t.Errorf("sources are unpacked that nothing is built from: %q", got)
	}
	if digestOf(t, r) != want {
		t.Errorf("another image: %v", r)
	}
	second.write("app/patches/part.patch", strings.Replace(fmt.Sprintf(partPatch, "# a comment\n+second"), "+1,3", "+1,4", 1))
	third := newPlace(t, nil)
	third.take(second.path("app"), "app")
	wantBuilt(t, "with a comment, and nothing here", third.making("app", "--read-cache"), "part")
}

// COPY --from of a Containerfile stops where a stage comes out the same, too.
func TestContainerfileComesOutTheSame(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	p.write("app/source.txt", "# one\ntext\n")
	p.write("app/Containerfile", fmt.Sprintf(`FROM %[1]s AS build
COPY source.txt /source.txt
RUN grep -v '^#' /source.txt > /made.txt
FROM %[1]s
COPY --from=build /made.txt /made.txt
RUN cp /made.txt /again.txt
`, small(t)))
	build := func() result {
		return p.making("-f", p.path("app/Containerfile"), "-t", "same:1", p.path("app"))
	}
	first := build()
	if len(ran(first, "RUN cp")) != 1 {
		t.Errorf("%v", first)
	}
	p.write("app/source.txt", "# two\ntext\n")
	second := build()
	if len(ran(second, "RUN grep")) != 1 || len(ran(second, "RUN cp")) != 0 {
		t.Errorf("not what was changed alone has run: %v", second)
	}
	if digestOf(t, second) != digestOf(t, first) {
		t.Errorf("another image: %v", second)
	}
}

// Mistakes in sources are errors that say what to do.
func TestComponentMistakes(t *testing.T) {
	begin(t)
	ref := small(t)
	p := newPlace(t, nil)
	p.writeRepository()
	start := func() string {
		p.writeStack(ref, "second", "")
		os.Remove(p.path("app/sconce.lock"))
		data, err := os.ReadFile(p.path("app/sconce.toml"))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	text := start()
	p.write("app/part.tar.gz", string(packed(t, "part-1.0", map[string]string{"part.txt": "evil\n"})))
	p.fails(1, []string{"source part", "sha256", "[source.part]"}, "build", "app")

	start()
	p.write("app/patches/part.patch", strings.Replace(fmt.Sprintf(partPatch, "x"), " first", " fist", 1))
	p.fails(1, []string{"source part", "patches/part.patch", "part.txt", "hunk 1 of 1"}, "build", "app")

	start()
	if err := os.Remove(p.path("app/patches/part.patch")); err != nil {
		t.Fatal(err)
	}
	p.fails(2, []string{"source.part.patch", "patches/part.patch"}, "build", "app")

	start()
	p.write("app/sconce.toml", strings.Replace(text, `commit = "main"`, `commit = "nothing"`, 1))
	p.fails(1, []string{"source alone", "no tag or branch nothing"}, "build", "app")

	gone := strings.Repeat("0", 40)
	p.write("app/sconce.toml", strings.Replace(text, `commit = "main"`, fmt.Sprintf("commit = %q", gone), 1))
	p.fails(1, []string{"source alone", gone}, "build", "app")

	p.write("app/sconce.toml", strings.Replace(text, `mkdir $PREFIX; cp alone.txt $PREFIX; cp -r sub $PREFIX`, "true", 1))
	p.fails(1, []string{"/opt/by-itself", "PREFIX"}, "build", "app")

	for command, want := range map[string]string{"gcc x.c": "gcc is not there", "frobnicate": "a command is not there"} {
		p.write("app/sconce.toml", strings.Replace(text, `mkdir $PREFIX; cp alone.txt $PREFIX; cp -r sub $PREFIX`, command, 1))
		p.fails(1, []string{want, "`packages` under [component.alone]", "what is under [system] is not there", "the whole output is in"}, "build", "app")
	}

	start()
	p.write("app/patches/unused.patch", "x")
	if r := p.must("lock", "app"); !strings.Contains(r.stderr, "patches/unused.patch is applied by nothing") {
		t.Errorf("nobody speaks of the patch: %v", r)
	}
	branch := p.must("lock", "app")
	p.write("app/alone/more.txt", "more\n")
	p.git("app/alone", "add", ".")
	p.git("app/alone", "commit", "-qm", "two")
	if r := p.must("lock", "--check", "app"); r.code != 0 {
		t.Errorf("a branch that moved makes the lock stale: %v", branch)
	}
	before := p.build("app")
	p.must("lock", "--upgrade", "app")
	lock, err := os.ReadFile(filepath.Join(p.path("app"), "sconce.lock"))
	if err != nil {
		t.Fatal(err)
	}
	head, err := exec.Command("git", "-C", p.path("app/alone"), "rev-parse", "HEAD").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(lock), strings.TrimSpace(string(head))) {
		t.Errorf("the lock does not hold the commit that the branch has now:\n%s", lock)
	}
	if after := p.build("app"); after != before {
		t.Error("a file that is not installed changes the image") // it comes out the same
	}
	p.wantSound()
}

// A build that is killed while components are built leaves a store that is sound, and the next comes to the same image.
func TestComponentsKilled(t *testing.T) {
	begin(t)
	ref := small(t)
	calm := newPlace(t, nil)
	calm.writeRepository()
	calm.writeStack(ref, "second", "")
	want := calm.build("app")
	p := newPlace(t, nil)
	p.take(calm.path("app"), "app")
	for step := 1; ; step += 6 {
		if p.stop(9, step) == "" {
			break
		}
		p.wantSound()
	}
	if got := p.build("app"); got != want {
		t.Errorf("after all the kills the image is %s, want %s", got, want)
	}
	p.must("cache", "prune", "--all")
	p.wantSound()
	p.wantTidy()
}
