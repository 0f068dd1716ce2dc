package bootstrap

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/rpm/rpmtest"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
)

// testland is a repository of packages, served. Its packages are signed, its index is not.
type testland struct {
	dir, url string
	signer   *rpmtest.Signer
}

func newTestland(t *testing.T, packages ...rpmtest.Package) *testland {
	t.Helper()
	r := &testland{dir: t.TempDir(), signer: rpmtest.NewSigner(t)}
	rpmtest.Build(t, r.dir, packages...)
	r.signer.SignPackages(t, r.dir)
	rpmtest.Repository(t, r.dir)
	r.serve(t)
	return r
}

func (r *testland) serve(t *testing.T) {
	t.Helper()
	server := httptest.NewServer(http.FileServer(http.Dir(r.dir)))
	t.Cleanup(server.Close)
	r.url = server.URL
}

// mirror is another server of the same packages.
func (r *testland) mirror(t *testing.T) *testland {
	t.Helper()
	m := &testland{dir: filepath.Join(t.TempDir(), "mirror"), signer: r.signer}
	if err := os.CopyFS(m.dir, os.DirFS(r.dir)); err != nil {
		t.Fatal(err)
	}
	m.serve(t)
	return m
}

func (r *testland) request(packages ...string) Request {
	return Request{Dnf: r.url, Keys: []string{r.signer.File}, Packages: packages, Architecture: runtime.GOARCH}
}

func (r *testland) resolve(t *testing.T, q Request) (*Pinned, error) {
	t.Helper()
	st, f := openStore(t)
	return Resolve(t.Context(), st, f, q)
}

// names of the pinned packages, as rpm writes them.
func names(p *Pinned) []string {
	var all []string
	for _, pkg := range p.Packages {
		all = append(all, pkg.Name+" "+pkg.Version)
	}
	return all
}

// What the distribution's own rpm says of the system is the judge: it has exactly what is pinned, and each file is as its package
// has it, with owner, mode, capabilities and content. It is the same, byte for byte, for root and for a user without any privilege.
func TestRPMBase(t *testing.T) {
	r := newTestland(t, rpmtest.Testland(t)...)
	p, err := r.resolve(t, r.request("daemon"))
	if err != nil {
		t.Fatal(err, fault.HintOf(err))
	}
	want := []string{
		"bash 5.2-1", "coreutils 9.1-1", "daemon 1:2.0~rc1-1", "filesystem 3-1", "glibc 2.36-9", "grep 3.8-1", "rpm 4.18.0-1", "setup 1-1",
		"testland-release 7-1", "testlibs 1-1", "tools 1-1",
	}
	if diff := cmp.Diff(want, names(p)); diff != "" {
		t.Error(diff)
	}
	if !p.Epoch.Equal(time.Unix(1710000000, 0)) {
		t.Errorf("epoch %s", p.Epoch)
	}
	st, f := openStore(t)
	mine, err := Build(t.Context(), st, f, p, layer.Options{Compression: layer.None})
	if err != nil {
		t.Fatal(err, fault.HintOf(err))
	}
	checkSystem(t, st, mine, p)
	checkFiles(t, st, mine, r)
	if theirs := buildAsNobody(t, p); !cmp.Equal(mine, theirs) {
		t.Errorf("another user makes another base (-mine +theirs):\n%s", cmp.Diff(mine, theirs))
	}
}

// An epoch of 0 that a package writes out is none, although rpm writes it.
func TestRPMEpochOfZero(t *testing.T) {
	r := newTestland(t, append(rpmtest.Testland(t), rpmtest.Package{Name: "zero", Head: "Epoch: 0\nBuildArch: noarch"})...)
	q := r.request("zero")
	q.Variant = "essential"
	p, err := r.resolve(t, q)
	if err != nil || !slices.Contains(names(p), "zero 1-1") {
		t.Fatal(err, fault.HintOf(err), names(p))
	}
	st, f := openStore(t)
	if _, err := Build(t.Context(), st, f, p, layer.Options{}); err != nil {
		t.Error(err, fault.HintOf(err))
	}
}

// checkSystem asks the system itself.
func checkSystem(t *testing.T, st *store.Store, d layer.Descriptor, p *Pinned) {
	t.Helper()
	dirs, err := sandbox.Layers(t.Context(), st, []layer.Descriptor{d})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(script string) string {
		var out bytes.Buffer
		code, err := sandbox.Run(t.Context(), sandbox.Options{
			Layers: dirs, Args: []string{"bash", "-c", script}, Env: []string{"PATH=/usr/bin", "HOME=/root"}, Stdout: &out, Stderr: &out, ScratchDir: t.TempDir(),
		})
		if err != nil || code != 0 {
			t.Fatalf("%s: exit code %d, %v\n%s", script, code, err, &out)
		}
		return out.String()
	}
	if got := strings.Fields(ask(`rpm -qa --qf '%{NAME}_%{EVR} ' | tr ' ' '\n' | sort`)); !slices.Equal(got, underscored(names(p))) {
		t.Errorf("rpm -qa says %q", got)
	}
	if got := ask(`rpm -qa --qf '%{INSTALLTIME} %{INSTALLTID}\n' | sort -u`); got != "1710000000 1710000000\n" {
		t.Errorf("installed at %q", got)
	}
	if got := ask(`rpm -q --whatprovides /usr/share/tools/b 'libc.so.6()(64bit)' system-release`); got != "tools-1-1.noarch\nglibc-2.36-9."+rpmArchitectures[runtime.GOARCH]+"\ntestland-release-7-1.noarch\n" {
		t.Errorf("the database finds %q", got)
	}
	if os.Geteuid() != 0 {
		return // to others, files that belong to no user of theirs are their own
	}
	// A script has added a user, and the repositories are the recipe's.
	changed := regexp.MustCompile(`^[S.]\.5\S*\s+c /etc/(passwd|group|yum\.repos\.d/testland\.repo)$`)
	for line := range strings.Lines(ask("rpm -Va || true")) {
		if line = strings.TrimSpace(line); !changed.MatchString(line) && !mounted.MatchString(line) {
			t.Errorf("rpm -V says %q", line)
		}
	}
}

// mounted are directories of which the sandbox has its own.
var mounted = regexp.MustCompile(` /(dev|proc|sys|run|tmp|root|var/tmp)$`)

func underscored(names []string) []string {
	var all []string
	for _, n := range names {
		all = append(all, strings.ReplaceAll(n, " ", "_"))
	}
	slices.Sort(all)
	return all
}

// checkFiles looks at what scripts and the build have left.
func checkFiles(t *testing.T, st *store.Store, d layer.Descriptor, r *testland) {
	t.Helper()
	tree, err := image.NewTree(t.Context(), st, []layer.Descriptor{d})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"var/lib/daemon/ran": "1 0\n", "var/lib/daemon/lua": "ran\n",
		"etc/yum.repos.d/bootstrap.repo": fmt.Sprintf("[base]\nname=%s base\nbaseurl=%s\nenabled=1\ngpgcheck=1\nrepo_gpgcheck=0\ngpgkey=file:///%s\n", strings.TrimPrefix(r.url, "http://"), r.url, keyFile),
		"etc/yum.repos.d/testland.repo":  "[testland]\nname=x\nbaseurl=https://testland.example.org/\nenabled=0\n",
	} {
		if got, err := tree.ReadFile(name, 1<<20); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v; want %q", name, got, err, want)
		}
	}
	key, err := os.ReadFile(r.signer.File)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tree.ReadFile(keyFile, 1<<20); err != nil || string(got) != string(key) {
		t.Errorf("%s has %q, %v", keyFile, got, err)
	}
	for name, want := range map[string]string{
		"usr/sbin/daemon": "4750 0:77", "var/lib/daemon": "750 77:77", "var/lib/daemon/ran": "644 77:77", "etc/shadow": "0 0:0", "tmp": "1777 0:0",
		"usr/bin/bash": "755 0:0", "bin": "777 0:0", keyFile: "644 0:0", "etc/pki": "755 0:0", "dev": "755 0:0",
	} {
		n, err := tree.Lstat(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := fmt.Sprintf("%o %d:%d", n.Mode, n.UID, n.GID); got != want {
			t.Errorf("%s is %s; want %s", name, got, want)
		}
	}
	if n, err := tree.Lstat("usr/sbin/daemon"); err != nil || n.Xattrs["security.capability"] == "" {
		t.Errorf("the program has no capability: %v", err)
	}
	for _, name := range []string{"var/log/daemon.log", "etc/daemon.log", "target", "run/sconce-bootstrap", "dev/null", "usr/lib/sysimage/rpm/.rpm.lock"} {
		if _, err := tree.Lstat(name); err == nil {
			t.Errorf("%s is there", name)
		}
	}
	if n, err := tree.Lstat("usr/share/tools/a"); err != nil || n.Links != 2 {
		t.Errorf("a hard link is none: %+v, %v", n, err)
	}
}

// little is a distribution that is only resolved: packages without files.
func little() []rpmtest.Package {
	return []rpmtest.Package{
		{Name: "bash", Version: "5", Head: "BuildArch: noarch\nProvides: /bin/sh"},
		{Name: "rpm", Version: "4.19", Head: "BuildArch: noarch\nRequires: /bin/sh, /usr/share/need"},
		{Name: "need", Head: "BuildArch: noarch", Install: "mkdir -p usr/share\necho x > usr/share/need\n", Files: "/usr/share/need"},
		{Name: "dnf", Head: "BuildArch: noarch\nRequires: rpm"},
		{Name: "tool", Version: "1.0", Head: "BuildArch: noarch"},
		{Name: "tool", Version: "1.10", Head: "BuildArch: noarch"},
		{Name: "tool", Version: "1.10~rc1", Head: "BuildArch: noarch"},
	}
}

// What the lock says of a repository is what the mirror says, once a signature says it too: of the index, or of each package.
func TestRPMResolve(t *testing.T) {
	r := newTestland(t, little()...)
	base := []string{"bash 5-1", "dnf 1-1", "need 1-1", "rpm 4.19-1"}
	resolves := func(what string, q Request, want ...string) *Pinned {
		t.Helper()
		p, err := r.resolve(t, q)
		if err != nil {
			t.Errorf("%s: %v\nhint: %s", what, err, fault.HintOf(err))
			return &Pinned{}
		}
		if diff := cmp.Diff(want, names(p)); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
		return p
	}
	refuses := func(what string, q Request, wants ...string) {
		t.Helper()
		_, err := r.resolve(t, q)
		text := fmt.Sprint(err, "\n", fault.HintOf(err))
		for _, want := range wants {
			if err == nil || !strings.Contains(text, want) {
				t.Errorf("%s: %s; want %q", what, text, want)
			}
		}
	}

	p := resolves("signed packages", r.request(), base...)
	if pkg := p.Packages[0]; pkg.URL != r.url+"/bash-5-1.noarch.rpm" || pkg.Architecture != "noarch" || !strings.Contains(p.Sources, "gpgcheck=1") || p.Keys == "" {
		t.Errorf("%+v", p)
	}
	resolves("the newest", r.request("tool"), append(slices.Clone(base), "tool 1.10-1")...)
	resolves("a version", r.request("tool=1.0"), append(slices.Clone(base), "tool 1.0-1")...)
	resolves("a release", r.request("tool=1.10~rc1-1"), append(slices.Clone(base), "tool 1.10~rc1-1")...)
	q := r.request()
	q.Variant = "essential"
	resolves("less", q, "bash 5-1", "need 1-1", "rpm 4.19-1")
	q.Variant = "important"
	refuses("a variant of Debian's", q, `"essential"`)
	refuses("a slip", r.request("toool"), "no package toool", `did you mean "tool"?`)
	refuses("no such version", r.request("tool=2"), "1.10-1, 1.10~rc1-1, 1.0-1")

	q = r.request()
	q.Architecture = "arm64"
	resolves("another architecture", q, base...)
	q.Architecture = "riscv64"
	refuses("an architecture that is not known", q, "riscv64")

	q = r.request()
	q.Keys = nil
	refuses("no key that is known", q, "a key that is not known here", "base.bootstrap.keys")
	q.Trusted = true
	if p := resolves("trusted", q, base...); !strings.Contains(p.Sources, "gpgcheck=0") || p.Keys != "" {
		t.Errorf("%+v", p)
	}
	other := rpmtest.NewSigner(t)
	q = r.request()
	q.Keys = []string{other.File}
	refuses("another's key", q, "package ", "a key that is not known here", "base.bootstrap.keys")

	r.signer.SignIndex(t, r.dir)
	if p := resolves("a signed index", r.request(), base...); !strings.Contains(p.Sources, "repo_gpgcheck=1") {
		t.Errorf("%+v", p)
	}
	other.SignIndex(t, r.dir)
	refuses("an index that another has signed", r.request(), "the index of", "a key that is not known here", "base.bootstrap.keys")
	r.signer.SignIndex(t, r.dir)
	r.rewrite(t, "repodata/repomd.xml", func(text []byte) []byte { return append(text, '\n') })
	refuses("an index that was changed", r.request(), "its signature is not good", "base.bootstrap.mirror")
}

// Who names a repository and no keys gets those that this machine has. The image has those alone that have signed something, and the
// repositories that its packages bring stay beside the one that it was made from.
func TestRPMKeysOfThisMachine(t *testing.T) {
	r := newTestland(t, rpmtest.Testland(t)...)
	other := rpmtest.NewSigner(t)
	withHostKeys(t, r.signer.File, other.File)
	q := r.request()
	q.Keys, q.Beside, q.Variant = nil, true, "essential"
	p, err := r.resolve(t, q)
	if err != nil {
		t.Fatal(err, fault.HintOf(err))
	}
	key, err := os.ReadFile(r.signer.File)
	if err != nil || p.Keys != string(key) {
		t.Errorf("the image has the keys\n%s, %v", p.Keys, err)
	}
	st, f := openStore(t)
	d, err := Build(t.Context(), st, f, p, layer.Options{})
	if err != nil {
		t.Fatal(err, fault.HintOf(err))
	}
	tree, err := image.NewTree(t.Context(), st, []layer.Descriptor{d})
	if err != nil {
		t.Fatal(err)
	}
	host := strings.TrimPrefix(r.url, "http://")
	for name, want := range map[string]string{
		"etc/yum.repos.d/testland.repo": "[testland]\nname=x\nbaseurl=https://testland.example.org/\nenabled=1\n",
		"etc/yum.repos.d/bootstrap.repo": "[bootstrap-0]\nname=" + host + " bootstrap-0\nbaseurl=" + r.url +
			"\nenabled=1\nskip_if_unavailable=1\ngpgcheck=1\nrepo_gpgcheck=0\ngpgkey=file:///" + keyFile + "\n",
	} {
		if got, err := tree.ReadFile(name, 1<<20); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v; want %q", name, got, err, want)
		}
	}

	withHostKeys(t, other.File)
	if _, err := r.resolve(t, q); err == nil || !strings.Contains(err.Error(), "a key that is not known here") {
		t.Errorf("packages that nobody known has signed: %v", err)
	}
	r.signer.SignIndex(t, r.dir)
	withHostKeys(t, other.File, r.signer.File)
	if p, err := r.resolve(t, q); err != nil || p.Keys != string(key) {
		t.Errorf("a signed index: %v\n%s", err, p.Keys)
	}
}

// withHostKeys has this machine have the keys of these files, and no others.
func withHostKeys(t *testing.T, files ...string) {
	t.Helper()
	before := hostRPMKeys
	hostRPMKeys = files
	t.Cleanup(func() { hostRPMKeys = before })
}

// Without any key nothing is believed.
func TestRPMNoKeys(t *testing.T) {
	if err := (rpmKeys{}).believe(func(*debian.Keyring) error { return nil }); err == nil {
		t.Error("nobody has signed, and it is believed")
	}
}

// Keys come from an address as well, of both kinds of packages.
func TestKeysFromAnAddress(t *testing.T) {
	r := newTestland(t, little()...)
	keys := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(r.signer.File))))
	defer keys.Close()
	q := r.request()
	for address, want := range map[string]string{
		keys.URL + "/" + filepath.Base(r.signer.File): "", "file://" + r.signer.File: "", keys.URL + "/none": "404", r.url + "/repodata/repomd.xml": "OpenPGP",
	} {
		q.Keys = []string{address}
		if _, err := r.resolve(t, q); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", address, err, want)
		}
	}
	d := newRepository(t)
	named := http.NewServeMux()
	named.HandleFunc("/key", func(w http.ResponseWriter, req *http.Request) { http.ServeFile(w, req, d.keyFile(t)) })
	more := httptest.NewServer(named)
	defer more.Close()
	_, f := openStore(t)
	x := &indices{fetch: f, r: Request{Keys: []string{more.URL + "/key"}}}
	if k, err := x.keyring(t.Context()); err != nil || len(k.Fingerprints()) != 1 {
		t.Errorf("%v", err)
	}
}

// rewrite changes a file of the repository.
func (r *testland) rewrite(t *testing.T, name string, change func([]byte) []byte) {
	t.Helper()
	file := filepath.Join(r.dir, name)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, change(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

// primary is the list of packages, by its path.
func (r *testland) primary(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(r.dir, "repodata/*-primary.xml.gz"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%d lists, %v", len(found), err)
	}
	return "repodata/" + filepath.Base(found[0])
}

// relist changes the list of packages, and says so in the index.
func (r *testland) relist(t *testing.T, change func(string) string) {
	t.Helper()
	var before, after []byte
	r.rewrite(t, r.primary(t), func(data []byte) []byte {
		z, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		changed := change(string(text))
		if changed == string(text) {
			t.Fatal("nothing was changed")
		}
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := io.WriteString(w, changed); err != nil || w.Close() != nil {
			t.Fatal(err)
		}
		before, after = data, b.Bytes()
		return after
	})
	r.rewrite(t, "repodata/repomd.xml", func(text []byte) []byte {
		text = bytes.Replace(text, fmt.Appendf(nil, ">%x</checksum>\n    <open", sha256.Sum256(before)), fmt.Appendf(nil, ">%x</checksum>\n    <open", sha256.Sum256(after)), 1)
		return bytes.Replace(text, fmt.Appendf(nil, "<size>%d</size>", len(before)), fmt.Appendf(nil, "<size>%d</size>", len(after)), 1)
	})
}

// A mirror that lies is found out, whatever it lies about; and a lock that its packages do not fit is not built.
func TestRPMMirrorThatLies(t *testing.T) {
	const rpmFile = "tool-1.10-1.noarch.rpm"
	flip := func(data []byte) []byte {
		data = bytes.Clone(data)
		data[len(data)-5] ^= 1 // of the files, which the header's signature does not cover
		return data
	}
	lying := map[string]struct {
		lie  func(t *testing.T, r *testland)
		want string
	}{
		"a package is another than the list says": {func(t *testing.T, r *testland) { r.rewrite(t, rpmFile, flip) }, "sha256"},
		"the list fits the package, which is not what was signed": {func(t *testing.T, r *testland) {
			r.rewrite(t, rpmFile, flip)
			rpmtest.Repository(t, r.dir)
		}, "its files are not those that were signed"},
		"the package is not signed": {func(t *testing.T, r *testland) {
			rpmtest.Run(t, exec.CommandContext(t.Context(), "rpmsign", "--delsign", filepath.Join(r.dir, rpmFile)))
			rpmtest.Repository(t, r.dir)
		}, "it is not signed"},
		"a package goes by another's name": {func(t *testing.T, r *testland) {
			r.relist(t, func(list string) string { return strings.ReplaceAll(list, `ver="1.10"`, `ver="99"`) })
		}, "it says of itself that it is"},
		"a package lies elsewhere": {func(t *testing.T, r *testland) {
			r.relist(t, func(list string) string { return strings.ReplaceAll(list, `href="tool-1.10-1`, `href="../tool-1.10-1`) })
		}, "could lead anywhere"},
		"a list has another package's relations twice": {func(t *testing.T, r *testland) {
			r.relist(t, func(list string) string {
				return strings.ReplaceAll(list, `<rpm:requires>`, `<rpm:requires><rpm:entry name="(a or"/>`)
			})
		}, "cannot be read"},
		"a list is cut off": {func(t *testing.T, r *testland) {
			r.rewrite(t, r.primary(t), func(data []byte) []byte { return data[:len(data)/2] })
		}, "wrong size"},
	}
	honest := newTestland(t, little()...)
	for name, l := range lying {
		t.Run(name, func(t *testing.T) {
			r := honest.mirror(t)
			l.lie(t, r)
			q := r.request("tool")
			_, err := r.resolve(t, q)
			if err == nil || !strings.Contains(err.Error(), l.want) {
				t.Errorf("%v; want %q", err, l.want)
			}
			if fault.HintOf(err) == "" {
				t.Errorf("no hint for %v", err)
			}
		})
	}
}

// Each release that is known has keys, and addresses for each architecture.
func TestRPMReleases(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for name, d := range distributions {
		for _, release := range d.releases {
			for arch, theirs := range rpmArchitectures {
				q := Request{Dnf: name + ":" + release, Architecture: arch}
				all, err := repositoriesOf(q)
				if err != nil || len(all) != len(d.paths) {
					t.Errorf("%s: %d repositories, %v", q.Dnf, len(all), err)
				}
				for _, repo := range all {
					if strings.Contains(repo.url, "$") || !strings.HasPrefix(repo.url, d.mirror+"/") || !strings.Contains(repo.url, release) || name != "opensuse" && !strings.Contains(repo.url, theirs) {
						t.Errorf("%s: %s", q.Dnf, repo.url)
					}
				}
				if k, err := (&indices{r: q}).rpmKeys(t.Context()); err != nil || k.text() == "" {
					t.Errorf("%s has no keys: %v", q.Dnf, err)
				}
				if configuration(q, all) != "" {
					t.Errorf("%s: the image has other repositories than the distribution's", q.Dnf)
				}
				q.Mirror = "https://mirror.example.org/x/"
				if all, err = repositoriesOf(q); err != nil || !strings.HasPrefix(all[0].url, "https://mirror.example.org/x/") || strings.Contains(all[0].url, "x//") {
					t.Errorf("%s: %+v, %v", q.Dnf, all, err)
				}
				if text := configuration(q, all); !strings.Contains(text, "baseurl="+all[0].url+"\n") {
					t.Errorf("%s: %s", q.Dnf, text)
				}
			}
		}
	}
	_, err := repositoriesOf(Request{Dnf: "rocky:8", Architecture: "amd64"})
	if err == nil || !strings.Contains(err.Error(), "rocky:10, rocky:9") && !strings.Contains(err.Error(), "rocky:9") || !strings.Contains(fault.HintOf(err), "did you mean") {
		t.Errorf("%v\nhint: %s", err, fault.HintOf(err))
	}
}

// Links of packages lead nowhere but into the first root, whoever puts a file behind them.
func TestRPMFirstRootStaysInside(t *testing.T) {
	outside := t.TempDir()
	dir := t.TempDir()
	rpmtest.Build(t, dir,
		rpmtest.Package{Name: "absolute", Head: "BuildArch: noarch", Install: "ln -s " + outside + " absolute\n", Files: "/absolute"},
		rpmtest.Package{Name: "behind", Head: "BuildArch: noarch", Install: "mkdir absolute\necho evil > absolute/file\n", Files: "/absolute/file"},
		rpmtest.Package{Name: "above", Head: "BuildArch: noarch", Install: "mkdir usr\nln -s ../../../../../../../../../.." + outside + " usr/above\n", Files: "/usr/above"},
		rpmtest.Package{Name: "further", Head: "BuildArch: noarch", Install: "mkdir -p usr/above\necho evil > usr/above/file\n", Files: "/usr/above/file"},
	)
	st, _ := openStore(t)
	pinned := func(name string) Package {
		data, err := os.ReadFile(filepath.Join(dir, name+"-1-1.noarch.rpm"))
		if err != nil {
			t.Fatal(err)
		}
		w, err := st.NewBlob()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		p := Package{Name: name, Version: "1-1", Architecture: "noarch", SHA256: store.Digest(fmt.Sprintf("sha256:%x", sha256.Sum256(data)))}
		if _, err := w.Commit(p.SHA256); err != nil {
			t.Fatal(err)
		}
		return p
	}
	unpack := func(names ...string) (string, error) {
		into := t.TempDir()
		root, err := os.OpenRoot(into)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		var packages []Package
		for _, name := range names {
			packages = append(packages, pinned(name))
		}
		return into, (&firstRoot{store: st, root: root}).unpack(t.Context(), packages)
	}
	into, err := unpack("absolute", "behind")
	if err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(into, outside, "file")); err != nil || string(text) != "evil\n" {
		t.Errorf("a link from the root on leads elsewhere than there: %q, %v", text, err)
	}
	if _, err := unpack("above", "further"); err == nil {
		t.Error("a file behind a link that leads above the root is laid down")
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("outside there are %v, %v", entries, err)
	}
	wrong := pinned("above")
	wrong.Version = "2-1"
	if _, err := openPinned(bytes.NewReader(nil), wrong); err == nil {
		t.Error("nothing is a package")
	}
}

// A mirror that goes back in time is noticed, however good its signature is.
func TestRPMMirrorThatGoesBack(t *testing.T) {
	r := newTestland(t, little()...)
	st, f := openStore(t)
	resolve := func(date time.Time, q Request) error {
		rpmtest.Repository(t, r.dir, "--revision", fmt.Sprint(date.Unix()))
		r.signer.SignIndex(t, r.dir)
		p, err := Resolve(t.Context(), st, f, q)
		if err == nil && !p.Epoch.Equal(date) {
			t.Errorf("it is of %s", p.Epoch)
		}
		return err
	}
	now := time.Unix(1720000000, 0)
	for _, date := range []time.Time{now, now.Add(-day / 2), now.Add(time.Hour)} {
		if err := resolve(date, r.request()); err != nil {
			t.Errorf("%s: %v", date, err)
		}
	}
	err := resolve(now.Add(-day), r.request())
	if err == nil || !strings.Contains(err.Error(), "it hides newer packages") || !strings.Contains(fault.HintOf(err), "base.bootstrap.mirror") {
		t.Errorf("%v\nhint: %s", err, fault.HintOf(err))
	}
	q := r.request()
	q.Keys, q.Trusted = nil, true
	if err := resolve(now.Add(-day), q); err != nil {
		t.Error(err)
	}
}
