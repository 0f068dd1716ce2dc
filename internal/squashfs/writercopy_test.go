package squashfs

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// large is a layer whose runs are copied in several parts, with small files between them.
func large() []sourceFile {
	small := source(3, 20)
	for i := range small {
		small[i].key.Offset += 1 << 30
	}
	a, b := randomOf(copierChunk*2+12345, 1), randomOf(sinkBuffer+1, 2)
	return slices.Concat([]sourceFile{{"a", Key{}, a}}, small, []sourceFile{{"b", Key{Offset: 1}, b}})
}

// With many workers copies are made in the background, by several.
func TestCopiedInTheBackground(t *testing.T) {
	layers := [][]sourceFile{large(), source(4, 20)}
	one, many := DefaultOptions(), DefaultOptions()
	one.Workers, many.Workers = 1, copiersFrom
	want, f, segments := imageOf(t, one, layers)
	kept := keepPack(t, f, segments[0])

	t.Run("the same bytes", func(t *testing.T) {
		got, _, s := imageOf(t, many, layers, []*Pack{kept.load(t)})
		if !bytes.Equal(got, want) || s[0].Fresh != 0 {
			t.Errorf("other bytes, or %d files of the pack were read", s[0].Fresh)
		}
	})
	t.Run("a pack without its end", func(t *testing.T) {
		blocks, err := os.ReadFile(kept.bytes)
		if err != nil {
			t.Fatal(err)
		}
		short := filepath.Join(t.TempDir(), "short")
		if err := os.WriteFile(short, blocks[:copierChunk+sinkBuffer/2], 0o600); err != nil {
			t.Fatal(err)
		}
		if err := writeWith(t, many, layers[0], layerPack{kept.index, short, kept.size}.load(t)); !errors.Is(err, ErrPack) {
			t.Error(err)
		}
	})
	t.Run("a full disk", func(t *testing.T) {
		before := runtime.NumGoroutine()
		f, err := os.Create(filepath.Join(tooltest.SmallDisk(t, "size=4m"), "image"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w, err := NewWriter(f, 0, many)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.StartSegment(kept.load(t)); err != nil {
			t.Fatal(err)
		}
		for _, file := range layers[0][:1] {
			if _, err := w.Add(t.Context(), file.key, int64(len(file.data)), opener(file.data)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.EndSegment(); !errors.Is(err, syscall.ENOSPC) {
			t.Error(err)
		}
		w.Close()
		goroutines(t, before)
	})
}
