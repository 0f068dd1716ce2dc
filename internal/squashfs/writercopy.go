package squashfs

import (
	"io"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Copying of one thread is what a machine with many cores waits for in the end. There several read at a time while one writes: the usual
// file systems let one thread write to a file at a time. On few cores the kernel's copy is better, which moves memory once and not twice.
const (
	copiersFrom = 16      // workers of the Writer
	copiersMost = 4       // more are no faster (docs/results/scale-2026-11-26.md)
	copierChunk = 8 << 20 // bytes that one copies before another file may be next
)

// copiers copy into the file of a sink in the background. A nil one has nothing to wait for.
type copiers struct {
	write   func(p []byte, at int64) error
	group   errgroup.Group
	buffers sync.Pool // of *[sinkBuffer]byte
}

func newCopiers(write func(p []byte, at int64) error) *copiers {
	c := &copiers{write: write}
	c.group.SetLimit(copiersMost)
	c.buffers.New = func() any { return new([sinkBuffer]byte) }
	return c
}

// copy begins to copy n bytes at offset at of from to an offset of the sink. It waits for others while there are as many as may be.
func (c *copiers) copy(from io.ReaderAt, at, to, n int64) {
	for done := int64(0); done < n; done += copierChunk {
		c.group.Go(func() error { return c.copyChunk(from, at+done, to+done, min(n-done, copierChunk)) })
	}
}

func (c *copiers) copyChunk(from io.ReaderAt, at, to, n int64) error {
	buffer := c.buffers.Get().(*[sinkBuffer]byte)
	defer c.buffers.Put(buffer)
	for n > 0 {
		p := buffer[:min(n, sinkBuffer)]
		if err := readBlocks(from, p, at); err != nil {
			return err
		}
		if err := c.write(p, to); err != nil {
			return err
		}
		k := int64(len(p))
		at, to, n = at+k, to+k, n-k
	}
	return nil
}

// wait returns when everything is copied, and the first error.
func (c *copiers) wait() error {
	if c == nil {
		return nil
	}
	return c.group.Wait()
}
