package cli

import "testing"

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
