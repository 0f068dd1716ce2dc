package layer

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/store"
)

// Type is the kind of a file system object.
type Type byte

// The kinds of file system object a layer can hold. HardLink refers to an earlier regular file of the same layer.
const (
	Regular Type = iota
	Dir
	Symlink
	HardLink
	Char
	Block
	Fifo
)

// Bits is the part of st_mode that says what kind of file it is (inode(7)); a hard link is taken for a regular file.
func (t Type) Bits() uint32 {
	switch t {
	case Dir:
		return unix.S_IFDIR
	case Symlink:
		return unix.S_IFLNK
	case Char:
		return unix.S_IFCHR
	case Block:
		return unix.S_IFBLK
	case Fifo:
		return unix.S_IFIFO
	case Regular, HardLink:
	}
	return unix.S_IFREG
}

// typeOf is the type of a file by st_mode: Regular for any that has none.
func typeOf(mode uint32) Type {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return Dir
	case unix.S_IFLNK:
		return Symlink
	case unix.S_IFCHR:
		return Char
	case unix.S_IFBLK:
		return Block
	case unix.S_IFIFO:
		return Fifo
	}
	return Regular
}

// Entry is one file system object of a layer.
type Entry struct {
	Path    string // slash-separated, relative to the root, clean, without a leading slash; "." is the root itself
	Type    Type
	Mode    uint32 // permission bits with setuid, setgid and sticky: 0o7777 at most
	UID     int
	GID     int
	Size    int64  // of a regular file, in bytes
	Link    string // target of a symlink (as written) or of a hard link (a Path)
	Major   uint32 // of a device
	Minor   uint32
	Xattrs  map[string]string
	ModTime time.Time // zero: the layer's fixed time
}

// Content opens a regular file's bytes. It may be called more than once.
type Content func() (io.ReadCloser, error)

// Descriptor says what a finished layer is. Its blob is in the store.
type Descriptor struct {
	Digest    store.Digest `json:"digest"`    // of the blob, as stored and sent
	DiffID    store.Digest `json:"diffID"`    // of the uncompressed tar
	Size      int64        `json:"size"`      // of the blob, in bytes
	RawSize   int64        `json:"rawSize"`   // of the uncompressed tar, in bytes; 0 when not known
	MediaType string       `json:"mediaType"` // OCI or Docker media type of the blob
}

// Limits on what a layer may hold. They are far above what images have (an image with several conda environments has half
// a million files) and keep a hostile one from taking the machine's memory.
const (
	maxEntries    = 4 << 20   // entries in a layer
	maxNameBytes  = 512 << 20 // bytes of paths, link targets and extended attributes in a layer
	maxRawSize    = 4 << 40   // bytes of an uncompressed layer
	maxPath       = 4095      // bytes of a path: Linux PATH_MAX without the final NUL
	maxName       = 255       // bytes of one component: Linux NAME_MAX
	maxDepth      = 512       // components of a path
	maxXattrBytes = 64 << 10  // bytes of one extended attribute: Linux XATTR_SIZE_MAX
	maxID         = 1<<32 - 2 // the last user or group number that is one
	maxDevice     = 0o7777777 // the last device number that a tar header holds
)

var errTooManyEntries = fmt.Errorf("the layer has more than %d entries or more than %d bytes of names", maxEntries, maxNameBytes)

// Names with a meaning in layers (OCI image-spec, layer, "Whiteouts").
const (
	WhiteoutPrefix = ".wh."         // then the name that is hidden
	WhiteoutOpaque = ".wh..wh..opq" // hides what layers below have in the same directory
	WhiteoutMeta   = ".wh..wh."     // starts the names of aufs' own files, which are no part of any image
)

// WhitesOut returns the path that an entry named p hides, as the whiteout of a single name. It is "" for any other entry, one
// that makes a directory opaque and files of aufs included.
func WhitesOut(p string) string {
	name, ok := strings.CutPrefix(path.Base(p), WhiteoutPrefix)
	if !ok || strings.HasPrefix(path.Base(p), WhiteoutMeta) || name == "" || name == "." || name == ".." {
		return ""
	}
	return path.Join(path.Dir(p), name)
}

// validate checks everything about an entry that does not depend on its neighbours.
func (e *Entry) validate() error {
	if err := validatePath(e.Path); err != nil {
		return err
	}
	switch {
	case e.Type > Fifo:
		return fmt.Errorf("unknown type %d", e.Type)
	case e.Path == "." && e.Type != Dir:
		return errors.New("the root must be a directory")
	case e.Mode > 0o7777:
		return fmt.Errorf("mode %#o has more than permission bits", e.Mode)
	case e.UID < 0 || e.UID > maxID || e.GID < 0 || e.GID > maxID:
		return fmt.Errorf("owner %d:%d is out of range", e.UID, e.GID)
	case e.Size < 0 || e.Size > maxRawSize:
		return fmt.Errorf("size %d is out of range", e.Size)
	case e.Major > maxDevice || e.Minor > maxDevice:
		return fmt.Errorf("device number %d:%d is out of range", e.Major, e.Minor)
	case e.Type == Symlink && (e.Link == "" || len(e.Link) > maxPath || strings.Contains(e.Link, "\x00")):
		return errors.New("a symlink needs a target of 1 to 4095 bytes without NUL")
	}
	if e.Type == HardLink {
		if err := validatePath(e.Link); err != nil {
			return fmt.Errorf("hard link to %s: %w", quotePath(e.Link), err)
		}
	}
	for k, v := range e.Xattrs {
		if k == "" || len(k) > maxName || strings.ContainsAny(k, "=\x00") || len(v) > maxXattrBytes {
			return fmt.Errorf("extended attribute %q cannot be stored", k)
		}
	}
	return nil
}

// MaxDepth is the most components that a path may have.
const MaxDepth = maxDepth

func validatePath(p string) error {
	switch {
	case p == "":
		return errors.New("the path is empty")
	case p[0] == '/':
		return errors.New("the path is absolute")
	case len(p) > maxPath:
		return fmt.Errorf("the path is longer than %d bytes", maxPath)
	case strings.Contains(p, "\x00"):
		return errors.New("the path contains NUL")
	case p == ".." || strings.HasPrefix(p, "../") || strings.HasSuffix(p, "/..") || strings.Contains(p, "/../"):
		return errors.New(`the path contains ".."`)
	case path.Clean(p) != p:
		return fmt.Errorf("the path is not clean (%s would be)", quotePath(path.Clean(p)))
	}
	depth := 0
	// A file of 255 bytes can be removed too: its whiteout never gets its own name in a file system.
	p = strings.TrimSuffix(p, path.Base(p)) + strings.TrimPrefix(path.Base(p), WhiteoutPrefix)
	for part := range strings.SplitSeq(p, "/") {
		if depth++; len(part) > maxName || depth > maxDepth {
			return fmt.Errorf("the path has a component longer than %d bytes or more than %d of them", maxName, maxDepth)
		}
	}
	return nil
}

func (e *Entry) nameBytes() int64 {
	n := len(e.Path) + len(e.Link)
	for k, v := range e.Xattrs {
		n += len(k) + len(v)
	}
	return int64(n)
}

// quotePath makes a path from an archive safe to print.
func quotePath(p string) string {
	const enough = 200
	if len(p) > enough {
		p = p[:enough] + "..."
	}
	if q := strconv.Quote(p); q != `"`+p+`"` || p == "" || strings.Contains(p, " ") {
		return q
	}
	return p
}
