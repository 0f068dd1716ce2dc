package test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/child/childtest"
	"sconce.dev/sconce/internal/registry/registrytest"
)

// asPyxis does what pyxis does with an importer: one line on stdout is the path, the exit code says whether there is one,
// and the job step ends with a release, or two.
const asPyxis = `
importer=$1 uri=$2
path=$("$importer" get "$uri") || { echo "pyxis: importing failed with code $?" >&2; exit 1; }
case $path in /*) ;; *) echo "pyxis: not an absolute path: $path" >&2; exit 2 ;; esac
[ "$(printf '%s\n' "$path" | wc -l)" -eq 1 ] || { echo "pyxis: more than a path: $path" >&2; exit 3; }
[ "$(head -c 4 "$path")" = hsqs ] || { echo "pyxis: no squashfs: $path" >&2; exit 4; }
"$importer" release && "$importer" release || { echo "pyxis: release failed" >&2; exit 5; }
[ -f "$path" ] || { echo "pyxis: the file is gone" >&2; exit 6; }
printf '%s\n' "$path"
`

// importer writes the script that plugstack.conf names, for a store of the place and with more variables.
func (p *place) importer(store string, env ...string) string {
	p.t.Helper()
	name := "importer-" + store
	p.write(name, fmt.Sprintf("#!/bin/sh\nexport SCONCE_STORE='%s' %s\nexec %s pyxis-importer \"$@\"\n", p.path(store), strings.Join(env, " "), p.program[0]))
	if err := os.Chmod(p.path(name), 0o755); err != nil {
		p.t.Fatal(err)
	}
	return p.path(name)
}

// pyxis imports an image and returns what pyxis got to know, and what the user saw.
func (p *place) pyxis(importer, uri string) (path, stderr string, err error) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), "/bin/sh", "-c", asPyxis, "pyxis", importer, uri)
	like := p.command()
	cmd.Dir, cmd.Env, cmd.SysProcAttr = like.Dir, like.Env, like.SysProcAttr
	var stdout, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &errors
	err = cmd.Run()
	return strings.TrimSuffix(stdout.String(), "\n"), errors.String(), err
}

// published puts an image into a registry, in front of which requests are counted, and returns its URI as users of pyxis
// write it.
func published(t *testing.T, image string) (uri string, seen *requests) {
	t.Helper()
	host, seen := watch(t, registrytest.Start(t, false))
	newPlace(t, nil).must("copy", image, "docker://"+host+"/team/app:1")
	seen.take()
	return "docker://" + host + "#team/app:1", seen
}

// All nodes of a job import one image at once, some of them with one store, into a directory that they share: it is
// downloaded and converted once.
func TestPyxisImportsOnce(t *testing.T) {
	begin(t)
	uri, seen := published(t, heavy(t))
	alone := newPlace(t, ordinary(t))
	want, stderr, err := alone.pyxis(alone.importer("store", "SCONCE_PYXIS_DIR="+alone.path("images")), uri)
	if err != nil || !strings.Contains(stderr, "squash") {
		t.Fatalf("%v\n%s", err, stderr)
	}
	once := seen.take()["download"]
	if once < 4 { // a configuration and three layers
		t.Fatalf("%d downloads", once)
	}

	p := newPlace(t, ordinary(t))
	p.umask = "077"
	images := p.path("images")
	var wg sync.WaitGroup
	paths, logs := make([]string, 6), make([]string, 6)
	var importers []string
	for i := range 3 {
		importers = append(importers, p.importer(fmt.Sprint("store", i), "SCONCE_PYXIS_DIR="+images))
	}
	for i := range paths {
		wg.Go(func() {
			var err error
			if paths[i], logs[i], err = p.pyxis(importers[i%3], uri); err != nil {
				t.Errorf("node %d: %v\n%s", i, err, logs[i])
			}
		})
	}
	wg.Wait()
	converted := 0
	for i, path := range paths {
		if path != paths[0] || filepath.Dir(path) != images || filepath.Base(path) != filepath.Base(want) {
			t.Errorf("node %d got %q, node 0 %q", i, path, paths[0])
		}
		if strings.Contains(logs[i], "squash ") {
			converted++
		}
	}
	if got := seen.take()["download"]; got != once || converted != 1 {
		t.Errorf("%d downloads, one import takes %d; %d nodes have converted the image", got, once, converted)
	}
	p.wantOnlyIn(images, filepath.Base(want))
	if digest := strings.TrimPrefix(manifestDigest(t, heavy(t)), "sha256:"); filepath.Base(want) != "sha256-"+digest+".sqsh" {
		t.Errorf("the file is called %s, the image %s", filepath.Base(want), digest)
	}
	file, _ := filepath.Rel(p.dir, paths[0]) // both are absolute
	p.wantMode(file, 0o644)
	relative, _ := filepath.Rel(alone.dir, want)
	if p.read(file) != alone.read(relative) {
		t.Error("the file differs from that of one node alone")
	}
	// The next job finds it.
	if path, stderr, err := p.pyxis(p.importer("another", "SCONCE_PYXIS_DIR="+images), uri); err != nil || path != paths[0] || seen.take()["download"] != 0 {
		t.Errorf("the next job got %q: %v\n%s", path, err, stderr)
	}
}

// wantOnlyIn fails when a directory holds anything but these files.
func (p *place) wantOnlyIn(dir string, files ...string) {
	p.t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		p.t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, "\n") != strings.Join(files, "\n") {
		p.t.Errorf("%s holds %q, want %q", dir, got, files)
	}
}

// When the node that imports an image is gone, another that waits does it.
func TestPyxisNodeDies(t *testing.T) {
	begin(t)
	uri, _ := published(t, heavy(t))
	p := newPlace(t, ordinary(t))
	images := "SCONCE_PYXIS_DIR=" + p.path("images")
	first := p.command("--store", p.path("store1"), "pyxis-importer", "get", "--sqsh-level", "22", "--sqsh-block-size", "1MiB", uri)
	first.Env = append(first.Env, images)
	var stdout bytes.Buffer
	first.Stdout = &stdout
	if lines := childtest.Start(t, first, &first.Stderr); !lines.Scan() { // it has begun, and so holds the lock, and goes no further
		t.Fatal(lines.Err())
	}
	second := p.command("--store", p.path("store2"), "pyxis-importer", "get", "--sqsh-level", "22", "--sqsh-block-size", "1MiB", uri)
	second.Env = append(second.Env, images)
	var path, log bytes.Buffer
	second.Stdout = &path
	said := childtest.Start(t, second, &second.Stderr)
	listen := func(until string) {
		for said.Scan() {
			fmt.Fprintln(&log, said.Text())
			if until != "" && strings.Contains(said.Text(), until) {
				return
			}
		}
	}
	listen("waiting for ") // the first one's lock
	if err := first.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	listen("")
	if err := second.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	if stdout.Len() > 0 {
		t.Fatal("the first was through before it was killed")
	}
	if !strings.Contains(log.String(), "squash ") {
		t.Errorf("the second has not written the file:\n%s", &log)
	}
	p.wantOnlyIn(p.path("images"), filepath.Base(strings.TrimSpace(path.String())))
	p.must("inspect", strings.TrimSpace(path.String()))
}

// release keeps the images, but for those that nobody has asked for in the given time.
func TestPyxisRelease(t *testing.T) {
	begin(t)
	one, _ := published(t, small(t))
	two, _ := published(t, heavy(t))
	p := newPlace(t, ordinary(t))
	images := p.path("images")
	keepAll := p.importer("store", "SCONCE_PYXIS_DIR="+images)
	keepSome := p.importer("some", "SCONCE_PYXIS_DIR="+images, "SCONCE_PYXIS_KEEP=30d")
	first, log, err := p.pyxis(keepAll, one)
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	second, log, err := p.pyxis(keepAll, two)
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	foreign := filepath.Join(images, "somebody.sqsh")
	if err := os.WriteFile(foreign, []byte("hsqs"), 0o644); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-40 * 24 * time.Hour)
	for _, f := range []string{first, second, foreign} {
		if err := os.Chtimes(f, long, long); err != nil {
			t.Fatal(err)
		}
	}
	release := func(importer string) {
		t.Helper()
		cmd := p.command()
		cmd.Path, cmd.Args = importer, []string{importer, "release"}
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("release: %v\n%s", err, out)
		}
	}
	release(keepAll)
	for _, f := range []string{first, second} {
		if _, err := os.Stat(f); err != nil {
			t.Errorf("without --keep an image is gone: %v", err)
		}
	}
	if path, log, err := p.pyxis(keepSome, two); err != nil || path != second { // asked for just now
		t.Fatalf("%s, %v\n%s", path, err, log)
	}
	release(keepSome)
	release(keepSome)
	if _, err := os.Stat(first); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old image is still there: %v", err)
	}
	for _, f := range []string{second, foreign} {
		if _, err := os.Stat(f); err != nil {
			t.Error(err)
		}
	}
	if path, log, err := p.pyxis(keepSome, one); err != nil || path != first {
		t.Errorf("once more: %s, %v\n%s", path, err, log)
	}
	if r := p.sconce("pyxis-importer", "--dir", p.path("none"), "--keep", "1d", "release"); r.code != 0 {
		t.Errorf("a release before anything was imported: %v", r)
	}
	p.fails(2, []string{"--keep"}, "pyxis-importer", "--dir", images, "--keep", "soon", "release")
}

// What cannot be imported is an error on stderr, with nothing on stdout.
func TestPyxisFails(t *testing.T) {
	begin(t)
	uri, _ := published(t, small(t))
	p := newPlace(t, ordinary(t))
	images := p.path("images")
	unknown := strings.Replace(uri, "team/app:1", "team/none:1", 1)
	for _, c := range []struct {
		code  int
		words []string
		args  []string
	}{
		{1, []string{"team/none"}, []string{"get", unknown}},
		{2, nil, []string{"get"}},
		{2, nil, []string{"get", uri, uri}},
		{2, nil, []string{"fetch", uri}},
		{2, nil, []string{"release", uri}},
		{2, []string{"--sqsh-block-size"}, []string{"get", "--sqsh-block-size", "100", uri}},
	} {
		if r := p.fails(c.code, c.words, append([]string{"pyxis-importer", "--dir", images}, c.args...)...); r.stdout != "" {
			t.Errorf("stdout is not empty: %v", r)
		}
	}
	if _, _, err := p.pyxis(p.importer("store", "SCONCE_PYXIS_DIR="+images), unknown); err == nil {
		t.Error("pyxis does not notice that an image is unknown")
	}
	// Another compression is another file.
	get := func(flags ...string) string {
		t.Helper()
		return strings.TrimSpace(p.must(append(append([]string{"pyxis-importer", "--dir", images, "get"}, flags...), uri)...).stdout)
	}
	if usual, other := get(), get("--sqsh-compression", "gzip"); usual == other || p.inspectFile(other).File.Compression != "gzip" || get() != usual {
		t.Errorf("with zstd the file is %s, with gzip %s", usual, other)
	}
	p.wantTidy()
}
