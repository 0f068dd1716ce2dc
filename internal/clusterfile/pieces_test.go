package clusterfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/child/childtest"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
)

// smallPieces cuts the layers of a test into pieces of a size that it can write many of.
func smallPieces(t *testing.T, size int64) {
	old := pieceSize
	pieceSize = size
	t.Cleanup(func() { pieceSize = old })
}

// largeLayer is one layer of n files of 20 kB and now and then a larger one, with some contents that are there twice.
func largeLayer(n int) []object {
	var objects []object
	for i := range n {
		objects = append(objects, file(fmt.Sprintf("f%04d", i), noise(uint64(i%(n-5)), 20_000+i%7*i%3)))
		if i%10 == 0 {
			objects = append(objects, file(fmt.Sprintf("f%04d-large", i), prose(uint64(i/20), 400_000)))
		}
	}
	return objects
}

// cut is a layer whose walks end with an error after a number of files, unless that is negative.
type cut struct {
	layer.Source
	after int
	err   error
}

func (c cut) Walk(ctx context.Context, visit layer.Visitor) error {
	return c.Source.Walk(ctx, func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error {
		if c.after == 0 {
			return c.err
		}
		c.after--
		return visit(e, open)
	})
}

// readOf is the set of the files that were opened.
func readOf(opened []string) map[string]bool {
	out := map[string]bool{}
	for _, p := range opened {
		out[p] = true
	}
	return out
}

// writeCut writes an image whose lowest layer ends with an error after some files. What was read of it is in opened.
func writeCut(t *testing.T, st *store.Store, o Options, after int, opened *[]string, layers ...layer.Descriptor) error {
	t.Helper()
	_, err := writeSources(t, st, o, func(number int, s layer.Source) layer.Source {
		if number == 0 {
			s = cut{recorder{s, opened}, after, errCut}
		}
		return s
	}, layers...)
	return err
}

var errCut = errors.New("cut off")

// Who comes after one that ended in the middle of a layer reads nothing again of the pieces that were kept, wherever that was, and the
// file is the same as one that was written at once.
func TestGoesOnWithinALayer(t *testing.T) {
	for name, sq := range settings() {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "zstd" && name != "tails" {
				t.Skip("other blocks are cut into the same pieces by the same goroutines")
			}
			smallPieces(t, 500_000)
			tarred := tarOf(t, largeLayer(120)...)
			alone, st := newStore(t), newStore(t)
			top := []object{whiteout("f0003"), file("f0004", noise(900, 30_000))}
			layersIn := func(st *store.Store) []layer.Descriptor {
				return []layer.Descriptor{foreignLayer(t, st, tarred), ownLayer(t, st, layer.Zstd, top...)}
			}
			want := writeTo(t, alone, Options{Squashfs: sq, NoReuse: true}, layersIn(alone)...)
			ds := layersIn(st)
			before := map[string]bool{}
			for _, after := range []int{30, 60, 90, 120} {
				var opened []string
				if err := writeCut(t, st, Options{Squashfs: sq}, after, &opened, ds...); !errors.Is(err, errCut) {
					t.Fatalf("after %d files: %v", after, err)
				}
				again := 0
				for _, p := range opened {
					if before[p] {
						again++
					}
				}
				if again > 40 { // those of a piece, and contents that an earlier piece has
					t.Errorf("cut after %d files: %d were read again", after, again)
				}
				before = readOf(opened)
			}
			got := writeTo(t, st, Options{Squashfs: sq}, ds...)
			if got.sum() != want.sum() {
				t.Error("other bytes")
			}
			if len(got.opened) > 80 {
				t.Errorf("at the end %d files of %d were read", len(got.opened), len(want.opened))
			}
			if warm := writeTo(t, st, Options{Squashfs: sq}, ds...); warm.sum() != want.sum() || len(warm.opened) > 0 {
				t.Errorf("same bytes: %v; compressed again: %q", warm.sum() == want.sum(), warm.opened)
			}
			for _, p := range packsOf(t, st, ds[0], sq) {
				if p.provisional() {
					t.Errorf("piece %d still counts for one blob only", p.Piece)
				}
			}
		})
	}
}

func packsOf(t *testing.T, st *store.Store, d layer.Descriptor, sq squashfs.Options) []storedPack {
	t.Helper()
	var record packRecord
	if ok, err := st.GetRecord(store.KindPacks, (&reuse{key: sq.Key()}).recordKey(d.Digest), &record); err != nil || !ok {
		t.Fatalf("the layer has no packs: %v", err)
	}
	return record.Packs
}

// What was kept of a layer that turned out to be damaged in the end is not used when another blob has taken the place of the damaged one.
func TestPiecesOfADamagedBlob(t *testing.T) {
	smallPieces(t, 500_000)
	alone, st := newStore(t), newStore(t)
	tarred := tarOf(t, largeLayer(60)...)
	want := writeTo(t, alone, Options{NoReuse: true, Squashfs: squashfs.DefaultOptions()}, foreignLayer(t, alone, tarred))
	d := foreignLayer(t, st, tarred)
	blob, err := st.BlobPath(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	sound, err := os.ReadFile(blob)
	if err != nil {
		t.Fatal(err)
	}
	damage(t, st, d.Digest, flip(func(n int) int { return 20_000 })) // in a content: nobody but the checksum at the end notices
	o := Options{Squashfs: squashfs.DefaultOptions()}
	if w, err := tryWrite(t, st, o, d); err == nil {
		t.Fatalf("a damaged layer was written: %d bytes", len(w.data))
	}
	if len(packsOf(t, st, d, o.Squashfs)) == 0 {
		t.Fatal("nothing was kept: the test tests nothing")
	}
	damage(t, st, d.Digest, func([]byte) []byte { return sound })
	got := writeTo(t, st, o, d)
	if got.sum() != want.sum() {
		t.Error("the file has what the damaged blob had")
	}
	for _, p := range packsOf(t, st, d, o.Squashfs) {
		if p.provisional() {
			t.Errorf("piece %d is still that of one blob", p.Piece)
		}
	}
}

// Nothing of a layer that is read while it arrives is kept before all of it has come: its hash is known then.
func TestPiecesOfAnArrivingLayer(t *testing.T) {
	smallPieces(t, 500_000)
	st, elsewhere := newStore(t), newStore(t)
	d := foreignLayer(t, elsewhere, tarOf(t, largeLayer(60)...))
	o := Options{Squashfs: squashfs.DefaultOptions(), Store: st}
	arrives := func(after int) error {
		f, err := os.Create(filepath.Join(t.TempDir(), "image.sqsh"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		in := inputOf(st, new([]string), d)
		in.Layers[0].Source = cut{layer.Stored(elsewhere, d), after, errCut}
		return WriteSquashfs(t.Context(), f, in, o)
	}
	if err := arrives(50); !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	if keys, err := st.Keys(store.KindPacks); err != nil || len(keys) > 0 {
		t.Errorf("kept: %v, %v", keys, err)
	}
	if err := arrives(-1); err != nil {
		t.Fatal(err)
	}
	if n := len(packsOf(t, st, d, o.Squashfs)); n < 3 {
		t.Errorf("of the whole layer %d pieces are kept", n)
	}
}

// A piece that is damaged is compressed again, and the user hears of it.
func TestDamagedPiece(t *testing.T) {
	smallPieces(t, 500_000)
	for name, change := range map[string]func(t *testing.T, st *store.Store, p storedPack){
		"its index": func(t *testing.T, st *store.Store, p storedPack) {
			damage(t, st, p.Index, flip(func(n int) int { return n / 2 }))
		},
		"its blocks": func(t *testing.T, st *store.Store, p storedPack) {
			damage(t, st, p.Data, func(data []byte) []byte { return data[:len(data)/2] })
		},
	} {
		t.Run(name, func(t *testing.T) {
			st, alone := newStore(t), newStore(t)
			tarred := tarOf(t, largeLayer(60)...)
			want := writeTo(t, alone, Options{NoReuse: true, Squashfs: squashfs.DefaultOptions()}, foreignLayer(t, alone, tarred))
			d := foreignLayer(t, st, tarred)
			if err := writeCut(t, st, Options{Squashfs: squashfs.DefaultOptions()}, 50, new([]string), d); !errors.Is(err, errCut) {
				t.Fatal(err)
			}
			packs := packsOf(t, st, d, squashfs.DefaultOptions())
			if len(packs) < 2 {
				t.Fatalf("%d pieces were kept", len(packs))
			}
			change(t, st, packs[1])
			data, warned, err := rewrite(t, st, []layer.Descriptor{d})
			if err != nil || !bytes.Equal(data, want.data) || !strings.Contains(warned, "cache verify") {
				t.Errorf("error %v, same bytes %v, warning %q", err, bytes.Equal(data, want.data), warned)
			}
			if got := writeTo(t, st, Options{}, d); got.sum() != want.sum() || len(got.opened) > 0 {
				t.Errorf("same bytes: %v; compressed a third time: %q", got.sum() == want.sum(), got.opened)
			}
		})
	}
}

// Pieces that nobody has used go with a prune, and a file that needs them is made without.
func TestPiecesArePruned(t *testing.T) {
	smallPieces(t, 500_000)
	st := newStore(t)
	d := foreignLayer(t, st, tarOf(t, largeLayer(60)...))
	if err := writeCut(t, st, Options{Squashfs: squashfs.DefaultOptions()}, 50, new([]string), d); !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	kept := packsOf(t, st, d, squashfs.DefaultOptions())
	if _, err := st.Prune(t.Context(), store.PruneOptions{All: true}); err != nil {
		t.Fatal(err)
	}
	if keys, err := st.Keys(store.KindPacks); err != nil || len(keys) > 0 {
		t.Errorf("records are left: %v, %v", keys, err)
	}
	for _, p := range kept {
		if st.HasBlob(p.Data) || st.HasBlob(p.Index) {
			t.Errorf("blobs of piece %d are left", p.Piece)
		}
	}
}

// resumeDir makes the test binary a process that writes the image in the store of the directory named by it.
const resumeDir = "SCONCE_TEST_RESUME_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(resumeDir); dir != "" {
		if err := writeAsChild(dir, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// writeAsChild tells of each file of the layer that it reads, by a line of its own, and writes image.sqsh.
func writeAsChild(dir string, args []string) error {
	pieceSize = 500_000
	st, err := store.Open(context.Background(), dir)
	if err != nil {
		return err
	}
	defer st.Close()
	size, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	d := layer.Descriptor{Digest: store.Digest(args[0]), Size: size, MediaType: "application/vnd.oci.image.layer.v1.tar+gzip"}
	f, err := os.Create(filepath.Join(dir, "..", "image.sqsh"))
	if err != nil {
		return err
	}
	defer f.Close()
	in := inputOf(st, new([]string), d)
	in.Digest = store.Digest(args[0])
	in.Layers[0].Source = telling{layer.Stored(st, d)}
	return WriteSquashfs(context.Background(), f, in, Options{Store: st, Squashfs: squashfs.DefaultOptions()})
}

// telling is a layer that prints the name of each file that is opened.
type telling struct{ layer.Source }

func (s telling) Walk(ctx context.Context, visit layer.Visitor) error {
	return s.Source.Walk(ctx, func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error {
		return visit(e, func() (io.ReadCloser, error) {
			fmt.Println(e.Path)
			return open()
		})
	})
}

// A process that is killed again and again in the middle of its work on one layer, each time after as many files, comes to its end, and
// leaves the file of one that nobody has disturbed.
func TestKilledWithinALayer(t *testing.T) {
	const files, patience = 160, 70 // a third of the work at a time
	tarred := tarOf(t, largeLayer(files)...)
	place := t.TempDir()
	st := newStoreAt(t, filepath.Join(place, "store"))
	d := foreignLayer(t, st, tarred)
	st.Close()
	run := func(dir string, most int) (done bool) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // instead of waiting for ever
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0], string(d.Digest), strconv.FormatInt(d.Size, 10))
		cmd.Env, cmd.Stderr = append(os.Environ(), resumeDir+"="+dir), os.Stderr
		lines := childtest.Start(t, cmd, &cmd.Stdout)
		for read := 0; lines.Scan(); read++ {
			if read == most {
				_ = cmd.Process.Signal(unix.SIGKILL)
				_ = cmd.Wait()
				return false
			}
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		return true
	}
	tries := 1
	for ; !run(filepath.Join(place, "store"), patience); tries++ {
		if tries == 10 {
			t.Fatalf("after %d tries of %d files there is no end", tries, patience)
		}
	}
	if tries < 3 {
		t.Errorf("it took %d tries: the test tests nothing", tries)
	}
	t.Logf("%d tries", tries)
	undisturbed := t.TempDir()
	other := newStoreAt(t, filepath.Join(undisturbed, "store"))
	foreignLayer(t, other, tarred)
	other.Close()
	if !run(filepath.Join(undisturbed, "store"), -1) {
		t.Fatal("it was killed")
	}
	got, err := os.ReadFile(filepath.Join(place, "image.sqsh"))
	want, wantErr := os.ReadFile(filepath.Join(undisturbed, "image.sqsh"))
	if err := errors.Join(err, wantErr); err != nil || !bytes.Equal(got, want) {
		t.Errorf("other bytes: %v", err)
	}
}
