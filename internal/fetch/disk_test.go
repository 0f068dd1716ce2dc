package fetch

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// TestDiskFull downloads into a store that is too small.
func TestDiskFull(t *testing.T) {
	dir := tooltest.SmallDisk(t, "size=2m")
	st, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	data := randomBytes(4 << 20)
	srv := serve(t, data, nil)
	err = fast(st).Blob(t.Context(), Request{URL: srv.URL, Digest: store.DigestOf(data), Size: int64(len(data))})
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(fault.HintOf(err), "sconce cache prune") {
		t.Errorf("error %v with hint %q", err, fault.HintOf(err))
	}
	if n := srv.gets.Load(); n != 1 {
		t.Errorf("%d requests: a full disk does not get better by asking again", n)
	}
}
