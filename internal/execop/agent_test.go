package execop

import (
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"sconce.dev/sconce/internal/child/childtest"
)

// A step cannot take all files that this process may have open.
func TestManyConnections(t *testing.T) {
	dir := t.TempDir()
	agent, err := net.Listen("unix", filepath.Join(dir, "agent"))
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	var open, total atomic.Int64
	go func() {
		for {
			c, err := agent.Accept()
			if err != nil {
				return
			}
			open.Add(1)
			total.Add(1)
			go func() {
				defer open.Add(-1)
				defer c.Close()
				_, _ = c.Read(make([]byte, 1))
			}()
		}
	}()
	l, err := net.Listen("unix", filepath.Join(dir, "step"))
	if err != nil {
		t.Fatal(err)
	}
	done := forward(t.Context(), l, filepath.Join(dir, "agent"))
	const many = maxConnections + 20
	var all []net.Conn
	for range many {
		c, err := net.Dial("unix", filepath.Join(dir, "step"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	childtest.Eventually(t, "connections", func() bool { return open.Load() == maxConnections })
	time.Sleep(50 * time.Millisecond)
	if n := open.Load(); n != maxConnections {
		t.Errorf("%d connections at once", n)
	}
	for _, c := range all[:many/2] {
		c.Close()
	}
	childtest.Eventually(t, "the others' turn", func() bool { return total.Load() == many })
	done()
	for _, c := range all {
		c.Close()
	}
}
