package layer

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// blockSize is the unit of a tar archive: a header is one block and content is padded to whole ones.
const blockSize = 512

// The fields of a ustar header (POSIX.1-2017, pax, "ustar Interchange Format"): offset and length in bytes.
var (
	fieldName     = field{0, 100}
	fieldMode     = field{100, 8}
	fieldUID      = field{108, 8}
	fieldGID      = field{116, 8}
	fieldSize     = field{124, 12}
	fieldModTime  = field{136, 12}
	fieldChecksum = field{148, 8}
	fieldType     = field{156, 1}
	fieldLink     = field{157, 100}
	fieldMagic    = field{257, 8} // with the version
	fieldMajor    = field{329, 8}
	fieldMinor    = field{337, 8}
	fieldPrefix   = field{345, 155}
)

type field struct{ at, len int }

var typeFlags = [...]byte{Regular: '0', Dir: '5', Symlink: '2', HardLink: '1', Char: '3', Block: '4', Fifo: '6'}

const paxFlag = 'x'

// xattrPrefix is the key under which star, and after it GNU tar and every container tool, keeps extended attributes.
const xattrPrefix = "SCHILY.xattr."

// appendHeader appends the header of e to b: one ustar block, preceded by a pax extended header when something does not
// fit. The bytes depend on e alone. archive/tar would do, but its choices may change with the Go version, and with them
// the digest of every layer.
func appendHeader(b []byte, e Entry) ([]byte, error) {
	name := e.Path
	if e.Type == Dir {
		name += "/"
	}
	records := map[string]string{}
	for k, v := range e.Xattrs {
		records[xattrPrefix+k] = v
	}
	prefix, suffix, ok := splitName(name)
	if !ok {
		records["path"] = name
		prefix, suffix = "", shorten(name, fieldName.len)
	}
	link := e.Link
	if len(link) > fieldLink.len || needsUTF8(link) {
		records["linkpath"] = link
		link = shorten(link, fieldLink.len)
	}
	number := func(key string, f field, v int64) int64 {
		if v >= 0 && v < 1<<(3*(f.len-1)) {
			return v
		}
		records[key] = strconv.FormatInt(v, 10)
		return 0
	}
	uid := number("uid", fieldUID, int64(e.UID))
	gid := number("gid", fieldGID, int64(e.GID))
	size := number("size", fieldSize, e.Size)
	mtime := number("mtime", fieldModTime, e.ModTime.Unix())

	if len(records) > 0 {
		var err error
		if b, err = appendPax(b, suffix, records); err != nil {
			return nil, err
		}
	}
	b, h := appendBlock(b)
	h.text(fieldPrefix, prefix)
	h.text(fieldName, suffix)
	h.text(fieldLink, link)
	h.octal(fieldMode, int64(e.Mode))
	h.octal(fieldUID, uid)
	h.octal(fieldGID, gid)
	h.octal(fieldSize, size)
	h.octal(fieldModTime, mtime)
	h[fieldType.at] = typeFlags[e.Type]
	if e.Type == Char || e.Type == Block {
		h.octal(fieldMajor, int64(e.Major))
		h.octal(fieldMinor, int64(e.Minor))
	}
	h.finish()
	return b, nil
}

// appendPax appends a pax extended header (POSIX.1-2017, pax, "pax Extended Header").
func appendPax(b []byte, name string, records map[string]string) ([]byte, error) {
	var data []byte
	for _, k := range slices.Sorted(maps.Keys(records)) {
		data = appendPaxRecord(data, k, records[k])
	}
	if len(data) > maxPaxHeader {
		return nil, fmt.Errorf("its name and extended attributes take %d bytes, more than the %d that readers of tar accept", len(data), maxPaxHeader)
	}
	b, h := appendBlock(b)
	h.text(fieldName, shorten("PaxHeaders/"+strings.TrimSuffix(name, "/"), fieldName.len))
	h.octal(fieldMode, 0o644)
	h.octal(fieldUID, 0)
	h.octal(fieldGID, 0)
	h.octal(fieldSize, int64(len(data)))
	h.octal(fieldModTime, 0)
	h[fieldType.at] = paxFlag
	h.finish()
	b = append(b, data...)
	return append(b, make([]byte, padding(int64(len(data))))...), nil
}

// maxPaxHeader is what Go's archive/tar, and with it every container engine, is willing to read, in bytes.
const maxPaxHeader = 1 << 20

// appendPaxRecord appends "length key=value\n", where length counts the whole record, its own digits included.
func appendPaxRecord(b []byte, key, value string) []byte {
	rest := len(key) + len(value) + 3 // space, equals sign, newline
	size := rest + len(strconv.Itoa(rest))
	if n := rest + len(strconv.Itoa(size)); n > size {
		size = n
	}
	b = strconv.AppendInt(b, int64(size), 10)
	b = append(b, ' ')
	b = append(b, key...)
	b = append(b, '=')
	b = append(b, value...)
	return append(b, '\n')
}

// splitName divides a name into the prefix and name fields, which a reader joins with a slash. The last slash that
// makes both fit is taken.
func splitName(name string) (prefix, suffix string, ok bool) {
	if needsUTF8(name) {
		return "", "", false
	}
	if len(name) <= fieldName.len {
		return "", name, true
	}
	head := name[:min(len(name)-1, fieldPrefix.len+1)] // a directory's final slash does not divide
	i := strings.LastIndexByte(head, '/')
	if i <= 0 || len(name)-i-1 > fieldName.len {
		return "", "", false
	}
	return name[:i], name[i+1:], true
}

// needsUTF8 reports whether s is text beyond ASCII, which only pax records carry without doubt. Bytes that are no text
// are written as they are: pax has no better place for them.
func needsUTF8(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return utf8.ValidString(s)
		}
	}
	return false
}

// shorten makes s a placeholder for readers that do not know pax.
func shorten(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r >= utf8.RuneSelf {
			return '_'
		}
		return r
	}, s)
	return s[:min(len(s), n)]
}

// padding returns how many bytes follow n bytes of content to fill its last block.
func padding(n int64) int64 { return -n & (blockSize - 1) }

// block is one header being filled in.
type block []byte

func appendBlock(b []byte) ([]byte, block) {
	b = append(b, zeroBlock[:]...)
	return b, block(b[len(b)-blockSize:])
}

var zeroBlock [blockSize]byte

func (h block) text(f field, s string) { copy(h[f.at:f.at+f.len], s) }

// octal writes v as octal digits that fill the field but for a final NUL.
func (h block) octal(f field, v int64) {
	for i := f.at + f.len - 2; i >= f.at; i-- {
		h[i] = '0' + byte(v&7)
		v >>= 3
	}
}

func (h block) finish() {
	h.text(fieldMagic, "ustar\x0000")
	if h[fieldMajor.at] == 0 {
		h.octal(fieldMajor, 0)
		h.octal(fieldMinor, 0)
	}
	h.text(fieldChecksum, "        ")
	var sum int64
	for _, c := range h {
		sum += int64(c)
	}
	h.octal(field{fieldChecksum.at, 7}, sum)
	h[fieldChecksum.at+6], h[fieldChecksum.at+7] = 0, ' '
}
