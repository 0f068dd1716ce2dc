package bootstrap

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// today is when the indices of the tests are good.
var today = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// repository is a small archive of one suite, x, served and signed.
type repository struct {
	files map[string][]byte // by path
	url   string
	key   *openpgp.Entity
	asked map[string]bool
}

func signing(when time.Time) *packet.Config {
	return &packet.Config{Time: func() time.Time { return when }, Algorithm: packet.PubKeyAlgoEdDSA}
}

func newRepository(t *testing.T, packages ...[]byte) *repository {
	t.Helper()
	r := &repository{files: map[string][]byte{}, asked: map[string]bool{}}
	var err error
	if r.key, err = openpgp.NewEntity("archive", "", "a@example.org", signing(today.AddDate(-1, 0, 0))); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		data, ok := r.files[strings.TrimPrefix(req.URL.Path, "/")]
		if !ok {
			http.NotFound(w, req)
			return
		}
		_, _ = w.Write(data)
	}))
	t.Cleanup(server.Close)
	r.url = server.URL
	var index strings.Builder
	for i, control := range packages {
		name := fmt.Sprintf("pool/p%d.deb", i)
		r.files[name] = deb(t, string(control), nil)
		fmt.Fprintf(&index, "%sFilename: %s\nSize: %d\nSHA256: %x\n\n", control, name, len(r.files[name]), sha256.Sum256(r.files[name]))
	}
	r.index(t, index.String())
	return r
}

// index writes the list of packages and signs its index.
func (r *repository) index(t *testing.T, text string) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	r.files["dists/x/main/binary-amd64/Packages.gz"] = b.Bytes()
	r.sign(t, r.release())
}

func (r *repository) release() string {
	data := r.files["dists/x/main/binary-amd64/Packages.gz"]
	return fmt.Sprintf("Suite: x\nCodename: y\nDate: Mon, 29 Jun 2026 10:00:00 UTC\nValid-Until: Thu, 02 Jul 2026 10:00:00 UTC\nComponents: main\nSHA256:\n"+
		" %x %d main/binary-amd64/Packages.gz\n", sha256.Sum256(data), len(data))
}

func (r *repository) sign(t *testing.T, release string) {
	t.Helper()
	var b bytes.Buffer
	w, err := clearsign.Encode(&b, r.key.PrivateKey, signing(today))
	if err == nil {
		_, err = w.Write([]byte(release))
		err = errors.Join(err, w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	r.files["dists/x/InRelease"] = b.Bytes()
}

// detach has the signature beside the text instead.
func (r *repository) detach(t *testing.T) {
	t.Helper()
	delete(r.files, "dists/x/InRelease")
	r.files["dists/x/Release"] = []byte(r.release())
	var b bytes.Buffer
	if err := openpgp.ArmoredDetachSign(&b, r.key, strings.NewReader(r.release()), signing(today)); err != nil {
		t.Fatal(err)
	}
	r.files["dists/x/Release.gpg"] = b.Bytes()
}

func (r *repository) keyFile(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.key.Serialize(&b); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "archive.gpg")
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// deb makes a package file of a control file and of the files' archive.
func deb(t *testing.T, control string, files []*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	member := func(name string, data []byte) {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n%s", name, 0, 0, 0, "100644", len(data), data)
		if len(data)%2 == 1 {
			b.WriteByte('\n')
		}
	}
	member("debian-binary", []byte("2.0\n"))
	member("control.tar", archiveOf(t, []*tar.Header{{Name: "./control", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(control)), Linkname: control}}))
	member("data.tar", archiveOf(t, files))
	return b.Bytes()
}

// archiveOf writes a tar. What is to be in a regular file stands in its Linkname.
func archiveOf(t *testing.T, entries []*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		h, content := *h, ""
		if h.Typeflag == tar.TypeReg {
			content, h.Linkname = h.Linkname, ""
			h.Size = int64(len(content))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func control(name, version, more string) []byte {
	return []byte("Package: " + name + "\nVersion: " + version + "\nArchitecture: amd64\n" + more)
}

func openStore(t *testing.T) (*store.Store, *fetch.Client) {
	t.Helper()
	st := storetest.New(t)
	return st, fetch.New(st, fetch.Options{Attempts: 1})
}

func small(t *testing.T) *repository {
	t.Helper()
	return newRepository(t,
		control("base", "1+b", "Essential: yes\n"), control("apt", "2", "Depends: lib (>= 1)\n"), control("lib", "1:1", "Priority: optional\n"),
		control("needed", "1", "Priority: required\n"), control("other", "1", ""))
}

func TestResolve(t *testing.T) {
	r := small(t)
	request := Request{Suite: "x", Mirror: r.url + "/", Architecture: "amd64", Keys: []string{r.keyFile(t)}, Now: today}
	want := []string{"apt 2", "base 1+b", "lib 1:1", "needed 1"}
	for range 2 {
		st, f := openStore(t)
		p, err := Resolve(t.Context(), st, f, request)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, pkg := range p.Packages {
			got = append(got, pkg.Name+" "+pkg.Version)
		}
		if !slices.Equal(got, want) || p.Sources != "deb "+r.url+" x main\n" || !p.Epoch.Equal(time.Date(2026, 6, 29, 10, 0, 0, 0, time.UTC)) ||
			p.Packages[1].URL != r.url+"/pool/p0.deb" || p.Packages[1].Architecture != "amd64" {
			t.Errorf("%+v", p)
		}
		r.detach(t) // the other way to sign
	}
	// At the time of a snapshot its index was good.
	r.sign(t, r.release())
	for name, data := range maps.Clone(r.files) {
		r.files["snap/20260701T000000Z/"+name] = data
	}
	request.Mirror, request.Now = r.url+"/snap/20260701T000000Z", today.AddDate(1, 0, 0)
	st, f := openStore(t)
	p, err := Resolve(t.Context(), st, f, request)
	if err != nil || !strings.HasPrefix(p.Sources, "deb [check-valid-until=no] "+request.Mirror) {
		t.Errorf("snapshot: %+v, %v", p, err)
	}
}

// Nothing is believed that is not signed, or not what the signed index says.
func TestNotBelieved(t *testing.T) {
	gz := "dists/x/main/binary-amd64/Packages.gz"
	for _, c := range []struct {
		name   string
		change func(t *testing.T, r *repository, q *Request)
		err    string
		hint   string
	}{
		{"changed", func(_ *testing.T, r *repository, _ *Request) {
			r.files["dists/x/InRelease"] = bytes.Replace(r.files["dists/x/InRelease"], []byte("Suite: x"), []byte("Suite: z"), 1)
		}, "signature is not good", "another one"},
		{"unknown key", func(t *testing.T, _ *repository, q *Request) { q.Keys = []string{newRepository(t).keyFile(t)} }, "not known here", "base.bootstrap.keys"},
		{"the distributions' keys", func(_ *testing.T, _ *repository, q *Request) { q.Keys = nil }, "not known here", "base.bootstrap.keys"},
		{"unsigned", func(_ *testing.T, r *repository, _ *Request) {
			r.files["dists/x/InRelease"] = []byte(r.release())
		}, "not signed", "trusted = true"},
		{"no signature beside it", func(t *testing.T, r *repository, _ *Request) { r.detach(t); delete(r.files, "dists/x/Release.gpg") }, "not signed", "trusted = true"},
		{"another text's signature", func(t *testing.T, r *repository, _ *Request) {
			r.detach(t)
			r.files["dists/x/Release"] = []byte(r.release() + "Label: x\n")
		}, "signature is not good", ""},
		{"expired", func(_ *testing.T, _ *repository, q *Request) { q.Now = today.AddDate(0, 0, 9) }, "good until 2026-07-02", "stands still"},
		{"another suite", func(t *testing.T, r *repository, _ *Request) {
			r.sign(t, strings.NewReplacer("Suite: x", "Suite: a", "Codename: y", "Codename: b").Replace(r.release()))
		}, "and not for x", ""},
		{"no suite", func(_ *testing.T, _ *repository, q *Request) { q.Suite = "bokworm" }, "has no suite bokworm", `did you mean "bookworm"`},
		{"no component", func(_ *testing.T, _ *repository, q *Request) { q.Components = []string{"universe"} }, "has no component", "base.bootstrap.components"},
		{"no architecture", func(_ *testing.T, _ *repository, q *Request) { q.Architecture = "arm64" }, "no packages for arm64", ""},
		{"another list", func(_ *testing.T, r *repository, _ *Request) {
			r.files[gz] = append(bytes.Clone(r.files[gz][:len(r.files[gz])-1]), 1)
		}, "packages of x", "signed index"},
		{"a truncated list", func(_ *testing.T, r *repository, _ *Request) { r.files[gz] = r.files[gz][:20] }, "packages of x", ""},
		{"a hostile list", func(t *testing.T, r *repository, _ *Request) {
			r.index(t, string(control("../../x", "1", "")))
		}, "cannot be a package", ""},
		{"no package", func(_ *testing.T, _ *repository, q *Request) { q.Packages = []string{"othr"} }, "no package othr", `did you mean "other"`},
		{"no version", func(_ *testing.T, _ *repository, q *Request) { q.Packages = []string{"lib=9"} }, "no version 9", "have lib 1:1"},
		{"no key file", func(_ *testing.T, _ *repository, q *Request) { q.Keys = []string{"/nowhere.gpg"} }, "read the keys in /nowhere.gpg", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := small(t)
			request := Request{Suite: "x", Mirror: r.url, Architecture: "amd64", Keys: []string{r.keyFile(t)}, Now: today}
			c.change(t, r, &request)
			st, f := openStore(t)
			_, err := Resolve(t.Context(), st, f, request)
			if err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(fault.HintOf(err), c.hint) || fault.CodeOf(err) != fault.CodeFailed {
				t.Errorf("%v (hint %q)", err, fault.HintOf(err))
			}
		})
	}
}

func TestTrusted(t *testing.T) {
	r := small(t)
	for range 2 {
		st, f := openStore(t)
		p, err := Resolve(t.Context(), st, f, Request{Suite: "x", Mirror: r.url, Architecture: "amd64", Trusted: true, Now: today})
		if err != nil || len(p.Packages) != 4 || !strings.HasPrefix(p.Sources, "deb [trusted=yes] ") {
			t.Errorf("%+v, %v", p, err)
		}
		r.files["dists/x/InRelease"] = []byte(r.release()) // signed by nobody at all
	}
}

// What is pinned and is no longer there, or is something else, is an error before anything is made.
func TestBuildOfOtherPackages(t *testing.T) {
	for why, change := range map[string]func(r *repository, p *Pinned){
		"404":               func(r *repository, _ *Pinned) { delete(r.files, "pool/p0.deb") },
		"base 1+b":          func(r *repository, _ *Pinned) { r.files["pool/p0.deb"][100] ^= 1 },
		"it says of itself": func(_ *repository, p *Pinned) { p.Packages[0].Version = "7" },
		"cannot be had":     func(_ *repository, p *Pinned) { p.Packages = slices.Delete(p.Packages, 2, 3) },
	} {
		r := small(t)
		st, f := openStore(t)
		p, err := Resolve(t.Context(), st, f, Request{Suite: "x", Mirror: r.url, Architecture: "amd64", Keys: []string{r.keyFile(t)}, Now: today})
		if err != nil {
			t.Fatal(err)
		}
		change(r, p)
		if _, err := Build(t.Context(), st, f, p, layer.Options{}); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
		if left, err := filepath.Glob(filepath.Join(st.Dir(), "tmp-v1", "bootstrap-*")); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	}
}

// A mirror that has no packages for an architecture says which it has, and where Ubuntu has the others.
func TestNoPackagesForArchitecture(t *testing.T) {
	for suite, hint := range map[string]string{
		"x":     "platform under [target]",
		"noble": `mirror = "http://…/ubuntu-ports"`,
	} {
		r := small(t)
		r.sign(t, strings.Replace(r.release(), "Suite: x", "Suite: "+suite, 1))
		r.files["dists/"+suite+"/InRelease"] = r.files["dists/x/InRelease"]
		st, f := openStore(t)
		_, err := Resolve(t.Context(), st, f, Request{Suite: suite, Mirror: r.url, Architecture: "arm64", Keys: []string{r.keyFile(t)}, Now: today})
		want := suite + " has no packages for arm64 in main: it has those for amd64"
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(fault.HintOf(err), hint) {
			t.Errorf("%v (%s), want %q (%s)", err, fault.HintOf(err), want, hint)
		}
	}
}

// The scripts of a base for a processor whose programs this machine does not run cannot configure it. That is said with both processors,
// and what can be done.
func TestConfiguringNeedsTheProcessor(t *testing.T) {
	const machine = 0xfef0 // of an ELF header: one that nobody has registered an emulator for
	program := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 57)...)
	t.Setenv("PATH", t.TempDir()) // no emulator either
	program[16], program[18], program[19], program[20] = 2, machine&0xff, machine>>8, 1
	st, f := openStore(t)
	p := &Pinned{Suite: "noble", Architecture: "arm64", Epoch: today}
	for _, name := range []string{"apt", "dash"} {
		text := strings.Replace(string(control(name, "1", "Essential: yes\n")), "amd64", "arm64", 1)
		data := deb(t, text, []*tar.Header{{Name: "./usr/bin/" + name, Typeflag: tar.TypeReg, Mode: 0o755, Linkname: string(program)}})
		if name == "dash" {
			data = deb(t, text, []*tar.Header{{Name: "./bin/sh", Typeflag: tar.TypeReg, Mode: 0o755, Linkname: string(program)}})
		}
		digest, err := st.PutBlob(data)
		if err != nil {
			t.Fatal(err)
		}
		p.Packages = append(p.Packages, Package{Name: name, Version: "1", Architecture: "arm64", SHA256: digest, Size: int64(len(data))})
	}
	_, err := Build(t.Context(), st, f, p, layer.Options{})
	want := "bootstrap noble: the packages for arm64 cannot be configured on this machine, which is linux/" + runtime.GOARCH
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(fault.HintOf(err), "qemu-user-static") || !strings.Contains(fault.HintOf(err), "set base.image") {
		t.Errorf("%v (%s), want %q", err, fault.HintOf(err), want)
	}
}

// unpackAll lays packages down, each a list of entries, and returns the directory.
func unpackAll(t *testing.T, packages ...[]*tar.Header) (string, []*unpacked, []given, error) {
	t.Helper()
	st, _ := openStore(t)
	dir := t.TempDir()
	if err := os.Symlink("usr/bin", filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	var all []*unpacked
	for i, entries := range packages {
		name := string(rune('a' + i))
		digest, err := st.PutBlob(deb(t, string(control(name, "1", "")), entries))
		if err != nil {
			t.Fatal(err)
		}
		u, err := readControl(st, Package{Name: name, Version: "1", Architecture: "amd64", SHA256: digest})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, u)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	x := newUnpacker(st, root)
	err = x.unpack(t.Context(), all)
	return dir, all, x.given, err
}

func TestUnpack(t *testing.T) {
	old := time.Unix(1e9, 0)
	dir, all, given, err := unpackAll(t,
		[]*tar.Header{
			{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
			{Name: "./var/mail/", Typeflag: tar.TypeDir, Mode: 0o2775, Gid: 8, ModTime: old},
			{Name: "./bin/su", Typeflag: tar.TypeReg, Mode: 0o4755, Linkname: "text", ModTime: old},
			{Name: "./usr/bin/other", Typeflag: tar.TypeLink, Linkname: "./bin/su"},
		},
		[]*tar.Header{
			{Name: "./var/mail/", Typeflag: tar.TypeDir, Mode: 0o700},
			{Name: "bin/link", Typeflag: tar.TypeSymlink, Linkname: "/no/where", ModTime: old},
			{Name: "./bin", Typeflag: tar.TypeSymlink, Linkname: "usr/bin"},
			{Name: "./etc/x", Typeflag: tar.TypeReg, Mode: 0o640, Uid: 1, Gid: 42, Linkname: "y"},
		})
	if err != nil {
		t.Fatal(err)
	}
	if len(given) != 2 || given[0].path != "etc/x" || given[0].mode != 0o640 || given[1].path != "var/mail" || given[1].gid != 8 || given[1].mode != 0o2775 {
		t.Errorf("owners: %+v", given)
	}
	if want := []string{"/.", "/var/mail", "/bin/su", "/usr/bin/other"}; !slices.Equal(all[0].files, want) {
		t.Errorf("files: %v", all[0].files)
	}
	for name, mode := range map[string]uint32{"usr/bin/su": 0o104755, "usr/bin/other": 0o104755, "var/mail": 0o42775, "usr/bin/link": unix.S_IFLNK | 0o777} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil || st.Mode != mode || st.Mtim.Sec != 1e9 {
			t.Errorf("%s: mode %o, time %d, %v", name, st.Mode, st.Mtim.Sec, err)
		}
	}
}

// No package writes outside of the root directory, or over another's files.
func TestHostilePackages(t *testing.T) {
	file := func(name string) *tar.Header {
		return &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Linkname: "x"}
	}
	link := func(name, target string) *tar.Header {
		return &tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
	}
	outside := filepath.Join(t.TempDir(), "x")
	for _, c := range []struct {
		why      string
		packages [][]*tar.Header
	}{
		{`the component ".."`, [][]*tar.Header{{file("../x")}}},
		{`the component ".."`, [][]*tar.Header{{file("etc/../../x")}}},
		{`the component ".."`, [][]*tar.Header{{{Name: "p", Typeflag: tar.TypeLink, Linkname: "../../../etc/passwd"}}}},
		{"cannot be written into a list", [][]*tar.Header{{file("x\n/etc/passwd")}}},
		{"escapes", [][]*tar.Header{{link("a", filepath.Dir(outside)), file("a/x")}}},
		{"escapes", [][]*tar.Header{{link("a", "../../.."), file("a/x")}}},
		{"has the same file", [][]*tar.Header{{file("a/x")}, {file("a/x")}}},
		{"has the same file", [][]*tar.Header{{file("bin/x")}, {file("usr/bin/x")}}},
		{"file exists", [][]*tar.Header{{file("x"), file("x")}}},
		{"neither a file", [][]*tar.Header{{{Name: "dev/x", Typeflag: tar.TypeChar, Mode: 0o666}}}},
		{"not a directory", [][]*tar.Header{{file("x"), link("z", "x"), {Name: "z/", Typeflag: tar.TypeDir}}}},
	} {
		if _, _, _, err := unpackAll(t, c.packages...); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%v, want %q", err, c.why)
		}
	}
	if _, err := os.Lstat(outside); err == nil {
		t.Error("a file lies outside")
	}
}

// The configuration names mirrors, before anything else of this machine.
func TestConfiguredMirror(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.toml")
	t.Setenv("SCONCE_CONFIG", file)
	if err := os.WriteFile(file, []byte("[mirrors]\nubuntu = \"http://m.example.org/ubuntu\"\ndebian = \"http://m.example.org/debian\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(); err != nil {
		t.Fatal(err)
	}
	for suite, want := range map[string]string{
		"noble": "deb http://m.example.org/ubuntu noble main|deb http://m.example.org/ubuntu noble-updates main|deb http://m.example.org/ubuntu noble-security main|",
		"bookworm": "deb http://m.example.org/debian bookworm main|deb http://m.example.org/debian bookworm-updates main|" +
			"deb http://m.example.org/debian-security bookworm-security main|deb http://n.example.org/x back main contrib|",
		"bullseye": "deb http://m.example.org/debian bullseye main|deb http://m.example.org/debian bullseye-updates main|" +
			"deb http://m.example.org/debian-security bullseye-security main|",
		"sid": "deb http://m.example.org/debian sid main|",
	} {
		r := Request{Suite: suite}
		if suite == "bookworm" {
			r.Sources = []string{"http://n.example.org/x back main contrib"}
		}
		all, err := archivesOf(r)
		var got string
		for _, a := range all {
			got += strings.ReplaceAll(a.line(), "\n", "|")
		}
		if got != want || err != nil {
			t.Errorf("%s: %s, %v", suite, got, err)
		}
	}
	for suite, hint := range map[string]string{"bokworm": `did you mean "bookworm"`, "xenial": "an archive of old releases"} {
		if _, err := archivesOf(Request{Suite: suite}); err == nil || !strings.Contains(fault.HintOf(err), hint) {
			t.Errorf("%v (%s)", err, fault.HintOf(err))
		}
	}
	if all, err := archivesOf(Request{Suite: "xenial", Mirror: "http://old.example.org/ubuntu"}); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}

// A machine whose packages come from neither of two distributions is asked for a mirror, in a file that its user can write.
func TestNoMirror(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.toml")
	t.Setenv("SCONCE_CONFIG", file)
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	unknown := 0
	for suite, name := range map[string]string{"bookworm": "debian", "noble": "ubuntu"} { // one of them may be this machine's own
		if _, err := archivesOf(Request{Suite: suite}); err != nil {
			unknown++
			if hint := fault.HintOf(err); !strings.Contains(err.Error(), "no mirror of "+name) || !strings.Contains(hint, name+` = "http://…/`+name+`" under [mirrors] in `+file) {
				t.Errorf("%s: %v (%s)", suite, err, hint)
			}
		}
	}
	if unknown == 0 {
		t.Error("this machine knows mirrors of both")
	}
}

func FuzzUnpackedControl(f *testing.F) {
	f.Add("Package: a\nVersion: 1\nArchitecture: amd64\n", "/etc/x\n", "interest /usr/x\ninterest-noawait y\n")
	f.Fuzz(func(_ *testing.T, text, conffiles, triggers string) {
		u := &unpacked{control: []controlFile{{name: "control", content: []byte(text)}, {name: "conffiles", content: []byte(conffiles)}, {name: "triggers", content: []byte(triggers)}}}
		if u.understand(Package{Name: "a", Version: "1", Architecture: "amd64"}) == nil {
			_ = u.status().String()
			_ = u.interests(map[string][]string{})
		}
	})
}
