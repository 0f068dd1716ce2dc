package facts

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/store"
)

// factsVersion is part of all keys of what is kept. It is to be raised when the same bytes give other facts than before: by a
// change of [look] or what it calls, of findLinks, findPythons or findConda. A change of the types themselves is noticed without.
const factsVersion = 4

// maxRecord is how much JSON is kept under one key, in bytes. An image that needs more is read each time.
const maxRecord = 64 << 20

// place is where in a layer's tar the bytes of a file are, see [layer.IndexEntry].
type place struct {
	Offset int64 `json:"at"`
	Sparse int   `json:"sparse,omitempty"`
}

// layerFacts is what is known of the files of a layer, a [store.KindAuditLayer]. Only those are in it that some image has shown.
type layerFacts struct {
	Plain []place     `json:"plain,omitempty"` // files without machine code
	Files []placeFact `json:"files,omitempty"`
}

type placeFact struct {
	place
	fileFacts
}

// pathFacts is what is known of the files of a cluster file, a [store.KindAuditFile].
type pathFacts struct {
	Files []pathFact `json:"files,omitempty"`
}

type pathFact struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
	fileFacts
}

// imageFacts are found by looking at all files together. They are a [store.KindAuditImage].
type imageFacts struct {
	Links   []LinkProblem `json:"links,omitempty"`
	Pythons []Python      `json:"pythons,omitempty"`

	Conda []CondaEnvironment `json:"conda,omitempty"`
}

// cache keeps facts in a store, which may be nil or only readable. Nothing that goes wrong there is worth an error: the facts
// are gathered again. The records stand on no blob: what was found in a layer stays true when the layer is gone.
type cache struct{ st *store.Store }

// key makes a record's key of what the facts are a function of, besides our code.
func (cache) key(parts ...string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d %s\n", factsVersion, factsShape)
	for _, p := range parts {
		fmt.Fprintf(h, "%q\n", p)
	}
	return store.SumDigest(h).Hex()
}

func (c cache) get(kind store.Kind, key string, v any) bool {
	if c.st == nil {
		return false
	}
	ok, err := c.st.GetRecord(kind, key, v)
	return ok && err == nil
}

func (c cache) put(kind store.Kind, key string, v any) error {
	if c.st == nil || c.st.ReadOnly() {
		return nil
	}
	data, err := json.Marshal(v)
	if err != nil || len(data) > maxRecord {
		return err
	}
	err = c.st.PutRecord(kind, key, nil, json.RawMessage(data))
	if errors.Is(err, store.ErrReadOnly) {
		err = nil
	}
	return err
}

// layer returns what is known of a layer's files. A layer without a name is not known.
func (c cache) layer(diffID store.Digest) map[place]fileFacts {
	var r layerFacts
	if diffID == "" || !c.get(store.KindAuditLayer, c.key(string(diffID)), &r) {
		return map[place]fileFacts{}
	}
	known := make(map[place]fileFacts, len(r.Plain)+len(r.Files))
	for _, p := range r.Plain {
		known[p] = fileFacts{}
	}
	for i := range r.Files {
		known[r.Files[i].place] = r.Files[i].fileFacts
	}
	return known
}

func (c cache) keepLayer(diffID store.Digest, known map[place]fileFacts) error {
	if diffID == "" {
		return nil
	}
	var r layerFacts
	for p, found := range known {
		switch {
		case found.unread:
		case found.empty():
			r.Plain = append(r.Plain, p)
		default:
			r.Files = append(r.Files, placeFact{p, found})
		}
	}
	slices.SortFunc(r.Plain, comparePlaces)
	slices.SortFunc(r.Files, func(a, b placeFact) int { return comparePlaces(a.place, b.place) })
	return c.put(store.KindAuditLayer, c.key(string(diffID)), r)
}

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Sparse, b.Sparse))
}

// factsShape names the fields of everything that is kept.
var factsShape = shapeOf(reflect.TypeFor[layerFacts]()) + shapeOf(reflect.TypeFor[pathFacts]()) + shapeOf(reflect.TypeFor[imageFacts]()) + shapeOf(reflect.TypeFor[heldFacts]())

func shapeOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return "[" + shapeOf(t.Elem()) + "]"
	case reflect.Map:
		return "map[" + shapeOf(t.Key()) + "]" + shapeOf(t.Elem())
	case reflect.Struct:
		var b strings.Builder
		for i := range t.NumField() {
			f := t.Field(i)
			if f.IsExported() || f.Anonymous {
				b.WriteString(f.Name + " " + string(f.Tag) + " " + shapeOf(f.Type) + ";")
			}
		}
		return "{" + b.String() + "}"
	}
	return t.Kind().String()
}
