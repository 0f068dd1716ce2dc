// Package rpmdb reads which packages the database of RPM says are installed, in an image whose programs do not run.
//
//	rpmdb.go   the databases by their beginning, and their packages
//	sqlite.go  rpmdb.sqlite: RPM 4.16 and later, as Fedora 33 and RHEL 9 have it
//	ndb.go     Packages.db: SUSE
//	header.go  the header of a package, which all of them keep
//
// Packages of RHEL 8 and earlier lie in a database of Berkeley DB, which is not read: ErrFormat. Databases are anybody's files, so
// everything has limits.
package rpmdb

import (
	"errors"
	"fmt"
	"io"
)

// ErrFormat says that it is no database that is read here.
var ErrFormat = errors.New("it is no database of RPM in the form of SQLite or ndb")

// Limits of a database.
const (
	maxPackages = 100_000
	maxHeader   = 64 << 20 // bytes of a package's header; a kernel's is 4 MB
)

// Package is an installed package, by the tags of its header.
type Package struct {
	Name, Version, Release string
	Epoch                  string // "" where there is none
	Arch                   string // "" for a key of a signer, which is listed like a package
	License                string
	Source                 string // file name of the source package
	Module                 string // of modular packages: name, stream, version and context
}

// Read returns the packages of a database of size bytes, in its order.
func Read(r io.ReaderAt, size int64) ([]Package, error) {
	begin := make([]byte, 16)
	if _, err := r.ReadAt(begin, 0); err != nil {
		return nil, ErrFormat
	}
	var all []Package
	add := func(header []byte) error {
		p, err := parseHeader(header)
		if err != nil {
			return fmt.Errorf("package %d: %w", len(all)+1, err)
		}
		if len(all) == maxPackages {
			return fmt.Errorf("there are more than %d packages", maxPackages)
		}
		all = append(all, p)
		return nil
	}
	var err error
	switch {
	case string(begin) == sqliteMagic:
		err = readSQLite(r, size, add)
	case string(begin[:4]) == ndbMagic:
		err = readNDB(r, size, add)
	default:
		err = ErrFormat
	}
	return all, err
}
