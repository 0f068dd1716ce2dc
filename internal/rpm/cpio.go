package rpm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"golang.org/x/sys/unix"
)

// An archive is cpio's "new ASCII" format: for each file a magic, thirteen numbers of eight hexadecimal digits, the name, the
// content. Packages with files of more than 4 GiB have nothing but a magic of their own and the place of the file in the header's
// list. All parts are padded to four bytes.
const (
	cpioMagic    = "070701"
	cpioMagicSum = "070702"
	cpioStripped = "07070X"
	cpioNumbers  = 13
	cpioTrailer  = "TRAILER!!!"
	cpioSizeAt   = 6  // which of the numbers is the content's size
	cpioNameAt   = 11 // and which the name's, with its zero
	maxCpioName  = unix.PathMax
)

// cpioReader counts what it reads, since parts are padded by where they end.
type cpioReader struct {
	r io.Reader
	n int64
}

func (c *cpioReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// take reads n bytes, of which there are few.
func (c *cpioReader) take(n int) ([]byte, error) {
	data := make([]byte, n)
	_, err := io.ReadFull(c, data)
	return data, truncated(err)
}

func (c *cpioReader) pad() error {
	_, err := c.take(int(-c.n & 3))
	return err
}

// member is the head of a file in an archive.
type member struct {
	name  string
	index int // of the header's list, for one that has nothing else; else -1
	size  int64
}

func (c *cpioReader) next() (member, error) {
	m := member{index: -1}
	magic, err := c.take(len(cpioMagic))
	if err != nil {
		return m, err
	}
	switch string(magic) {
	case cpioStripped:
		var index uint64
		if index, err = c.number(); err != nil {
			return m, err
		}
		m.index = int(index)
		return m, c.pad()
	case cpioMagic, cpioMagicSum:
	default:
		return m, errors.New("its archive is damaged")
	}
	var numbers [cpioNumbers]uint64
	for i := range numbers {
		if numbers[i], err = c.number(); err != nil {
			return m, err
		}
	}
	if numbers[cpioNameAt] == 0 || numbers[cpioNameAt] > maxCpioName {
		return m, errors.New("its archive is damaged")
	}
	name, err := c.take(int(numbers[cpioNameAt]))
	if err != nil {
		return m, err
	}
	m.name, m.size = string(bytes.TrimRight(name, "\x00")), int64(numbers[cpioSizeAt])
	return m, c.pad()
}

// number reads eight hexadecimal digits.
func (c *cpioReader) number() (uint64, error) {
	digits, err := c.take(8)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(digits), 16, 32)
	if err != nil {
		return 0, errors.New("its archive is damaged")
	}
	return n, nil
}

// readCpio goes through the archive. The header, which alone is signed, says what each file is; the archive adds its content.
func (f *File) readCpio(r io.Reader, lay func(e Entry, link string, content io.Reader) error) error {
	c := &cpioReader{r: r}
	byName := make(map[string]int, len(f.Entries))
	for i, e := range f.Entries {
		byName[e.Name] = i
	}
	for range len(f.Entries) + 1 {
		m, err := c.next()
		if err != nil {
			return err
		}
		if m.index < 0 && m.name == cpioTrailer {
			return nil
		}
		i, err := f.find(m, byName)
		if err != nil {
			return err
		}
		if err := f.member(c, m, i, lay); err != nil {
			return fmt.Errorf("%s: %w", f.Entries[i].Name, err)
		}
	}
	return errors.New("its archive has more files than its header lists")
}

func (f *File) find(m member, byName map[string]int) (int, error) {
	if m.index >= 0 {
		if m.index >= len(f.Entries) {
			return 0, errors.New("its archive has a file that its header does not list")
		}
		return m.index, nil
	}
	name, err := cleanName(m.name)
	if err != nil {
		return 0, fmt.Errorf("%.200q: %w", m.name, err)
	}
	i, ok := byName[name]
	if !ok {
		return 0, fmt.Errorf("its archive has a file %.200q, which its header does not list", name)
	}
	return i, nil
}

// member lays down one file, whose content must have the size that the header says.
func (f *File) member(c *cpioReader, m member, i int, lay func(e Entry, link string, content io.Reader) error) error {
	e := f.Entries[i]
	want, link := int64(0), ""
	switch e.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		want = e.Size
		// Of hard links only some may be in the archive, and then the last of those has the content.
		if e.linked != i && (m.index >= 0 || m.size != e.Size) {
			want, link = 0, f.Entries[e.linked].Name
		}
	case unix.S_IFLNK:
		want = int64(len(e.Link))
	}
	if m.index < 0 && m.size != want {
		return fmt.Errorf("it has %d bytes, and %d by the header", m.size, want)
	}
	content := &io.LimitedReader{R: c, N: want}
	if err := lay(e, link, content); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, content); err != nil {
		return err
	}
	if content.N > 0 {
		return io.ErrUnexpectedEOF
	}
	return c.pad()
}
