package test

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// Containerfiles mean here what they mean elsewhere: each directory of conformance holds one that is about one behaviour.
// sconce builds it as an ordinary user, buildah as root, and the two images must have the same files and configuration but
// for what onPurpose lists. Times are not compared: those that sconce writes are fixed.
//
//	Containerfile           of the test; registry.test stands for a registry with the images of conformanceImages
//	Containerfile.buildah   optional: the same in words that buildah 1.28 knows
//	context                 optional: the build context
//	prepare.sh              optional: is run in the context, and makes what cannot be checked in
//	options                 optional: arguments for both commands
//	fails                   optional: both must fail, and sconce must say what matches these expressions, one on each line
func TestConformance(t *testing.T) {
	begin(t)
	needRoot(t)
	for _, tool := range []string{"buildah", "busybox", "tar", "gzip", "bzip2", "xz", "zstd"} {
		tooltest.Path(t, tool)
	}
	c := newConformance(t)
	cases, err := os.ReadDir("conformance")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("cases", func(t *testing.T) {
		for _, entry := range cases {
			t.Run(entry.Name(), func(t *testing.T) {
				t.Parallel()
				c.run(t, entry.Name())
			})
		}
	})
	c.wantAllSeen(t)
	c.place.wantTidy()
	c.place.wantSound()
}

// difference is something in which the two images differ on purpose.
type difference struct {
	name   string // of the case, or "*"
	what   string // expression for a line of the comparison
	reason string
}

// onPurpose lists all differences. One that does not occur any more has to go.
var onPurpose = []difference{
	{"add-tar-root", `^file /(new|usr/share/data): d 755 0:0, `, "what an archive is unpacked into stays as it is, as with BuildKit"},
	{"arg-inherited", `^file /out: `, "a stage that goes on with another one has its ARG too, as with BuildKit"},
	{"copy-chmod", `^file /dir: d 750 `, "a new destination has the permissions of --chmod too, as with BuildKit"},
	{"copy-chmod-parents", `^file /(dir|new|new/deep|usr/share/data): `, "new directories on the way have the permissions of --chmod too, as with BuildKit"},
	{"env-of-base-and-arg", `^file /out: `, "what comes last counts, as with BuildKit: ARG after the base's ENV"},
	{"escape-directive", `^env P: `, "an escape character that is not the file's is an ordinary one"},
	{"expose", `^port 900`, "a range of ports is each of them, as with BuildKit"},
	{"mount-secret", `^file /run/secrets: none`, "where something was mounted leaves no trace in the image"},
	{"mount-tmpfs", `^file /usr/share/data`, "what a tmpfs covered is there again; buildah loses it"},
	{"run-link-to-base", `^file /usr/share/data/(one|again): .* linked: `, "a hard link to a file of the base stays one; with its driver vfs, buildah makes two files"},
	{"shell", `^cmd: `, "CMD uses the shell of SHELL, as with BuildKit"},
	{"volume", `^file /v: none`, "VOLUME makes no directory, as with BuildKit"},
	{"volume-written", `^file /data/after: `, "what a command writes to a volume stays, as with BuildKit"},
	{"*", `^file /var/lib/data: none`, "VOLUME makes no directory, as with BuildKit"},
	{"*", `^file /srv: none`, "a working directory that only the base's configuration names is not made, as with BuildKit"},
}

// conformance is what all cases share.
type conformance struct {
	place    *place
	dir      string // of buildah
	host     string // of the registry
	files    string // host of the files that ADD downloads
	together chan struct{}

	mu   sync.Mutex
	seen map[difference]bool
}

func newConformance(t *testing.T) *conformance {
	c := &conformance{place: newPlace(t, ordinary(t)), host: registrytest.Start(t, false), together: make(chan struct{}, 2), seen: map[difference]bool{}}
	var err error
	if c.dir, err = os.MkdirTemp(workshop, "buildah-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.RemoveAll(c.dir) })
	files := httptest.NewServer(http.FileServer(http.Dir(filepath.Join(c.dir, "files"))))
	t.Cleanup(files.Close)
	c.files = files.URL
	for name, text := range map[string]string{"files/hello.txt": "hello from a server\n", "policy.json": `{"default": [{"type": "insecureAcceptAnything"}]}`} {
		path := filepath.Join(c.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	archive(t, filepath.Join(c.dir, "files", "archive.tar.gz"))
	for repository, image := range conformanceImages(t) {
		dir, ref := filepath.Join(c.dir, repository+".oci"), c.host+"/"+repository+":latest"
		l, err := layout.Write(dir, empty.Index)
		if err == nil {
			err = l.AppendImage(image)
		}
		if err != nil {
			t.Fatal(err)
		}
		registrytest.Skopeo(t, "copy", "--dest-tls-verify=false", "oci:"+dir, "docker://"+ref)
		if out, err := c.buildah(t, "pull", "--tls-verify=false", ref); err != nil {
			t.Fatalf("buildah pull: %v\n%s", err, out)
		}
	}
	return c
}

// archive makes a small archive for ADD of a URL.
func archive(t *testing.T, path string) {
	cmd := exec.Command("tar", "--owner=7", "--group=8", "-czf", path, "conformance_test.go")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
}

// conformanceImages makes the bases: busybox with a few files, the same with a configuration, and one with triggers.
func conformanceImages(t *testing.T) map[string]v1.Image {
	l := newTarLayer(t)
	l.dir("./", "bin", "dev", "etc", "home", "proc", "run", "sys", "usr", "usr/bin", "usr/lib", "usr/share", "usr/share/data", "usr/share/data/deep", "var", "var/lib")
	l.add(tar.Header{Name: "tmp", Typeflag: tar.TypeDir, Mode: 0o1777}, "")
	l.add(tar.Header{Name: "root", Typeflag: tar.TypeDir, Mode: 0o700}, "")
	l.add(tar.Header{Name: "home/app", Typeflag: tar.TypeDir, Uid: 1000, Gid: 1001}, "")
	busybox, err := os.ReadFile(tooltest.Path(t, "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	l.add(tar.Header{Name: "bin/busybox", Mode: 0o755}, string(busybox))
	for _, applet := range usedApplets(t) {
		l.symlink("bin/"+applet, "busybox")
	}
	l.symlink("lib", "usr/lib")
	l.file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001:app:/home/app:/bin/sh\nother:x:1002:1002::/nowhere:/bin/sh\n")
	l.file("etc/hostname", "base\n") // these three are there in most images, and buildah makes those that are not
	l.file("etc/hosts", "127.0.0.1 localhost\n")
	l.file("etc/resolv.conf", "")
	l.file("etc/group", "root:x:0:\napp:x:1001:\nextra:x:1500:app\nother:x:1002:\n")
	l.file("usr/share/data/one", "one\n")
	l.file("usr/share/data/two", "two\n")
	l.add(tar.Header{Name: "usr/share/data/owned", Uid: 1000, Gid: 1500, Mode: 0o640}, "owned\n")
	l.file("usr/share/data/deep/three", "three\n")
	l.symlink("usr/share/data/link", "one")
	base, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), l.gzipped())
	if err != nil {
		t.Fatal(err)
	}
	plain := v1.Config{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}
	full := v1.Config{
		Env: append(slices.Clone(plain.Env), "LANG=C.UTF-8", "VERSION=base"), Entrypoint: []string{"/bin/entry"}, Cmd: []string{"argument"},
		WorkingDir: "/srv", User: "app", Labels: map[string]string{"from": "base", "kept": "yes"},
		ExposedPorts: map[string]struct{}{"80/tcp": {}}, Volumes: map[string]struct{}{"/var/lib/data": {}}, StopSignal: "SIGINT",
	}
	trigger := plain
	trigger.OnBuild = []string{"ARG NAME=trigger", "COPY . /triggered/$NAME/", "RUN echo $NAME > /triggered/by"}
	images := map[string]v1.Image{}
	for name, config := range map[string]v1.Config{"base": plain, "full": full, "trigger": trigger} {
		image, err := mutate.ConfigFile(base, configFile(t, base, config))
		if err != nil {
			t.Fatal(err)
		}
		images[name] = image
	}
	return images
}

// usedApplets are those commands of busybox that a case names: buildah's driver vfs copies every file of an image for each layer.
func usedApplets(t *testing.T) []string {
	list, err := exec.Command("busybox", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{"sh": true}
	err = fs.WalkDir(os.DirFS("conformance"), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(filepath.Join("conformance", path))
		for _, word := range regexp.MustCompile(`[\w.[-]+`).FindAllString(string(text), -1) {
			named[word] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	delete(named, "busybox")
	return slices.DeleteFunc(strings.Fields(string(list)), func(applet string) bool { return !named[applet] })
}

func configFile(t *testing.T, image v1.Image, config v1.Config) *v1.ConfigFile {
	c, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Config = "linux", goArch(), config
	c.Created = v1.Time{Time: time.Unix(1_500_000_000, 0)}
	return c
}

// buildah runs buildah with a storage of its own.
func (c *conformance) buildah(t *testing.T, args ...string) (string, error) {
	global := []string{"--root", filepath.Join(c.dir, "root"), "--runroot", filepath.Join(c.dir, "run"), "--storage-driver", "vfs"}
	cmd := exec.CommandContext(t.Context(), "buildah", append(global, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+c.dir, "HOME="+c.dir, "BUILDAH_ISOLATION=chroot")
	cmd.Dir = c.dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// caseFiles is a case, made ready to be built.
type caseFiles struct {
	file, fileForBuildah, context string
	options, fails                []string
}

// prepare copies a case to where both users may read it.
func (c *conformance) prepare(p *place, test string) caseFiles {
	from, dir, t := filepath.Join("conformance", test), "case-"+test, p.t
	f := caseFiles{file: p.path(dir, "Containerfile"), context: p.path(dir, "context")}
	if err := os.MkdirAll(f.context, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(p.path(dir), os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	f.fileForBuildah = f.file
	for _, name := range []string{"Containerfile", "Containerfile.buildah"} {
		path := p.path(dir, name)
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		text = []byte(strings.NewReplacer("http://registry.test", c.files, "registry.test", c.host).Replace(string(text)))
		if err := errors.Join(err, os.WriteFile(path, text, 0o644)); err != nil {
			t.Fatal(err)
		}
		f.fileForBuildah = path
	}
	usualModes(t, f.context)
	if script, err := filepath.Abs(filepath.Join(from, "prepare.sh")); err == nil {
		if _, err := os.Stat(script); err == nil {
			cmd := exec.Command("/bin/sh", "-euc", `umask 022; . "$0"`, script)
			cmd.Dir = f.context
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", script, err, out)
			}
		}
	}
	f.options = readLines(t, p.path(dir, "options"))
	for i := range f.options {
		f.options[i] = strings.ReplaceAll(f.options[i], "CASE", p.path(dir))
	}
	f.fails = readLines(t, p.path(dir, "fails"))
	below := *p
	below.dir = p.path(dir)
	below.own()
	return f
}

// usualModes gives files the modes that git knows.
func usualModes(t testing.TB, dir string) {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type() == fs.ModeSymlink {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if d.IsDir() || info.Mode()&0o100 != 0 {
			mode = 0o755
		}
		return os.Chmod(path, mode)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func readLines(t testing.TB, path string) []string {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.FieldsFunc(string(data), func(c rune) bool { return c == '\n' })
}

// run builds a case twice and compares.
func (c *conformance) run(t *testing.T, test string) {
	p := *c.place
	p.t = t
	f := c.prepare(&p, test)

	theirs := filepath.Join(c.dir, "image-"+test)
	args := []string{"bud", "--tls-verify=false", "--pull=never", "--format=docker", "--identity-label=false", "--no-cache", "-f", f.fileForBuildah, "-t", "dir:" + theirs}
	c.together <- struct{}{}
	out, err := c.buildah(t, slices.Concat(args, f.options, []string{f.context})...)
	<-c.together
	ours := filepath.Join("ours", test)
	r := p.sconce(slices.Concat([]string{"build", "-f", f.file, "-t", "conformance-" + test, "-o", "oci:" + p.path(ours)}, f.options, []string{f.context})...)
	if f.fails != nil {
		if err == nil {
			t.Errorf("buildah does not fail:\n%s", out)
		}
		wantFailure(t, r, f.fails)
		return
	}
	if err != nil {
		t.Fatalf("buildah: %v\n%s", err, out)
	}
	if r.code != 0 {
		t.Fatal(r)
	}
	c.compare(t, test, readImage(t, layoutBlobs(t, p.path(ours))), readImage(t, dirBlobs(t, theirs)))
}

func wantFailure(t *testing.T, r result, expressions []string) {
	t.Helper()
	if r.code == 0 || strings.Contains(r.stderr, "goroutine ") {
		t.Errorf("it does not fail as it should: %v", r)
	}
	for _, expression := range expressions {
		if !regexp.MustCompile(expression).MatchString(r.stderr) {
			t.Errorf("the error does not match %q: %v", expression, r)
		}
	}
}

// compare reports the lines in which two images differ, but for those that do so on purpose.
func (c *conformance) compare(t *testing.T, test string, ours, theirs map[string]string) {
	names := map[string]bool{}
	for name := range ours {
		names[name] = true
	}
	for name := range theirs {
		names[name] = true
	}
	var lines []string
	for name := range names {
		if ours[name] != theirs[name] {
			lines = append(lines, fmt.Sprintf("%s: %s, and with buildah: %s", name, orNone(ours[name]), orNone(theirs[name])))
		}
	}
	slices.Sort(lines)
	for _, line := range lines {
		if !c.expected(test, line) {
			t.Error(line)
		}
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// expected reports whether a difference is on purpose, and notes that it occurred.
func (c *conformance) expected(test, line string) bool {
	for _, d := range onPurpose {
		if (d.name == "*" || d.name == test) && regexp.MustCompile(d.what).MatchString(line) {
			c.mu.Lock()
			c.seen[d] = true
			c.mu.Unlock()
			return true
		}
	}
	return false
}

// wantAllSeen fails for differences that are listed and do not occur, unless only some cases were run.
func (c *conformance) wantAllSeen(t *testing.T) {
	if strings.Contains(runFilter(), "/") {
		return
	}
	for _, d := range onPurpose {
		if !c.seen[d] {
			t.Errorf("%s does not differ any more in %s (%s): take it off the list", d.name, d.what, d.reason)
		}
	}
}
