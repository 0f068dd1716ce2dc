package test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/slim"
)

// damagedEnv names a directory with large libraries, which are damaged too: those with ".so" in their names, not below it.
const damagedEnv = "SCONCE_TEST_DAMAGE"

// Libraries that are cut short or in which bytes were changed never make the readers of device code panic. Where what holds the
// code together is damaged, slimming leaves the file alone, and where it does not see any damage, it changes nothing that stays.
func TestDamagedLibraries(t *testing.T) {
	begin(t)
	for _, name := range []string{"host.so", "host-relr.so", "host.exe", "host.o", "hip.o", "zstd.fatbin", "lz4.fatbin", "concatenated.fatbin"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			damageFile(t, fixtures+name, 1500)
		})
	}
	if dir := os.Getenv(damagedEnv); dir != "" {
		names, err := filepath.Glob(filepath.Join(dir, "*.so*"))
		if err != nil || len(names) == 0 {
			t.Fatalf("no libraries in %s: %v", dir, err)
		}
		for _, name := range names { // one after the other: they are large
			t.Run(filepath.Base(name), func(t *testing.T) { damageFile(t, name, 60) })
		}
	}
}

// damage is a file with one thing changed.
type damage struct {
	what string
	io.ReaderAt
	size int64
}

// patched is a file with other bytes in one place.
type patched struct {
	io.ReaderAt
	at   int64
	data []byte
}

func (p patched) ReadAt(b []byte, off int64) (int, error) {
	n, err := p.ReaderAt.ReadAt(b, off)
	for i, c := range p.data {
		if at := p.at + int64(i) - off; at >= 0 && at < int64(n) {
			b[at] = c
		}
	}
	return n, err
}

// large is the size in bytes from which reading a file again and again takes its time.
const large = 1 << 20

// damaged is how a file is broken.
type damaged struct {
	t    *testing.T
	r    io.ReaderAt
	size int64
	f    *fatbin.File

	options []slim.Options
	regions int // whose headers are broken

	refused, slimmed, unchanged int
}

func damageFile(t *testing.T, name string, times int) {
	t.Helper()
	h, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	info, err := h.Stat()
	if err != nil {
		t.Fatal(err)
	}
	d := damaged{t: t, r: h, size: info.Size(), options: slimOptions, regions: 20}
	if d.size > large {
		d.options, d.regions = slimOptions[:1], 2
	}
	if d.f, err = fatbin.Scan(h, d.size, fatbin.Options{SectionsOnly: true}); err != nil {
		t.Fatal(err)
	}
	whole, err := slim.Look(t.Context(), h, d.size, slimOptions[0])
	if err != nil || whole.Report.Refused != "" && filepath.Ext(name) != ".o" {
		t.Fatalf("the whole file is left alone: %v, %+v", err, whole)
	}
	d.breakHeaders()
	d.cut(times / 4)
	r := rand.New(rand.NewPCG(uint64(d.size), 7))
	for range times {
		d.flip(r)
	}
	t.Logf("%d refused, %d slimmed, %d with nothing to slim", d.refused, d.slimmed, d.unchanged)
}

// field is a number in a header.
type field struct {
	name   string
	offset int64
	size   int
}

// The fields that hold a region and its entries together, by their offset in the header; package fatbin explains them.
var (
	regionFields = []field{{"magic", 0, 4}, {"version", 4, 2}, {"header size", 6, 2}, {"size", 8, 8}}
	entryFields  = []field{{"version", 2, 2}, {"header size", 4, 4}, {"padded size", 8, 8}}
)

// wrong are numbers that no file has in any of those fields in place of n.
func wrong(n uint64) []uint64 {
	return []uint64{0, n + 1, n - 1, n ^ 0x80, n << 1, n + 1<<15, ^uint64(0), 1 << 63}
}

// breakHeaders makes each field of the headers wrong: none of these files may be slimmed.
func (d *damaged) breakHeaders() {
	d.t.Helper()
	for i := range d.f.Regions {
		region := &d.f.Regions[i]
		if region.Headerless || i >= d.regions {
			continue
		}
		for _, f := range regionFields {
			d.breakField(fmt.Sprintf("region %d", i), f, region.Offset)
		}
		for j := range region.Entries[:min(len(region.Entries), 4)] {
			for _, f := range entryFields {
				d.breakField(fmt.Sprintf("entry %d of region %d", j, i), f, region.Entries[j].Offset)
			}
		}
	}
}

func (d *damaged) breakField(what string, f field, header int64) {
	d.t.Helper()
	var raw [8]byte
	if _, err := d.r.ReadAt(raw[:f.size], header+f.offset); err != nil {
		d.t.Fatal(err)
	}
	was := binary.LittleEndian.Uint64(raw[:])
	for _, n := range wrong(was) {
		var changed [8]byte
		binary.LittleEndian.PutUint64(changed[:], n)
		if bytes.Equal(changed[:f.size], raw[:f.size]) {
			continue
		}
		what := fmt.Sprintf("%s of %s is %d, not %d", f.name, what, n, was)
		if d.try(damage{what, patched{d.r, header + f.offset, changed[:f.size]}, d.size}) != leftAlone {
			d.t.Errorf("%s, and the file is slimmed", what)
		}
	}
}

// cut takes the end away, in many places: a file that ends before its device code does is not slimmed.
func (d *damaged) cut(times int) {
	d.t.Helper()
	last := int64(0)
	sizes := []int64{0, 1, 3, 4, 15, 16, 63, 64, 65}
	for i := range d.f.Regions {
		r := &d.f.Regions[i]
		last = max(last, r.Offset+r.Size)
		if i < d.regions {
			sizes = append(sizes, r.Offset, r.Offset+1, r.Offset+16, r.Offset+r.Size-1, r.Offset+r.Size)
		}
	}
	for i := range times {
		sizes = append(sizes, d.size*int64(i)/int64(times))
	}
	for _, size := range sizes {
		if size >= d.size {
			continue
		}
		did := d.try(damage{fmt.Sprintf("cut to %d bytes", size), io.NewSectionReader(d.r, 0, size), size})
		if did == isSlimmed && (size < last || d.f.Format == fatbin.ELF) {
			d.t.Errorf("cut to %d bytes of %d, and slimmed", size, d.size)
		}
	}
}

// flip changes a few bytes somewhere, in most cases in a header.
func (d *damaged) flip(r *rand.Rand) {
	d.t.Helper()
	at := r.Int64N(d.size)
	if n := len(d.f.Regions); n > 0 && r.IntN(3) > 0 {
		region := &d.f.Regions[r.IntN(n)]
		at = region.Offset + r.Int64N(16)
		if n := len(region.Entries); n > 0 && r.IntN(4) > 0 {
			at = region.Entries[r.IntN(n)].Offset + r.Int64N(64)
		}
	} else if r.IntN(2) == 0 {
		at = r.Int64N(min(d.size, 4096))
	}
	data := make([]byte, min(1+r.Int64N(4), d.size-at))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	d.try(damage{fmt.Sprintf("%x at byte %d", data, at), patched{d.r, at, data}, d.size})
}

// outcome is what slimming made of a damaged file.
type outcome int

const (
	leftAlone outcome = iota // with a reason, or as a file without device code
	nothingToDo
	isSlimmed
)

var slimOptions = []slim.Options{
	{GPUs: []int{90}, PTX: slim.DropWhereNative, DropRelocatable: true}, {GPUs: []int{80}}, {GPUs: []int{75, 100}, PTX: slim.DropWhereNative},
}

// try has a damaged file read and slimmed, and looks for contradictions.
func (d *damaged) try(broken damage) outcome {
	d.t.Helper()
	defer func() {
		if p := recover(); p != nil {
			d.t.Fatalf("%s: panic: %v", broken.what, p)
		}
	}()
	f, err := fatbin.Scan(broken, broken.size, fatbin.Options{SectionsOnly: true})
	if err != nil && !errors.Is(err, fatbin.ErrFormat) {
		d.t.Errorf("%s: %v", broken.what, err)
	}
	isDamaged := err != nil || len(f.Problems) > 0
	if err == nil && d.size < large {
		_, err = f.Verify(d.t.Context())
		if err != nil {
			d.t.Errorf("%s: verify: %v", broken.what, err)
		}
		_ = f.Coverage()
	}
	worst := leftAlone
	for _, o := range d.options {
		did := d.slim(broken, o)
		if did == isSlimmed && isDamaged {
			d.t.Errorf("%s: slimmed, although %v", broken.what, f.Problems)
		}
		worst = max(worst, did)
	}
	switch worst {
	case leftAlone:
		d.refused++
	case nothingToDo:
		d.unchanged++
	case isSlimmed:
		d.slimmed++
	}
	return worst
}

func (d *damaged) slim(broken damage, o slim.Options) outcome {
	d.t.Helper()
	p, err := slim.Look(context.Background(), broken, broken.size, o)
	switch {
	case errors.Is(err, fatbin.ErrFormat):
		return leftAlone
	case err != nil:
		d.t.Errorf("%s: %v", broken.what, err)
		return leftAlone
	case p.Report.Refused != "":
		if !p.Empty() {
			d.t.Errorf("%s: refused and changed: %s", broken.what, p.Report.Refused)
		}
		return leftAlone
	case p.Empty():
		return nothingToDo
	}
	d.wantKept(broken, p.ReaderAt(broken))
	return isSlimmed
}

// wantKept compares what stays in a slimmed file with what was in the same place, large images at their ends.
func (d *damaged) wantKept(before damage, after io.ReaderAt) {
	d.t.Helper()
	old, err1 := fatbin.Scan(before, before.size, fatbin.Options{SectionsOnly: true})
	f, err2 := fatbin.Scan(after, before.size, fatbin.Options{SectionsOnly: true})
	if err := errors.Join(err1, err2); err != nil || len(f.Problems) > 0 {
		d.t.Errorf("%s: the slimmed file is damaged: %v %v", before.what, err, f)
		return
	}
	sizes := map[int64]int64{} // of payloads, by where they are
	for i := range old.Regions {
		for _, e := range old.Regions[i].Entries {
			sizes[e.Offset+e.HeaderSize] = e.PayloadSize
		}
	}
	var was, is [4096]byte
	same := func(at, n int64) {
		_, err1 := before.ReadAt(was[:n], at)
		_, err2 := after.ReadAt(is[:n], at)
		if err := errors.Join(err1, err2); err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(was[:n], is[:n]) {
			d.t.Errorf("%s: %d bytes at %d are not what they were: %v", before.what, n, at, err)
		}
	}
	for i := range f.Regions {
		for _, e := range f.Regions[i].Entries {
			at := e.Offset + e.HeaderSize
			size, there := sizes[at]
			if !there {
				d.t.Errorf("%s: an image at %d where there was none", before.what, at)
			}
			n := min(int64(len(was)), size)
			same(at, n)
			same(at+size-n, n)
		}
	}
}
