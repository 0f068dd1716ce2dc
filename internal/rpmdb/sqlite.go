package rpmdb

import (
	"encoding/binary"
	"errors"
	"io"
)

// sqliteMagic begins a database of SQLite (https://sqlite.org/fileformat2.html, section 1.3). All numbers of the format have the most
// significant byte first. A library that does all that SQLite does would be a quarter of sconce's program; to read one table from
// front to back takes what follows.
const sqliteMagic = "SQLite format 3\x00"

// Kinds of pages in the B-tree of a table, section 1.6.
const (
	interiorPage = 0x05
	leafPage     = 0x0d
)

// maxDepth is how many pages lie above each other in a B-tree. One of 20 would hold more rows than there are row numbers.
const maxDepth = 20

var errSQLite = errors.New("its SQLite database is damaged")

// sqlite is an open database.
type sqlite struct {
	r        io.ReaderAt
	pageSize int64
	usable   int64 // bytes of a page that hold something
	pages    int64
	visited  int64 // pages, of all that was read
}

// readSQLite calls add with the header of each package: the second column of the table Packages.
func readSQLite(r io.ReaderAt, size int64, add func([]byte) error) error {
	head := make([]byte, 100)
	if _, err := r.ReadAt(head, 0); err != nil {
		return errSQLite
	}
	db := &sqlite{r: r, pageSize: int64(binary.BigEndian.Uint16(head[16:]))}
	if db.pageSize == 1 {
		db.pageSize = 65536
	}
	db.usable = db.pageSize - int64(head[20])
	if db.pageSize < 512 || db.pageSize&(db.pageSize-1) != 0 || db.usable < 480 {
		return errSQLite
	}
	db.pages = size / db.pageSize
	root := int64(0)
	// The first page is the root of the table of tables: type, name, table, root, SQL.
	err := db.rows(1, maxDepth, func(row []byte) error {
		columns, err := columnsOf(row)
		if err == nil && len(columns) >= 4 && string(columns[0]) == "table" && string(columns[1]) == "Packages" {
			root = number(columns[3])
		}
		return err
	})
	if err != nil {
		return err
	}
	if root == 0 {
		return errors.New("its SQLite database has no table of packages")
	}
	return db.rows(root, maxDepth, func(row []byte) error {
		columns, err := columnsOf(row)
		if err != nil {
			return err
		}
		if len(columns) < 2 {
			return errSQLite
		}
		return add(columns[1])
	})
}

// page reads one, by its number from 1 on.
func (db *sqlite) page(n int64) ([]byte, error) {
	// More visits than pages: there is a circle.
	if db.visited++; n < 1 || n > db.pages || db.visited > 4*db.pages+16 {
		return nil, errSQLite
	}
	return readPart(db.r, (n-1)*db.pageSize, db.pageSize, errSQLite)
}

// rows calls f with each row of the B-tree at a page, in order.
func (db *sqlite) rows(n int64, depth int, f func([]byte) error) error {
	page, err := db.page(n)
	if err != nil {
		return err
	}
	head := page
	if n == 1 {
		head = page[100:] // behind the header of the file
	}
	kind, cells := head[0], int(binary.BigEndian.Uint16(head[3:]))
	pointers := head[8:]
	if kind == interiorPage {
		pointers = head[12:]
	}
	if kind != interiorPage && kind != leafPage || len(pointers) < 2*cells || depth == 0 {
		return errSQLite
	}
	for i := range cells {
		at := int64(binary.BigEndian.Uint16(pointers[2*i:]))
		if at > db.usable-4 {
			return errSQLite
		}
		if kind == leafPage {
			var row []byte
			if row, err = db.row(page[:db.usable], at); err == nil {
				err = f(row)
			}
		} else {
			err = db.rows(int64(binary.BigEndian.Uint32(page[at:])), depth-1, f)
		}
		if err != nil {
			return err
		}
	}
	if kind == interiorPage {
		return db.rows(int64(binary.BigEndian.Uint32(head[8:])), depth-1, f)
	}
	return nil
}

// row reads the row whose cell begins at an offset of a leaf: its bytes, its number, what of it is there, and where the rest is.
func (db *sqlite) row(page []byte, at int64) ([]byte, error) {
	size, n, ok := varint(page[at:])
	_, m, ok2 := varint(page[min(at+n, int64(len(page))):])
	at += n + m
	if !ok || !ok2 || size < 0 || size > maxHeader {
		return nil, errSQLite
	}
	here := db.local(size)
	if at+here > int64(len(page)) {
		return nil, errSQLite
	}
	row := append([]byte(nil), page[at:at+here]...)
	if here == size {
		return row, nil
	}
	if at+here+4 > int64(len(page)) {
		return nil, errSQLite
	}
	for next := int64(binary.BigEndian.Uint32(page[at+here:])); int64(len(row)) < size; {
		more, err := db.page(next)
		if err != nil {
			return nil, err
		}
		next = int64(binary.BigEndian.Uint32(more))
		row = append(row, more[4:min(db.usable, 4+size-int64(len(row)))]...)
	}
	return row, nil
}

// local is how many of a row's bytes are in the leaf itself, section 1.6.
func (db *sqlite) local(size int64) int64 {
	most, least := db.usable-35, (db.usable-12)*32/255-23
	if size <= most {
		return size
	}
	if k := least + (size-least)%(db.usable-4); k <= most {
		return k
	}
	return least
}

// columnsOf splits a row into the bytes of its columns, section 2.1.
func columnsOf(row []byte) ([][]byte, error) {
	length, n, ok := varint(row)
	if !ok || length < n || length > int64(len(row)) {
		return nil, errSQLite
	}
	types, values := row[n:length], row[length:]
	var columns [][]byte
	for len(types) > 0 {
		kind, n, ok := varint(types)
		if !ok || kind < 0 {
			return nil, errSQLite
		}
		types = types[n:]
		size := sizeOf(kind)
		if size > int64(len(values)) {
			return nil, errSQLite
		}
		columns, values = append(columns, values[:size]), values[size:]
	}
	return columns, nil
}

// sizeOf returns how many bytes a value of a serial type has.
func sizeOf(kind int64) int64 {
	switch {
	case kind >= 12:
		return (kind - 12) / 2
	case kind <= 4:
		return kind
	case kind == 5:
		return 6
	case kind <= 7:
		return 8
	}
	return 0 // the numbers 0 and 1, which need none
}

// number reads a whole number of up to eight bytes.
func number(data []byte) int64 {
	n := int64(0)
	for _, b := range data {
		n = n<<8 | int64(b)
	}
	return n
}

// varint reads a number of one to nine bytes, and returns how many it has, section 1.6.
func varint(data []byte) (value, size int64, ok bool) {
	for i, b := range data {
		if i == 8 {
			return value<<8 | int64(b), 9, true
		}
		value = value<<7 | int64(b&0x7f)
		if b < 0x80 {
			return value, int64(i) + 1, true
		}
	}
	return 0, 0, false
}
