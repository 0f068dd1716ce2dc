package host

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// FileSystem is the file system that holds a path.
type FileSystem struct {
	Type   string `json:"type"`             // ext4, xfs, nfs, lustre, …; 0x… when unknown
	Free   int64  `json:"free"`             // bytes that this user may still write
	Size   int64  `json:"size"`             // bytes in all
	Files  int64  `json:"files,omitempty"`  // inodes in all; 0 where they are made as they are needed
	Shared bool   `json:"shared"`           // reached over a network, by many machines
	Advice string `json:"advice,omitempty"` // what to know before putting a store there

	FreeFiles int64 `json:"free_files,omitempty"` // inodes that this user may still take
}

const (
	adviceNetwork = "a store here works, but builds are faster with SCONCE_STORE on a local disk; what it cannot hold is unpacked on one"
	adviceMemory  = "a store here is fast, uses memory and is gone after a reboot"
	adviceOverlay = "another overlay: what it cannot hold is unpacked elsewhere"
)

// magics names file systems by the number that statfs(2) gives (linux/magic.h; lustre's from lustre_user.h, gpfs's and
// beegfs's as coreutils' stat knows them).
var magics = map[uint32]FileSystem{
	0xEF53:     {Type: "ext4"},
	0x58465342: {Type: "xfs"},
	0x9123683E: {Type: "btrfs"},
	0x2FC12FC1: {Type: "zfs"},
	0xF2F52010: {Type: "f2fs"},
	0x01021994: {Type: "tmpfs", Advice: adviceMemory},
	0x858458F6: {Type: "ramfs", Advice: adviceMemory},
	0x794C7630: {Type: "overlay", Advice: adviceOverlay},
	0x73717368: {Type: "squashfs"},
	0x9FA0:     {Type: "proc"},
	0x6969:     {Type: "nfs", Shared: true, Advice: adviceNetwork},
	0x0BD00BD0: {Type: "lustre", Shared: true, Advice: adviceNetwork},
	0x47504653: {Type: "gpfs", Shared: true, Advice: adviceNetwork},
	0x19830326: {Type: "beegfs", Shared: true, Advice: adviceNetwork},
	0x00C36400: {Type: "ceph", Shared: true, Advice: adviceNetwork},
	0xFE534D42: {Type: "cifs", Shared: true, Advice: adviceNetwork},
	0xFF534D42: {Type: "cifs", Shared: true, Advice: adviceNetwork},
	0x65735546: {Type: "fuse", Advice: "what it can hold depends on the program behind it; what it cannot is unpacked on a local disk"},
	0x01021997: {Type: "9p", Shared: true, Advice: adviceNetwork},
}

// FileSystemOf returns the file system that holds path; its Type is "unknown" when path cannot be looked at.
func FileSystemOf(path string) FileSystem {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return FileSystem{Type: "unknown"}
	}
	fs, known := magics[uint32(st.Type)]
	if !known {
		fs.Type = fmt.Sprintf("0x%x", uint32(st.Type))
	}
	fs.Free = int64(st.Bavail) * st.Bsize
	fs.Size = int64(st.Blocks) * st.Bsize
	fs.Files, fs.FreeFiles = int64(st.Files), int64(st.Ffree)
	return fs
}

// existing returns path, or the nearest directory above it that exists.
func existing(path string) string {
	for {
		_, err := os.Stat(path)
		parent := filepath.Dir(path)
		if err == nil || parent == path {
			return path
		}
		path = parent
	}
}
