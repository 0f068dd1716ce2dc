package execop

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"

	"golang.org/x/sync/semaphore"

	"sconce.dev/sconce/internal/progress"
)

// maxConnections is how many connections to an agent a step has at once. The next waits: each takes two files of this process,
// which has other steps to run.
const maxConnections = 64

// forward passes connections of l on to the socket at the path to, until the returned function is called.
func forward(ctx context.Context, l net.Listener, to string) func() {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	slots := semaphore.NewWeighted(maxConnections)
	all.Go(func() {
		for slots.Acquire(ctx, 1) == nil {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer slots.Release(1)
				passOn(ctx, c, to)
			})
		}
	})
	return func() {
		cancel()
		l.Close()
		all.Wait()
	}
}

func passOn(ctx context.Context, c net.Conn, to string) {
	defer c.Close()
	var d net.Dialer
	agent, err := d.DialContext(ctx, "unix", to)
	if err != nil {
		if ctx.Err() == nil {
			progress.Warn(ctx, fmt.Sprintf("the SSH agent does not answer: %v", err), "")
		}
		return
	}
	defer agent.Close()
	stop := context.AfterFunc(ctx, func() {
		c.Close()
		agent.Close()
	})
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { pipe(agent, c) })
	both.Go(func() { pipe(c, agent) })
	both.Wait()
}

// pipe copies one direction to its end, and says so to the other side.
func pipe(to, from net.Conn) {
	_, _ = io.Copy(to, from) // a connection that breaks has ended
	if w, ok := to.(*net.UnixConn); ok {
		_ = w.CloseWrite()
	}
}
