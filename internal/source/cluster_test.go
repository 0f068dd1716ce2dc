package source

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/runtimefiles"
	"sconce.dev/sconce/internal/searchpath"
	"sconce.dev/sconce/internal/sif"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// makeSquashfs packs a directory with mksquashfs and returns the file's name.
func makeSquashfs(t testing.TB, dir, name string, args ...string) string {
	t.Helper()
	registrytest.Run(t, "mksquashfs", append([]string{dir, name, "-noappend", "-quiet", "-no-progress"}, args...)...)
	return name
}

// makeSIF wraps a squashfs.
func makeSIF(t testing.TB, name, squashfs string, s sif.Spec) string {
	t.Helper()
	data, err := os.ReadFile(squashfs)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = sif.Write(f, s, func(base int64) (int64, error) {
		n, err := f.WriteAt(data, base)
		return int64(n), err
	})
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// makeTree makes a directory with one of everything that a file system holds, and returns the definitions that make
// mksquashfs add what only root can make.
func makeTree(t testing.TB) (dir string, pseudo []string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "root")
	random := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 300_000)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	for name, data := range map[string][]byte{
		"usr/bin/sh": shell(arm64),
		"etc/empty":  nil, "etc/hostname": []byte("x\n"), "big/noise": noise, "big/zeros": make([]byte, 500_000),
		"big/text": bytes.Repeat([]byte("words and words\n"), 100_000), "big/holes": slices.Concat(noise[:70_000], make([]byte, 400_000), noise[:7]),
		"a b/\xff\xfe": []byte("bytes"), "a b/ümläut": []byte("text"), "a-b": []byte("between"), "a b.c": []byte("after"),
		strings.Repeat("long", 60) + "/" + strings.Repeat("name", 60): []byte("far"),
	} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, p, data)
	}
	for i := range 700 { // more than a listing's run, and than a block of the table
		put(t, filepath.Join(dir, "big", fmt.Sprintf("file%03d", i)), fmt.Appendf(nil, "%d\n", i))
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Link(filepath.Join(dir, "etc/hostname"), filepath.Join(dir, "a-link")))
	must(os.Link(filepath.Join(dir, "etc/hostname"), filepath.Join(dir, "z-link")))
	must(os.Symlink("usr/bin", filepath.Join(dir, "bin")))
	must(os.Symlink("../../../etc/passwd", filepath.Join(dir, "etc/away")))
	must(unix.Mkfifo(filepath.Join(dir, "fifo"), 0o640))
	must(os.Chmod(filepath.Join(dir, "usr/bin/sh"), 0o755|fs.ModeSetuid))
	must(os.Mkdir(filepath.Join(dir, "tmp"), 0o700))
	must(os.Chmod(filepath.Join(dir, "tmp"), 0o777|fs.ModeSticky))
	return dir, []string{
		"-p", "null c 666 0 0 1 3", "-p", "disk b 660 0 6 259 70000", "-p", "owned d 750 1000 4000000000",
		"-p", "owned/file f 2755 65534 1000 echo owned", "-p", "etc/empty m 0 12 13",
	}
}

// describe tells everything about a tree but where it is stored, a line for each path.
func describe(t testing.TB, st *store.Store, im *image.Image) []string {
	t.Helper()
	tree, err := im.Tree(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	first := map[int]string{}
	var lines []string
	err = tree.Walk(func(n *image.Node) error {
		if first[n.Inode] == "" {
			first[n.Inode] = n.Path
		}
		line := fmt.Sprintf("%q type %d mode %o owner %d:%d time %d link %q device %d:%d xattrs %q names %d first %q",
			n.Path, n.Type, n.Mode, n.UID, n.GID, n.ModTime.Unix(), n.Link, n.Major, n.Minor, n.Xattrs, n.Links, first[n.Inode])
		if n.Type == layer.Regular {
			r, err := tree.Open(n)
			if err != nil {
				return err
			}
			defer r.Close()
			h := sha256.New()
			if _, err := io.Copy(h, r); err != nil {
				return fmt.Errorf("%s: %w", n.Path, err)
			}
			line += fmt.Sprintf(" size %d content %x", n.Size, h.Sum(nil))
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func importRef(t testing.TB, st *store.Store, ref string) *image.Image {
	t.Helper()
	parsed, err := Parse(ref)
	if err != nil {
		t.Fatal(err)
	}
	im, err := Import(t.Context(), parsed, options(st))
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// TestSquashfsContents compares what is imported with what another program reads from the same file.
func TestSquashfsContents(t *testing.T) {
	tooltest.Path(t, "sqfs2tar")
	dir, pseudo := makeTree(t)
	xattrs := unix.Setxattr(filepath.Join(dir, "etc/hostname"), "user.note", []byte("a\x00b"), 0) == nil
	if os.Geteuid() == 0 {
		capability := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // revision 2, CAP_NET_BIND_SERVICE, effective
		xattrs = unix.Setxattr(filepath.Join(dir, "usr/bin/sh"), "security.capability", capability, 0) == nil && xattrs
	}
	for name, args := range map[string][]string{
		"gzip":    {"-comp", "gzip"},
		"zstd":    {"-comp", "zstd", "-b", "1M"},
		"lz4":     {"-comp", "lz4", "-b", "4K"},
		"xz":      {"-comp", "xz", "-b", "16K"},
		"lzo":     {"-comp", "lzo", "-noD"},
		"lzma":    {"-comp", "lzma"},
		"stored":  {"-noI", "-noD", "-noF", "-noX", "-noId"},
		"options": {"-comp", "zstd", "-always-use-fragments", "-no-exports", "-no-duplicates"},
	} {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			file := makeSquashfs(t, dir, tmp+"/x.sqsh", append(args, pseudo...)...)
			st := storetest.New(t)
			im := importRef(t, st, file)
			asTar, err := exec.Command("sqfs2tar", file).Output()
			if err != nil {
				t.Fatal(err)
			}
			want := describe(t, st, importRef(t, st, "tar:"+put(t, tmp+"/x.tar", asTar)))
			got := describe(t, st, im)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			text := strings.Join(got, "\n")
			if xattrs && !strings.Contains(text, `"user.note":"a\x00b"`) || !strings.Contains(text, "owner 1000:4000000000") || !strings.Contains(text, "device 259:70000") {
				t.Error("what should be compared is not there")
			}
			if im.Config.Architecture != "arm64" || len(im.Layers) != 1 {
				t.Errorf("%d layers for %s", len(im.Layers), im.Config.Architecture)
			}
		})
	}
}

// TestUnpackedSquashfs compares with the tree that unsquashfs makes.
func TestUnpackedSquashfs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can unpack owners and devices")
	}
	dir, pseudo := makeTree(t)
	tmp := t.TempDir()
	file := makeSquashfs(t, dir, tmp+"/x.sqsh", append(pseudo, "-comp", "zstd")...)
	registrytest.Run(t, "unsquashfs", "-quiet", "-no-progress", "-d", tmp+"/root", file)
	st := storetest.New(t)
	want, got := importRef(t, st, "dir:"+tmp+"/root"), importRef(t, st, file)
	if diff := cmp.Diff(describe(t, st, want), describe(t, st, got)); diff != "" {
		t.Error(diff)
	}
	if want.Layers[0].DiffID != got.Layers[0].DiffID {
		t.Error("the same tree gives two layers")
	}
}

// TestSIFImages checks what a SIF says of the image: its architecture and the configuration of the OCI image it was.
func TestSIFImages(t *testing.T) {
	dir, _ := makeTree(t)
	tmp := t.TempDir()
	file := makeSquashfs(t, dir, tmp+"/x.sqsh")
	config := v1.Config{
		Env: []string{"A=b c", "PATH=/opt"}, Entrypoint: []string{"/run", "it"}, WorkingDir: "/w",
		Labels: map[string]string{"k": "v"}, User: "1000:100", ExposedPorts: map[string]struct{}{"80/tcp": {}},
	}
	encoded, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	st := storetest.New(t)
	plain := importRef(t, st, file)
	rich := importRef(t, st, makeSIF(t, tmp+"/rich.sif", file, sif.Spec{Arch: "riscv64", Config: encoded}))
	if diff := cmp.Diff(config, rich.Config.Config); diff != "" || rich.Config.Architecture != "riscv64" || rich.Config.OS != "linux" {
		t.Errorf("%s/%s, %s", rich.Config.OS, rich.Config.Architecture, diff)
	}
	if plain.Layers[0] != rich.Layers[0] {
		t.Error("the same file system gives two layers")
	}
	if plain.Config.Config.Env[0] != "PATH="+searchpath.Default || plain.Config.Architecture != "arm64" {
		t.Errorf("a squashfs without a word about the image has the configuration %+v", plain.Config)
	}
	bare := importRef(t, st, makeSIF(t, tmp+"/bare.sif", file, sif.Spec{Arch: "arm64"}))
	if bare.Digest != plain.Digest {
		t.Error("a SIF that says nothing more than its squashfs gives another image")
	}
	_, err = Import(t.Context(), mustParse(t, makeSIF(t, tmp+"/bad.sif", file, sif.Spec{Arch: "arm64", Config: []byte("{")})), options(st))
	if err == nil || !strings.Contains(err.Error(), "oci-config.json") {
		t.Errorf("error %v", err)
	}
}

// TestRecoveredConfig checks from which of the things that a file may say about its image the configuration comes.
func TestRecoveredConfig(t *testing.T) {
	const meta = ".singularity.d/"
	created := time.Date(2025, 6, 7, 8, 9, 10, 0, time.UTC)
	full := v1.ConfigFile{
		Architecture: "arm64", OS: "linux", Variant: "v8", Created: v1.Time{Time: created}, Author: "someone",
		Config: v1.Config{Env: []string{"A=record"}, Cmd: []string{"sh", "-c", "it's"}, User: "7"},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{}},
	}
	encoded, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	record, err := json.Marshal(runtimefiles.Record{Format: runtimefiles.RecordFormat, Config: encoded})
	if err != nil {
		t.Fatal(err)
	}
	oci := v1.Config{Env: []string{"A=oci"}, Entrypoint: []string{"/oci"}, Cmd: []string{"arg"}, WorkingDir: "/w"}
	ociJSON, err := json.Marshal(oci)
	if err != nil {
		t.Fatal(err)
	}
	own := oci // as Apptainer starts it
	own.Entrypoint, own.Cmd = []string{"/.singularity.d/actions/run"}, nil
	apptainer := map[string]string{
		meta + "actions/run": "#!/bin/sh\n", meta + "runscript": "#!/bin/sh\nOCI_ENTRYPOINT=''\n",
		meta + "env/10-docker2singularity.sh": "#!/bin/sh\nexport PATH=\"/p\"\nexport A=\"${A:-\"script\"}\"\n",
		meta + "env/90-environment.sh":        "#!/bin/sh\n# Custom environment shell code should follow\n\n",
	}
	with := func(path, text string) map[string]string {
		files := maps.Clone(apptainer)
		files[path] = text
		return files
	}
	for name, tc := range map[string]struct {
		files map[string]string
		sif   []byte // oci-config.json; nil: a squashfs alone
		want  v1.Config
	}{
		"record":                   {map[string]string{meta + "sconce.json": string(record)}, nil, full.Config},
		"record before oci-config": {map[string]string{meta + "sconce.json": string(record)}, ociJSON, full.Config},
		"oci-config":               {nil, ociJSON, oci},
		"oci-config, apptainer":    {apptainer, ociJSON, oci},
		"own run script":           {with(meta+"runscript", "#!/bin/sh\nexec mine\n"), ociJSON, own},
		"own environment":          {with(meta+"env/90-environment.sh", "#!/bin/sh\n  export B=1\n"), ociJSON, own},
		"apptainer alone":          {apptainer, nil, v1.Config{Env: []string{"PATH=/p", "A=script"}, Entrypoint: own.Entrypoint}},
		"enroot": {
			map[string]string{"etc/rc": "# k v w\n\nexec x\n", "etc/environment": "PATH=/e\n# no\nA=b\n"},
			nil,
			v1.Config{Env: []string{"PATH=/e", "A=b"}, Entrypoint: []string{"/bin/sh", "/etc/rc"}, Labels: map[string]string{"k": "v w"}},
		},
		"nothing":             {nil, nil, v1.Config{Env: []string{"PATH=" + searchpath.Default}, Cmd: []string{"/bin/sh"}}},
		"a file in the way":   {map[string]string{".singularity.d": ""}, nil, v1.Config{Env: []string{"PATH=" + searchpath.Default}, Cmd: []string{"/bin/sh"}}},
		"a directory instead": {map[string]string{meta + "sconce.json/x": "", "etc/rc/x": ""}, nil, v1.Config{Env: []string{"PATH=" + searchpath.Default}, Cmd: []string{"/bin/sh"}}},
	} {
		file := clusterFileOf(t, tc.files, tc.sif)
		im := importRef(t, storetest.New(t), file)
		if diff := cmp.Diff(tc.want, im.Config.Config); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if recorded := strings.HasPrefix(name, "record"); im.Config.Architecture != "arm64" || recorded != im.Config.Created.Equal(created) || recorded != (im.Config.Variant == "v8") {
			t.Errorf("%s: architecture %s, variant %q, created %v", name, im.Config.Architecture, im.Config.Variant, im.Config.Created)
		}
		c, err := OpenClusterFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if config, err := c.Config(); err != nil || config.Architecture != "arm64" || config.OS != "linux" {
			t.Errorf("%s: the file's own configuration is %+v, %v", name, config, err)
		}
		c.Close()
	}
	for path, text := range map[string]string{
		meta + "sconce.json": `{"format":77}`,
		"etc/rc":             strings.Repeat("# long\n", maxFile/7+1),
	} {
		ref := mustParse(t, clusterFileOf(t, map[string]string{path: text}, nil))
		if _, err := Import(t.Context(), ref, options(storetest.New(t))); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v", path, err)
		}
	}
}

// clusterFileOf packs files and a shell for arm64, into a SIF if there is something for it to say.
func clusterFileOf(t *testing.T, files map[string]string, oci []byte) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	all := map[string]string{"bin/sh": string(shell(arm64))}
	maps.Copy(all, files)
	for name, text := range all {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, p, []byte(text))
	}
	file := makeSquashfs(t, dir, dir+".sqsh")
	if oci == nil {
		return file
	}
	return makeSIF(t, dir+".sif", file, sif.Spec{Arch: "arm64", Config: oci})
}

// shell is the beginning of a program for a machine (ELF e_machine).
func shell(machine byte) []byte {
	return slices.Concat([]byte("\x7fELF\x02\x01\x01"), make([]byte, 11), []byte{machine, 0}, make([]byte, 40))
}

// TestSameClusterFile checks that the digest of the image is a matter of the file's content alone.
func TestSameClusterFile(t *testing.T) {
	dir, pseudo := makeTree(t)
	tmp := t.TempDir()
	file := makeSquashfs(t, dir, tmp+"/one.sqsh", pseudo...)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	other := put(t, tmp+"/two", append(data, make([]byte, 12345)...)) // readers stop where the superblock says
	launched := put(t, tmp+"/three.img", append([]byte("#!/usr/bin/env run-singularity\n"), data...))
	want := importRef(t, storetest.New(t), file).Digest
	for _, name := range []string{file, other, launched} {
		if got := importRef(t, storetest.New(t), name).Digest; got != want {
			t.Errorf("%s gives the image %s, want %s", filepath.Base(name), got, want)
		}
	}
	ref := mustParse(t, "sqsh:"+file+"@"+string(want))
	if _, err := Import(t.Context(), ref, options(storetest.New(t))); err != nil {
		t.Error(err)
	}
	ref.Digest = store.DigestOf([]byte("other"))
	if _, err := Import(t.Context(), ref, options(storetest.New(t))); err == nil || !strings.Contains(err.Error(), "pinned") {
		t.Errorf("error %v", err)
	}
}

func TestClusterFilePlatform(t *testing.T) {
	dir, _ := makeTree(t) // whose shell is for arm64
	tmp := t.TempDir()
	file := makeSquashfs(t, dir, tmp+"/x.sqsh")
	wrapped := makeSIF(t, tmp+"/x.sif", file, sif.Spec{Arch: "arm64"})
	for _, name := range []string{file, wrapped} {
		o := options(storetest.New(t))
		o.Platform = v1.Platform{OS: "linux", Architecture: "amd64"}
		var wrong *PlatformError
		if _, err := Import(t.Context(), mustParse(t, name), o); !errors.As(err, &wrong) || wrong.Have[0].Architecture != "arm64" {
			t.Errorf("%s for amd64: error %v", filepath.Base(name), err)
		}
		o.Platform.Architecture = "arm64"
		if _, err := Import(t.Context(), mustParse(t, name), o); err != nil {
			t.Error(err)
		}
	}
	empty := filepath.Join(tmp, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	o := options(storetest.New(t))
	name := makeSquashfs(t, empty, tmp+"/empty.sqsh")
	if _, err := Import(t.Context(), mustParse(t, name), o); err == nil || fault.HintOf(err) != "name the platform" {
		t.Errorf("nothing to tell the platform by: error %v with the hint %q", err, fault.HintOf(err))
	}
	o.Platform = v1.Platform{OS: "linux", Architecture: "arm64"}
	if im, err := Import(t.Context(), mustParse(t, name), o); err != nil || im.Config.Architecture != "arm64" {
		t.Error(err)
	}
}

// TestUnusualNames checks objects that a layer cannot hold as they are.
func TestUnusualNames(t *testing.T) {
	tmp := t.TempDir()
	dir := filepath.Join(tmp, "root")
	for _, d := range []string{"etc", ".wh..wh.plnk/deep", "opt"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, dir+"/opt/.wh..wh.aufs", nil)
	put(t, dir+"/opt/.wh..wh.orph", nil)
	put(t, dir+"/opt/kept", nil)
	t.Chdir(dir) // the path of a socket is short
	listener, err := net.Listen("unix", "socket")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	o := options(storetest.New(t))
	o.Platform = v1.Platform{OS: "linux", Architecture: "amd64"}
	im, err := Import(t.Context(), mustParse(t, makeSquashfs(t, dir, tmp+"/x.sqsh")), o)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, line := range describe(t, o.Store, im) {
		path, _, _ := strings.Cut(line, " ")
		paths = append(paths, path)
	}
	if diff := cmp.Diff([]string{`"etc"`, `"opt"`, `"opt/kept"`}, paths); diff != "" {
		t.Error(diff)
	}
	put(t, dir+"/opt/.wh.removed", nil)
	_, err = Import(t.Context(), mustParse(t, makeSquashfs(t, dir, tmp+"/y.sqsh")), o)
	if err == nil || !strings.Contains(err.Error(), ".wh.removed") || !strings.Contains(fault.HintOf(err), "unsquashfs") {
		t.Errorf("error %v with the hint %q", err, fault.HintOf(err))
	}
}

func TestOpenClusterFile(t *testing.T) {
	dir, _ := makeTree(t)
	tmp := t.TempDir()
	file := makeSquashfs(t, dir, tmp+"/x.sqsh")
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	wrapped := makeSIF(t, tmp+"/x.sif", file, sif.Spec{Arch: "arm64", Deffile: []byte("from: x\n")})
	for name, isSIF := range map[string]bool{file: false, wrapped: true} {
		c, err := OpenClusterFile(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c.Partition)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the partition has %d bytes, want %d: %v", filepath.Base(name), len(got), len(want), err)
		}
		if data, err := fs.ReadFile(c.FS.FS(), "etc/hostname"); err != nil || string(data) != "x\n" {
			t.Errorf("%s: etc/hostname is %q, %v", filepath.Base(name), data, err)
		}
		if (c.SIF != nil) != isSIF || isSIF && string(c.SIF.Deffile) != "from: x\n" {
			t.Errorf("%s: SIF is %+v", filepath.Base(name), c.SIF)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if _, err := c.Partition.ReadAt(make([]byte, 1), 0); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("%s is not closed: %v", filepath.Base(name), err)
		}
	}
	pipe := tmp + "/pipe"
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		put(t, tmp+"/text", []byte("hsq")):  "neither a squashfs nor a SIF",
		put(t, tmp+"/empty", nil):           "neither a squashfs nor a SIF",
		tmp + "/missing":                    "no such file",
		tmp:                                 "not a regular file",
		pipe:                                "not a regular file",
		put(t, tmp+"/short", want[:50]):     "squashfs",
		put(t, tmp+"/s.sif", launchMagic()): "not a valid SIF file",
	} {
		if _, err := OpenClusterFile(name); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), filepath.Base(name)) {
			t.Errorf("%s: error %v, want %q", filepath.Base(name), err, want)
		}
	}
	for ref, hint := range map[string]string{"sqsh:" + wrapped: "use sif:" + wrapped, "sif:" + file: "use sqsh:" + file} {
		if _, err := Import(t.Context(), mustParse(t, ref), options(storetest.New(t))); err == nil || fault.HintOf(err) != hint {
			t.Errorf("%s: error %v with the hint %q", ref, err, fault.HintOf(err))
		}
	}
}

// launchMagic is a SIF that ends where the magic number does.
func launchMagic() []byte {
	return append(append([]byte("#!/usr/bin/env run-singularity\n\x00"), sif.Magic...), "01\x0002\x00"...)
}

// TestDamagedClusterFiles harms files in many places. Each must be refused by name, or be read all the same, as when what
// was harmed is padding; what was not harmed is read.
func TestDamagedClusterFiles(t *testing.T) {
	dir, pseudo := makeTree(t)
	tmp := t.TempDir()
	file := makeSquashfs(t, dir, tmp+"/x.sqsh", append(pseudo, "-comp", "zstd")...)
	wrapped := makeSIF(t, tmp+"/x.sif", file, sif.Spec{Arch: "arm64", Deffile: []byte("x")})
	for _, name := range []string{file, wrapped} {
		good, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		st := storetest.New(t)
		ref := Ref{Transport: Squashfs, Value: filepath.Join(t.TempDir(), "harmed")}
		if name == wrapped {
			ref.Transport = SIF
		}
		try := func(what string, data []byte, mayPass bool) {
			t.Helper()
			put(t, ref.Value, data)
			_, err := Import(t.Context(), ref, options(st))
			if err == nil && !mayPass || err != nil && !strings.Contains(err.Error(), ref.Value) {
				t.Errorf("%s, %s: error %v", filepath.Base(name), what, err)
			}
		}
		for _, n := range []int{1, 40, 95, 97, len(good) / 3, len(good) - 5000} {
			try(fmt.Sprintf("cut at %d", n), good[:n], false)
		}
		random := rand.New(rand.NewPCG(3, 4))
		for range 12 {
			harmed := bytes.Clone(good)
			at := random.IntN(len(harmed))
			if random.IntN(2) == 0 {
				at = len(harmed) - 1 - random.IntN(len(harmed)/20) // the tables
			}
			harmed[at] ^= 1 << random.IntN(8)
			try(fmt.Sprintf("bit changed at %d", at), harmed, true)
		}
	}
}

// TestUnfolding checks that a small file cannot fill the disk: a hole of any size takes no room in a squashfs.
func TestUnfolding(t *testing.T) {
	dir, _ := makeTree(t)
	c, err := OpenClusterFile(makeSquashfs(t, dir, filepath.Join(t.TempDir(), "x.sqsh")))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w, err := layer.NewWriter(t.Context(), storetest.New(t), layer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	l := squashfsReader{w: w, first: map[uint32]string{}, left: 1 << 20}
	if err := c.FS.Walk(l.add); err == nil || !strings.Contains(err.Error(), `"big/holes"`) && !strings.Contains(err.Error(), `"big/text"`) {
		t.Errorf("error %v", err)
	}
	if n := maxUnfolded(1 << 62); n < 0 {
		t.Errorf("limit %d", n)
	}
}

func TestSquashfsCancel(t *testing.T) {
	dir, _ := makeTree(t)
	file := makeSquashfs(t, dir, filepath.Join(t.TempDir(), "x.sqsh"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Import(ctx, mustParse(t, file), options(storetest.New(t))); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// FuzzSquashfsLayer makes a layer of arbitrary bytes. What is accepted must be a good layer.
func FuzzSquashfsLayer(f *testing.F) {
	if _, err := exec.LookPath("tar2sqfs"); err == nil {
		dir := f.TempDir()
		for i, args := range [][]string{{"gzip"}, {"zstd", "-x"}} {
			cmd := exec.Command("tar2sqfs", "-q", "-b", "4096", "-c", args[0], filepath.Join(dir, fmt.Sprint(i)))
			cmd.Stdin = bytes.NewReader(smallTar())
			if out, err := cmd.CombinedOutput(); err != nil {
				f.Fatalf("%v: %s", err, out)
			}
			data, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(i)))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		z, err := squashfs.New(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		var size int64
		_ = z.Walk(func(_ string, f *squashfs.File) error { size += f.Size; return nil }) // fails again below
		if size > 4<<20 {
			return // keeps a step short
		}
		st := storetest.New(t)
		d, err := squashfsLayer(t.Context(), st, z, int64(len(data)), "")
		if err != nil {
			return
		}
		if err := layer.Verify(t.Context(), st, d); err != nil {
			t.Error(err)
		}
	})
}

// smallTar has one of everything.
func smallTar() []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "d/f", Mode: 0o644, Size: 5, PAXRecords: map[string]string{"SCHILY.xattr.user.k": "v"}},
		{Name: "d/large", Mode: 0o4755, Size: 9000, Uid: 1000},
		{Name: "link", Typeflag: tar.TypeLink, Linkname: "d/f"},
		{Name: "symlink", Typeflag: tar.TypeSymlink, Linkname: "d/f"},
		{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3, Mode: 0o666},
	} {
		_ = w.WriteHeader(&h)                                                   // into memory
		_, _ = w.Write(bytes.Repeat([]byte("chars"), int(h.Size+4)/5)[:h.Size]) // likewise
	}
	w.Close()
	return b.Bytes()
}
