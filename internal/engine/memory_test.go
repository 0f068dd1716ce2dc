package engine

import "testing"

// TestCoresFor has cores and memory of any relation: what the cores hold is at most half of the memory, as far as two cores are enough.
func TestCoresFor(t *testing.T) {
	const gib = 1 << 30
	for _, m := range []struct {
		cores     int
		available int64
		want      int
	}{
		{1, gib / 8, 1},
		{2, gib / 8, 2},
		{16, 0, 2},
		{16, gib / 2, 4},
		{64, gib, 9},
		{64, 8 * gib, 64},
		{256, 16 * gib, 169},
	} {
		got := coresFor(m.cores, m.available)
		if got != m.want {
			t.Errorf("%d cores and %d bytes: %d, not %d", m.cores, m.available, got, m.want)
		}
		if held := int64(memoryBase + memoryPerCore*(got-2)); got > 2 && held > m.available/workersShare {
			t.Errorf("%d cores hold %d of %d bytes", got, held, m.available)
		}
	}
}

// TestMemoryTarget has machines of any size: the target grows with the cores, and is a small part of what there is.
func TestMemoryTarget(t *testing.T) {
	const gib = 1 << 30
	for _, m := range []struct {
		cores     int
		available int64
		want      int64
	}{
		{1, 0, 160 << 20},
		{2, 512 * gib, 160 << 20},
		{4, 16 * gib, 256 << 20},
		{64, 512 * gib, (160 + 62*48) << 20},
		{64, 8 * gib, 2 * gib},   // a small job on a large machine
		{64, gib / 2, 160 << 20}, // less than that is of no use
		{256, 2048 * gib, (160 + 254*48) << 20},
	} {
		if got := memoryTarget(m.cores, m.available); got != m.want {
			t.Errorf("%d cores and %d bytes: %d, not %d", m.cores, m.available, got, m.want)
		}
	}
}
