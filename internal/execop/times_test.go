package execop

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
)

// never is a command of the shell for tests that must fail: -e takes no notice of what "!" turns round.
const never = `never() { if "$@"; then echo "not expected: $*" >&2; exit 1; fi; }; `

// Each step sees what the steps before it made as newer than what those stood on, and the layers are the same every time.
func TestStepOrder(t *testing.T) {
	steps := []string{
		"mkdir /d /stamp; cd /d; echo 1 >source; echo 1 >old; touch -d @981158400 old; cp -p old copy; echo x >newest; touch -d @1296691200 newest",
		"cd /d; test source -nt newest; test newest -nt old; never test copy -nt old; never test old -nt copy; echo 2 >made; echo 1 >copy",
		"cd /d; test made -nt source; never test copy -nt made; never test made -nt copy; test copy -nt old; touch source; touch -d @915148800 old",
		"cd /d; test source -nt made; test copy -nt old; test $(stat -c %Y old) = 915148800; touch /stamp; chmod 600 made",
		"cd /d; test /stamp -nt source; test source -nt made; echo 2 >source; mv made moved",
		"cd /d; test source -nt /stamp; touch source; mkdir /d/new; rmdir /d/new",
		"cd /d; test source -nt moved; test /d -nt /stamp; test $SOURCE_DATE_EPOCH = 315619200",
	}
	var first []layer.Descriptor
	for range 2 {
		b := newBench(t)
		for _, script := range steps {
			d, _ := b.run(sh(never + script))
			b.on = append(b.on, d)
		}
		if first != nil && !slices.Equal(first, b.on) {
			t.Errorf("layers %v, and the second time %v", first, b.on)
		}
		first = b.on
		tree, err := image.NewTree(t.Context(), b.Store, b.on)
		if err != nil {
			t.Fatal(err)
		}
		if newest := tree.Newest(); newest.Year() != 2011 {
			t.Errorf("the newest file is of %v", newest)
		}
	}
}

// No file that is written from now on is dated before now: it would count as one that was dated on purpose.
func TestFileClock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x")
	for range 1000 {
		now := fileClock()
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.ModTime().Before(now) {
			t.Fatalf("a file is of %v, %v before it was written", info.ModTime(), now.Sub(info.ModTime()))
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// A file from the far future does not take the steps there; files in mounts count as those of the image do.
func TestStepOrderOfOthers(t *testing.T) {
	b := newBench(t)
	year := func(n int) time.Time { return time.Date(n, 1, 1, 0, 0, 0, 0, time.UTC) }
	mount := Mount{Kind: Bind, Target: "/x", Layers: []layer.Descriptor{b.dated("newer", year(2012))}}
	b.on = append(b.on, b.dated("near", year(2009)), b.dated("far", year(2150)))
	d, _ := b.run(with(sh("test /far -nt /near; test /x/newer -nt /near; cat /x/newer >/made"), mount))
	b.on = append(b.on, d)
	b.run(with(sh("test /far -nt /made; test /made -nt /x/newer; test $(stat -c %Y /made) = 1325376001"), mount))
}

// dated makes a layer of one file.
func (b *bench) dated(name string, when time.Time) layer.Descriptor {
	b.t.Helper()
	w, err := layer.NewWriter(b.t.Context(), b.Store, layer.Options{Compression: layer.None})
	if err != nil {
		b.t.Fatal(err)
	}
	defer w.Abort()
	content := func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(name)), nil }
	if err := w.Add(layer.Entry{Path: name, Mode: 0o644, Size: int64(len(name)), ModTime: when}, content); err != nil {
		b.t.Fatal(err)
	}
	d, err := w.Close()
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}
