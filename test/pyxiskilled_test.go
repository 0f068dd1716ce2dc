package test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/registry/registrytest"
)

// The layer of an image that is imported in several runs is three pieces of 256 MiB long. An eighth of it is noise, all else is zeros.
const (
	longFile  = 32 << 20
	longFiles = 24
	piece     = 256 << 20
)

// longLayer makes its tar as it is read: it is not for the memory of a test.
func longLayer(t *testing.T) v1.Layer {
	t.Helper()
	out, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(writeLong(w)) }()
		return r, nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func writeLong(to io.Writer) error {
	w := tar.NewWriter(to)
	zeros := make([]byte, 7<<17)
	for i := range longFiles {
		h := &tar.Header{Name: fmt.Sprintf("long%02d", i), Typeflag: tar.TypeReg, Mode: 0o644, Size: longFile, ModTime: time.Unix(1_500_000_000, 0)}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		for j := range longFile >> 20 {
			if _, err := io.WriteString(w, noise(uint64(i<<8|j), 1<<17)); err != nil {
				return err
			}
			if _, err := w.Write(zeros); err != nil {
				return err
			}
		}
	}
	return w.Close()
}

// stopwatch has a process stopped once so many bytes of answers have gone to it.
type stopwatch struct {
	http.ResponseWriter
	left  *int64
	stop  func()
	once  *sync.Once
	ended <-chan struct{}
}

func (s *stopwatch) Write(p []byte) (int, error) {
	n, err := s.ResponseWriter.Write(p)
	if *s.left -= int64(n); *s.left < 0 {
		s.once.Do(s.stop)
		<-s.ended // it gets no more
	}
	return n, err
}

// An importer that a time limit ends within the download, and the next one within the conversion of a layer, come to the image in the third job:
// nothing is downloaded twice but what was on its way, and no piece is compressed twice.
func TestPyxisGoesOnWhereItWasKilled(t *testing.T) {
	begin(t)
	bottom := newTarLayer(t)
	bottom.programs()
	layout := writeLayout(t, filepath.Join(t.TempDir(), "long"), richConfig, bottom.gzipped(), longLayer(t))
	registry := registrytest.Start(t, false)
	newPlace(t, nil).must("copy", layout, "docker://"+registry+"/team/long:1")

	var importing *exec.Cmd
	var left int64
	var once sync.Once
	proxy := registrytest.NewProxy(t, registry, func(w http.ResponseWriter, r *http.Request) bool {
		if importing == nil || r.Method != http.MethodGet {
			return false
		}
		registrytest.Forward(registry, &stopwatch{w, &left, func() { _ = importing.Process.Signal(unix.SIGTERM) }, &once, r.Context().Done()}, r)
		return true
	})
	calm := newPlace(t, ordinary(t))
	uri := "docker://" + proxy.Host + "#team/long:1"
	want, log, err := calm.pyxis(calm.importer("store", "SCONCE_PYXIS_DIR="+calm.path("images")), uri)
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	image := proxy.Sent.Swap(0)

	p := newPlace(t, ordinary(t))
	start := func() *exec.Cmd {
		cmd := p.command("pyxis-importer", "--dir", p.path("images"), "get", uri)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("an importer said:\n%s", &out)
			}
		})
		return cmd
	}
	first := start()
	importing, left = first, image/2
	if err := first.Run(); err == nil {
		t.Fatal("the first importer was through before it was killed")
	}
	importing = nil
	downloaded := proxy.Sent.Load()

	second := start()
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	kept := p.killAfterPiece(second)
	if kept == "" {
		t.Fatal("the second importer was through before it was killed")
	}
	turnByte(t, kept) // blocks that are kept are copied as they are, so this shows itself in a file that they are copied to

	path, log, err := p.pyxis(p.importer("store", "SCONCE_PYXIS_DIR="+p.path("images")), uri)
	if err != nil || filepath.Base(path) != filepath.Base(want) {
		t.Fatalf("%q, %v\n%s", path, err, log)
	}
	one, oneErr := os.ReadFile(path)
	other, otherErr := os.ReadFile(want)
	if err := errors.Join(oneErr, otherErr); err != nil {
		t.Fatal(err)
	}
	if n := differences(one, other); n != 1 {
		t.Errorf("the piece that was kept was not taken as it is, or something else differs from the file of an importer that nobody has disturbed: %d bytes of %d and %d", n, len(one), len(other))
	}
	ofPiece := image * piece / (longFile * longFiles)
	if got := proxy.Sent.Load(); got > image+2*ofPiece {
		t.Errorf("%d bytes were downloaded, %d of them before the first kill; an image has %d", got, downloaded, image)
	} else {
		t.Logf("an image of %d bytes took %d in three runs, %d in the first", image, got, downloaded)
	}
}

// killAfterPiece kills a process when it has kept a piece of a layer, and is in the middle of that. It returns the blob that has the piece, ""
// when the process ended before.
func (p *place) killAfterPiece(cmd *exec.Cmd) (kept string) {
	p.t.Helper()
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	for {
		if kept = p.piece(); kept != "" {
			_ = cmd.Process.Kill()
			<-ended
			if cmd.ProcessState.ExitCode() < 0 {
				return kept
			}
			return ""
		}
		select {
		case <-ended:
			return ""
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// piece is the blob of a piece of a layer that was not read to its end, "" when there is none.
func (p *place) piece() string {
	p.t.Helper()
	files, err := filepath.Glob(filepath.Join(p.store, "records-v1/squashfs-packs/*/*"))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			p.t.Fatal(err)
		}
		var record struct {
			Value struct{ Packs []struct{ Data, Blob string } }
		}
		if err := json.Unmarshal(text, &record); err != nil {
			p.t.Fatal(err)
		}
		for _, pack := range record.Value.Packs {
			if digest := strings.TrimPrefix(pack.Data, "sha256:"); pack.Blob != "" {
				return filepath.Join(p.store, "blobs-v1/sha256", digest[:2], digest)
			}
		}
	}
	return ""
}

// turnByte changes one byte in the middle of a file.
func turnByte(t *testing.T, name string) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// differences is in how many bytes two files differ, -1 where they are not as long as each other.
func differences(one, other []byte) (n int) {
	if len(one) != len(other) {
		return -1
	}
	for i := range one {
		if one[i] != other[i] {
			n++
		}
	}
	return n
}
