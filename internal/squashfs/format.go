// Package squashfs reads and writes squashfs 4.0 file systems: what the kernel mounts and what enroot, pyxis and
// Apptainer run images from.
//
// A file system is one file: a superblock, the compressed blocks of the files, and tables. Blocks hold up to a block size
// of one file each; files smaller than that, and by choice the last parts of larger ones, share fragment blocks. The
// tables (inodes, directories, fragments, export, ids, extended attributes) are streams of metadata blocks of at most
// 8 KiB. All numbers are little endian. Source: Linux, fs/squashfs/squashfs_fs.h and Documentation/filesystems/squashfs.rst.
package squashfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Magic is what a squashfs file begins with: "hsqs".
const Magic = 0x73717368

// Limits of the format, in bytes.
const (
	MinBlockSize     = 4 << 10
	MaxBlockSize     = 1 << 20
	DefaultBlockSize = 128 << 10

	metadataSize = 8 << 10 // of an uncompressed metadata block
	maxNameLen   = 256     // of one name in a directory; Linux stops at 255
	maxLinkLen   = 65535   // of a symlink's target
)

// Compressor is how blocks are compressed.
type Compressor uint16

// The compressors of the format. Stored is none of them: it is a file system all of whose blocks are stored as they are.
const (
	Stored Compressor = 0
	Gzip   Compressor = 1
	LZMA   Compressor = 2
	LZO    Compressor = 3
	XZ     Compressor = 4
	LZ4    Compressor = 5
	Zstd   Compressor = 6
)

var compressorNames = []string{"none", "gzip", "lzma", "lzo", "xz", "lz4", "zstd"}

func (c Compressor) String() string {
	if int(c) < len(compressorNames) {
		return compressorNames[c]
	}
	return fmt.Sprintf("compressor %d", uint16(c))
}

// ParseCompressor reads a compressor that files can be written with: zstd, gzip, lz4 or none.
func ParseCompressor(s string) (Compressor, error) {
	switch strings.ToLower(s) {
	case "zstd":
		return Zstd, nil
	case "gzip":
		return Gzip, nil
	case "lz4":
		return LZ4, nil
	case "none":
		return Stored, nil
	}
	return 0, fmt.Errorf("compression %q: it is one of zstd, gzip, lz4, none", s)
}

// MaxLevel is the highest level of c, the lowest being 1; 0: it has none.
func (c Compressor) MaxLevel() int {
	switch c {
	case Zstd:
		return 22
	case Gzip, LZ4:
		return 9
	}
	return 0
}

// ValidBlockSize reports whether files can have blocks of n bytes.
func ValidBlockSize(n int64) bool { return n >= MinBlockSize && n <= MaxBlockSize && n&(n-1) == 0 }

// The flags of a superblock.
const (
	flagInodesStored    = 0x0001
	flagDataStored      = 0x0002
	flagFragmentsStored = 0x0008
	flagNoFragments     = 0x0010
	flagAlwaysFragments = 0x0020
	flagDuplicates      = 0x0040 // duplicate files were looked for
	flagExportable      = 0x0080
	flagXattrsStored    = 0x0100
	flagNoXattrs        = 0x0200
	flagOptions         = 0x0400 // the compressor's options follow the superblock
	flagIDsStored       = 0x0800
)

// superblockSize is the size of a superblock in bytes.
const superblockSize = 96

// noTable is the place of a table that a file system does not have.
const noTable = 1<<64 - 1

// superblock is the head of a file system. Places are offsets from its beginning, in bytes.
type superblock struct {
	Magic         uint32
	Inodes        uint32 // how many there are
	ModTime       uint32 // when it was made, seconds since 1970
	BlockSize     uint32
	Fragments     uint32 // how many fragment blocks there are
	Compressor    uint16
	BlockLog      uint16 // log2 of BlockSize
	Flags         uint16
	IDs           uint16 // how many user and group ids there are
	Major         uint16 // 4
	Minor         uint16 // 0
	Root          uint64 // reference to the root's inode
	BytesUsed     uint64
	IDTable       uint64
	XattrTable    uint64
	InodeTable    uint64
	DirTable      uint64
	FragmentTable uint64
	ExportTable   uint64
}

func (s *superblock) encode() []byte {
	b, err := binary.Append(nil, binary.LittleEndian, s)
	if err != nil {
		panic(err) // of fixed size
	}
	return b
}

// ErrFormat is wrapped by errors about files that are no squashfs, or a damaged one.
var ErrFormat = errors.New("not a valid squashfs file system")

func formatError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, args...))
}

// The types of inodes; each has an extended form, which is extended higher.
const (
	typeDir     = 1
	typeFile    = 2
	typeSymlink = 3
	typeBlock   = 4
	typeChar    = 5
	typeFifo    = 6
	typeSocket  = 7
	extended    = 7
)

// Type is the kind of a file system object.
type Type uint8

// The kinds of file system object, with the numbers that directories use.
const (
	Dir     Type = typeDir
	Regular Type = typeFile
	Symlink Type = typeSymlink
	Block   Type = typeBlock
	Char    Type = typeChar
	Fifo    Type = typeFifo
	Socket  Type = typeSocket
)

// Sizes of data and fragment blocks carry a flag for blocks that are stored uncompressed; 0 is a block of zeros.
const (
	blockStored = 1 << 24
	blockMask   = blockStored - 1
)

// metadataStored is the same flag in the length of a metadata block.
const metadataStored = 1 << 15

// noFragment is the fragment of a file that has none.
const noFragment = 1<<32 - 1

// noXattrs is the extended attributes' number of an inode that has none.
const noXattrs = 1<<32 - 1

// The namespaces of extended attributes, by the number that stands for them.
var xattrPrefixes = []string{"user.", "trusted.", "security."}

// xattrOutOfLine marks a value that is stored once and referred to.
const xattrOutOfLine = 0x100

// unixTime turns a time into what the format holds: seconds from 1970 to 2106.
func unixTime(t time.Time) uint32 {
	s := t.Unix()
	return uint32(min(max(s, 0), 1<<32-1))
}
