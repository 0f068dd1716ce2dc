package recent

import (
	"errors"
	"sync"
	"testing"
)

func TestCacheKeepsWithinItsRoom(t *testing.T) {
	c := Cache[int, int]{Room: 30}
	loads := 0
	load := func(key int) (int, int64, error) {
		loads++
		return 2 * key, 10, nil
	}
	for _, key := range []int{1, 2, 3, 1, 4, 1, 2} { // 4 takes the place of 2, and 2 that of 3
		if got, err := c.Get(key, load); got != 2*key || err != nil {
			t.Errorf("%d: %d, %v", key, got, err)
		}
	}
	if loads != 5 || c.Used() != 30 || len(c.entries) != 3 || c.order.Len() != 3 {
		t.Errorf("%d loads, %d bytes, %d and %d entries; want 5, 30, 3 and 3", loads, c.Used(), len(c.entries), c.order.Len())
	}
}

// Who wants the same at once waits for one load. What failed is tried again.
func TestCacheLoadsOnce(t *testing.T) {
	c := Cache[string, int]{Room: 100}
	broken := errors.New("broken")
	begun, goOn := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		_, err := c.Get("x", func(string) (int, int64, error) {
			close(begun)
			<-goOn
			return 0, 0, broken
		})
		if !errors.Is(err, broken) {
			t.Error(err)
		}
	})
	<-begun
	for range 5 {
		all.Go(func() {
			if _, err := c.Get("x", func(string) (int, int64, error) { return 1, 1, nil }); err != nil && !errors.Is(err, broken) {
				t.Error(err)
			}
		})
	}
	close(goOn)
	all.Wait()
	if got, err := c.Get("x", func(string) (int, int64, error) { return 1, 1, nil }); got != 1 || err != nil {
		t.Errorf("after an error: %d, %v", got, err)
	}
}
