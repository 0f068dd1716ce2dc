package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sconce.dev/sconce/internal/registry/registrytest"
)

// mirrored is an image as `sconce mirror --json` tells of it.
type mirrored struct{ Name, Image, State, File, Error string }

// mirror runs `sconce mirror` and returns its exit code and what became of each image, by name.
func (p *place) mirror(args ...string) (int, map[string]mirrored) {
	p.t.Helper()
	r := p.sconce(append([]string{"mirror", "--json"}, args...)...)
	var list []mirrored
	if err := json.Unmarshal([]byte(r.stdout), &list); err != nil {
		p.t.Fatalf("%v: %v", err, r)
	}
	out := map[string]mirrored{}
	for _, m := range list {
		out[m.Name] = m
	}
	return r.code, out
}

// A mirror follows tags that move, keeps what cannot be had, forgets what nobody names any more, and pyxis takes from it.
func TestMirror(t *testing.T) {
	begin(t)
	host, seen := watch(t, registrytest.Start(t, false))
	admin := newPlace(t, ordinary(t))
	admin.umask = "077"
	admin.must("copy", small(t), "docker://"+host+"/team/app:1")
	admin.must("copy", heavy(t), "docker://"+host+"/team/base:1")
	admin.write("list", "# chosen images\ndocker://"+host+"/team/app:1\ndocker://"+host+"#team/base:1 base  # as pyxis writes it\n")
	images := admin.path("images")
	code, first := admin.mirror("list", images)
	if code != 0 || first["team+app+1"].State != "new" || first["base"].State != "new" {
		t.Fatalf("code %d, %v", code, first)
	}
	admin.wantMode("images", 0o755)
	admin.wantMode("images/base.sqsh", 0o644)
	admin.must("inspect", "images/team+app+1.sqsh")

	seen.take()
	if code, again := admin.mirror("list", images); code != 0 || again["base"].State != "unchanged" || seen.take()["download"] != 0 {
		t.Errorf("a second run: code %d, %v", code, again)
	}

	t.Run("an importer takes what is there", func(t *testing.T) {
		p := admin.in(t)
		p.write("config.toml", "images = \""+images+"\"\n")
		path, log, err := p.pyxis(p.importer("other", "SCONCE_CONFIG="+p.path("config.toml"), "SCONCE_PYXIS_DIR="+p.path("own")), "docker://"+host+"#team/base:1")
		if err != nil || path != first["base"].File || seen.take()["download"] != 0 {
			t.Errorf("got %q, want %q: %v\n%s", path, first["base"].File, err, log)
		}
	})

	// The tag moves, and the other image vanishes.
	admin.must("copy", heavy(t), "docker://"+host+"/team/app:1")
	admin.write("list", "docker://"+host+"/team/app:1\ndocker://"+host+"/team/gone:1 base\ndocker://"+host+"/team/gone:1 never\n")
	code, moved := admin.mirror("list", images, "--keep", "30d")
	if code != 1 || moved["team+app+1"].State != "new" || moved["team+app+1"].File != first["base"].File {
		t.Errorf("code %d, %v", code, moved)
	}
	if m := moved["base"]; m.State != "kept" || m.File != first["base"].File || m.Error == "" {
		t.Errorf("an image that cannot be had: %v", m)
	}
	if m := moved["never"]; m.State != "missing" || m.File != "" {
		t.Errorf("an image that could never be had: %v", m)
	}
	old := first["team+app+1"].File
	if _, err := os.Stat(old); err != nil {
		t.Errorf("the old file is gone before its time: %v", err)
	}

	// The tag moves back, after a run that was killed between making a link and renaming it.
	admin.must("copy", small(t), "docker://"+host+"/team/app:1")
	admin.write("list", "docker://"+host+"/team/app:1\n")
	if err := os.Symlink("nowhere", images+"/.team+app+1.sqsh.new"); err != nil {
		t.Fatal(err)
	}
	if code, back := admin.mirror("list", images, "--keep", "30d"); code != 0 || back["team+app+1"].File != old {
		t.Errorf("code %d, %v", code, back)
	}
	if _, err := os.Stat(images + "/base.sqsh"); err != nil {
		t.Errorf("what the list no longer names is gone before its time: %v", err)
	}

	// The base's time has come.
	long := time.Now().Add(-40 * 24 * time.Hour)
	admin.write("images/somebody.sqsh", "hsqs")
	for _, f := range []string{first["base"].File, images + "/somebody.sqsh"} {
		if err := os.Chtimes(f, long, long); err != nil {
			t.Fatal(err)
		}
	}
	if code, last := admin.mirror("list", images, "--keep", "30d"); code != 0 || last["team+app+1"].State != "unchanged" {
		t.Errorf("code %d, %v", code, last)
	}
	admin.wantOnlyIn(images, filepath.Base(old), "somebody.sqsh", "team+app+1.sqsh")
	admin.must("inspect", "images/team+app+1.sqsh")

	admin.write("list", "docker://"+host+"/team/app:1 somebody\n")
	if code, in := admin.mirror("list", images); code != 1 || !strings.Contains(in["somebody"].Error, "something else than a link") {
		t.Errorf("code %d, %v", code, in)
	}
	if admin.read("images/somebody.sqsh") != "hsqs" {
		t.Error("somebody's file was replaced")
	}
}

// Several machines bring one mirror up to date: each image is downloaded and converted once.
func TestMirrorsAtOnce(t *testing.T) {
	begin(t)
	host, seen := watch(t, registrytest.Start(t, false))
	p := newPlace(t, ordinary(t))
	p.must("copy", heavy(t), "docker://"+host+"/team/base:1")
	p.write("list", "docker://"+host+"/team/base:1 base\n")
	if code, got := p.mirror("list", "alone", "--store", p.path("alone-store")); code != 0 {
		t.Fatal(code, got)
	}
	once := seen.take()["download"]
	states := make([]string, 4)
	var wg sync.WaitGroup
	for i, name := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			code, got := p.mirror("list", "images", "--store", p.path(name), "--keep", "0")
			if code != 0 {
				t.Errorf("machine %s: code %d, %v", name, code, got)
			}
			states[i] = got["base"].State
		})
	}
	wg.Wait()
	if all := strings.Join(states, " "); strings.Count(all, "new") != 1 || strings.Count(all, "unchanged") != 3 {
		t.Errorf("the machines found %s", all)
	}
	if got := seen.take()["download"]; got != once {
		t.Errorf("%d downloads, one machine needs %d", got, once)
	}
	p.must("inspect", "images/base.sqsh")
}

// All mistakes of a list are told at once, and nothing is made.
func TestMirrorList(t *testing.T) {
	begin(t)
	p := newPlace(t, nil)
	p.write("list", "debian:12 a\ndebian:13 a\noci:somewhere\ndebian:13 ../etc\ndebian:13 b c\ndebian:13 sha256-0\n")
	p.fails(2, []string{"list:2: line 1 has the name", "list:3: oci:somewhere has no tag", "list:4: \"../etc\"", "list:5: \"c\"", "list:6: \"sha256-0\""}, "mirror", "list", "images")
	p.write("none", "# nothing yet\n")
	p.fails(2, []string{"names no image"}, "mirror", "none", "images")
	p.fails(2, []string{"--keep"}, "mirror", "list", "images", "--keep", "soon")
	if _, err := os.Stat(p.path("images")); err == nil {
		t.Error("a directory was made")
	}
}
