package facts

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// noLayer is an image elsewhere of which no layer comes.
type noLayer struct{ v1.Image }

var errNoLayer = errors.New("no layer comes")

func (noLayer) LayerByDigest(v1.Hash) (v1.Layer, error) { return nil, errNoLayer }

// packedOf packs an image after reading some of its files, and returns what is read of them.
func packedOf(t *testing.T, st *store.Store, im *image.Image, files ...string) (packed []byte, contents [][]byte) {
	t.Helper()
	var b bytes.Buffer
	err := Pack(t.Context(), st, im, func(f *Facts) error {
		for _, name := range files {
			contents = append(contents, ReadText(f.Root, name))
		}
		return nil
	}, &b)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), contents
}

// Packed facts tell the same as the layers, of which none is asked for, and hold what was read when they were made, also of large files.
func TestPackedFacts(t *testing.T) {
	from := storetest.Alone(t)
	const gz = "application/vnd.oci.image.layer.v1.tar+gzip"
	lower := chunked(t, from, slices.DeleteFunc(contents(t), func(c content) bool { return c.link != "" }))
	large := content{path: "opt/large.txt", data: bytes.Repeat([]byte("of several pages\n"), 20<<10)}
	upper := foreign(t, from, gzipped(t, tarOf(t, append(withPackage(t), large))), gz)
	plain := chunked(t, from, []content{{path: "etc/text", data: []byte("nothing to look at")}})
	im := imageOf(t, from, lower, upper, plain)
	want := gathered(t, from, im)
	packed, texts := packedOf(t, from, im, "opt/large.txt", "etc/text")
	if again, _ := packedOf(t, from, im, "opt/large.txt", "etc/text"); !bytes.Equal(packed, again) {
		t.Error("packed once more they are other bytes")
	}

	st := storetest.Alone(t)
	e := away(t, from, im)
	o := outlineOf(t, st, noLayer{e})
	f, err := OfPacked(t.Context(), st, o, bytes.NewReader(packed), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sameFacts(t, want, f)
	for i, name := range []string{"opt/large.txt", "etc/text"} {
		if got := ReadText(f.Root, name); len(got) == 0 || !bytes.Equal(got, texts[i]) {
			t.Errorf("%s: %d bytes, want %d: %v", name, len(got), len(texts[i]), f.Missing())
		}
	}
	if f.Missing() != nil || e.asked() != 0 {
		t.Errorf("layers were asked for: %v", f.Missing())
	}
	// What was not read is not there, and that is told.
	if got := ReadText(f.Root, "etc/ld.so.conf"); got != nil || !errors.Is(f.Missing(), errNoLayer) {
		t.Errorf("got %q, %v", got, f.Missing())
	}
}

// What is cut short, or of another image, is refused.
func TestPackedFactsRefused(t *testing.T) {
	from := storetest.Alone(t)
	im := imageOf(t, from, chunked(t, from, slices.DeleteFunc(contents(t), func(c content) bool { return c.link != "" })))
	other := imageOf(t, from, chunked(t, from, []content{{path: "a.so", data: fixture(t, "host.so")}}))
	packed, _ := packedOf(t, from, im)
	for name, data := range map[string][]byte{"cut short": packed[:len(packed)/2], "empty": nil, "other bytes": bytes.Repeat([]byte("x"), 100)} {
		if _, err := ofPacked(t, from, im, data); err == nil {
			t.Errorf("%s: it is believed", name)
		}
	}
	if _, err := ofPacked(t, from, other, packed); err == nil {
		t.Error("facts of other layers are believed")
	}
	if f, err := ofPacked(t, from, im, packed); err != nil {
		t.Error(err)
	} else if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func ofPacked(t *testing.T, from *store.Store, im *image.Image, packed []byte) (*Facts, error) {
	t.Helper()
	st := storetest.Alone(t)
	return OfPacked(t.Context(), st, outlineOf(t, st, noLayer{away(t, from, im)}), bytes.NewReader(packed), "test")
}
