package slim

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"testing"

	"sconce.dev/sconce/internal/fatbin"
)

// FuzzLook makes sure that nothing panics, and that a file that is slimmed keeps its size, reads without problems and has what stays
// byte for byte.
func FuzzLook(f *testing.F) {
	names, err := filepath.Glob("../fatbin/testdata/*.*")
	if err != nil || len(names) == 0 {
		f.Fatal("no fixtures", err)
	}
	for i, name := range names {
		f.Add(fatbinFixture(f, filepath.Base(name)), uint8(i))
	}
	f.Add(regionOf(sass(80), ptx(75), sass(90).stored(), concatenated(sass(80), lto(75)), sass(100)), uint8(1))
	f.Add(library{
		executable:  [][]byte{regionOf(sass(80), sass(90)), regionOf(sass(90), ptx(90))},
		relocatable: [][]byte{regionOf(sass(80).named("kernel.cu", "-O3"), relPTX(80))},
		versions:    []int{1, 2, 1},
	}.bytes(), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, choice uint8) {
		o := []Options{for90, no90, least, {GPUs: []int{80, 103}, DropRelocatable: true}}[choice%4]
		p, err := Look(context.Background(), bytes.NewReader(b), int64(len(b)), o)
		switch {
		case errors.Is(err, fatbin.ErrFormat):
		case err != nil:
			t.Fatalf("error %v of a file without read errors", err)
		case p.Report.Refused != "" && (!p.Empty() || len(p.Report.Kept)+len(p.Report.Dropped) > 0):
			t.Fatalf("a file that is left alone has a plan: %+v", p.Report)
		case !p.Empty():
			slimmed(t, b, p, o)
		}
	})
}
