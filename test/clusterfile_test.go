package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/tooltest"
)

func goArch() string { return runtime.GOARCH }

// unpackedByUmoci unpacks an OCI image with umoci as root and describes the root file system.
func unpackedByUmoci(t *testing.T, ref string) map[string]thing {
	t.Helper()
	bundle := filepath.Join(roomFor(t), "bundle")
	do(t, "umoci", "unpack", "--image", strings.TrimPrefix(ref, "oci:"), bundle)
	return treeOf(t, filepath.Join(bundle, "rootfs"))
}

// roomFor makes a directory that goes with the test, whatever rights the files in it have.
func roomFor(t *testing.T) string {
	t.Helper()
	return newPlace(t, nil).dir
}

// mountLoop mounts the squashfs at an offset of a file.
func mountLoop(t *testing.T, file string, offset int64) string {
	t.Helper()
	at := filepath.Join(roomFor(t), "mounted")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tooltest.Path(t, "mount"), "-t", "squashfs", "-o", fmt.Sprintf("ro,loop,offset=%d", offset), file, at).CombinedOutput()
	if err != nil {
		if text := string(out); strings.Contains(text, "loop device") || strings.Contains(text, "unknown filesystem") || strings.Contains(text, "permission denied") {
			t.Skipf("this machine mounts no files: %s", out)
		}
		t.Fatalf("mount: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		// lazy: a process that a test beside this one just forked may still have a file of it open
		if out, err := exec.Command("umount", "--lazy", at).CombinedOutput(); err != nil {
			t.Errorf("umount: %v\n%s", err, out)
		}
	})
	return at
}

// mountFUSE mounts a squashfs with squashfuse.
func mountFUSE(t *testing.T, file string) string {
	t.Helper()
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		tooltest.Missing(t, "no FUSE here: %v", err)
	}
	fuse.Close()
	at := filepath.Join(roomFor(t), "mounted")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(tooltest.Path(t, "squashfuse"), "-f", file, at)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// lazy: a process that a test beside this one just forked may still have a file of it open
		if out, err := exec.Command("umount", "--lazy", at).CombinedOutput(); err != nil {
			t.Errorf("umount: %v\n%s", err, out)
			_ = cmd.Process.Kill()
		}
		_ = cmd.Wait() // that it ended is enough
	})
	for range 60_000 {
		if entries, err := os.ReadDir(at); err == nil && len(entries) > 0 {
			return at
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("squashfuse does not show anything")
	return ""
}

// Every program that reads squashfs finds in the file what umoci unpacks of the image.
func TestSquashfsIsTheImage(t *testing.T) {
	needRoot(t)
	begin(t)
	for _, tool := range []string{"umoci", "unsquashfs", "sqfs2tar", "tar", "busybox"} {
		tooltest.Path(t, tool)
	}
	p := newPlace(t, nil)
	want := richTree(t)
	for _, flags := range [][]string{
		{},
		{"--sqsh-compression", "gzip", "--sqsh-block-size", "4KiB", "--sqsh-tail-packing"},
		{"--sqsh-compression", "lz4", "--sqsh-block-size", "1MiB"},
		{"--sqsh-compression", "none"},
	} {
		file := p.path(fmt.Sprintf("%d.sqsh", len(flags)))
		p.must(slices.Concat([]string{"copy"}, flags, []string{rich(t), file})...)
		t.Run("unsquashfs"+strings.Join(flags, " "), func(t *testing.T) {
			to := filepath.Join(roomFor(t), "root")
			do(t, "unsquashfs", "-no-progress", "-d", to, file)
			wantTree(t, "unsquashfs", treeOf(t, to), want)
		})
		t.Run("kernel"+strings.Join(flags, " "), func(t *testing.T) {
			wantTree(t, "the kernel", treeOf(t, mountLoop(t, file, 0)), want)
		})
	}
	file := p.path("0.sqsh")
	t.Run("squashfuse", func(t *testing.T) {
		wantTree(t, "squashfuse", leniently(treeOf(t, mountFUSE(t, file))), leniently(want))
	})
	t.Run("sqfs2tar", func(t *testing.T) {
		to := filepath.Join(roomFor(t), "root")
		if err := os.Mkdir(to, 0o755); err != nil {
			t.Fatal(err)
		}
		do(t, "sh", "-c", `sqfs2tar --root-becomes . "$0" | tar -x -C "$1" --numeric-owner --same-permissions --same-owner --xattrs --xattrs-include='*'`, file, to)
		wantTree(t, "sqfs2tar", treeOf(t, to), want)
	})
	p.wantSound()
	p.wantTidy()
}

// leniently leaves out what squashfuse gets wrong: it takes the namespaces security and trusted for each other, until
// 0.1.105 at least, and libfuse gives names of one file different numbers.
func leniently(tree map[string]thing) map[string]thing {
	out := map[string]thing{}
	for name, what := range tree {
		out[name] = thing{text: strings.NewReplacer(" security.", " ", " trusted.", " ").Replace(what.text)}
	}
	return out
}

// partition is where the file system of a SIF is, as sconce inspect says.
func (p *place) partition(file string) (offset, size int64) {
	p.t.Helper()
	for _, o := range p.inspectFile(file).File.Objects {
		if o.Kind == "FS" {
			return o.Offset, o.Size
		}
	}
	p.t.Fatalf("%s has no file system", file)
	return 0, 0
}

// inspectedFile is what sconce inspect --json says about a cluster file.
type inspectedFile struct {
	Digest, MediaType, Platform string
	Created                     time.Time
	Env, Entrypoint, Cmd        []string
	Workdir                     string
	Labels                      map[string]string
	Size                        int64
	File                        struct {
		Compression              string
		Level, BlockSize, Inodes int
		Objects                  []struct {
			Kind         string
			Offset, Size int64
		}
	}
}

func (p *place) inspectFile(file string) inspectedFile {
	p.t.Helper()
	var in inspectedFile
	if err := json.Unmarshal([]byte(p.must("inspect", "--json", file).stdout), &in); err != nil {
		p.t.Fatal(err)
	}
	return in
}

func readAt(t testing.TB, file string, offset, size int64) []byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, offset, size))
	if err != nil || int64(len(data)) != size {
		t.Fatalf("read %s: %d bytes, %v", file, len(data), err)
	}
	return data
}

// From .sqsh to .sif and back nothing changes, and both are the same from the image.
func TestSquashfsAndSIF(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	p.must("copy", rich(t), "a.sqsh")
	p.must("copy", "--no-reuse", rich(t), "a.sif")
	p.must("copy", "a.sqsh", "b.sif")
	p.must("copy", "b.sif", "b.sqsh")
	p.must("copy", "b.sif", "c.sif")
	squash, alone := p.read("a.sqsh"), p.read("a.sif")
	for _, name := range []string{"b.sif", "c.sif"} {
		if p.read(name) != alone {
			t.Errorf("%s differs from a.sif", name)
		}
	}
	if p.read("b.sqsh") != squash {
		t.Error("from .sqsh to .sif and back the file has changed")
	}
	offset, size := p.partition("a.sif")
	if string(readAt(t, p.path("a.sif"), offset, size)) != squash || offset%4096 != 0 {
		t.Errorf("the file system in the SIF, at %d, is not that of the .sqsh", offset)
	}
	if !strings.HasPrefix(alone, "#!/usr/bin/env run-singularity\n") {
		t.Errorf("a SIF begins with %q", alone[:40])
	}

	in, of := p.inspectFile("a.sif"), p.inspectFile("a.sqsh")
	digest := manifestDigest(t, rich(t))
	if in.Digest != digest || of.Digest != digest || in.MediaType != "SIF" || of.MediaType != "squashfs" || in.Platform != "linux/"+goArch() {
		t.Errorf("of image %s, inspect says %+v and %+v", digest, in, of)
	}
	for _, in := range []inspectedFile{in, of} {
		if !slices.Equal(in.Env, richConfig.Env) || !slices.Equal(in.Entrypoint, richConfig.Entrypoint) || !slices.Equal(in.Cmd, richConfig.Cmd) ||
			in.Workdir != richConfig.WorkingDir || in.Labels["org.example.name"] != "rich" || in.Created.Unix() != 1_600_000_000 {
			t.Errorf("inspect says %+v", in)
		}
		if in.File.Compression != "zstd" || in.File.Level != 3 || in.File.BlockSize != 128<<10 || in.File.Inodes < 2600 || in.Size != size {
			t.Errorf("inspect says %+v, %d bytes", in.File, in.Size)
		}
	}
	p.wantSound()
	p.wantTidy()
}

// manifestDigest is the digest of the only image of a layout.
func manifestDigest(t *testing.T, ref string) string {
	t.Helper()
	dir, _, _ := strings.Cut(strings.TrimPrefix(ref, "oci:"), ":")
	data, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index struct{ Manifests []struct{ Digest string } }
	if err := json.Unmarshal(data, &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("%s: %v", data, err)
	}
	return index.Manifests[0].Digest
}

// A SIF becomes an OCI image with the same files and configuration, and that a squashfs.
func TestFromSIFToOCIAndBack(t *testing.T) {
	needRoot(t)
	begin(t)
	tooltest.Path(t, "umoci")
	tooltest.Path(t, "unsquashfs")
	p := newPlace(t, nil)
	want := richTree(t)
	// Images that are made of root file systems have no entry for the root itself, and no attributes that only root can see.
	const private = "odd/attributes-on-top"
	inLayer := func(tree map[string]thing) map[string]thing {
		delete(tree, "")
		tree[private] = thing{text: strings.Replace(tree[private].text, ` trusted.of-root="y"`, "", 1)}
		return tree
	}
	inLayer(want)
	p.must("copy", rich(t), "a.sif")
	p.must("copy", "a.sif", "oci:"+p.path("layout")+":1")
	wantTree(t, "umoci", inLayer(unpackedByUmoci(t, "oci:"+p.path("layout")+":1")), want)
	var image struct{ Config v1.Config }
	if err := json.Unmarshal([]byte(skopeo(t, "inspect", "--config", "oci:"+p.path("layout")+":1")), &image); err != nil {
		t.Fatal(err)
	}
	if got := image.Config; !slices.Equal(got.Env, richConfig.Env) || !slices.Equal(got.Entrypoint, richConfig.Entrypoint) || !slices.Equal(got.Cmd, richConfig.Cmd) || got.WorkingDir != richConfig.WorkingDir {
		t.Errorf("the configuration is %+v", got)
	}
	p.must("copy", "oci:"+p.path("layout")+":1", "b.sqsh")
	do(t, "unsquashfs", "-no-progress", "-d", p.path("root"), p.path("b.sqsh"))
	wantTree(t, "unsquashfs", inLayer(treeOf(t, p.path("root"))), want)
	p.wantSound()
}

var sharedSmall once[string]

// small returns an OCI image of busybox alone.
func small(t *testing.T) string {
	t.Helper()
	return sharedSmall.get(t, func(t *testing.T) string {
		l := newTarLayer(t)
		l.dir("etc", "root", "proc", "sys", "dev", "tmp")
		l.file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
		l.file("etc/os-release", "ID=small\nVERSION_ID=1\n")
		l.programs()
		return writeLayout(t, filepath.Join(workshop, "small"), v1.Config{Env: []string{"PATH=/bin", "GREETING=hello"}, Cmd: []string{"/bin/sh", "-c", `echo "$GREETING"`}}, l.gzipped())
	})
}

// A recipe is based on a SIF or a squashfs, and is built into both.
func TestRecipeOnSIF(t *testing.T) {
	begin(t)
	for name, u := range map[string]*account{"base.sif": nil, "base.sqsh": ordinary(t)} {
		p := newPlace(t, u)
		p.must("copy", small(t), "app/"+name)
		p.write("app/sconce.toml", fmt.Sprintf("name = \"app\"\nversion = \"1\"\n\n[base]\nimage = %q\n\n[image]\nenv = { MORE = \"yes\" }\n", name))
		p.must("lock", "app")
		digest := p.build("--locked", "app", "-o", "out.sqsh", "-o", "out.sif")
		for _, out := range []string{"out.sqsh", "out.sif"} {
			if r := p.must("run", out, "--", "sh", "-c", `echo "$GREETING $MORE"`); r.stdout != "hello yes\n" {
				t.Errorf("%s printed %v", out, r)
			}
			if in := p.inspectFile(out); in.Digest != digest {
				t.Errorf("%s is of %s, built was %s", out, in.Digest, digest)
			}
		}
		// Again: nothing to do, and nothing to refuse.
		before := p.read("out.sif")
		if again := p.build("--locked", "app", "-o", "out.sqsh", "-o", "out.sif"); again != digest || p.read("out.sif") != before {
			t.Errorf("the second build made %s, the first %s", again, digest)
		}
		// The recipe is changed, and its version with it: the files are replaced, and a job that runs from one keeps it.
		running, err := os.Open(p.path("out.sif"))
		if err != nil {
			t.Fatal(err)
		}
		p.write("app/sconce.toml", strings.NewReplacer("yes", "no", `"1"`, `"2"`).Replace(p.read("app/sconce.toml")))
		p.must("lock", "app")
		p.build("--locked", "app", "-o", "out.sif", "-o", "out.sqsh")
		for _, out := range []string{"out.sqsh", "out.sif"} {
			if r := p.must("run", out, "--", "sh", "-c", `echo "$MORE"`); r.stdout != "no\n" {
				t.Errorf("%s of the changed recipe has %v", out, r)
			}
		}
		if kept, err := io.ReadAll(running); err != nil || string(kept) != before {
			t.Errorf("the old file has changed for those who have it open: %v", err)
		}
		running.Close()
		// Another recipe is refused there.
		before = p.read("out.sif")
		p.write("app/sconce.toml", strings.Replace(p.read("app/sconce.toml"), `name = "app"`, `name = "other"`, 1))
		p.must("lock", "app")
		p.fails(1, []string{"out.sif", "--force"}, "build", "--locked", "app", "-o", "out.sif")
		if p.read("out.sif") != before {
			t.Error("a refused build has changed the file")
		}
		p.build("--locked", "app", "--force", "-o", "out.sif")
		if in := p.inspectFile("out.sif"); in.Digest == "" || p.read("out.sif") == before {
			t.Errorf("after --force the file has %v", in)
		}
		p.wantSound()
		p.wantTidy()
	}
}

// Cluster files are run in place, by root and by an ordinary user.
func TestRunClusterFile(t *testing.T) {
	begin(t)
	for _, u := range []*account{nil, ordinary(t)} {
		p := newPlace(t, u)
		p.must("copy", rich(t), "x.sqsh")
		p.must("copy", "x.sqsh", "x.sif")
		for _, file := range []string{"x.sqsh", "x.sif"} {
			greeting := strings.TrimPrefix(richConfig.Env[1], "GREETING=")
			if r := p.must("run", file); r.stdout != greeting+"|one|two  words|/opt/new dir\n" {
				t.Errorf("the image's own command printed %v", r)
			}
			if r := p.must("run", file, "--", "sh", "-c", `printf '%s' "$GREETING"; cat /etc/changed | wc -c`); r.stdout != greeting+"100000\n" {
				t.Errorf("a command printed %v", r)
			}
			if r := p.sconce("run", file, "--", "sh", "-c", "exit 42"); r.code != 42 {
				t.Errorf("the command's exit code is lost: %v", r)
			}
			if r := p.sconce("run", file, "--", "/nonexistent"); r.code == 0 || !strings.Contains(r.stderr, "/nonexistent") {
				t.Errorf("a command that is not there: %v", r)
			}
			if r := p.sconce("run", file, "--", "sh", "-c", "kill -9 $$"); r.code != 128+9 {
				t.Errorf("a command that is killed: %v", r)
			}
		}
		p.wantTidy()
	}
}

// start runs a program in a root with exactly this environment.
func start(t *testing.T, root string, env []string, name string, args ...string) (stdout string, code int) {
	t.Helper()
	cmd := &exec.Cmd{Path: name, Args: append([]string{name}, args...), Env: append([]string{}, env...), Dir: "/"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if stderr.Len() > 0 {
		t.Logf("%s %q: %s", name, args, &stderr)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// What enroot and Apptainer do with a file, by hand: enroot unpacks it, sets the variables of /etc/environment and gives
// /etc/rc to /bin/sh; Apptainer mounts the partition of a SIF and starts an action.
func TestRuntimesStartCommands(t *testing.T) {
	needRoot(t)
	begin(t)
	tooltest.Path(t, "unsquashfs")
	p := newPlace(t, nil)
	p.must("copy", rich(t), "x.sqsh")
	p.must("copy", "x.sqsh", "x.sif")
	greeting := strings.TrimPrefix(richConfig.Env[1], "GREETING=")
	show := []string{"/bin/sh", "-c", `printf '%s|%s|%s' "$GREETING" "${EMPTY-unset}" "$PATH"; exit 9`}
	shown := greeting + "||" + strings.TrimPrefix(richConfig.Env[0], "PATH=")

	t.Run("enroot", func(t *testing.T) {
		root := filepath.Join(roomFor(t), "root")
		do(t, "unsquashfs", "-no-progress", "-d", root, p.path("x.sqsh"))
		env := environmentOf(t, root)
		if out, code := start(t, root, env, "/bin/sh", "/etc/rc"); out != greeting+"|one|two  words|/opt/new dir\n" || code != 0 {
			t.Errorf("the image's command printed %q, code %d", out, code)
		}
		if out, code := start(t, root, env, "/bin/sh", "/etc/rc", "three"); out != greeting+"|three|/opt/new dir\n" || code != 0 {
			t.Errorf("with an argument it printed %q, code %d", out, code)
		}
		// pyxis replaces the start script: the image's entrypoint is for containers of its own.
		if err := os.WriteFile(filepath.Join(root, "etc/rc.local"), []byte("exec \"$@\"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, code := start(t, root, env, "/bin/sh", append([]string{"/etc/rc"}, show...)...); out != shown || code != 9 {
			t.Errorf("under pyxis a command printed %q, code %d", out, code)
		}
	})
	t.Run("Apptainer", func(t *testing.T) {
		offset, _ := p.partition("x.sif")
		root := mountLoop(t, p.path("x.sif"), offset)
		if out, code := start(t, root, nil, "/.singularity.d/actions/exec", show...); out != shown || code != 9 {
			t.Errorf("exec printed %q, code %d", out, code)
		}
		out, code := start(t, root, []string{"PATH=/host/bin"}, "/.singularity.d/actions/run")
		if out != greeting+"|one|two  words|/\n" || code != 0 {
			t.Errorf("run printed %q, code %d", out, code)
		}
	})
}

// environmentOf reads /etc/environment for values without a line break.
func environmentOf(t *testing.T, root string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "etc/environment"))
	if err != nil {
		t.Fatal(err)
	}
	var env []string
	for line := range strings.Lines(string(data)) {
		env = append(env, strings.TrimSuffix(line, "\n"))
	}
	return env
}
