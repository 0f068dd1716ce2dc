package fuse

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"
)

// The protocol's version. Linux 4.20, which has maxPages, is the oldest that is spoken to: the first that mounts in user
// namespaces is 4.18, the first with overlays there 5.11.
const (
	protoMajor    = 7
	protoMinor    = 38
	protoMinMinor = 28
)

// The kinds of request: enum fuse_opcode.
const (
	opLookup      = 1
	opForget      = 2 // without an answer
	opGetattr     = 3
	opSetattr     = 4
	opReadlink    = 5
	opSymlink     = 6
	opMknod       = 8
	opMkdir       = 9
	opUnlink      = 10
	opRmdir       = 11
	opRename      = 12
	opLink        = 13
	opOpen        = 14
	opRead        = 15
	opWrite       = 16
	opStatfs      = 17
	opRelease     = 18
	opSetxattr    = 21
	opGetxattr    = 22
	opListxattr   = 23
	opRemovexattr = 24
	opInit        = 26
	opOpendir     = 27
	opReaddir     = 28
	opReleasedir  = 29
	opCreate      = 35
	opInterrupt   = 36 // without an answer
	opDestroy     = 38
	opIoctl       = 39
	opBatchForget = 42 // without an answer
	opFallocate   = 43
	opReaddirplus = 44
	opRename2     = 45
	opTmpfile     = 51
)

// What is agreed on at the start: flags of fuse_init_out.
const (
	initAsyncRead        = 1 << 0
	initDoReaddirplus    = 1 << 13
	initReaddirplusAuto  = 1 << 14
	initNoOpenSupport    = 1 << 17
	initParallelDirops   = 1 << 18
	initMaxPages         = 1 << 22
	initCacheSymlinks    = 1 << 23
	initNoOpendirSupport = 1 << 24
	initWanted           = initAsyncRead | initDoReaddirplus | initReaddirplusAuto | initNoOpenSupport | initParallelDirops | initMaxPages | initCacheSymlinks | initNoOpendirSupport
)

// notifyStore is a message to the kernel that answers nothing: FUSE_NOTIFY_STORE of enum fuse_notify_code.
const notifyStore = 4

// Flags of fuse_open_out.
const (
	openKeepCache = 1 << 1
	openCacheDir  = 1 << 3
)

// Sizes of the protocol's structures in bytes.
const (
	inHeaderSize  = 40
	outHeaderSize = 16
	attrSize      = 88
	entryOutSize  = 40 + attrSize
	direntSize    = 24
)

// The limits that are told to the kernel.
const (
	maxRead       = 1 << 20 // bytes of one read
	maxWrite      = 4 << 10 // bytes; nothing is written, but the size of a request is bounded by it
	maxBackground = 64      // reads ahead under way
	inSize        = 16 << 10
	maxName       = 255
)

// forever is for how long the kernel may keep what it was told, in seconds.
const forever = 1 << 30

// rootID is the number by which the kernel knows the root without having asked: FUSE_ROOT_ID.
const rootID = 1

// The protocol is in the byte order of the machine.
var order = binary.NativeEndian

// request is a message of the kernel's: struct fuse_in_header and what follows it.
type request struct {
	op     uint32
	unique uint64 // its number, which the answer carries
	id     uint64 // of the file that it is about
	body   []byte
}

func parseRequest(b []byte) (request, bool) {
	if len(b) < inHeaderSize || uint64(order.Uint32(b)) != uint64(len(b)) {
		return request{}, false
	}
	return request{op: order.Uint32(b[4:]), unique: order.Uint64(b[8:]), id: order.Uint64(b[16:]), body: b[inHeaderSize:]}, true
}

// u32 and u64 return the number at offset at of the body, 0 where the body ends before.
func (r request) u32(at int) uint32 {
	if len(r.body) < at+4 {
		return 0
	}
	return order.Uint32(r.body[at:])
}

func (r request) u64(at int) uint64 {
	if len(r.body) < at+8 {
		return 0
	}
	return order.Uint64(r.body[at:])
}

// name returns the string from offset at of the body to its NUL.
func (r request) name(at int) string {
	if len(r.body) < at {
		return ""
	}
	return unix.ByteSliceToString(r.body[at:])
}

// appendAttr appends a struct fuse_attr.
func appendAttr(b []byte, a Attr) []byte {
	size := uint64(max(a.Size, 0))
	seconds, nanos := splitTime(a.ModTime)
	for _, v := range []uint64{a.Ino, size, (size + 511) / 512, seconds, seconds, seconds} {
		b = order.AppendUint64(b, v)
	}
	for _, v := range []uint32{nanos, nanos, nanos, a.Mode, a.Links, a.UID, a.GID, device(a.Major, a.Minor), 0, 0} {
		b = order.AppendUint32(b, v)
	}
	return b
}

func splitTime(t time.Time) (seconds uint64, nanos uint32) {
	if t.IsZero() {
		return 0, 0
	}
	return uint64(t.Unix()), uint32(t.Nanosecond())
}

// device encodes a device's number as the kernel's new_encode_dev does.
func device(major, minor uint32) uint32 {
	return minor&0xff | major<<8 | (minor&^0xff)<<12
}

// appendEntry appends a struct fuse_entry_out. The number 0 says that there is no such name, and that this may be kept.
func appendEntry(b []byte, id uint64, a Attr) []byte {
	for _, v := range []uint64{id, 0, forever, forever, 0} { // the last are two fields: parts of a second
		b = order.AppendUint64(b, v)
	}
	return appendAttr(b, a)
}

// appendDirent appends a struct fuse_dirent; next is where a listing goes on after it.
func appendDirent(b []byte, name string, ino, next uint64, mode uint32) []byte {
	b = order.AppendUint64(b, ino)
	b = order.AppendUint64(b, next)
	b = order.AppendUint32(b, uint32(len(name)))
	b = order.AppendUint32(b, mode&unix.S_IFMT>>12)
	b = append(b, name...)
	for range padding(len(name)) {
		b = append(b, 0)
	}
	return b
}

// padding is what fills n bytes up to a multiple of 8.
func padding(n int) int { return -n & 7 }
