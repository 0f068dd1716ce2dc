package step

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"

	"sconce.dev/sconce/internal/event"
)

// forward passes connections of l on to the socket at the path to, until the returned function is called.
func forward(ctx context.Context, l net.Listener, to string) func() {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { passOn(ctx, c, to) })
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
			event.Warn(ctx, fmt.Sprintf("the SSH agent does not answer: %v", err), "")
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
