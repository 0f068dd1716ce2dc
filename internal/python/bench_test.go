package python

import (
	"fmt"
	"io"
	"testing"

	"sconce.dev/sconce/internal/store/storetest"
)

// BenchmarkLayer lays large real wheels down as layers, without byte code: unpacking, checking, writing, compressing.
func BenchmarkLayer(b *testing.B) {
	for _, name := range []string{"numpy", "scipy", "sympy"} {
		b.Run(name, func(b *testing.B) { benchmarkLayer(b, name, nil, "3.11.2") })
	}
}

// BenchmarkLayerWithBytecode is BenchmarkLayer with byte code, by Python processes of this machine.
func BenchmarkLayerWithBytecode(b *testing.B) {
	start, version := localPython(b)
	for _, name := range []string{"numpy", "sympy"} {
		b.Run(name, func(b *testing.B) { benchmarkLayer(b, name, newPool(b, 2, start), version) })
	}
}

func benchmarkLayer(b *testing.B, name string, c Compiler, version string) {
	path := wheelFor(b, name)
	round := 0
	for b.Loop() {
		b.StopTimer()
		st := storetest.New(b)
		item := putWheel(b, st, path)
		b.StartTimer()
		round++
		d, _, err := BuildLayer(b.Context(), st, Group{fmt.Sprint(name, round), []Item{item}}, testTarget(version), c, LayerOptions{})
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(d.RawSize)
	}
}

// BenchmarkReadWheel only unpacks and checks: what one core can feed.
func BenchmarkReadWheel(b *testing.B) {
	w := openWheelFile(b, wheelFor(b, "scipy"))
	var total int64
	for _, m := range w.Members {
		total += m.Size
	}
	b.SetBytes(total)
	for b.Loop() {
		for _, m := range w.Members {
			r, err := m.Open()
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, r); err != nil {
				b.Fatal(err)
			}
			r.Close()
		}
	}
}
