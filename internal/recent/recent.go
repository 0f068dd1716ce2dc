// Package recent keeps in memory what was loaded last.
package recent

import (
	"container/list"
	"sync"
)

// Cache keeps what was loaded last, up to a number of bytes. Several who want the same thing at once wait for one load. The zero
// value keeps what is being loaded, and no more.
type Cache[K comparable, V any] struct {
	Room int64 // bytes

	mu      sync.Mutex
	used    int64
	entries map[K]*list.Element
	order   list.List // of *entry[K, V], the last used first
}

type entry[K comparable, V any] struct {
	key   K
	ready chan struct{}
	value V
	err   error
	size  int64 // bytes; 0 while it is loaded
}

// Get returns what key stands for, from memory or by load, which also tells how many bytes it takes to keep it.
// Failures are not kept.
func (c *Cache[K, V]) Get(key K, load func(K) (V, int64, error)) (V, error) {
	c.mu.Lock()
	if at, ok := c.entries[key]; ok {
		c.order.MoveToFront(at)
		c.mu.Unlock()
		e := at.Value.(*entry[K, V])
		<-e.ready
		return e.value, e.err
	}
	e := &entry[K, V]{key: key, ready: make(chan struct{})}
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

// Used is how many bytes are kept.
func (c *Cache[K, V]) Used() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// evict drops what was not used for longest until the rest fits. What is being loaded stays.
func (c *Cache[K, V]) evict() {
	for at := c.order.Back(); at != nil && c.used > c.Room; {
		before := at.Prev()
		if at.Value.(*entry[K, V]).size > 0 {
			c.drop(at)
		}
		at = before
	}
}

func (c *Cache[K, V]) drop(at *list.Element) {
	e := at.Value.(*entry[K, V])
	c.used -= e.size
	delete(c.entries, e.key)
	c.order.Remove(at)
}
