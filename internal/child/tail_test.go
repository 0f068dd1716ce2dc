package child

import (
	"fmt"
	"strings"
	"testing"
)

// However much a program says, its end is what is kept.
func TestTail(t *testing.T) {
	var tail Tail
	for i := range 50_000 {
		fmt.Fprintf(&tail, "line %d\n", i)
	}
	if said := tail.String(); len(said) != maxTail || !strings.HasSuffix(said, "line 49998\nline 49999\n") {
		t.Errorf("%d bytes are kept, the last are %q", len(said), said[max(0, len(said)-30):])
	}
}
