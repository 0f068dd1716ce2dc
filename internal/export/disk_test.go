package export

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// TestDiskFull writes to a disk that is too small, and looks what is left behind.
func TestDiskFull(t *testing.T) {
	disk := tooltest.SmallDisk(t, "size=1m")
	st := storetest.New(t)
	im := assemble(t, st, makeLayer(t, st, layer.Zstd, regular("a", noise(3<<20))))
	for _, kind := range []string{"oci", "oci-archive", "docker-archive", "dir", "tar"} {
		err := writeTo(t.Context(), im, kind+":"+filepath.Join(disk, "out"), Options{Store: st})
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(fault.HintOf(err), ") is full") {
			t.Errorf("%s: error %v with hint %q", kind, err, fault.HintOf(err))
		}
		if left, _ := os.ReadDir(disk); len(left) > 0 {
			t.Fatalf("%s: %s was left behind", kind, left[0].Name())
		}
	}
}
