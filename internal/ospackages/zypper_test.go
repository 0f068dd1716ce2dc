package ospackages

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/rpm/rpmtest"
	"sconce.dev/sconce/internal/store"
)

// suse is a stand-in for openSUSE.
type suse struct {
	*world
	repo   string          // the directory of a signed repository
	signer *rpmtest.Signer // whose key signs it
}

// suseStandIn makes a base with zypper, and beside it a signed repository of a few packages that show what real ones do to each other.
func suseStandIn(t *testing.T) *suse {
	t.Helper()
	s := &suse{world: standIn(t), repo: t.TempDir(), signer: rpmtest.NewSigner(t)}
	noarch := func(name, version, head string) rpmtest.Package {
		return rpmtest.Package{Name: name, Version: version, Head: "BuildArch: noarch\n" + head}
	}
	rpmtest.Build(
		t, filepath.Join(s.repo, "noarch"), noarch("old", "1", ""), noarch("new", "1", "Obsoletes: old\nRequires: part >= 2\nRequires: role"), noarch("part", "1", ""),
		noarch("part", "2", "Epoch: 3\nRecommends: never"), noarch("never", "1", ""), noarch("zero", "1~rc1", "Epoch: 0\nProvides: role"),
		noarch("foe", "1", "Conflicts: old"), noarch("unmet", "1", "Requires: nowhere"), noarch("language", "1", "Supplements: new"),
		rpmtest.Package{Name: "tool", Head: "BuildArch: noarch\nProvides: /bin/sh", Install: "mkdir -p usr/share\necho x > usr/share/tool\n", Files: "/usr/share/tool", Scripts: "%post\ncp /usr/share/tool /usr/share/made\n"},
	)
	s.sign(t)
	// Debian's rpm keeps its database in the home directory, and its zypper where SUSE has one.
	s.world = s.changed(t, `rm /usr/bin/apt-get /usr/bin/dnf; mkdir -p /etc/rpm /etc/zypp/repos.d; echo '%_dbpath /var/lib/rpm' > /etc/rpm/macros.dbpath`)
	return s
}

// sign writes the repository's index anew.
func (s *suse) sign(t *testing.T) {
	t.Helper()
	rpmtest.Repository(t, s.repo)
	s.signer.SignIndex(t, s.repo)
}

// unsignedIndex writes the index of a repository anew, without a signature.
func unsignedIndex(t *testing.T, repo string) {
	t.Helper()
	rpmtest.Repository(t, repo)
	if err := os.Remove(filepath.Join(repo, "repodata/repomd.xml.asc")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

// changed is the base with what a script and files do to it.
func (w *world) changed(t *testing.T, script string, files ...execop.File) *world {
	t.Helper()
	for i, f := range files {
		in := fmt.Sprintf("/run/file-%d", i)
		script = fmt.Sprintf("mkdir -p %s && cp %s %s\n", filepath.Dir(f.Target), in, f.Target) + script
		files[i].Target = in
	}
	d, err := (&execop.Runner{Store: w.st}).Run(t.Context(), "change the base", w.on, execop.Command{
		Args: []string{"/bin/sh", "-c", "set -e\n" + script}, Files: files, NoNetwork: true,
	})
	if err != nil {
		t.Fatal(err, tail(err))
	}
	return &world{w.st, append(slices.Clone(w.on), d)}
}

const publicKey = "etc/pki/rpm-gpg/RPM-GPG-KEY-test"

// asking is the base with the repository at an address, more lines about it, and its key.
func (s *suse) asking(t *testing.T, address string, lines ...string) *world {
	t.Helper()
	key, err := os.ReadFile(s.signer.File)
	if err != nil {
		t.Fatal(err)
	}
	repo := "[the repo]\nname=test\nbaseurl=" + address + "\n" + strings.Join(lines, "\n") + "\n"
	return s.changed(t, "", execop.File{Target: "/etc/zypp/repos.d/test.repo", Content: []byte(repo)}, execop.File{Target: "/" + publicKey, Content: key})
}

const namesKey = "gpgkey=file:///" + publicKey

// urls are where packages come from.
func (p *Pinned) urls() []string {
	var all []string
	for _, pkg := range p.Packages {
		all = append(all, pkg.URL)
	}
	return all
}

func TestZypperOnAStandInForSUSE(t *testing.T) {
	s := suseStandIn(t)
	files := http.FileServer(http.Dir(s.repo))
	server := httptest.NewServer(files)
	defer server.Close()
	t.Run("locked and installed", func(t *testing.T) { testZypperInstalls(t, s, server.URL) })
	t.Run("names and versions", func(t *testing.T) { testZypperNames(t, s.asking(t, server.URL, namesKey)) })
	t.Run("signatures", func(t *testing.T) { testZypperSignatures(t, s, server.URL) })
	t.Run("sources", func(t *testing.T) { testZypperSources(t, s, files) })
	t.Run("damaged", func(t *testing.T) { testZypperDamaged(t, s, server.URL) })
	t.Run("signed packages", func(t *testing.T) { testZypperSignedPackages(t, s, server.URL) })
}

func testZypperInstalls(t *testing.T, s *suse, address string) {
	w := s.asking(t, address, namesKey)
	first, err := w.resolve(t.Context(), "old", "part=1", "tool")
	if err != nil {
		t.Fatal(err, fault.HintOf(err))
	}
	if first.Manager != "zypper" || !cmp.Equal(first.names(), []string{"old 1-1", "part 1-1", "tool 1-1"}) || !cmp.Equal(first.Asked, []string{"old", "part=1", "tool"}) ||
		first.Packages[0].URL != address+"/noarch/old-1-1.noarch.rpm" {
		t.Fatalf("%+v", first)
	}
	content, err := os.ReadFile(filepath.Join(s.repo, "noarch/old-1-1.noarch.rpm"))
	if err != nil || first.Packages[0].SHA256 != store.DigestOf(content) || first.Packages[0].Size != int64(len(content)) {
		t.Fatalf("%+v, %v", first.Packages[0], err)
	}
	// Another machine has the lock, and none of the files.
	other := t.TempDir()
	if out, err := exec.Command("cp", "-a", w.st.Dir()+"/.", other).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	st, err := store.Open(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	defer store.RemoveAll(other)
	defer st.Close()
	for _, pkg := range first.Packages {
		name, err := st.BlobPath(pkg.SHA256)
		if err == nil {
			err = os.Remove(name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	there := &world{st, w.on}
	d, err := there.install(t.Context(), first)
	if err != nil {
		t.Fatal(err, tail(err))
	}
	under := &world{st, append(slices.Clone(w.on), d)}
	checkTool(t, under, d)

	p, err := under.resolve(t.Context(), "new")
	if err != nil {
		t.Fatal(err, fault.HintOf(err))
	}
	if !cmp.Equal(p.names(), []string{"new 1-1", "part 3:2-1", "zero 0:1~rc1-1"}) {
		t.Fatalf("%+v", p)
	}
	if d, err = under.install(t.Context(), p); err != nil {
		t.Fatal(err, tail(err))
	}
	after := &world{st, append(slices.Clone(under.on), d)}
	after.changed(t, `test "$(rpm -qa --qf '%{NAME} %{EVR}\n' | sort | tr '\n' ,)" = "new 1-1,part 3:2-1,tool 1-1,zero 0:1~rc1-1,"`)
	if p, err = after.resolve(t.Context(), "new"); err != nil || !p.Empty() {
		t.Errorf("what is there already is installed again: %+v, %v", p, err)
	}
	if p, err = after.resolve(t.Context(), "part=1"); err == nil || !strings.Contains(err.Error(), "new-1-1.noarch requires") {
		t.Errorf("a package is replaced that another needs: %+v, %v", p, err)
	}
}

// checkTool looks at what the layer of tool and others has, and what it has not.
func checkTool(t *testing.T, w *world, d layer.Descriptor) {
	t.Helper()
	tree, err := image.NewTree(t.Context(), w.st, w.on)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := tree.ReadFile("usr/share/made", 100); err != nil || string(text) != "x\n" {
		t.Errorf("the script of a package has made %q, %v", text, err)
	}
	index, err := layer.OpenIndex(t.Context(), w.st, d)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range index.Entries {
		for _, no := range []string{"var/cache/zypp", "var/log/zypp", "var/lib/zypp", "etc/ssl", "run/sconce"} {
			if strings.HasPrefix(e.Path, no) {
				t.Errorf("the layer has %s", e.Path)
			}
		}
	}
}

func testZypperNames(t *testing.T, w *world) {
	for asked, want := range map[string]string{"role": "zero 0:1~rc1-1", "part.noarch": "part 3:2-1", "part=3:2-1": "part 3:2-1", "part=1-1": "part 1-1", "part.noarch=1-1": "part 1-1"} {
		if p, err := w.resolve(t.Context(), asked); err != nil || !cmp.Equal(p.names(), []string{want}) {
			t.Errorf("%s: %+v, %v", asked, p, err)
		}
	}
	for asked, want := range map[string][2]string{
		"nwe":    {"No provider of 'nwe' found", `instead of "nwe", did you mean "new"?`},
		"part=9": {"No provider of 'part=9' found", "the base's repositories have part 3:2-1, 1-1"},
		"unmet":  {"nothing provides", "/etc/zypp/repos.d"},
	} {
		_, err := w.resolve(t.Context(), "part", asked)
		if err == nil || !strings.Contains(err.Error(), want[0]) || strings.Contains(err.Error(), "Loading") || !strings.Contains(fault.HintOf(err), want[1]) {
			t.Errorf("%s: %v\nhint: %s", asked, err, fault.HintOf(err))
		}
	}
	_, err := w.resolve(t.Context(), "old", "foe")
	if err == nil || !strings.Contains(err.Error(), "conflicts with") {
		t.Errorf("packages that exclude each other: %v", err)
	}
	testZypperDowngrade(t, w)
	p, err := w.resolve(t.Context(), "old")
	if err != nil {
		t.Fatal(err)
	}
	p.Packages[0].Version = "9-1"
	if _, err := w.install(t.Context(), p); err == nil || !strings.Contains(tail(err), "is not installed as it should be") {
		t.Errorf("a package that is not what the lock says is installed: %v", err)
	}
	p.Packages[0].SHA256 = store.DigestOf([]byte("other"))
	if _, err := w.install(t.Context(), p); err == nil || !strings.Contains(err.Error(), "wrong hash") {
		t.Errorf("a package with another hash: %v", err)
	}
}

// A version that is asked for replaces a newer one of the base; a name alone does not.
func testZypperDowngrade(t *testing.T, w *world) {
	on := w
	for _, asked := range []string{"part", "part=1"} {
		p, err := on.resolve(t.Context(), asked)
		if err != nil || len(p.Packages) != 1 {
			t.Fatalf("%s: %+v, %v", asked, p, err)
		}
		d, err := on.install(t.Context(), p)
		if err != nil {
			t.Fatal(err, tail(err))
		}
		on = &world{w.st, append(slices.Clone(on.on), d)}
	}
	on.changed(t, `test "$(rpm -q --qf %{EVR} part)" = 1-1`)
}

// Whose signature counts is the base's to say.
func testZypperSignatures(t *testing.T, s *suse, address string) {
	imported := s.asking(t, address).changed(t, "rpm --import /"+publicKey)
	if p, err := imported.resolve(t.Context(), "old"); err != nil || len(p.Packages) != 1 {
		t.Errorf("a key of the base's own: %+v, %v", p, err)
	}
	// As bootstrap writes it of a repository whose index is signed.
	index := s.asking(t, address, "gpgcheck=0", "repo_gpgcheck=1", namesKey)
	if p, err := index.resolve(t.Context(), "old"); err != nil || len(p.Packages) != 1 {
		t.Errorf("a repository whose index alone is to be signed: %+v, %v", p, err)
	}
	refused := func(what string, w *world, want, hint string) {
		t.Helper()
		p, err := w.resolve(t.Context(), "old")
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(fault.HintOf(err), hint) {
			t.Errorf("%s: %+v, %v\nhint: %s", what, p, err, fault.HintOf(err))
		}
	}
	refused("a key that the base does not know", s.asking(t, address), "signed with an unknown key", "rpm --import")
	refused("the same where the index alone is to be signed", s.asking(t, address, "gpgcheck=0", "repo_gpgcheck=1"), "signed with an unknown key", "rpm --import")
	refused("a key from the network", s.asking(t, address, "gpgkey="+address+"/key.asc"), "signed with an unknown key", "rpm --import")
	refused("a key of a repository that is switched off", s.asking(t, address, "[off]", "enabled=0", "baseurl=file:///x", namesKey), "signed with an unknown key", "rpm --import")
	refused("unsigned packages", s.asking(t, address, namesKey, "pkg_gpgcheck=1"), "File is unsigned", "")

	signature := filepath.Join(s.repo, "repodata/repomd.xml.asc")
	good, err := os.ReadFile(signature)
	if err == nil {
		err = os.Remove(signature)
	}
	if err != nil {
		t.Fatal(err)
	}
	refused("no signature", s.asking(t, address, namesKey, "priority=9"), "is unsigned", "/etc/zypp/repos.d")
	trusted := s.asking(t, address, "gpgcheck=0")
	if p, err := trusted.resolve(t.Context(), "old"); err != nil || len(p.Packages) != 1 {
		t.Errorf("a repository that the base does not want to be signed: %+v, %v", p, err)
	}
	if err := os.WriteFile(signature, good, 0o644); err != nil {
		t.Fatal(err)
	}
	repomd := filepath.Join(s.repo, "repodata/repomd.xml")
	text, err := os.ReadFile(repomd)
	if err == nil {
		err = os.WriteFile(repomd, append(bytes.Clone(text), '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	refused("a signature of something else", s.asking(t, address, namesKey), "Signature verification failed", "/etc/zypp/repos.d")
	if err := os.WriteFile(repomd, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// Of a repository with signed packages and an index that is not, bootstrap writes that the packages count: zypper takes them, and no others.
func testZypperSignedPackages(t *testing.T, s *suse, address string) {
	unsignedIndex(t, s.repo)
	as := func() *world { return s.asking(t, address, "gpgcheck=1", "repo_gpgcheck=0", namesKey) }
	if p, err := as().resolve(t.Context(), "old"); err == nil || !strings.Contains(err.Error(), "nsigned") {
		t.Errorf("without any signature: %+v, %v", p, err)
	}
	s.signer.SignPackages(t, filepath.Join(s.repo, "noarch"))
	unsignedIndex(t, s.repo)
	if p, err := as().resolve(t.Context(), "old"); err != nil || len(p.Packages) != 1 {
		t.Errorf("signed packages: %+v, %v\nhint: %s", p, err, fault.HintOf(err))
	}
	rpmtest.NewSigner(t).SignPackages(t, filepath.Join(s.repo, "noarch"))
	unsignedIndex(t, s.repo)
	if p, err := as().resolve(t.Context(), "old"); err == nil {
		t.Errorf("packages that another has signed: %+v", p)
	}
}

// testZypperSources asks at addresses of all kinds.
func testZypperSources(t *testing.T, s *suse, files http.Handler) {
	const place = "http://packages.example.org/suse"
	proxy := httptest.NewServer(http.StripPrefix("/suse", files)) // which asks nobody else
	defer proxy.Close()
	t.Setenv("http_proxy", proxy.URL)
	secret := s.asking(t, "http://me:hidden@packages.example.org/suse?token=hidden", namesKey)
	if p, err := secret.resolve(t.Context(), "old"); err != nil || !cmp.Equal(p.urls(), []string{place + "/noarch/old-1-1.noarch.rpm"}) {
		t.Errorf("a proxy, a login and a token: %+v, %v", p, err)
	}
	below := s.asking(t, "http://packages.example.org", "path=/suse", namesKey)
	if p, err := below.resolve(t.Context(), "old"); err != nil || !cmp.Equal(p.urls(), []string{place + "/noarch/old-1-1.noarch.rpm"}) {
		t.Errorf("a path: %+v, %v", p, err)
	}
	list := s.asking(t, "", "mirrorlist=file:///mirrors", namesKey).changed(t, "", execop.File{Target: "/mirrors", Content: []byte(place + "\n")})
	if p, err := list.resolve(t.Context(), "old"); err == nil || !strings.Contains(fault.HintOf(err), "baseurl=") {
		t.Errorf("a list of mirrors: %+v, %v\nhint: %s", p, err, fault.HintOf(err))
	}
	service := s.asking(t, "", "enabled=0", namesKey).changed(t, "rpm --import /"+publicKey+"; rm /etc/zypp/repos.d/*",
		execop.File{Target: "/service/repo/repoindex.xml", Content: []byte(`<repoindex ttl="0"><repo url="` + place + `" alias="main" enabled="true"/></repoindex>`)},
		execop.File{Target: "/etc/zypp/services.d/s.service", Content: []byte("[s]\nname=s\nenabled=1\nautorefresh=1\nurl=dir:/service\ntype=ris\n")})
	if p, err := service.resolve(t.Context(), "old"); err != nil || len(p.Packages) != 1 {
		t.Errorf("a service: %+v, %v\nhint: %s", p, err, fault.HintOf(err))
	}
	testZypperInside(t, s)
	testZypperHTTPS(t, s, files)
}

// testZypperInside asks a base that has a repository in itself.
func testZypperInside(t *testing.T, s *suse) {
	var inside []execop.File
	err := filepath.WalkDir(s.repo, func(name string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		inside = append(inside, execop.File{Target: "/repo" + strings.TrimPrefix(name, s.repo), Content: data})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	w := s.asking(t, "dir:///repo", namesKey).changed(t, "", inside...)
	p, err := w.resolve(t.Context(), "tool")
	if err != nil || !cmp.Equal(p.urls(), []string{"file:/repo/noarch/tool-1-1.noarch.rpm"}) {
		t.Fatalf("a directory of the base: %+v, %v", p, err)
	}
	if _, err := w.install(t.Context(), p); err != nil {
		t.Error(err, tail(err))
	}
}

// testZypperHTTPS asks over TLS. The base has no certificates of its own.
func testZypperHTTPS(t *testing.T, s *suse, files http.Handler) {
	server := httptest.NewTLSServer(files)
	defer server.Close()
	w := s.asking(t, server.URL, namesKey)
	if _, err := w.resolve(t.Context(), "old"); err == nil {
		t.Error("a server is believed whose certificate nobody knows")
	}
	t.Setenv("SSL_CERT_FILE", filepath.Join(t.TempDir(), "ca.pem"))
	certificate := exec.Command("openssl", "x509", "-inform", "der", "-out", os.Getenv("SSL_CERT_FILE"))
	certificate.Stdin = bytes.NewReader(server.Certificate().Raw)
	rpmtest.Run(t, certificate)
	if p, err := w.resolve(t.Context(), "old"); err != nil || !cmp.Equal(p.urls(), []string{server.URL + "/noarch/old-1-1.noarch.rpm"}) {
		t.Errorf("%+v, %v", p, err)
	}
}

// testZypperDamaged asks a repository that has another file than its index says.
func testZypperDamaged(t *testing.T, s *suse, address string) {
	w := s.asking(t, address, namesKey)
	p, err := w.resolve(t.Context(), "foe")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(s.repo, "noarch/foe-1-1.noarch.rpm")
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(good)
	damaged[len(damaged)-20] ^= 1
	if err := os.WriteFile(name, damaged, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(name, good, 0o644); err != nil {
			t.Error(err)
		}
	})
	if _, err := w.resolve(t.Context(), "foe"); err == nil || !strings.Contains(err.Error(), "Digest verification failed") {
		t.Errorf("a package that its index does not know: %v", err)
	}
	pinned, err := w.st.BlobPath(p.Packages[0].SHA256)
	if err == nil {
		err = os.Remove(pinned)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = Layer(t.Context(), Install{Runner: &execop.Runner{Store: w.st}, Fetch: fetch.New(w.st, fetch.Options{}), On: w.on, Packages: p})
	if err == nil || !strings.Contains(err.Error(), "foe 1-1") {
		t.Errorf("a package that the lock does not know: %v", err)
	}
}

func TestZypperNames(t *testing.T) {
	for _, good := range []string{"git", "gcc-c++", "python3.x86_64", "git=2.43.0-1", "part=3:2-1~rc1"} {
		if err := (zypper{}).check([]string{good}); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "-y", "!git", "~git", "+git", "pattern:base", "repo:git", "git>=1", "a b", "/usr/bin/x", "lib*", "x.rpm", "git=", "git=1 2", "a\nb"} {
		if err := (zypper{}).check([]string{bad}); fault.CodeOf(err) != fault.CodeUsage {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestKeysOfRepositories(t *testing.T) {
	const text = `[a]
enabled = 1
gpgkey = file:///etc/pki/two,file:/etc/pki/one
	file:///etc/pki/three https://example.org/key
name=a
	file:///not/a/key
[off]
gpgkey=file:///etc/pki/off
enabled=No

[default]
# gpgkey=file:///etc/pki/none
gpgkey=file:///etc/pki/../pki/one file://host/etc/pki/x file:relative /plain
`
	if diff := cmp.Diff([]string{"/etc/pki/one", "/etc/pki/three", "/etc/pki/two"}, keysOfRepositories(text)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
