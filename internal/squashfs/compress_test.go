package squashfs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"testing"
)

// TestCodecVersion compares what the compressors make with what they made when codecVersion was set: blocks of packs are
// copied between those made by another version of a library only if both make the same bytes. When this test fails after
// a library was updated, raise codecVersion and put the new sums here.
func TestCodecVersion(t *testing.T) {
	if codecVersion != 2 {
		t.Error("the sums are those of version 2")
	}
	for _, c := range []struct {
		options Options
		sum     string
	}{
		{Options{Compression: Zstd, Level: 1}, "410679c73220a524"},
		{Options{Compression: Zstd}, "410679c73220a524"},
		{Options{Compression: Zstd, Level: 7}, "81d54a9905a44a3e"},
		{Options{Compression: Zstd, Level: 15}, "86f260ff97f06821"},
		{Options{Compression: Zstd, BlockSize: MaxBlockSize}, "bd308fad0f64e843"},
		{Options{Compression: Gzip, Level: 1}, "89c01a68d7b8bebd"},
		{Options{Compression: Gzip}, "540becdc659b4cc0"},
		{Options{Compression: LZ4}, "ed094602b14f1342"},
		{Options{Compression: LZ4, Level: 9}, "7214bcf21b0fdabf"},
	} {
		o := c.options.complete()
		e, err := o.encoder()
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.New()
		for i := range 3 {
			src := bytes.Join([][]byte{textOf(o.BlockSize/2, uint64(i)), randomOf(o.BlockSize/8, byte(i))}, nil)
			out, ok, err := e.appendBlock(nil, src)
			if err != nil || !ok {
				t.Errorf("%s: %t, %v", o.Key(), ok, err)
			}
			sum.Write(out)
		}
		if got := hex.EncodeToString(sum.Sum(nil)[:8]); got != c.sum {
			t.Errorf("%s level %d: %s, not %s", o.Key(), o.Level, got, c.sum)
		}
	}
}

// TestBlocksComeBack decompresses what each compressor makes of blocks of all kinds.
func TestBlocksComeBack(t *testing.T) {
	for _, o := range optionSets(t) {
		o = o.complete()
		e, err := o.encoder()
		if err != nil {
			t.Fatal(err)
		}
		expand, err := newExpander(o.Compression)
		if err != nil {
			t.Fatal(err)
		}
		for _, src := range [][]byte{
			{1},
			[]byte("ab"), bytes.Repeat([]byte{7}, o.BlockSize), textOf(o.BlockSize, 1), randomOf(o.BlockSize, 1),
			bytes.Repeat([]byte("abc"), 100), textOf(o.BlockSize-1, 2),
		} {
			prefix := []byte("before")
			out, ok, err := e.appendBlock(prefix, src)
			if err != nil {
				t.Fatalf("%s: %v", o.Key(), err)
			}
			if !bytes.HasPrefix(out, prefix) {
				t.Errorf("%s: what was before is gone", o.Key())
			}
			if !ok {
				continue
			}
			if len(out)-len(prefix) >= len(src) {
				t.Errorf("%s: %d bytes became %d", o.Key(), len(src), len(out)-len(prefix))
			}
			got := make([]byte, len(src))
			if n, err := expand(got, out[len(prefix):]); err != nil || !bytes.Equal(got[:n], src) {
				t.Errorf("%s: %d bytes came back as %d, %v", o.Key(), len(src), n, err)
			}
		}
	}
}
