package clusterfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
)

// The estimate takes what compressed layers have, a part of uncompressed ones, and everything when nothing is compressed.
func TestEstimate(t *testing.T) {
	st := newStore(t)
	tarred := tarOf(t, file("a", noise(1, 1_000_000)), file("zeros", make([]byte, 3_000_000)))
	zipped := foreignLayer(t, st, tarred)
	digest, err := st.PutBlob(tarred)
	if err != nil {
		t.Fatal(err)
	}
	plain := layer.Descriptor{Digest: digest, DiffID: digest, Size: int64(len(tarred)), MediaType: "application/vnd.oci.image.layer.v1.tar"}
	for _, c := range []struct {
		name     string
		layer    layer.Descriptor
		o        squashfs.Options
		from, to int64
	}{
		{"gzip", zipped, squashfs.DefaultOptions(), 1_000_000, 1_100_000},
		{"tar", plain, squashfs.DefaultOptions(), 1_600_000, 2_400_000},
		{"tar, not compressed", plain, squashfs.Options{}, 4_000_000, 4_100_000},
		{"gzip, not compressed, not known", zipped, squashfs.Options{}, 1_000_000, 4_100_000},
	} {
		im := &image.Image{Config: config, Layers: []layer.Descriptor{c.layer}}
		if got := Estimate(FromImage(st, im), c.o); got < c.from || got > c.to {
			t.Errorf("%s: %d bytes, want %d to %d", c.name, got, c.from, c.to)
		}
	}
	if got := Estimate(Input{}, squashfs.DefaultOptions()); got != 0 {
		t.Errorf("nothing takes %d bytes", got)
	}
}

// A file is taken for that of an image only when the image and the compression are the same.
func TestHolds(t *testing.T) {
	st := newStore(t)
	base := ownLayer(t, st, layer.Zstd, file("a", prose(1, 3000)))
	for name, o := range settings() {
		w := writeTo(t, st, Options{Squashfs: o}, base)
		r, in := w.reader(t), inputOf(st, &w.opened, base)
		if d, err := Digest(r); err != nil || d != in.Digest {
			t.Errorf("%s: the file is of %s, want %s: %v", name, d, in.Digest, err)
		}
		for other, with := range settings() {
			if got := Holds(r, in, with); got != (name == other) {
				t.Errorf("a file written with %s holds the image with %s: %v", name, other, got)
			}
		}
		another := in
		another.Digest = store.DigestOf([]byte("another"))
		if Holds(r, another, o) {
			t.Errorf("%s: holds another image", name)
		}
		another.Digest = ""
		if Holds(r, another, o) {
			t.Errorf("%s: holds an image without a digest", name)
		}
	}
	level := squashfs.DefaultOptions()
	level.Level = 9
	w := writeTo(t, st, Options{Squashfs: level}, base)
	for level, want := range map[int]bool{0: true, 3: false, 9: true} {
		o := squashfs.DefaultOptions()
		o.Level = level
		if got := Holds(w.reader(t), inputOf(st, &w.opened, base), o); got != want {
			t.Errorf("written with level 9, holds the image with level %d: %v", level, got)
		}
	}
}

// foreign makes a file system of somebody else's with one file below /.singularity.d, or with none.
func foreign(t *testing.T, name, content string) *squashfs.Reader {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "foreign"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	w, err := squashfs.NewWriter(f, 0, squashfs.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.StartSegment(); err != nil {
		t.Fatal(err)
	}
	data, err := w.Add(t.Context(), squashfs.Key{}, int64(len(content)), func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(content)), nil })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.EndSegment(); err != nil {
		t.Fatal(err)
	}
	meta := &squashfs.Inode{Type: squashfs.Dir, Mode: 0o755}
	if name != "" {
		meta.Entries = []squashfs.DirEntry{{Name: name, Inode: &squashfs.Inode{Type: squashfs.Regular, Mode: 0o644, Data: data}}}
	}
	size, err := w.Finish(&squashfs.Inode{Type: squashfs.Dir, Mode: 0o755, Entries: []squashfs.DirEntry{{Name: ".singularity.d", Inode: meta}}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := squashfs.New(f, size)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What a file says of its image is only believed when it is a record.
func TestDigestOfForeign(t *testing.T) {
	if _, err := Digest(foreign(t, "", "")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a record: %v", err)
	}
	digest := string(store.DigestOf(nil))
	good := `{"format":1,"manifest":"` + digest + `","config":{}}`
	if d, err := Digest(foreign(t, "sconce.json", good)); err != nil || string(d) != digest {
		t.Errorf("a record: %s, %v", d, err)
	}
	for _, text := range []string{
		"", "{", "[]", `{"format":2,"manifest":"` + digest + `","config":{}}`, `{"format":1,"config":{}}`,
		`{"format":1,"manifest":"sha256:../../x","config":{}}`, `{"format":1,"manifest":"` + digest + `","config":3}`, good + strings.Repeat(" ", maxRecord),
	} {
		if d, err := Digest(foreign(t, "sconce.json", text)); err == nil {
			t.Errorf("%.80q is taken for the record of %s", text, d)
		}
	}
}
