package test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"sconce.dev/sconce/internal/store"
)

// sourceArchive is a signed archive of source packages alone, of one suite, made.
type sourceArchive struct {
	url   string
	key   *openpgp.Entity
	index strings.Builder // what is in main/source/Sources

	mu    sync.Mutex
	files map[string][]byte // by path
	asked []string          // the paths of requests since they were looked at
}

func newArchiveKey(t *testing.T) *openpgp.Entity {
	t.Helper()
	key, err := openpgp.NewEntity("archive", "", "archive@example.org", &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA})
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newSourceArchive(t *testing.T) *sourceArchive {
	t.Helper()
	a := &sourceArchive{key: newArchiveKey(t), files: map[string][]byte{}}
	server := httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(server.Close)
	a.url = server.URL + "/debian"
	return a
}

func (a *sourceArchive) serve(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := strings.TrimPrefix(r.URL.Path, "/debian/")
	a.asked = append(a.asked, name)
	if data, ok := a.files[name]; ok {
		_, _ = w.Write(data)
		return
	}
	http.NotFound(w, r)
}

// take returns what was asked for since the last call.
func (a *sourceArchive) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	asked := a.asked
	a.asked = nil
	return asked
}

// replace changes what is served, and returns what was.
func (a *sourceArchive) replace(name string, data []byte) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.files[name]
	a.files[name] = data
	return was
}

// publish adds a version of the source package tool, format 3.0 (quilt), and signs the archive. The package's own patch turns "upstream" into
// "Debian's" in tool.txt.
func (a *sourceArchive) publish(t *testing.T, version string) {
	t.Helper()
	upstream := strings.SplitN(version, "-", 2)[0]
	orig := "tool_" + upstream + ".orig.tar.gz"
	debian := "tool_" + version + ".debian.tar.gz"
	dsc := "tool_" + version + ".dsc"
	files := map[string][]byte{
		orig: packed(t, "tool-"+upstream, map[string]string{"tool.txt": "# the tool\nupstream " + upstream + "\nlast\n"}),
		debian: packed(t, "debian", map[string]string{
			"source/format": "3.0 (quilt)\n", "patches/series": "# in this order\none.patch\n",
			"patches/one.patch": "--- a/tool.txt\n+++ b/tool.txt\n@@ -1,3 +1,3 @@\n # the tool\n-upstream " + upstream + "\n+Debian's " + upstream + "\n last\n",
		}),
	}
	sums := func(names ...string) string {
		var s strings.Builder
		for _, name := range names {
			fmt.Fprintf(&s, " %x %d %s\n", sha256.Sum256(files[name]), len(files[name]), name)
		}
		return s.String()
	}
	fields := "Binary: tool\nArchitecture: any\nVersion: " + version + "\nMaintainer: Nobody <nobody@example.org>\nFormat: 3.0 (quilt)\n"
	files[dsc] = []byte("Source: tool\n" + fields + "Checksums-Sha256:\n" + sums(orig, debian))
	for name, data := range files {
		a.replace("pool/"+name, data)
	}
	fmt.Fprintf(&a.index, "Package: tool\n%sDirectory: pool\nChecksums-Sha256:\n%s\n", fields, sums(dsc, orig, debian))
	a.sign(t, a.key)
}

// sign writes the archive's index, and has a key vouch for it.
func (a *sourceArchive) sign(t *testing.T, key *openpgp.Entity) {
	t.Helper()
	index := []byte(a.index.String())
	a.replace("dists/made/main/source/Sources", index)
	release := fmt.Sprintf("Suite: made\nCodename: made\nDate: %s\nComponents: main\nSHA256:\n %x %d main/source/Sources\n",
		time.Now().UTC().Format(time.RFC1123), sha256.Sum256(index), len(index))
	var signed bytes.Buffer
	w, err := clearsign.Encode(&signed, key.PrivateKey, nil)
	if err == nil {
		_, err = w.Write([]byte(release))
		err = errors.Join(err, w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	a.replace("dists/made/InRelease", signed.Bytes())
}

// baseOn makes a base whose apt knows this archive alone, by its key.
func (a *sourceArchive) baseOn(t *testing.T, p *place) string {
	t.Helper()
	var key bytes.Buffer
	w, err := armor.Encode(&key, openpgp.PublicKeyType, nil)
	if err == nil {
		err = errors.Join(a.key.Serialize(w), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	p.write("base/archive.asc", key.String())
	p.write("base/made.sources", "Types: deb\nURIs: "+a.url+"\nSuites: made\nComponents: main\nSigned-By: /etc/apt/archive.asc\n")
	p.write("base/sconce.toml", fmt.Sprintf(`name = "base"
version = "1"
base.image = %q
[[step]]
run = "rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*"
[[step]]
copy = ["archive.asc:/etc/apt/archive.asc", "made.sources:/etc/apt/sources.list.d/made.sources"]
`, base(t).ref))
	out := "oci:" + p.path("layout") + ":base"
	p.must("build", "base", "--no-check", "-o", out)
	return out
}

// toolRecipe builds the component tool from the source package of the same name. The recipe's own patch adds a line after the package's.
const toolRecipe = `name = "tool"
version = "1"
base.image = %q
[source.tool]
debian = %q
patch = ["patches/ours.patch"]
[component.tool]
run = "mkdir $PREFIX; grep -v '^#' tool.txt > $PREFIX/tool.txt"
`

const toolPatch = `--- a/tool.txt
+++ b/tool.txt
@@ -1,3 +1,4 @@
 # the tool
-Debian's 1.0
+Debian's 1.0, and ours
+%s
 last
`

func (p *place) writeTool(base, asked, added string) {
	p.t.Helper()
	p.write("app/sconce.toml", fmt.Sprintf(toolRecipe, base, asked))
	p.write("app/patches/ours.patch", fmt.Sprintf(toolPatch, added))
}

// wantLocked wants the source package's version and each of its files, by its hash, in the lock.
func (a *sourceArchive) wantLocked(p *place, version string) {
	p.t.Helper()
	lock := p.read("app/sconce.lock")
	wants := []string{"tool=" + version}
	upstream := strings.SplitN(version, "-", 2)[0]
	for _, name := range []string{"tool_" + version + ".dsc", "tool_" + version + ".debian.tar.gz", "tool_" + upstream + ".orig.tar.gz"} {
		wants = append(wants, a.url+"/pool/"+name, store.DigestOf(a.files["pool/"+name]).Hex())
	}
	for _, want := range wants {
		if !strings.Contains(lock, want) {
			p.t.Errorf("the lock lacks %s:\n%s", want, lock)
		}
	}
}

// A source package comes from the base's own archive: found and believed as apt does, pinned by version and hashes, patched by its
// distribution and by the recipe, and looked up again only when somebody asks.
func TestSourcePackage(t *testing.T) {
	begin(t)
	a := newSourceArchive(t)
	a.publish(t, "1.0-1")
	p := newPlace(t, ordinary(t))
	p.env = append(p.env, "no_proxy=127.0.0.1")
	ref := a.baseOn(t, p)
	p.writeTool(ref, "tool", "second")
	p.must("lock", "app")
	a.wantLocked(p, "1.0-1")
	if plan := p.must("plan", "app").stdout; !strings.Contains(plan, "source tool: tool=1.0-1") {
		t.Errorf("the plan does not name the source package:\n%s", plan)
	}
	first := p.making("app")
	wantBuilt(t, "at first", first, "tool")
	const want = "Debian's 1.0, and ours\nsecond\nlast\n"
	if r := p.must("run", "tool:1", "--", "cat", "/opt/tool/tool.txt"); r.stdout != want {
		t.Errorf("got %q, want %q", r.stdout, want)
	}

	a.publish(t, "1.1-1")
	a.take()
	if again := p.must("build", "app"); !strings.Contains(again.stderr, "up to date") {
		t.Errorf("the second build: %v", again)
	}
	p.must("lock", "--check", "app")
	p.writeTool(ref, "tool", "# a comment")
	comment := p.making("app")
	wantBuilt(t, "with another patch", comment, "tool")
	p.writeTool(ref, "tool", "second")
	if back := p.making("app"); digestOf(t, back) != digestOf(t, first) {
		t.Errorf("back again is another image: %v", back)
	}
	if asked := a.take(); len(asked) > 0 {
		t.Errorf("the archive was asked, with everything locked and here: %q", asked)
	}

	t.Run("elsewhere", func(t *testing.T) { a.toolElsewhere(t, p, digestOf(t, first)) })
	t.Run("upgraded", func(t *testing.T) {
		p := p.in(t)
		more := packed(t, "more", map[string]string{"more.txt": "more\n"})
		p.write("app/more.tar.gz", string(more))
		p.write("app/sconce.toml", p.read("app/sconce.toml")+fmt.Sprintf("sources = [\"tool\", \"more\"]\n[source.more]\nurl = \"more.tar.gz\"\nsha256 = %q\n", store.DigestOf(more).Hex()))
		p.must("lock", "app")
		a.wantLocked(p, "1.0-1") // another source is none of its business
		p.write("app/patches/ours.patch", strings.ReplaceAll(fmt.Sprintf(toolPatch, "second"), "1.0", "1.1"))
		p.must("lock", "--upgrade", "app")
		a.wantLocked(p, "1.1-1")
		p.must("build", "app")
		if r := p.must("run", "tool:1", "--", "cat", "/opt/tool/tool.txt"); r.stdout != strings.ReplaceAll(want, "1.0", "1.1") {
			t.Errorf("%v", r)
		}
	})
	t.Run("refused", func(t *testing.T) { a.toolRefused(t, p.in(t), ref) })
}

// toolElsewhere builds by the lock in another store, where only the package's files are asked for, and are believed by their hashes alone.
func (a *sourceArchive) toolElsewhere(t *testing.T, from *place, want string) {
	p := newPlace(t, nil)
	p.take(from.path("app"), "app")
	const orig = "pool/tool_1.0.orig.tar.gz"
	was := a.replace(orig, packed(t, "tool-1.0", map[string]string{"tool.txt": "# the tool\nupstream 1.0\nevil\n"}))
	p.fails(1, []string{"source tool", path.Base(orig)}, "build", "--locked", "app")
	a.replace(orig, was)
	a.take()
	if got := p.build("--locked", "app"); got != want {
		t.Errorf("by the lock, elsewhere, the image is %s, want %s", got, want)
	}
	for _, name := range a.take() {
		if !strings.HasPrefix(name, "pool/") {
			t.Errorf("%s was asked for, with everything locked", name)
		}
	}
}

// toolRefused asks for what the archive has not, and for what nobody the base trusts has signed.
func (a *sourceArchive) toolRefused(t *testing.T, p *place, ref string) {
	for asked, words := range map[string][]string{
		"tool=9": {"tool=9", "1.0-1", "1.1-1"},
		"tol":    {"no source package tol"},
	} {
		p.writeTool(ref, asked, "second")
		p.fails(1, append(words, "source tool"), "lock", "app")
	}
	a.sign(t, newArchiveKey(t))
	p.writeTool(ref, "tool=1.1-1", "second")
	if err := os.Remove(p.path("app/sconce.lock")); err != nil {
		t.Fatal(err)
	}
	p.store = p.path("empty") // where nothing is remembered of what was signed
	p.fails(1, []string{"source tool", "NO_PUBKEY"}, "lock", "app")
}
