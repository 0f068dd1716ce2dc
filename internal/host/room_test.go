package host

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/tooltest"
)

// What is full is asked of a real file system of its own: a tmpfs with as few bytes and as few files as a case has.
func TestNoRoom(t *testing.T) {
	for _, c := range []struct{ name, options, want, gone string }{
		{"bytes", "size=1m,nr_inodes=1000", "(tmpfs, 1.0 MB) is full", "is full"},
		{"files", "size=64m,nr_inodes=100", "(tmpfs) has no inodes left", "is full, of files more likely than of bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := tooltest.SmallDisk(t, c.options)
			var err error
			for i := 0; err == nil; i++ {
				err = os.WriteFile(dir+"/"+strconv.Itoa(i), make([]byte, 4<<10), 0o600)
			}
			if got := NoRoom(fmt.Errorf("copy: %w", err), dir+"/not/there"); !strings.Contains(got, c.want) {
				t.Errorf("%v: %q, want %q", err, got, c.want)
			}
			for i := range 40 { // what was begun is removed before anyone asks
				if err := os.Remove(dir + "/" + strconv.Itoa(i)); err != nil {
					t.Fatal(err)
				}
			}
			if got := NoRoom(err, dir); !strings.Contains(got, c.gone) || strings.Contains(got, "files") != strings.Contains(c.gone, "files") {
				t.Errorf("after some were removed: %q, want %q", got, c.gone)
			}
		})
	}
	if got := NoRoom(unix.EDQUOT, t.TempDir()); !strings.Contains(got, "your quota") {
		t.Error(got)
	}
	if got := NoRoom(unix.EIO, "/"); got != "" {
		t.Error(got)
	}
}
