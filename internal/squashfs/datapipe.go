package squashfs

import (
	"context"
	"crypto/sha256"
	"fmt"
)

// The slots of each worker: one that it works on, and others that are read or wait for their turn to be written.
const slotsPerWorker = 3

// maxSteps bounds the steps that wait; those with a slot are bounded by the slots.
const maxSteps = 256

type slotKind uint8

const (
	fileBlock slotKind = iota
	fragmentBlock
)

// A slot is a block on its way: what was read, and what it was compressed to.
type slot struct {
	kind  slotKind
	raw   []byte // what to compress; in memory that the slot keeps
	holes []hole // parts of raw that are still to be taken from packs
	out   []byte // what to write: raw or its compressed form
	size  uint32 // the length of out, with blockStored
	sum   digest // of out, for file blocks
	err   error
	done  chan struct{} // gets one value when the slot was compressed

	memory, packed []byte
}

// buffer returns n bytes of the slot's memory.
func (s *slot) buffer(n int) []byte {
	if cap(s.memory) < n {
		s.memory = make([]byte, n)
	}
	return s.memory[:n]
}

// encoderSlack is how much longer than a block its compressed form may become before it is given up, in bytes.
const encoderSlack = 1 << 10

// A step is something to do in the order of the calls.
type step struct {
	slot    *slot         // to wait for, and to give back; nil: none
	place   func() error  // what to do; left out after a failure
	reached chan struct{} // is closed when everything before was done; nil: nobody asks
}

// start begins the workers and the placing goroutine.
func (w *Writer) start(encoders []blockEncoder) {
	// Two more: the block that is read, and the group of tails that is not full yet.
	n := slotsPerWorker*len(encoders) + 2
	w.free = make(chan *slot, n)
	for range n {
		w.free <- &slot{done: make(chan struct{}, 1)}
	}
	w.jobs = make(chan *slot, n)
	w.steps = make(chan step, maxSteps)
	w.building.sum = sha256.New()
	for _, e := range encoders {
		w.running.Add(1)
		go w.compressAll(e)
	}
	w.running.Add(1)
	go w.placeAll()
}

// stopPipeline ends the goroutines, after they did what was queued.
func (w *Writer) stopPipeline() {
	w.stop.Do(func() {
		close(w.jobs)
		close(w.steps)
		w.running.Wait()
		if err := w.out.copiers.wait(); err != nil {
			_ = w.fail(err)
		}
	})
}

// takeSlot waits for a slot. There is always one to come: the placing goroutine gives back all, even after a failure.
func (w *Writer) takeSlot(ctx context.Context) (*slot, error) {
	if err := w.interrupted(ctx); err != nil {
		return nil, err
	}
	select {
	case s := <-w.free:
		return s, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// queue has something done in its turn.
func (w *Writer) queue(st step) { w.steps <- st }

// compress has a slot compressed by a worker, and then something done with it in its turn.
func (w *Writer) compress(s *slot, place func() error) {
	w.jobs <- s
	w.queue(step{slot: s, place: place})
}

// wait returns when everything that was queued is done.
func (w *Writer) wait() {
	reached := make(chan struct{})
	w.queue(step{reached: reached})
	<-reached
}

// placeAll is the placing goroutine.
func (w *Writer) placeAll() {
	defer w.running.Done()
	for st := range w.steps {
		w.do(st)
	}
}

func (w *Writer) do(st step) {
	if st.slot != nil {
		<-st.slot.done
		if st.slot.err != nil {
			_ = w.fail(st.slot.err)
		}
	}
	if st.place != nil && w.err() == nil {
		if err := st.place(); err != nil {
			_ = w.fail(err)
		}
	}
	if st.slot != nil {
		w.free <- st.slot
	}
	if st.reached != nil {
		close(st.reached)
	}
}

// compressAll is a worker.
func (w *Writer) compressAll(e blockEncoder) {
	defer w.running.Done()
	for s := range w.jobs {
		s.err = nil
		if w.err() == nil {
			s.err = w.compressSlot(e, s)
		}
		s.done <- struct{}{}
	}
}

func (w *Writer) compressSlot(e blockEncoder, s *slot) error {
	if err := w.fillHoles(s); err != nil {
		return err
	}
	if cap(s.packed) < len(s.raw) {
		s.packed = make([]byte, 0, cap(s.raw)+encoderSlack)
	}
	out, ok, err := e.appendBlock(s.packed[:0], s.raw)
	if err != nil {
		return fmt.Errorf("compress a block: %w", err)
	}
	if ok {
		s.packed = out
		s.out, s.size = out, uint32(len(out))
	} else {
		s.out, s.size = s.raw, uint32(len(s.raw))|blockStored
	}
	if s.kind == fileBlock {
		s.sum = sha256.Sum256(s.out)
	}
	return nil
}
