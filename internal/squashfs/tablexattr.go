package squashfs

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
)

// What Linux takes as an attribute: XATTR_NAME_MAX and XATTR_SIZE_MAX, in bytes.
const (
	longestXattrName  = 255
	longestXattrValue = 64 << 10
)

// valueRefSize is the size of a reference to a value: a longer value that comes again is referred to.
const valueRefSize = 8

// xattrSet collects extended attributes: lists of pairs, which inodes refer to by number.
type xattrSet struct {
	pairs   *metaStream
	lists   []byte            // per list: reference to its first pair, number of pairs, their size in bytes
	count   uint32            // of lists
	numbers map[string]uint32 // of lists, by what they hold
	values  map[string]uint64 // where values stand that are long enough to be referred to
}

func newXattrSet(e blockEncoder) *xattrSet {
	return &xattrSet{
		pairs: newMetaStream(e), numbers: make(map[string]uint32), values: make(map[string]uint64),
	}
}

// CanHoldXattr tells whether a squashfs can hold an extended attribute of that name: only those of the namespaces user,
// trusted and security. POSIX access control lists (system.posix_acl_access) are not among them.
func CanHoldXattr(name string) bool {
	_, rest, ok := splitXattr(name)
	return ok && rest != "" && len(name) <= longestXattrName
}

func splitXattr(name string) (kind uint16, rest string, ok bool) {
	for i, prefix := range xattrPrefixes {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return uint16(i), rest, true
		}
	}
	return 0, "", false
}

// number returns the number of a list of attributes.
func (t *xattrSet) number(attrs map[string]string) (uint32, error) {
	if len(attrs) == 0 {
		return noXattrs, nil
	}
	names, key, err := sortXattrs(attrs)
	if err != nil {
		return 0, err
	}
	if n, ok := t.numbers[key]; ok {
		return n, nil
	}
	ref, size := t.pairs.ref(), 0
	for _, name := range names {
		n, err := t.pair(name, attrs[name])
		if err != nil {
			return 0, err
		}
		size += n
	}
	t.lists = binary.LittleEndian.AppendUint64(t.lists, ref)
	t.lists = binary.LittleEndian.AppendUint32(t.lists, uint32(len(names)))
	t.lists = binary.LittleEndian.AppendUint32(t.lists, uint32(min(size, math.MaxUint32)))
	n := t.count
	t.count++
	t.numbers[key] = n
	return n, nil
}

// sortXattrs returns the names in order, and all of it as one string.
func sortXattrs(attrs map[string]string) (names []string, key string, err error) {
	for name, value := range attrs {
		if !CanHoldXattr(name) {
			return nil, "", fmt.Errorf("extended attribute %q: a squashfs cannot hold it", name)
		}
		if len(value) > longestXattrValue {
			return nil, "", fmt.Errorf("extended attribute %q has %d bytes: the most is %d", name, len(value), longestXattrValue)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "%d %s%d %s", len(name), name, len(attrs[name]), attrs[name])
	}
	return names, b.String(), nil
}

// pair writes a name and its value, or where the same value stands, and returns its size in bytes.
func (t *xattrSet) pair(name, value string) (size int, err error) {
	kind, rest, _ := splitXattr(name)
	at, known := t.values[value]
	if known {
		kind |= xattrOutOfLine
	}
	b := binary.LittleEndian.AppendUint16(nil, kind)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(rest)))
	b = append(b, rest...)
	if known {
		b = binary.LittleEndian.AppendUint32(b, valueRefSize)
		b = binary.LittleEndian.AppendUint64(b, at)
		return len(b), t.pairs.write(b)
	}
	if err := t.pairs.write(b); err != nil {
		return 0, err
	}
	if len(value) > valueRefSize {
		t.values[value] = t.pairs.ref()
	}
	v := binary.LittleEndian.AppendUint32(nil, uint32(len(value)))
	v = append(v, value...)
	return len(b) + len(v), t.pairs.write(v)
}
