package store

import (
	"io/fs"
	"syscall"
	"time"
)

// Stamp tells a file from what it was before: nobody but root can change one and keep its ctime. The file system is not in it, as that of a
// file on a server has other numbers on other machines.
type Stamp struct {
	Inode uint64 `json:"inode"`
	Ctime int64  `json:"ctime"` // ns
	Size  int64  `json:"size"`
}

// Racy is how young a change may be that the clock of a file system does not tell from the next one.
const Racy = 3 * time.Second

// StampOf returns the stamp of a file.
func StampOf(info fs.FileInfo) Stamp {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return Stamp{}
	}
	return Stamp{Inode: st.Ino, Ctime: st.Ctim.Nano(), Size: st.Size}
}

// Age is how long ago the file changed.
func (s Stamp) Age() time.Duration { return time.Since(time.Unix(0, s.Ctime)) }
