package test

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/tooltest"
)

// A build context that a command only reads is seen where it is, and looks as a copy of it does.
func TestBindsAreNotCopied(t *testing.T) {
	begin(t)
	if err := fuse.Check(); err != nil {
		tooltest.Missing(t, "files cannot be served here, and are copied: %v", err)
	}
	p := newPlace(t, nil)
	busybox, err := os.ReadFile(tooltest.Path(t, "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	p.write("app/busybox", string(busybox))
	if err := os.Chmod(p.path("app/busybox"), 0o755); err != nil {
		t.Fatal(err)
	}
	var big strings.Builder
	for range 1 << 18 {
		fmt.Fprintf(&big, "%016x", rand.Uint64())
	}
	p.write("app/big", big.String())
	p.write("app/src/a", "one\n")
	p.write("app/src/deep/b", "two\n")
	copied := func(name, options string) (digests []string) {
		p.write(name, `FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "ln", "-s", "busybox", "/bin/sh"]
RUN --mount=type=bind,target=/context`+options+` busybox cp -a /context/src /copy && busybox wc -c < /context/big > /size
RUN --mount=type=bind,source=src/a,target=/one`+options+` busybox cp -p /one /copied
`)
		p.must("build", "-f", name, "-t", name+":1", "app")
		for _, l := range p.layers(name + ":1") {
			digests = append(digests, l.Digest)
		}
		return digests
	}
	served := copied("served", "")
	if largest := p.largest(); largest >= int64(big.Len()) {
		t.Errorf("the store has a file of %d bytes: the context was copied", largest)
	}
	if written := copied("written", ",rw"); !slices.Equal(served, written) {
		t.Errorf("layers %v, of a copy %v", served, written)
	}
	if largest := p.largest(); largest < int64(big.Len()) {
		t.Errorf("the largest file of the store has %d bytes; what can be written to is copied", largest)
	}
}

// largest is the size of the store's largest file.
func (p *place) largest() (size int64) {
	err := filepath.WalkDir(p.store, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size = max(size, info.Size())
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return size
}
