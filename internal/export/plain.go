package export

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/clusterfile"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
)

// A plain file holds the tree and no record of the image, so what it was made of stands in an extended attribute, as it does for
// directories. The size is part of it: other programs that change a squashfs append to it.

func plainStamp(size int64, kind source.Transport, in clusterfile.Input, o squashfs.Options) string {
	return fmt.Sprintf("%s%s %d %s%s %s,%d,%d,%t %s", stampPrefix, kind, size, in.Digest, in.StartDigest(), o.Compression, o.Level, o.BlockSize, o.TailPacking, in.Name)
}

// plainFields are the words of a stamp: sconce, the kind, size, digest, compression, name.
const plainFields = 6

// holdsTree reports whether a file of this kind holds a tree and no record of the image.
func holdsTree(kind source.Transport) bool { return kind == Plain || kind == Uenv }

// stampPlain marks a file that is whole. A file system without extended attributes only costs the next export a --force.
func stampPlain(f *os.File, kind source.Transport, in clusterfile.Input, o squashfs.Options) {
	if st, err := f.Stat(); err == nil {
		_ = unix.Fsetxattr(int(f.Fd()), stampAttr, []byte(plainStamp(st.Size(), kind, in, o)), 0)
	}
}

// holdsPlain reports whether the file at path is that of the image, written with these options.
func holdsPlain(path string, kind source.Transport, in clusterfile.Input, o squashfs.Options) bool {
	st, err := os.Lstat(path)
	return err == nil && st.Mode().IsRegular() && dirStamp(path) == plainStamp(st.Size(), kind, in, o)
}

// plainName reports whether the file at path is one that sconce wrote, and the name of the image that it was made of, which may be "".
func plainName(path string, kind source.Transport) (name string, ours bool) {
	st, err := os.Lstat(path)
	if err != nil || !st.Mode().IsRegular() {
		return "", false
	}
	fields := strings.SplitN(dirStamp(path), " ", plainFields)
	if len(fields) < plainFields || fields[1] != string(kind) || fields[2] != fmt.Sprint(st.Size()) {
		return "", false
	}
	return fields[plainFields-1], true
}
