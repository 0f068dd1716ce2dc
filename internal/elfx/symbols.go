package elfx

import (
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
)

// Symbol is a dynamic symbol that the loader binds by name.
type Symbol struct {
	Name    string
	Version string // "" when it has none
	Library string // that is to define it, as in Needed; only for an undefined symbol with a version
	Defined bool   // exported by the file; otherwise the file needs it
	Weak    bool   // undefined and weak: it may stay away
	Hidden  bool   // not the default version: only who asks for that version gets it
}

// Limits on symbols.
const (
	maxSymbols   = 1 << 24
	maxName      = 64 << 10 // bytes
	symbolBatch  = 1 << 18  // symbols whose names are fetched in one pass over the string table; they take 6 MiB
	stringWindow = 1 << 20  // bytes of the string table held at a time
	symbolWindow = 64 << 10 // bytes of the symbol table held at a time
	nameRepeats  = 16       // names may share their ends: how much more they may be together than the table
)

// Symbols returns the symbols that are bound by name, in no particular order. Names are fetched in the order of the string
// table, so that a compressed file is read forward, and in batches, so that memory does not grow with the file. After an
// error there are no more.
func (f *File) Symbols() iter.Seq2[Symbol, error] {
	return f.filtered(func(record) bool { return true })
}

// Undefined returns the symbols that the file needs, as [File.Symbols] does.
func (f *File) Undefined() iter.Seq2[Symbol, error] {
	return f.filtered(func(s record) bool { return !s.defined() })
}

// Exported returns the symbols that the file defines, as [File.Symbols] does.
func (f *File) Exported() iter.Seq2[Symbol, error] {
	return f.filtered(record.defined)
}

var errStop = errors.New("enough seen")

func (f *File) filtered(want func(record) bool) iter.Seq2[Symbol, error] {
	return func(yield func(Symbol, error) bool) {
		err := f.visitSymbols(want, func(name []byte, s record) error {
			if !yield(f.symbol(string(name), s), nil) {
				return errStop
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(Symbol{}, fmt.Errorf("read the symbols: %w", err))
		}
	}
}

// symbol makes what users see of a record.
func (f *File) symbol(name string, s record) Symbol {
	version := f.versions[s.version&versionMask]
	symbol := Symbol{Name: name, Version: version.name, Defined: s.defined()}
	if s.defined() {
		symbol.Hidden = s.version&hiddenVersion != 0
	} else {
		symbol.Library, symbol.Weak = version.library, !s.strong()
	}
	return symbol
}

// record is an entry of the symbol table with its version.
type record struct {
	value   uint64
	name    uint32
	section elf.SectionIndex
	version uint16
	info    byte
	other   byte
}

func (s record) binding() elf.SymBind { return elf.ST_BIND(s.info) }
func (s record) defined() bool        { return s.section != elf.SHN_UNDEF }

// strong says that an undefined symbol must be defined somewhere.
func (s record) strong() bool { return s.binding() != elf.STB_WEAK }

const (
	bindGNUUnique = elf.STB_LOOS    // STB_GNU_UNIQUE
	typeGNUIFunc  = elf.STT_LOOS    // STT_GNU_IFUNC
	typeSRegister = elf.SymType(13) // STT_SPARC_REGISTER, no symbol at all
)

// bound says whether the loader looks at the symbol, by the rules of glibc's dl-lookup.c.
func (s record) bound() bool {
	if s.name == 0 {
		return false
	}
	switch s.binding() {
	case elf.STB_GLOBAL, elf.STB_WEAK, bindGNUUnique:
	default:
		return false
	}
	kind := elf.ST_TYPE(s.info)
	if !s.defined() {
		return kind != typeSRegister
	}
	switch kind {
	case elf.STT_NOTYPE, elf.STT_OBJECT, elf.STT_FUNC, elf.STT_COMMON, elf.STT_TLS, typeGNUIFunc:
	default:
		return false
	}
	switch elf.ST_VISIBILITY(s.other) {
	case elf.STV_HIDDEN, elf.STV_INTERNAL:
		return false
	}
	return s.value != 0 || s.section == elf.SHN_ABS || kind == elf.STT_TLS
}

// visitSymbols calls visit for the bound symbols that are wanted. The name is good until visit returns.
func (f *File) visitSymbols(want func(record) bool, visit func(name []byte, s record) error) error {
	names := &names{image: &f.image, table: f.strings, left: nameRepeats*f.strings.size + stringWindow}
	table := symbolReader{file: f}
	batch := make([]record, 0, min(table.count(), symbolBatch))
	for {
		var err error
		if batch, err = table.fill(batch[:0], want); err != nil {
			return err
		}
		if len(batch) == 0 {
			return nil
		}
		slices.SortFunc(batch, func(a, b record) int { return cmp.Compare(a.name, b.name) })
		for _, s := range batch {
			name, err := names.at(int64(s.name))
			if err != nil {
				return err
			}
			if err := visit(name, s); err != nil {
				return err
			}
		}
	}
}

// symbolReader reads the symbol table and the versions that stand beside it from the beginning.
type symbolReader struct {
	file    *File
	next    int64 // number of the next symbol
	symbols []byte
	version []byte
}

func (r *symbolReader) entry() int64 { return r.file.image.choose(16, 24) }
func (r *symbolReader) count() int64 { return r.file.symbols.size / r.entry() }

// fill appends wanted symbols until the batch is full or there are no more.
func (r *symbolReader) fill(batch []record, want func(record) bool) ([]record, error) {
	for r.next < r.count() && len(batch) < symbolBatch {
		if len(r.symbols) == 0 {
			if err := r.read(); err != nil {
				return nil, err
			}
		}
		s := r.file.image.record(r.symbols)
		r.symbols = r.symbols[r.entry():]
		s.version = versionGlobal
		if len(r.version) > 0 {
			s.version = r.file.image.order.Uint16(r.version)
			r.version = r.version[2:]
		}
		r.next++
		if s.bound() && want(s) {
			batch = append(batch, s)
		}
	}
	return batch, nil
}

// read reads the next piece of both tables.
func (r *symbolReader) read() error {
	im := &r.file.image
	n := min(symbolWindow/r.entry(), r.count()-r.next)
	r.symbols = make([]byte, n*r.entry())
	if err := im.readAt(r.symbols, r.file.symbols.offset+r.next*r.entry()); err != nil {
		return err
	}
	rest := max(0, min(2*n, (r.file.versym.size-2*r.next)&^1))
	r.version = make([]byte, rest)
	return im.readAt(r.version, r.file.versym.offset+2*r.next)
}

// record decodes an entry of the symbol table; its name is an offset into the string table.
func (im *image) record(p []byte) record {
	if im.wide {
		return record{
			name: im.order.Uint32(p), info: p[4], other: p[5],
			section: elf.SectionIndex(im.order.Uint16(p[6:])), value: im.order.Uint64(p[8:]),
		}
	}
	return record{
		name: im.order.Uint32(p), value: uint64(im.order.Uint32(p[4:])), info: p[12], other: p[13],
		section: elf.SectionIndex(im.order.Uint16(p[14:])),
	}
}

// names reads a string table at growing offsets.
type names struct {
	image *image
	table region
	start int64 // of data, in the table
	data  []byte
	left  int64 // how many bytes of names may still be returned
}

func (n *names) at(offset int64) ([]byte, error) {
	if offset >= n.table.size {
		return nil, formatError("a name at %d of a string table of %d bytes", offset, n.table.size)
	}
	name, ok := n.held(offset)
	if !ok {
		if err := n.fetch(offset); err != nil {
			return nil, err
		}
		if name, ok = n.held(offset); !ok {
			return nil, formatError("the name of a symbol has no end in %d bytes", min(maxName, n.table.size-offset))
		}
	}
	if n.left -= int64(len(name)); n.left < 0 {
		return nil, formatError("the names of the symbols are many times as long as the string table")
	}
	return name, nil
}

// held returns the name at offset if all of it is in the window.
func (n *names) held(offset int64) ([]byte, bool) {
	skip := offset - n.start
	if skip < 0 || skip >= int64(len(n.data)) {
		return nil, false
	}
	rest := n.data[skip:min(skip+maxName, int64(len(n.data)))]
	end := bytes.IndexByte(rest, 0)
	if end < 0 {
		return nil, false
	}
	return rest[:end], true
}

func (n *names) fetch(offset int64) error {
	if n.data == nil {
		n.data = make([]byte, min(stringWindow, n.table.size))
	}
	n.start, n.data = offset, n.data[:min(int64(cap(n.data)), n.table.size-offset)]
	if err := n.image.readAt(n.data, n.table.offset+offset); err != nil {
		return err
	}
	return nil
}

// findSymbols finds out where the symbol table is and how long. The dynamic section does not say how long. The section
// headers do, where a file has them and they agree on the place. Otherwise the hash tables tell: the older one has as many
// chains as there are symbols, the newer one knows the last symbol that is defined. A file that defines none has its string
// table behind the symbols. Whatever they say, the table ends with its segment at the latest.
func (p *parser) findSymbols() error {
	address, ok := p.tags[elf.DT_SYMTAB]
	if !ok {
		return nil
	}
	entry := p.image.choose(16, 24)
	all := p.image.mapped(address, uint64(maxSymbols*entry))
	size, err := p.symbolsInSections(all.offset)
	if err != nil {
		return err
	}
	if size == 0 {
		if size, err = p.symbolsInHash(entry); err != nil {
			return err
		}
	}
	if size == 0 {
		if size, err = p.symbolsInGNUHash(entry); err != nil {
			return err
		}
	}
	if size == 0 {
		size = max(0, p.strings.offset-all.offset)
	}
	p.symbols = region{all.offset, min(all.size, size)}
	if versions, ok := p.tags[elf.DT_VERSYM]; ok {
		p.versym = p.image.mapped(versions, uint64(2*(p.symbols.size/entry)))
	}
	return nil
}

const maxSections = 1 << 16

func (p *parser) symbolsInSections(offset int64) (int64, error) {
	im, size := &p.image, p.image.choose(40, 64)
	if p.sections.entry != size {
		return 0, nil
	}
	for at := int64(0); at+size <= p.sections.size && at < maxSections*size; at += size {
		h, err := p.window.in(p.sections.region, at, size)
		if err != nil {
			return 0, err
		}
		fields, word := h[8:], im.choose(4, 8)
		if elf.SectionType(im.order.Uint32(h[4:])) == elf.SHT_DYNSYM && im.word(fields[2*word:]) == uint64(offset) {
			return int64(min(im.word(fields[3*word:]), math.MaxInt64)), nil
		}
	}
	return 0, nil
}

func (p *parser) symbolsInHash(entry int64) (int64, error) {
	address, ok := p.tags[elf.DT_HASH]
	wide64 := p.Machine == elf.EM_S390 && p.image.wide || p.Machine == elf.EM_ALPHA // their entries have 64 bits
	if !ok || wide64 {
		return 0, nil
	}
	table := p.image.mapped(address, 8)
	if table.size < 8 {
		return 0, nil
	}
	h, err := p.window.in(table, 0, 8)
	if err != nil {
		return 0, err
	}
	return int64(p.image.order.Uint32(h[4:])) * entry, nil
}

// symbolsInGNUHash follows the chain of the symbol with the highest number to its end.
func (p *parser) symbolsInGNUHash(entry int64) (int64, error) {
	address, ok := p.tags[elf.DT_GNU_HASH]
	if !ok {
		return 0, nil
	}
	im := &p.image
	table := im.mapped(address, math.MaxInt64)
	const headerSize = 16
	if table.size < headerSize {
		return 0, nil
	}
	h, err := p.window.in(table, 0, headerSize)
	if err != nil {
		return 0, err
	}
	buckets, first, bloom := int64(im.order.Uint32(h)), int64(im.order.Uint32(h[4:])), int64(im.order.Uint32(h[8:]))
	at := headerSize + bloom*im.choose(4, 8)
	last := int64(0)
	for i := int64(0); i < buckets && i < maxSymbols; i++ {
		b, err := p.window.in(table, at+4*i, 4)
		if err != nil {
			return 0, err
		}
		last = max(last, int64(im.order.Uint32(b)))
	}
	if last < first {
		return 0, nil
	}
	chains := at + 4*buckets
	for ; last < maxSymbols; last++ {
		c, err := p.window.in(table, chains+4*(last-first), 4)
		if err != nil || im.order.Uint32(c)&1 != 0 {
			return (last + 1) * entry, err
		}
	}
	return maxSymbols * entry, nil
}
