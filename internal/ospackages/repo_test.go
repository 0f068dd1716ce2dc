package ospackages

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
)

// deb is a tiny package: its control fields, and the script that runs after it is unpacked.
type deb struct {
	control string // without the fields that all have
	script  string
}

// repository are packages that show what real ones do to each other.
var repository = []deb{
	{control: "Package: old\nVersion: 1\nProvides: role"},
	{control: "Package: new\nVersion: 1\nConflicts: old\nDepends: part (>= 2)"},
	{control: "Package: part\nVersion: 1"},
	{control: "Package: part\nVersion: 1:2"},
	{control: "Package: zero\nVersion: 0:1.2"},
	{control: "Package: player\nVersion: 1\nProvides: position\nRecommends: never"},
	{control: "Package: never\nVersion: 1"},
	{control: "Package: broken\nVersion: 1", script: "echo it went wrong; exit 3"},
	{control: "Package: nosy\nVersion: 1", script: "test ! -e /sys/class/net/eth0; ! getent hosts example.org; /usr/sbin/policy-rc.d && exit 1; test $? = 101"},
	{control: "Package: unmet\nVersion: 1\nDepends: nowhere"},
	{control: "Package: alien\nVersion: 1\nArchitecture: s390x\nMulti-Arch: same"},
}

func (d deb) build(t *testing.T, dir string) {
	t.Helper()
	root := filepath.Join(dir, "root")
	control := d.control + "\nMaintainer: Nobody <nobody@example.org>\nDescription: test\n"
	if !strings.Contains(control, "Architecture:") {
		control += "Architecture: all\n"
	}
	if err := os.MkdirAll(filepath.Join(root, "DEBIAN"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "DEBIAN/control"), []byte(control), 0o644); err != nil {
		t.Fatal(err)
	}
	if d.script != "" {
		if err := os.WriteFile(filepath.Join(root, "DEBIAN/postinst"), []byte("#!/bin/sh\n"+d.script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "--build", root, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
}

// withRepository puts packages into the base, as its only source.
func withRepository(t *testing.T, w *world, debs []deb) *world {
	t.Helper()
	dir := t.TempDir()
	for _, d := range debs {
		d.build(t, dir)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		t.Fatal(err)
	}
	var index bytes.Buffer
	files := map[string][]byte{"etc/apt/sources.list": []byte("deb [trusted=yes] file:/repo ./\n")}
	for _, name := range names {
		control, err := exec.Command("dpkg-deb", "--field", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		base := filepath.Base(name)
		files["repo/"+base] = data
		fmt.Fprintf(&index, "%s\nFilename: ./%s\nSize: %d\nSHA256: %s\n\n", bytes.TrimSpace(control), base, len(data), store.DigestOf(data).Hex())
	}
	files["repo/Packages"] = index.Bytes()
	return &world{w.st, append(slices.Clone(w.on), layerOf(t, w.st, files))}
}

func layerOf(t *testing.T, st *store.Store, files map[string][]byte) layer.Descriptor {
	t.Helper()
	w, err := layer.NewWriter(t.Context(), st, layer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	dirs := map[string]bool{}
	var entries []layer.Entry
	for name, data := range files {
		for _, parent := range layer.Parents(name) {
			if !dirs[parent] {
				dirs[parent] = true
				entries = append(entries, layer.Entry{Path: parent, Type: layer.Dir, Mode: 0o755})
			}
		}
		entries = append(entries, layer.Entry{Path: name, Type: layer.Regular, Mode: 0o755, Size: int64(len(data))})
	}
	slices.SortFunc(entries, func(a, b layer.Entry) int {
		if layer.Less(a.Path, b.Path) {
			return -1
		}
		return 1
	})
	for _, e := range entries {
		open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files[e.Path])), nil }
		if err := w.Add(e, open); err != nil {
			t.Fatal(err)
		}
	}
	d, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// names lists NAME VERSION of what is pinned.
func (p *Pinned) names() []string {
	var all []string
	for _, pkg := range p.Packages {
		all = append(all, pkg.Name+" "+pkg.Version)
	}
	return all
}

// installed returns the text of dpkg's database after d.
func installed(t *testing.T, w *world, d layer.Descriptor) string {
	t.Helper()
	tree, err := image.NewTree(t.Context(), w.st, append(slices.Clone(w.on), d))
	if err != nil {
		t.Fatal(err)
	}
	text, err := tree.ReadFile("var/lib/dpkg/status", 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Packages of a base that carries its own source, with everything that one package can do to another.
func TestRepository(t *testing.T) {
	w := withRepository(t, debianBase(t), repository)
	resolve := func(t *testing.T, w *world, packages ...string) *Pinned {
		t.Helper()
		p, err := w.resolve(t.Context(), packages...)
		if err != nil {
			t.Fatal(err, fault.HintOf(err))
		}
		return p
	}
	install := func(t *testing.T, w *world, p *Pinned) layer.Descriptor {
		t.Helper()
		d, err := w.install(t.Context(), p)
		if err != nil {
			t.Fatal(err, fault.HintOf(err))
		}
		return d
	}

	t.Run("pushed out", func(t *testing.T) {
		first := resolve(t, w, "old", "part=1")
		if diff := cmp.Diff([]string{"old 1", "part 1"}, first.names()); diff != "" {
			t.Fatal(diff)
		}
		under := &world{w.st, append(slices.Clone(w.on), install(t, w, first))}
		p := resolve(t, under, "new")
		if !cmp.Equal(p.names(), []string{"new 1", "part 1:2"}) || !cmp.Equal(p.Remove, []string{"old"}) {
			t.Fatalf("%+v", p)
		}
		d := install(t, under, p)
		status := installed(t, under, d)
		if strings.Contains(status, "\nPackage: old\nStatus: install") || !strings.Contains(status, "Package: new\n") || !strings.Contains(status, "Package: part\nStatus: install ok installed\n") {
			t.Error(status)
		}
		after := &world{w.st, append(slices.Clone(under.on), d)}
		if p := resolve(t, after, "new"); !p.Empty() {
			t.Errorf("what is there already is installed again: %+v", p)
		}
	})
	t.Run("provided, recommended", func(t *testing.T) {
		p := resolve(t, w, "position")
		if !cmp.Equal(p.names(), []string{"player 1"}) || !cmp.Equal(p.Asked, []string{"player"}) {
			t.Errorf("%+v", p)
		}
	})
	t.Run("an epoch of 0", func(t *testing.T) { // which dpkg does not write down
		p := resolve(t, w, "zero")
		if status := installed(t, w, install(t, w, p)); !cmp.Equal(p.names(), []string{"zero 0:1.2"}) || !strings.Contains(status, "Package: zero\n") {
			t.Errorf("%q: %s", p.names(), status)
		}
	})
	t.Run("no network, no services", func(t *testing.T) { install(t, w, resolve(t, w, "nosy")) })
	t.Run("foreign architecture", func(t *testing.T) {
		d := install(t, w, resolve(t, w, "alien:s390x"))
		if status := installed(t, w, d); !strings.Contains(status, "Package: alien\n") {
			t.Error(status)
		}
	})
	t.Run("remembered", func(t *testing.T) {
		p := resolve(t, w, "player")
		r, f := &execop.Runner{Store: w.st}, fetch.New(w.st, fetch.Options{Offline: true})
		first, err := Layer(t.Context(), Install{Runner: r, Fetch: f, Key: p.Key(), On: w.on, Packages: p})
		if err != nil {
			t.Fatal(err)
		}
		again, err := Layer(t.Context(), Install{Runner: r, Fetch: f, Key: p.Key(), Packages: p}) // on nothing it could not be made
		if err != nil || first != again {
			t.Errorf("%+v, then %+v, %v", first, again, err)
		}
	})
	t.Run("refused", func(t *testing.T) { testRefused(t, w, resolve) })
	t.Run("bounded", func(t *testing.T) { testBounded(t, w) })
}

// A base's programs may be anybody's: what they start is bounded, as in a step.
func testBounded(t *testing.T, w *world) {
	dirs, err := sandbox.Layers(t.Context(), w.st, w.on)
	if err != nil {
		t.Fatal(err)
	}
	q := &question{task: progress.Begin(t.Context(), "test", "bounds", 0), layers: dirs, work: t.TempDir()}
	if code, err := q.ask(t.Context(), t.TempDir(), "grep processes /proc/self/limits >"+workDir+"/limits"); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	text, err := q.answer("limits")
	if fields := strings.Fields(text); err != nil || len(fields) < 3 || fields[2] != strconv.Itoa(sandbox.DefaultProcesses()) {
		t.Errorf("%q, %v", text, err)
	}
}

func testRefused(t *testing.T, w *world, resolve func(*testing.T, *world, ...string) *Pinned) {
	for asked, want := range map[string]string{
		"unmet": "unmet : Depends: nowhere", "nowhere": "nowhere", "plyaer": "Unable to locate package plyaer", "part=3": "Version '3' for 'part'",
	} {
		_, err := w.resolve(t.Context(), asked)
		if err == nil || !strings.Contains(err.Error(), want) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v\nhint: %s", asked, err, fault.HintOf(err))
		}
	}
	p := resolve(t, w, "new")
	p.Packages = p.Packages[:1] // without its dependency
	if _, err := w.install(t.Context(), p); err == nil {
		t.Error("a lock that lacks a package is installed")
	}
	p = resolve(t, w, "player")
	p.Packages[0].Version = "2"
	if _, err := w.install(t.Context(), p); err == nil {
		t.Error("a package that is not what the lock says is installed")
	}
	p = resolve(t, w, "player")
	p.Packages[0].SHA256 = store.DigestOf([]byte("other"))
	if _, err := w.install(t.Context(), p); err == nil || !strings.Contains(err.Error(), "package player, which the base has at file:/repo/") {
		t.Errorf("a package with another hash: %v", err)
	}
	_, err := w.install(t.Context(), resolve(t, w, "broken"))
	if err == nil || !strings.Contains(fault.HintOf(err), "[[step]]") {
		t.Errorf("a package whose script fails: %v\nhint: %s", err, fault.HintOf(err))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Resolve(ctx, w.st, Request{On: w.on, Packages: []string{"new"}}); err == nil {
		t.Error("resolved after the end")
	}
	if runtime.GOARCH == "amd64" {
		testForeignBase(t)
	}
}

// testForeignBase asks a base whose programs this machine cannot run.
func testForeignBase(t *testing.T) {
	// An ELF header for a machine that nobody has: EM_AVR.
	header := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 57)...)
	header[16], header[18], header[20], header[52] = 2, 83, 1, 64
	st, _ := fakeBase(t)
	on := []layer.Descriptor{layerOf(t, st, map[string][]byte{
		"bin/sh": header, "usr/bin/apt-get": header, "etc/apt/sources.list": []byte("deb http://m x main\n"),
	})}
	_, err := Resolve(t.Context(), st, Request{On: on, Platform: v1.Platform{OS: "linux", Architecture: "avr"}, Packages: []string{"git"}})
	if err == nil || !strings.Contains(err.Error(), "cannot be locked on this machine") || !strings.Contains(fault.HintOf(err), "a machine of that kind") {
		t.Errorf("%v\nhint: %s", err, fault.HintOf(err))
	}
}
