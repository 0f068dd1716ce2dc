package execop

import (
	"slices"
	"testing"
	"time"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
)

// What a layer costs, next to the command that makes it: "command" is the sandbox alone, "rest" what is done with the changes,
// "next" what the step that is based on them waits for, and "unpack" what it would wait if nothing had been kept.
func BenchmarkStep(b *testing.B) {
	for name, script := range map[string]string{
		"small": `mkdir -p /d; cd /d; for i in $(seq 1 200); do mkdir $i; done
			head -c 4000 /bin/busybox >/f; for i in $(seq 1 200); do for j in $(seq 1 100); do echo $i $j >$i/$j; cat /f >>$i/$j; done; done`,
		"large": `for i in $(seq 1 100); do cat /bin/busybox >/big$i; echo $i >>/big$i; done`,
		"same":  `for i in $(seq 1 50); do cat /data/$i >/copy; cat /copy >/data/$i; done; rm /copy`,
	} {
		b.Run(name, func(b *testing.B) {
			bench := newBench(b)
			bench.Layer = layer.Options{}
			data, _ := bench.run(sh("mkdir /data; for i in $(seq 1 50); do cat /bin/busybox >/data/$i; echo $i >>/data/$i; done"))
			bench.on = append(bench.on, data)
			var command, rest, next, unpack time.Duration
			for b.Loop() {
				s := &running{Runner: bench.Runner, ctx: b.Context(), title: "bench", on: bench.on, c: sh(script)}
				var err error
				if s.work, err = bench.Store.TempDir("step-*"); err != nil {
					b.Fatal(err)
				}
				begin := time.Now()
				if err := s.openImage(); err != nil {
					b.Fatal(err)
				}
				if err := s.command(progress.Begin(b.Context(), "", "", 0)); err != nil {
					b.Fatal(err)
				}
				command += time.Since(begin)
				begin = time.Now()
				d, err := s.layer(begin.Add(-time.Hour))
				if err != nil {
					b.Fatal(err)
				}
				s.end()
				rest += time.Since(begin)
				begin = time.Now()
				if _, err := sandbox.Layers(b.Context(), bench.Store, append(slices.Clone(bench.on), d)); err != nil {
					b.Fatal(err)
				}
				next += time.Since(begin)
				begin = time.Now()
				dir := b.TempDir()
				if err := layer.Unpack(b.Context(), bench.Store, d, dir, sandbox.Unpacked()); err != nil {
					b.Fatal(err)
				}
				unpack += time.Since(begin)
			}
			for what, d := range map[string]time.Duration{"command": command, "rest": rest, "next": next, "unpack": unpack} {
				b.ReportMetric(d.Seconds()/float64(b.N), what+"-s/op")
			}
		})
	}
}
