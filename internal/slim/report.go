package slim

import (
	"cmp"
	"fmt"
	"slices"

	"sconce.dev/sconce/internal/fatbin"
)

// FileReport is what slimming does to one file.
type FileReport struct {
	Path    string `json:"path,omitempty"`
	Refused string `json:"refused,omitempty"` // why the file is left alone; then all else is empty
	Kept    []Code `json:"kept,omitempty"`    // by kind and architecture
	Dropped []Code `json:"dropped,omitempty"`
	Zeroed  int64  `json:"zeroed"` // bytes that became zeros
}

// Code is the GPU code of one kind for one architecture in the regions that slimming looks at.
type Code struct {
	Kind    string `json:"kind"` // "sass", "ptx", "lto-ir" or "other"
	Arch    string `json:"arch"` // "80", "90a", "100f"
	Entries int    `json:"entries"`
	Size    int64  `json:"size"` // bytes in the file, headers included
}

// The kinds of Code.
const (
	kindSASS  = "sass"
	kindPTX   = "ptx"
	kindLTO   = "lto-ir"
	kindOther = "other"
)

func kindOf(k fatbin.Kind) string {
	switch k {
	case fatbin.ELFImage:
		return kindSASS
	case fatbin.PTX, fatbin.RelocatablePTX:
		return kindPTX
	case fatbin.LTOIR:
		return kindLTO
	}
	return kindOther
}

// tally counts code by kind and architecture.
type tally map[tallyKey]Code

type tallyKey struct {
	kind string
	arch fatbin.Arch
}

// add counts an entry, and in place of a concatenated one its parts, with their shares of what it takes packed.
func (t tally) add(e *fatbin.Entry) {
	size := e.End() - e.Offset
	if e.Kind != fatbin.Concatenated {
		t.count(e, size)
		return
	}
	for i := range e.Parts {
		p := &e.Parts[i]
		t.count(p, int64(float64(size)*float64(p.PayloadSize)/float64(max(e.UncompressedSize, 1))))
	}
}

func (t tally) count(e *fatbin.Entry, size int64) {
	k := tallyKey{kindOf(e.Kind), e.Arch}
	c := t[k]
	c.Kind, c.Arch = k.kind, fmt.Sprintf("%d%s", e.Arch.SM, e.Arch.Variant)
	c.Entries++
	c.Size += size
	t[k] = c
}

// list gives the counts in order.
func (t tally) list() []Code {
	keys := make([]tallyKey, 0, len(t))
	for k := range t {
		keys = append(keys, k)
	}
	order := map[string]int{kindSASS: 0, kindPTX: 1, kindLTO: 2, kindOther: 3}
	slices.SortFunc(keys, func(a, b tallyKey) int {
		return cmp.Or(cmp.Compare(order[a.kind], order[b.kind]), cmp.Compare(a.arch.SM, b.arch.SM),
			cmp.Compare(a.arch.Variant, b.arch.Variant))
	})
	list := make([]Code, 0, len(keys))
	for _, k := range keys {
		list = append(list, t[k])
	}
	return list
}
