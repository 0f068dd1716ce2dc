package elfx

import (
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
	"sync"
)

// index is the symbols of a file as hashes, for a library's names are many times as long.
type index struct {
	defined []uint64 // keys, sorted
	needs   []need   // strong symbols that others have to define
}

// need is the keys by which a needed symbol may be found.
type need struct {
	exact, plain uint64
}

// keys are what a symbol is found under. The seed is secret, so no file can be made to have keys that collide.
type keys struct{ seed maphash.Seed }

// named is for a symbol of any version.
func (k keys) named(name []byte) uint64 { return maphash.Bytes(k.seed, name) }

// versioned is for a symbol of one version, the empty one for a definition without.
func (k keys) versioned(named uint64, version string) uint64 {
	return bits.RotateLeft64(named, 23)*0x9e3779b97f4a7c15 ^ maphash.String(k.seed, version)
}

// definedAs appends the keys under which a definition is found, by the rules of glibc's do_lookup_x: who asks for a version
// gets that one, or one without a version; who asks for none gets the default, or the oldest.
func (k keys) definedAs(list []uint64, name []byte, version string, s record) []uint64 {
	named := k.named(name)
	const oldest = 2 // number of the first version after the base
	number := s.version & versionMask
	if s.version&hiddenVersion == 0 || number <= oldest {
		list = append(list, named)
	}
	if version != "" || s.version&hiddenVersion == 0 {
		list = append(list, k.versioned(named, version))
	}
	return list
}

// neededAs returns the keys that satisfy a need. One without a version takes any default.
func (k keys) neededAs(name []byte, version string) need {
	named := k.named(name)
	if version == "" {
		return need{named, named}
	}
	return need{k.versioned(named, version), k.versioned(named, "")}
}

func (x *index) defines(n need) bool {
	if _, ok := slices.BinarySearch(x.defined, n.exact); ok {
		return true
	}
	if n.plain == n.exact {
		return false
	}
	_, ok := slices.BinarySearch(x.defined, n.plain)
	return ok
}

// makeIndex reads all symbols of a file.
func makeIndex(f *File, k keys) (*index, error) {
	x := &index{}
	err := f.visitSymbols(func(record) bool { return true }, func(name []byte, s record) error {
		version := f.versions[s.version&versionMask].name
		if s.defined() {
			x.defined = k.definedAs(x.defined, name, version, s)
		} else if s.strong() {
			x.needs = append(x.needs, k.neededAs(name, version))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(x.defined)
	x.defined = slices.Clip(slices.Compact(x.defined))
	return x, nil
}

func (x *index) bytes() int { return 8*cap(x.defined) + 16*cap(x.needs) }

// indexCache keeps the indexes of the files that many others need, up to maxIndexes bytes.
type indexCache struct {
	mu      sync.Mutex
	once    sync.Once
	keys    keys
	held    map[string]*indexEntry
	size    int
	counter int
}

type indexEntry struct {
	index *index
	used  int // when, by counter
}

const maxIndexes = 256 << 20 // bytes; those of PyTorch with CUDA take 20 MB

func (c *indexCache) key() keys {
	c.once.Do(func() { c.keys = keys{maphash.MakeSeed()} })
	return c.keys
}

func (c *indexCache) get(name string) *index {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.held[name]
	if e == nil {
		return nil
	}
	c.counter++
	e.used = c.counter
	return e.index
}

// put keeps an index, and lets those go that were not used for the longest time.
func (c *indexCache) put(name string, x *index) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		c.held = map[string]*indexEntry{}
	}
	if _, ok := c.held[name]; ok {
		return
	}
	c.counter++
	c.held[name] = &indexEntry{x, c.counter}
	for c.size += x.bytes(); c.size > maxIndexes && len(c.held) > 1; {
		oldest := ""
		for n, e := range c.held {
			if oldest == "" || e.used < c.held[oldest].used {
				oldest = n
			}
		}
		c.size -= c.held[oldest].index.bytes()
		delete(c.held, oldest)
	}
}

// index returns the symbols of an object.
func (l *Loader) index(o *Object) (*index, error) {
	if x := l.indexes.get(o.Real); x != nil {
		return x, nil
	}
	var x *index
	err := l.reading(o, func(f *File) (err error) {
		x, err = makeIndex(f, l.indexes.key())
		return err
	})
	if err != nil {
		return nil, err
	}
	l.indexes.put(o.Real, x)
	return x, nil
}

// reading calls read with an object's file held open.
func (l *Loader) reading(o *Object, read func(*File) error) error {
	h, err := l.FS.Open(o.Real)
	if err != nil {
		return fmt.Errorf("open %s: %w", o.Real, err)
	}
	defer h.Close()
	f := *o.File
	f.image.r = h
	if err := read(&f); err != nil {
		return fmt.Errorf("read the symbols of %s: %w", o.Real, err)
	}
	return nil
}
