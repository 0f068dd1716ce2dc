package facts

import (
	"cmp"
	"io"
	"os"
	"slices"
	"sync"

	"sconce.dev/sconce/internal/elfx"
)

// Sizes of what pages keep, in bytes.
const (
	pageSize  = 4 << 10
	maxPaged  = 64 << 10 // of one read; larger ones go through a file once
	pagesRoom = 16 << 20 // in memory
	keptPages = 4 << 20  // in a store
	maxPages  = pagesRoom / pageSize

	packedPages = 64 << 20 // where they stand for all of the image
)

// pages keeps small pieces of the contents of an image: an ELF file's headers are read when it is looked at, again by the loader,
// and again by rules, each time for the decompression of some megabytes around them, or of a whole layer. What was read of such
// slow contents after the facts were gathered is also kept in the store for the next time.
type pages struct {
	mu    sync.Mutex
	known map[pageID]*page
	late  bool // the facts are gathered
	far   bool // all contents count as slow: they may have to be downloaded next time
	all   bool // what is read after the facts were gathered is kept whatever its size: the pages are to stand for the contents
}

// page is a piece of a content, with zeros behind the end of that.
type page struct {
	data *[pageSize]byte
	slow bool // to get at
	late bool // read after the facts were gathered
	kept bool // in the store
}

// pageID is a page's content and its number there.
type pageID struct {
	contentID
	number int64
}

func newPages() *pages { return &pages{known: map[pageID]*page{}} }

// keptPage is a page in a record.
type keptPage struct {
	Layer  int    `json:"layer"`
	At     place  `json:"content"`
	Number int64  `json:"number"`
	Data   []byte `json:"data"`
}

type pageRecord struct {
	Pages []keptPage `json:"pages"`
}

// load puts pages from a record in place.
func (p *pages) load(r pageRecord) {
	for i := range r.Pages {
		k := &r.Pages[i]
		if len(k.Data) == pageSize {
			p.known[pageID{contentID{k.Layer, k.At}, k.Number}] = &page{data: (*[pageSize]byte)(k.Data), slow: true, kept: true}
		}
	}
}

// gathered makes pages that are read from now on worth keeping.
func (p *pages) gathered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late = true
}

// use returns a page that is known, or nil.
func (p *pages) use(id pageID) *[pageSize]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[id]
	if known == nil {
		return nil
	}
	known.late = known.late || p.late
	return known.data
}

func (p *pages) learn(id pageID, data *[pageSize]byte, slow bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	room := maxPages
	switch {
	case p.late && p.all:
		room += packedPages / pageSize
	case p.late:
		room += keptPages / pageSize // those that are worth the most come last
	}
	if len(p.known) < room {
		p.known[id] = &page{data: data, slow: slow || p.far, late: p.late}
	}
}

// add puts what is new to a record, and reports whether there was anything.
func (p *pages) add(r *pageRecord) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := len(r.Pages)
	for id, known := range p.known {
		if known.slow && known.late && !known.kept && len(r.Pages) < keptPages/pageSize {
			r.Pages = append(r.Pages, keptPage{id.layer, id.place, id.number, known.data[:]})
		}
	}
	return len(r.Pages) > before
}

// wanted returns the pages that were read after the facts were gathered, in order.
func (p *pages) wanted() []keptPage {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []keptPage
	for id, known := range p.known {
		if known.late {
			list = append(list, keptPage{id.layer, id.place, id.number, known.data[:]})
		}
	}
	slices.SortFunc(list, func(a, b keptPage) int {
		return cmp.Or(cmp.Compare(a.Layer, b.Layer), comparePlaces(a.At, b.At), cmp.Compare(a.Number, b.Number))
	})
	return list
}

// takesAll reports whether even large reads go through pages.
func (p *pages) takesAll() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all && p.late
}

// forgetLayer forgets the pages of a layer's contents but those that come from a store.
func (p *pages) forgetLayer(number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, known := range p.known {
		if id.layer == number && !known.kept {
			delete(p.known, id)
		}
	}
}

// pagedFile reads a content through pages. It is opened when a page is missing.
type pagedFile struct {
	pages *pages
	id    contentID
	size  int64
	open  func() (h elfx.Handle, slow bool, err error)

	mu   sync.Mutex
	file elfx.Handle
	slow bool // to be had only by reading the layer up to it
	err  error
}

func (f *pagedFile) Size() int64 { return f.size }

func (f *pagedFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.file
	f.file, f.err = nil, os.ErrClosed
	if h == nil {
		return nil
	}
	return h.Close()
}

// content opens the content itself.
func (f *pagedFile) content() (elfx.Handle, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil && f.err == nil {
		f.file, f.slow, f.err = f.open()
	}
	return f.file, f.slow, f.err
}

func (f *pagedFile) ReadAt(p []byte, off int64) (int, error) {
	if len(p) > maxPaged && !f.pages.takesAll() || off < 0 || off >= f.size {
		h, _, err := f.content()
		if err != nil {
			return 0, err
		}
		return h.ReadAt(p, off)
	}
	want := p[:min(int64(len(p)), f.size-off)]
	n := 0
	for n < len(want) {
		at := off + int64(n)
		page, err := f.page(at / pageSize)
		if err != nil {
			return n, err
		}
		n += copy(want[n:], page[at%pageSize:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// page returns a page of the content.
func (f *pagedFile) page(number int64) (*[pageSize]byte, error) {
	id := pageID{f.id, number}
	if data := f.pages.use(id); data != nil {
		return data, nil
	}
	h, slow, err := f.content()
	if err != nil {
		return nil, err
	}
	data := new([pageSize]byte)
	b := data[:min(pageSize, f.size-number*pageSize)]
	if n, err := h.ReadAt(b, number*pageSize); n < len(b) {
		return nil, err
	}
	f.pages.learn(id, data, slow)
	return data, nil
}
