package host

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Quota is what a user may take of a file system, and has taken. A limit of 0 is none.
type Quota struct {
	Bytes    int64 `json:"bytes"`    // in use
	MaxBytes int64 `json:"maxBytes"` // the lower of the limits
	Files    int64 `json:"files"`    // in use
	MaxFiles int64 `json:"maxFiles"` // the lower of the limits
}

// diskQuota is struct if_dqblk of linux/quota.h.
type diskQuota struct {
	hardBlocks, softBlocks uint64 // of quotaBlock bytes
	bytes                  uint64 // in use
	hardFiles, softFiles   uint64
	files                  uint64 // in use
	_, _                   uint64 // when the soft limits begin to count
	_                      uint32
}

// Of linux/quota.h.
const (
	quotaBlock   = 1024
	getUserQuota = 0x800007 << 8 // Q_GETQUOTA of USRQUOTA
)

// QuotaOf returns the quota of this user on the file system of path, or nil where none is set or the kernel cannot say: servers of
// network file systems keep theirs to themselves, and what is set for a directory's project shows as the size of the file system.
func QuotaOf(path string) *Quota { return diskQuotaOf(path).quota() }

// diskQuotaOf asks the kernel. What it cannot say is zero.
func diskQuotaOf(path string) (q diskQuota) {
	f, err := os.Open(existing(path))
	if err != nil {
		return q
	}
	defer f.Close()
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), getUserQuota, uintptr(os.Getuid()), uintptr(unsafe.Pointer(&q)), 0, 0)
	if errno != 0 {
		return diskQuota{}
	}
	return q
}

// left returns how many bytes the user may still write under the limit that nobody passes. ok is false without one.
func (q diskQuota) left() (n int64, ok bool) {
	return max(0, int64(q.hardBlocks*quotaBlock)-int64(q.bytes)), q.hardBlocks > 0
}

func (q diskQuota) quota() *Quota {
	own := &Quota{
		Bytes: int64(q.bytes), MaxBytes: int64(lower(q.hardBlocks, q.softBlocks) * quotaBlock),
		Files: int64(q.files), MaxFiles: int64(lower(q.hardFiles, q.softFiles)),
	}
	if own.MaxBytes == 0 && own.MaxFiles == 0 {
		return nil
	}
	return own
}

// lower is the lower of two limits, of which 0 is none.
func lower(a, b uint64) uint64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
