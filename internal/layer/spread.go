package layer

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
)

// OwnLayerSize is the size of a package, in bytes, from which it gets a layer of its own: large enough that the round trip for one more
// blob does not matter, small enough that nothing heavy is sent again because a small neighbour changed.
const OwnLayerSize = 4 << 20

// sharedLayers is over how many layers small packages are spread. One more package changes one of them.
const sharedLayers = 12

// SharedOf is how many of so many layers are for small packages.
func SharedOf(budget int) int { return max(1, min(sharedLayers, budget/4)) }

// Packages says of packages what decides in which layer each lies.
type Packages[P any] struct {
	Name    func(P) string
	Size    func(P) int64 // as it is downloaded, in bytes
	Compare func(a, b P) int

	// Code is which packages have code that is compiled to byte code on others, for which a third of the shared layers is then. nil: all.
	Code func(P) bool
}

// Spread distributes packages over layers: at most own of the large ones, the largest, have one each, and all others go into one of shared
// layers by a hash of their names. So a layer is another one only when one of its own packages is. use is called for each layer with its
// name for people: those of the large in their order first, then the others. Each gets its packages in their order.
func (p Packages[P]) Spread(packages []P, own, shared int, use func(name string, packages []P)) {
	sorted := slices.SortedFunc(slices.Values(packages), func(a, b P) int {
		return cmp.Or(cmp.Compare(p.Size(b), p.Size(a)), p.Compare(a, b))
	})
	n := 0
	for n < len(sorted) && n < own && p.Size(sorted[n]) >= OwnLayerSize {
		n++
	}
	large, small := sorted[:n], sorted[n:]
	slices.SortFunc(large, p.Compare)
	slices.SortFunc(small, p.Compare)
	for _, one := range large {
		use(p.Name(one), []P{one})
	}
	libraries := shared / 3
	if p.Code == nil || libraries == 0 {
		p.share("small packages", small, shared, use)
		return
	}
	p.share("small libraries", slices.DeleteFunc(slices.Clone(small), p.Code), libraries, use)
	p.share("small packages", slices.DeleteFunc(small, func(one P) bool { return !p.Code(one) }), shared-libraries, use)
}

// share spreads packages over n layers of a name. Layers that get none are left out.
func (p Packages[P]) share(name string, packages []P, n int, use func(name string, packages []P)) {
	groups := make([][]P, n)
	for _, one := range packages {
		sum := sha256.Sum256([]byte(p.Name(one)))
		i := binary.BigEndian.Uint32(sum[:4]) % uint32(n)
		groups[i] = append(groups[i], one)
	}
	for i, group := range groups {
		if len(group) > 0 {
			use(fmt.Sprintf("%s %d", name, i+1), group)
		}
	}
}
