package host

import "testing"

// Blocks are KiB, a limit of zero is none, and the limit that comes first counts.
func TestQuota(t *testing.T) {
	for name, c := range map[string]struct {
		kernel diskQuota
		want   *Quota
	}{
		"none is set": {diskQuota{bytes: 5 << 20, files: 7}, nil},
		"bytes alone": {diskQuota{hardBlocks: 2048, bytes: 5000, files: 7}, &Quota{Bytes: 5000, MaxBytes: 2 << 20, Files: 7}},
		"two limits":  {diskQuota{hardBlocks: 4096, softBlocks: 2048, hardFiles: 10, softFiles: 20}, &Quota{MaxBytes: 2 << 20, MaxFiles: 10}},
		"a soft one":  {diskQuota{softFiles: 20, files: 19}, &Quota{Files: 19, MaxFiles: 20}},
	} {
		got := c.kernel.quota()
		if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	if got := QuotaOf("/proc/nowhere"); got != nil {
		t.Errorf("/proc has a quota: %+v", got)
	}
}
