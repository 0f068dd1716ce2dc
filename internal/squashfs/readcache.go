package squashfs

import (
	"container/list"
	"sync"
)

// recent keeps what was loaded last, up to a number of bytes. Several who want the same thing at once wait for one load.
type recent[K comparable, V any] struct {
	room int64 // bytes

	mu      sync.Mutex
	used    int64
	entries map[K]*list.Element
	order   list.List // of *recentEntry[K, V], the last used first
}

type recentEntry[K comparable, V any] struct {
	key   K
	ready chan struct{}
	value V
	err   error
	size  int64 // bytes; 0 while it is loaded
}

// get returns what key stands for, from memory or by load, which also tells how many bytes it takes to keep it.
// Failures are not kept.
func (c *recent[K, V]) get(key K, load func(K) (V, int64, error)) (V, error) {
	c.mu.Lock()
	if at, ok := c.entries[key]; ok {
		c.order.MoveToFront(at)
		c.mu.Unlock()
		e := at.Value.(*recentEntry[K, V])
		<-e.ready
		return e.value, e.err
	}
	e := &recentEntry[K, V]{key: key, ready: make(chan struct{})}
	if c.entries == nil {
		c.entries = map[K]*list.Element{}
	}
	at := c.order.PushFront(e)
	c.entries[key] = at
	c.mu.Unlock()

	value, size, err := load(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	e.value, e.err, e.size = value, err, size
	close(e.ready)
	if err != nil {
		e.size = 0
		c.drop(at)
		return e.value, e.err
	}
	c.used += size
	c.evict()
	return e.value, e.err
}

// evict drops what was not used for longest until the rest fits. What is being loaded stays.
func (c *recent[K, V]) evict() {
	for at := c.order.Back(); at != nil && c.used > c.room; {
		before := at.Prev()
		if at.Value.(*recentEntry[K, V]).size > 0 {
			c.drop(at)
		}
		at = before
	}
}

func (c *recent[K, V]) drop(at *list.Element) {
	e := at.Value.(*recentEntry[K, V])
	c.used -= e.size
	delete(c.entries, e.key)
	c.order.Remove(at)
}
