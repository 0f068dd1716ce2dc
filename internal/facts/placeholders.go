package facts

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Limits of what is read to find placeholders of the prefix, of an environment.
const (
	maxHeldText  = 64 << 10 // bytes of a text of which the record says nothing
	maxHeldTexts = 5000     // such texts
	maxHeldBytes = 1 << 30  // all together
)

// Placeholders as all packages have them: conda-build ends the path of a build with as many "_placehold" as fit, and what it made
// before 2016 has a fixed one (CEP 34).
var usualPlaceholders = []string{"_placehold_placehold", "/opt/anaconda1anaconda2anaconda3"}

// held is a file of a conda package that may have a placeholder where the prefix belongs.
type held struct {
	record      string // of the package
	info        *Info
	placeholder string // what the file was built with; "" where the record says nothing
}

// namesPrefix is whether a file tells compilers and build systems where a package is.
func namesPrefix(name string) bool {
	switch path.Ext(name) {
	case ".pc", ".cmake", ".la":
		return true
	}
	return false
}

// hold notes a file that is worth a look: one that has a placeholder by its record, scripts aside, and any that says where things are.
func (c *condaFinder) hold(record string, info *Info, p condaPath) {
	switch {
	case c.foreign(p.Placeholder) && !isSmallScript(info.Path, info.Size):
		c.held = append(c.held, held{record, info, p.Placeholder})
	case namesPrefix(info.Path) && info.Size <= maxHeldText && c.texts < maxHeldTexts:
		c.texts++
		c.held = append(c.held, held{record, info, ""})
	}
}

// layeredRoot is a [Root] of which the store knows the layers by name.
type layeredRoot interface {
	// content says in which layer a file's bytes are, and where there.
	content(name string) (diffID store.Digest, id contentID, ok bool)
}

// placeholders are found in files, and remembered by layer.
type placeholders struct {
	root  Root
	cache cache
	known map[store.Digest]map[heldAt]bool
	fresh map[store.Digest]bool
}

// heldAt is a content and the placeholder that was looked for in it, by its hash.
type heldAt struct {
	Place  place  `json:"place"`
	Needle string `json:"needle"`
}

// heldFacts is what is known of a layer, beside its [layerFacts].
type heldFacts struct {
	With    []heldAt `json:"with,omitempty"`
	Without []heldAt `json:"without,omitempty"`
}

// findPlaceholders notes with their packages which of the files have a placeholder. They are read in the order in which they are stored.
func (g *gatherer) findPlaceholders(ctx context.Context, files []held) error {
	f := g.facts
	packages := map[string]*CondaPackage{}
	for i := range f.Conda {
		for j := range f.Conda[i].Packages {
			p := &f.Conda[i].Packages[j]
			packages[p.Record] = p
		}
	}
	s := placeholders{root: f.Root, cache: g.cache, known: map[store.Digest]map[heldAt]bool{}, fresh: map[store.Digest]bool{}}
	room := int64(maxHeldBytes)
	for _, h := range s.inOrder(files) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if room -= h.info.Size; room < 0 {
			break
		}
		if s.has(ctx, h) {
			packages[h.record].Held.add(h.info.Path)
		}
	}
	for _, p := range packages {
		slices.Sort(p.Held.First)
	}
	return cmp.Or(ctx.Err(), s.keep())
}

func (s *placeholders) inOrder(files []held) []held {
	root, ok := s.root.(layeredRoot)
	if !ok {
		return files
	}
	at := make(map[*Info]contentID, len(files))
	for _, h := range files {
		_, at[h.info], _ = root.content(h.info.Path)
	}
	files = slices.Clone(files)
	slices.SortStableFunc(files, func(a, b held) int {
		x, y := at[a.info], at[b.info]
		return cmp.Or(cmp.Compare(x.layer, y.layer), comparePlaces(x.place, y.place))
	})
	return files
}

// has says whether a file has a placeholder. One that cannot be read has none.
func (s *placeholders) has(ctx context.Context, h held) bool {
	root, ok := s.root.(layeredRoot)
	if !ok {
		found, _ := s.search(ctx, h)
		return found
	}
	diffID, id, ok := root.content(h.info.Path)
	if !ok {
		return false
	}
	known := s.layer(diffID)
	key := heldAt{id.place, store.DigestOf([]byte(h.placeholder)).Hex()[:16]}
	if found, ok := known[key]; ok {
		return found
	}
	found, err := s.search(ctx, h)
	if err == nil {
		known[key], s.fresh[diffID] = found, true
	}
	return found
}

func (s *placeholders) search(ctx context.Context, h held) (bool, error) {
	f, err := s.root.Open("/" + h.info.Path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	needles := []string{h.placeholder}
	if h.placeholder == "" {
		needles = usualPlaceholders
	}
	return contains(readerAt{ctx, f}, f.Size(), needles)
}

// searchSize is how much of a file is in memory, in bytes.
const searchSize = 1 << 20

// contains reports whether a file has one of some texts.
func contains(r io.ReaderAt, size int64, texts []string) (bool, error) {
	longest := 0
	for _, t := range texts {
		longest = max(longest, len(t))
	}
	buf := make([]byte, min(size, searchSize+int64(longest)))
	for at := int64(0); at < size; at += searchSize {
		part := buf[:min(int64(len(buf)), size-at)]
		if n, err := r.ReadAt(part, at); n < len(part) {
			return false, err
		}
		for _, t := range texts {
			if bytes.Contains(part, []byte(t)) {
				return true, nil
			}
		}
	}
	return false, nil
}

func (s *placeholders) layer(diffID store.Digest) map[heldAt]bool {
	if s.known[diffID] == nil {
		s.known[diffID] = map[heldAt]bool{}
		var r heldFacts
		if diffID != "" && s.cache.get(store.KindAuditLayer, s.key(diffID), &r) {
			for _, at := range r.With {
				s.known[diffID][at] = true
			}
			for _, at := range r.Without {
				s.known[diffID][at] = false
			}
		}
	}
	return s.known[diffID]
}

func (s *placeholders) key(diffID store.Digest) string {
	return s.cache.key("placeholders", string(diffID))
}

// keep remembers what was found in layers that have a name.
func (s *placeholders) keep() error {
	var errs error
	for diffID := range s.fresh {
		if diffID == "" {
			continue
		}
		var r heldFacts
		for at, found := range s.known[diffID] {
			if found {
				r.With = append(r.With, at)
			} else {
				r.Without = append(r.Without, at)
			}
		}
		slices.SortFunc(r.With, compareHeld)
		slices.SortFunc(r.Without, compareHeld)
		errs = errors.Join(errs, s.cache.put(store.KindAuditLayer, s.key(diffID), r))
	}
	return errs
}

func compareHeld(a, b heldAt) int {
	return cmp.Or(comparePlaces(a.Place, b.Place), strings.Compare(a.Needle, b.Needle))
}

func (r *treeRoot) content(name string) (store.Digest, contentID, bool) {
	n, err := r.tree.Lookup("/" + name)
	if err != nil || n.Type != layer.Regular || n.Size == 0 {
		return "", contentID{}, false
	}
	id := idOf(n)
	return r.tree.DiffIDs()[id.layer], id, true
}
