package filelock

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Who holds a lock that bears no name is found in the kernel's table, whether it is held alone or shared.
func TestHoldersAreNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sqsh")
	holder := holdElsewhere(t, path).Pid
	f, err := os.Open(Path(path))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := Wait{began: time.Now().Add(-time.Minute)}
	node, _ := os.Hostname()
	want := fmt.Sprintf("waiting for process %d on %s, which writes x (%s); 1m", holder, node, filepath.Base(os.Args[0]))
	if note := w.NoteOn(f, "writes x"); !strings.HasPrefix(note, want) {
		t.Errorf("note %q, want %q", note, want)
	}
	free, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer free.Close()
	w = Wait{began: time.Now().Add(-time.Minute)}
	if note := w.NoteOn(free, "writes x"); !strings.HasPrefix(note, "waiting for another process that writes x; ") {
		t.Errorf("of a file that nobody here holds: %q", note)
	}
	many := make([]int, 12)
	for i := range many {
		many[i] = holder
	}
	if got := nameAll(many, "uses x"); strings.Count(got, "process ") != maxNamed || !strings.HasSuffix(got, ", and 4 more") {
		t.Errorf("of many: %q", got)
	}
}

func TestTableOfLocks(t *testing.T) {
	const table = `1: FLOCK  ADVISORY  READ 6310 fe:00:77 0 EOF
1: -> FLOCK  ADVISORY  WRITE 6311 fe:00:77 0 EOF
2: POSIX  ADVISORY  WRITE 7675 fe:00:77 0 EOF
3: FLOCK  ADVISORY  READ 7585 fe:00:77 0 EOF
4: FLOCK  ADVISORY  READ 7585 fe:00:77 0 EOF
5: FLOCK  ADVISORY  READ 0 fe:00:77 0 EOF
6: FLOCK  ADVISORY  WRITE 3277 fe:00:78 0 EOF
`
	got := holdersIn([]byte(table), func(_ int, file string) bool { return file == "fe:00:77" })
	if want := []int{6310, 7585}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
