package export

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// file is an entry with content.
type file struct {
	layer.Entry
	content string
}

func makeLayer(t *testing.T, st *store.Store, c layer.Compression, files ...file) layer.Descriptor {
	t.Helper()
	w, err := layer.NewWriter(t.Context(), st, layer.Options{Compression: c})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	slices.SortFunc(files, func(a, b file) int {
		if layer.Less(a.Path, b.Path) {
			return -1
		}
		return 1
	})
	for _, f := range files {
		f.Size = int64(len(f.content))
		err := w.Add(f.Entry, func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(f.content)), nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	d, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func regular(path, content string) file {
	return file{layer.Entry{Path: path, Mode: 0o644}, content}
}

func dir(path string) file {
	return file{layer.Entry{Path: path, Type: layer.Dir, Mode: 0o755}, ""}
}

func assemble(t *testing.T, st *store.Store, layers ...layer.Descriptor) *image.Image {
	t.Helper()
	spec := image.Spec{Platform: v1.Platform{OS: "linux", Architecture: "amd64"}}
	for i, l := range layers {
		spec.Additions = append(spec.Additions, image.Addition{Layer: l, CreatedBy: fmt.Sprint("layer ", i)})
	}
	im, err := image.Assemble(t.Context(), st, spec)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// sample is an image with everything that an export can get wrong: whiteouts, links, odd modes, several compressions.
func sample(t *testing.T, st *store.Store) *image.Image {
	t.Helper()
	base := makeLayer(t, st, layer.Gzip,
		dir("etc"), regular("etc/gone", "x"), regular("etc/changed", "old"), dir("etc/opaque"), regular("etc/opaque/old", "x"),
		dir("usr"), dir("usr/bin"),
		file{layer.Entry{Path: "usr/bin/tool", Mode: 0o4755}, "#!/bin/sh\n"},
		file{layer.Entry{Path: "usr/bin/zlink", Type: layer.HardLink, Link: "usr/bin/tool", Mode: 0o4755}, ""},
		file{layer.Entry{Path: "bin", Type: layer.Symlink, Link: "usr/bin", Mode: 0o777}, ""},
		file{layer.Entry{Path: "locked", Type: layer.Dir, Mode: 0o500}, ""},
		file{layer.Entry{Path: "locked/secret", Mode: 0o400}, "s"},
	)
	top := makeLayer(t, st, layer.Zstd,
		dir("etc"), regular("etc/.wh.gone", ""), regular("etc/changed", "new"), dir("etc/opaque"), regular("etc/opaque/.wh..wh..opq", ""),
		regular("etc/opaque/new", "y"), regular("big", strings.Repeat("0123456789abcdef", 1<<18)))
	return assemble(t, st, base, top)
}

// sampleTree is what the merged sample must look like: path to mode, link and content.
var sampleTree = map[string]string{
	"bin":            "L usr/bin",
	"big":            "F 644 " + hexSum(strings.Repeat("0123456789abcdef", 1<<18)),
	"etc":            "D 755",
	"etc/changed":    "F 644 " + hexSum("new"),
	"etc/opaque":     "D 755",
	"etc/opaque/new": "F 644 " + hexSum("y"),
	"locked":         "D 500",
	"locked/secret":  "F 400 " + hexSum("s"),
	"usr":            "D 755",
	"usr/bin":        "D 755",
	"usr/bin/tool":   "F 755 " + hexSum("#!/bin/sh\n"),
	"usr/bin/zlink":  "F 755 " + hexSum("#!/bin/sh\n"),
}

func hexSum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:4])
}

func mustWrite(t *testing.T, st *store.Store, im *image.Image, dest string) {
	t.Helper()
	if err := writeTo(t.Context(), im, dest, Options{Store: st}); err != nil {
		t.Fatal(err)
	}
}

// inspect reads an image with skopeo and returns its manifest's digest and layers.
func inspect(t *testing.T, ref string) (digest string, layers []string) {
	t.Helper()
	var doc struct {
		Digest string
		Layers []string
	}
	if err := json.Unmarshal([]byte(registrytest.Skopeo(t, "inspect", ref)), &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Digest, doc.Layers
}

func TestLayout(t *testing.T) {
	st := storetest.New(t)
	im := sample(t, st)
	out := filepath.Join(t.TempDir(), "deep", "layout")
	mustWrite(t, st, im, "oci:"+out+":v1")
	digest, layers := inspect(t, "oci:"+out+":v1")
	if digest != string(im.Digest) || len(layers) != 2 {
		t.Errorf("skopeo reads digest %s and %d layers, want %s and 2", digest, len(layers), im.Digest)
	}
	// A copy makes skopeo read and check every blob.
	registrytest.Skopeo(t, "copy", "oci:"+out+":v1", "dir:"+filepath.Join(t.TempDir(), "copy"))
}

func TestLayoutKeepsOtherTags(t *testing.T) {
	st := storetest.New(t)
	first, second := sample(t, st), assemble(t, st, makeLayer(t, st, layer.Zstd, regular("only", "this")))
	out := filepath.Join(t.TempDir(), "layout")
	mustWrite(t, st, first, "oci:"+out+":a")
	mustWrite(t, st, second, "oci:"+out+":b")
	mustWrite(t, st, second, "oci:"+out+":a2")
	mustWrite(t, st, first, "oci:"+out+":a2") // a tag moves
	for tag, want := range map[string]*image.Image{"a": first, "b": second, "a2": first} {
		if digest, _ := inspect(t, "oci:"+out+":"+tag); digest != string(want.Digest) {
			t.Errorf("tag %s is %s, want %s", tag, digest, want.Digest)
		}
	}
	err := writeTo(t.Context(), first, "oci:"+out, Options{Store: st})
	if err == nil || !strings.Contains(fault.HintOf(err), "tag") {
		t.Errorf("an image without a tag over several: %v", err)
	}
}

func TestLayoutWithoutTagFollowsBuilds(t *testing.T) {
	st := storetest.New(t)
	out := filepath.Join(t.TempDir(), "layout")
	mustWrite(t, st, sample(t, st), out)
	second := assemble(t, st, makeLayer(t, st, layer.Zstd, regular("only", "this")))
	mustWrite(t, st, second, out)
	if digest, _ := inspect(t, "oci:"+out); digest != string(second.Digest) {
		t.Errorf("the layout holds %s, want %s", digest, second.Digest)
	}
}

func TestLayoutWrittenAtOnce(t *testing.T) {
	st := storetest.New(t)
	im := sample(t, st)
	out := filepath.Join(t.TempDir(), "layout")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { mustWrite(t, st, im, fmt.Sprintf("oci:%s:t%d", out, i)) })
	}
	wg.Wait()
	index, err := readIndex(out)
	if err != nil || len(index.Manifests) != 8 {
		t.Fatalf("index %v, %v, want 8 tags", index, err)
	}
}

// A layout that somebody else writes is waited for, and that is said.
func TestLayoutThatIsBeingWritten(t *testing.T) {
	st := storetest.New(t)
	im := sample(t, st)
	out := filepath.Join(t.TempDir(), "layout")
	mustWrite(t, st, im, "oci:"+out+":a")
	other, err := lockDir(t.Context(), out)
	if err != nil {
		t.Fatal(err)
	}
	said := make(notes, 1)
	done := make(chan error, 1)
	go func() { done <- writeTo(progress.With(t.Context(), said), im, "oci:"+out+":b", Options{Store: st}) }()
	select {
	case note := <-said:
		if !strings.HasPrefix(note, "waiting for another process that writes "+out+"; ") {
			t.Errorf("said %q", note)
		}
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(10 * time.Minute):
		t.Error("it waits in silence")
	}
	other.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// notes takes what is said.
type notes chan string

func (n notes) Emit(e progress.Event) {
	if e.Kind == progress.Note {
		select {
		case n <- e.Text:
		default: // it is enough to hear it once
		}
	}
}

func TestArchives(t *testing.T) {
	st := storetest.New(t)
	im := sample(t, st)
	tmp := t.TempDir()
	for _, kind := range []string{"oci-archive", "docker-archive"} {
		name := filepath.Join(tmp, kind+".tar")
		ref := kind + ":" + name
		mustWrite(t, st, im, ref+":team/app:v1")
		digest, layers := inspect(t, ref)
		if len(layers) != 2 {
			t.Errorf("%s: skopeo reads %d layers", kind, len(layers))
		}
		if kind == "oci-archive" && digest != string(im.Digest) {
			t.Errorf("%s: digest %s, want %s", kind, digest, im.Digest)
		}
		copied := filepath.Join(tmp, kind+"-copy")
		registrytest.Skopeo(t, "copy", ref+":team/app:v1", "oci:"+copied+":x")
		var config v1.ConfigFile
		if err := json.Unmarshal([]byte(registrytest.Skopeo(t, "inspect", "--config", "oci:"+copied+":x")), &config); err != nil {
			t.Fatal(err)
		}
		for i, l := range im.Layers {
			if config.RootFS.DiffIDs[i].String() != string(l.DiffID) {
				t.Errorf("%s: layer %d unpacks to %s, want %s", kind, i, config.RootFS.DiffIDs[i], l.DiffID)
			}
		}
	}
}

func TestFilesAreTheSameEverywhere(t *testing.T) {
	var sums [2]map[string]string
	for i := range sums {
		sums[i] = map[string]string{}
		st := storetest.New(t)
		im := sample(t, st)
		tmp := t.TempDir()
		for _, kind := range []string{"oci-archive", "docker-archive", "tar"} {
			mustWrite(t, st, im, kind+":"+filepath.Join(tmp, kind))
			data, err := os.ReadFile(filepath.Join(tmp, kind))
			if err != nil {
				t.Fatal(err)
			}
			sums[i][kind] = string(store.DigestOf(data))
		}
	}
	if !maps.Equal(sums[0], sums[1]) {
		t.Errorf("two stores write different files: %v", sums)
	}
}

func readTree(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == root {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		st, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			out[rel] = fmt.Sprintf("D %o", st.Mode().Perm())
		case st.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(name)
			out[rel] = "L " + target
			return err
		default:
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			out[rel] = fmt.Sprintf("F %o %s", st.Mode().Perm(), hexSum(string(data)))
			if !st.ModTime().Equal(layer.DefaultModTime) {
				out[rel] += " at " + st.ModTime().String()
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func wantTree(t *testing.T, got map[string]string) {
	t.Helper()
	for name, want := range sampleTree {
		if got[name] != want {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
	for name := range got {
		if _, ok := sampleTree[name]; !ok {
			t.Errorf("%s should not be there", name)
		}
	}
}

func TestDir(t *testing.T) {
	st := storetest.New(t)
	im := sample(t, st)
	out := filepath.Join(t.TempDir(), "root")
	mustWrite(t, st, im, "dir:"+out)
	wantTree(t, readTree(t, out))
	one, _ := os.Stat(filepath.Join(out, "usr/bin/tool"))
	two, _ := os.Stat(filepath.Join(out, "usr/bin/zlink"))
	if !os.SameFile(one, two) {
		t.Error("the hard link became a copy")
	}
	if setuid := one.Mode()&fs.ModeSetuid != 0; setuid != (os.Geteuid() == 0) {
		t.Errorf("set-user-ID is %t for user %d", setuid, os.Geteuid())
	}
	store.RemoveAll(out)
}

func TestTar(t *testing.T) {
	st := storetest.New(t)
	out := filepath.Join(t.TempDir(), "root.tar")
	mustWrite(t, st, sample(t, st), "tar:"+out)
	root := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	registrytest.Run(t, "tar", "-C", root, "-xpf", out)
	wantTree(t, readTree(t, root))
	store.RemoveAll(root)
}

// outcomes records how tasks ended.
type outcomes struct {
	mu    sync.Mutex
	kinds []progress.Kind
}

func (o *outcomes) Emit(e progress.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kinds = append(o.kinds, e.Kind)
}

func TestUpToDate(t *testing.T) {
	st := storetest.New(t)
	im := sample(t, st)
	tmp := t.TempDir()
	for _, kind := range []string{"oci", "oci-archive", "docker-archive", "dir", "tar"} {
		dest := kind + ":" + filepath.Join(tmp, kind)
		mustWrite(t, st, im, dest)
		before, err := os.Stat(filepath.Join(tmp, kind))
		if err != nil {
			t.Fatal(err)
		}
		var rec outcomes
		if err := writeTo(progress.With(t.Context(), &rec), im, dest, Options{Store: st}); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(rec.kinds, progress.Cached) {
			t.Errorf("%s: the second write did something: %v", kind, rec.kinds)
		}
		after, _ := os.Stat(filepath.Join(tmp, kind))
		if !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
			t.Errorf("%s was written again", kind)
		}
		// An older export of ours is replaced without being asked.
		mustWrite(t, st, assemble(t, st, makeLayer(t, st, layer.Zstd, regular("only", kind))), dest)
	}
}

func TestDamagedExportIsNotUpToDate(t *testing.T) {
	st := storetest.New(t)
	im := sample(t, st)
	tmp := t.TempDir()
	mustWrite(t, st, im, "oci:"+filepath.Join(tmp, "oci"))
	if err := os.Remove(blobFile(filepath.Join(tmp, "oci"), im.Layers[0].Digest)); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, st, im, "oci:"+filepath.Join(tmp, "oci"))
	registrytest.Skopeo(t, "copy", "oci:"+filepath.Join(tmp, "oci"), "dir:"+filepath.Join(tmp, "copy"))
	name := filepath.Join(tmp, "a.tar")
	mustWrite(t, st, im, name)
	if err := os.Truncate(name, 10_000); err != nil {
		t.Fatal(err)
	}
	if err := writeTo(t.Context(), im, name, Options{Store: st, Force: true}); err != nil {
		t.Fatal(err)
	}
	registrytest.Skopeo(t, "inspect", "oci-archive:"+name)
}

func TestForeignFilesAreKept(t *testing.T) {
	st := storetest.New(t)
	im := sample(t, st)
	tmp := t.TempDir()
	for _, kind := range []string{"oci", "oci-archive", "docker-archive", "dir", "tar"} {
		name := filepath.Join(tmp, kind)
		precious := name
		if kind == "oci" || kind == "dir" {
			precious = filepath.Join(name, "thesis.tex")
			if err := os.Mkdir(name, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := writeTo(t.Context(), im, kind+":"+name, Options{Store: st})
		if err == nil || !strings.Contains(fault.HintOf(err), "--force") {
			t.Errorf("%s: error %v with hint %q", kind, err, fault.HintOf(err))
		}
		if data, _ := os.ReadFile(precious); string(data) != "precious" {
			t.Errorf("%s: the user's file is gone", kind)
		}
		if err := writeTo(t.Context(), im, kind+":"+name, Options{Store: st, Force: true}); err != nil {
			t.Errorf("%s with force: %v", kind, err)
		}
		store.RemoveAll(name) // it holds what the test's own clean-up cannot remove
	}
}

func TestCancelledWriteLeavesNothing(t *testing.T) {
	st := storetest.New(t)
	im := sample(t, st)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, kind := range []string{"oci", "oci-archive", "docker-archive", "dir", "tar"} {
		tmp := t.TempDir()
		if err := writeTo(ctx, im, kind+":"+filepath.Join(tmp, "x"), Options{Store: st}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v", kind, err)
		}
		if left, _ := os.ReadDir(tmp); len(left) > 0 {
			t.Errorf("%s: %s was left behind", kind, left[0].Name())
		}
	}
}

func TestDamagedLayerIsNoticed(t *testing.T) {
	st := storetest.New(t)
	im := sample(t, st)
	im.Layers[0].DiffID = im.Layers[1].DiffID
	var mismatch *store.MismatchError
	err := writeTo(t.Context(), im, "docker-archive:"+filepath.Join(t.TempDir(), "x"), Options{Store: st})
	if !errors.As(err, &mismatch) {
		t.Errorf("error %v, want a MismatchError", err)
	}
}

func TestParseTarget(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("there", 0o755); err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string]string{
		"./out":                  "oci:./out",
		"a/out":                  "oci:a/out",
		"out/":                   "oci:out/",
		".":                      "oci:.",
		"there":                  "oci:there",
		"oci:out":                "oci:out",
		"out.tar":                "oci-archive:out.tar",
		"oci:out:v1":             "oci:out:v1",
		"docker-archive:f:a/b:c": "docker-archive:f:a/b:c",
		"dir:x:y":                "dir:x:y",
		"tar:r.tar":              "tar:r.tar",
		"a/x.sqsh":               "sqsh:a/x.sqsh",
		"x.squashfs":             "sqsh:x.squashfs",
		"x.sif":                  "sif:x.sif",
		"sif:odd":                "sif:odd",
		"x.SQSH":                 "sqsh:x.SQSH",
		"X.Sif":                  "sif:X.Sif",
		"X.TAR":                  "oci-archive:X.TAR",
		"./b:3":                  "oci:./b:3",
		"oci:b:3":                "oci:b:3",
	} {
		got, err := ParseTarget(s)
		if err != nil || got.String() != want {
			t.Errorf("%s: %s, %v, want %s", s, got, err, want)
		}
	}
	for _, s := range []string{"", "oci:", "sif:", "docker://host/x", "x.tar.gz", "x.zip", "b:3", "out", "llm-25.11", "x.sqhs"} {
		if _, err := ParseTarget(s); fault.CodeOf(err) != fault.CodeUsage {
			t.Errorf("%q: error %v, want a mistake of usage", s, err)
		}
	}
	if _, err := ParseTarget("b:3"); !strings.Contains(fault.HintOf(err), "`sconce pull IMAGE --name b:3`") {
		t.Errorf("a second name: %v, %s", err, fault.HintOf(err))
	}
	for s, want := range map[string]string{"out": "out.sqsh is a squashfs, out.sif ", "llm-25.11": "llm-25.11.sqsh is", "x.sqhs": "x.sqsh is"} {
		if _, err := ParseTarget(s); !strings.HasPrefix(fault.HintOf(err), want) || !strings.Contains(fault.HintOf(err), "oci:"+s+" is a directory") {
			t.Errorf("%s: %v, %s", s, err, fault.HintOf(err))
		}
	}
}

// TestStream checks the one trick of the tar writer: a header written before its size is known.
func TestStream(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "t"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tf, err := newTarFile(f, "sconce test")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tf.add("a", []byte("first")), tf.stream("b", strings.NewReader(strings.Repeat("x", 700))), tf.add("c", nil), tf.end()); err != nil {
		t.Fatal(err)
	}
	data, _ := os.ReadFile(f.Name())
	var got []string
	for tr := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(h.Name, " ", h.Size))
	}
	if want := []string{"pax_global_header 0", "a 5", "b 700", "c 0"}; !slices.Equal(got, want) {
		t.Errorf("members %v, want %v", got, want)
	}
	if s := fileStamp(f.Name()); s != "sconce test" {
		t.Errorf("stamp %q", s)
	}
}

// writeTo writes an image to a destination as a user names it.
func writeTo(ctx context.Context, im *image.Image, dest string, o Options) error {
	t, err := ParseTarget(dest)
	if err != nil {
		return err
	}
	return Write(ctx, im, t, o)
}
