package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/slurmtest"
	"sconce.dev/sconce/internal/tooltest"
)

// stackEnv asks for what compiles MPI and its networks: half an hour on two cores.
const stackEnv = "SCONCE_TEST_STACK"

// stackCluster is the profile of the two nodes.
const stackCluster = `runtimes = ["sconce"]
platform = "linux/amd64"
pmi = "pmix"
[slurm]
partition = "debug"
`

// stackComment is a comment at the end of a file of libfabric, where it moves no line.
const stackComment = `--- a/src/fabric.c
+++ b/src/fabric.c
@@ -1676 +1676,2 @@
 DEFAULT_SYMVER(fi_strerror_, fi_strerror, FABRIC_1.0);
+/* a comment */
`

// The stack of examples/hpc-stack/debian, with one archive in place of a repository, is compiled by an ordinary user, and its tests pass between two nodes. Then there is
// nothing to do, and a comment in a patch of libfabric makes libfabric again, and nothing that is based on it.
func TestStackFromSources(t *testing.T) {
	begin(t)
	if os.Getenv(stackEnv) == "" {
		t.Skip(stackEnv + " is not set: it compiles for half an hour")
	}
	p := newPlace(t, ordinary(t))
	p.take("../examples/hpc-stack/debian", "app")
	p.archiveLibfabric()
	p.must("lock", "app")
	first := p.making("app")
	wantBuilt(t, "at first", first, "libfabric", "openmpi", "ucx")
	logSteps(t, "at first", first)
	t.Logf("%s", p.must("inspect", "hpc-stack-debian:1").stdout)
	began := time.Now()
	if again := p.must("build", "--offline", "app"); !strings.Contains(again.stderr, "up to date") {
		t.Errorf("the second build: %v", again)
	}
	t.Logf("with nothing to do: %v", time.Since(began).Round(time.Millisecond))
	t.Run("on two nodes", func(t *testing.T) { stackOnNodes(t, p.in(t)) })

	p.commentLibfabric()
	comment := p.making("app")
	wantBuilt(t, "with a comment in libfabric", comment, "libfabric")
	logSteps(t, "with a comment in libfabric", comment)
	if digestOf(t, comment) != digestOf(t, first) || !strings.Contains(comment.stderr, "came out the same") {
		t.Errorf("a comment makes another image: %v", comment)
	}
	p.wantTidy()
}

// stackGit is where the recipe takes libfabric from, and stackArchive the same release as Debian 13 builds its package from it, on apt's
// mirror, which is nearer.
const (
	stackGit     = "git = \"https://github.com/ofiwg/libfabric.git\"\ncommit = \"v2.1.0\"\n"
	stackArchive = "url = \"%s/pool/main/libf/libfabric/libfabric_2.1.0.orig.tar.xz\"\nsha256 = \"1a66369772d5bb151737214af1c478993e969cf298e8f9ed369e7a2ab8d8c6df\"\n"
)

// archiveLibfabric has the recipe take libfabric from the archive.
func (p *place) archiveLibfabric() {
	p.t.Helper()
	text := p.read("app/sconce.toml")
	if !strings.Contains(text, stackGit) {
		p.t.Fatalf("the recipe has no\n%s", stackGit)
	}
	p.write("app/sconce.toml", strings.Replace(text, stackGit, fmt.Sprintf(stackArchive, aptsMirror(p.t)), 1))
}

// aptsMirror is where apt of this machine gets packages from.
func aptsMirror(t testing.TB) string {
	t.Helper()
	out, err := exec.Command(tooltest.Path(t, "apt-get"), "indextargets", "--format", "$(SITE)", "Created-By: Packages").Output()
	mirror, _, _ := strings.Cut(string(out), "\n")
	if err != nil || mirror == "" {
		t.Fatalf("apt names no mirror: %q, %v", out, err)
	}
	return mirror
}

// commentLibfabric adds a patch to the recipe that adds a comment.
func (p *place) commentLibfabric() {
	p.t.Helper()
	const next = "\n[source.ucx]\n" // what follows on [source.libfabric]
	text := p.read("app/sconce.toml")
	if !strings.Contains(text, next) {
		p.t.Fatalf("the recipe has no%s", next)
	}
	p.write("app/patches/comment.patch", stackComment)
	p.write("app/sconce.toml", strings.Replace(text, next, "patch = [\"patches/comment.patch\"]\n"+next, 1))
}

// logSteps tells how long the steps of a build with --progress json took, and all of it.
func logSteps(t *testing.T, when string, r result) {
	t.Helper()
	began := map[string]time.Time{}
	t.Logf("%s: %v in all", when, r.took.Round(time.Second))
	for line := range strings.Lines(r.stderr) {
		var e struct {
			Time                   time.Time
			Kind, Task, Verb, Name string
		}
		if json.Unmarshal([]byte(line), &e) != nil || e.Verb != "step" {
			continue
		}
		switch e.Kind {
		case "start":
			began[e.Task] = e.Time
		case "done":
			t.Logf("%s: %s: %v", when, e.Name, e.Time.Sub(began[e.Task]).Round(time.Second))
		}
	}
}

// stackOnNodes runs the recipe's tests in its image, on the two nodes of a cluster.
func stackOnNodes(t *testing.T, p *place) {
	c := slurmtest.Start(t, slurmtest.Options{})
	p.must("copy", "hpc-stack-debian:1", "oci:"+filepath.Join(c.SharedDir, "layout")+":stack")
	for to, from := range map[string]string{
		"bin/sconce": filepath.Join(workshop, "bin", "sconce"), "app/sconce.toml": p.path("app/sconce.toml"),
		"app/patches/openmpi-libfabric-2.patch": p.path("app/patches/openmpi-libfabric-2.patch"),
	} {
		to = filepath.Join(c.SharedDir, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := copyFile(from, to); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(c.SharedDir, "app"), 0o777); err != nil {
		t.Fatal(err)
	}
	writeShared(t, c, "app/two.toml", stackCluster)
	out, err := c.Try(slurmtest.Alice, `cd app; sconce -q pull oci:/shared/layout:stack --name hpc-stack-debian:1 && sconce test --on two.toml
		code=$?; cat .sconce/tests/*/*/log; exit $code`)
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(out), " ")
	for _, name := range []string{"fi_pingpong", "ucx_perftest", "mpi-libfabric", "mpi-ucx"} {
		if !regexp.MustCompile(name + ` PASSED bandwidth [0-9.e+]+ MB/s(, samples [0-9]+, stddev [0-9.e+-]+ s)? n1,n2`).MatchString(words) {
			t.Errorf("%s did not pass between the nodes", name)
		}
	}
}
