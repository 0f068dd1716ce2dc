package sandbox

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// serve serves HTTP at an address of this machine, and returns the port.
func serve(t testing.TB, address string, handler http.HandlerFunc) int {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: handler}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

// A command with a network of its own reaches what other machines reach, and nothing that this machine offers to itself alone. All its ports
// are its own.
func TestOwnNetwork(t *testing.T) {
	if err := CheckNetwork(); err != nil {
		tooltest.Missing(t, "no network can be made: %v", err)
	}
	address := tooltest.OutsideAddress(t).String()
	word := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
	}
	open, closed := serve(t, address, word("from outside")), serve(t, "127.0.0.1", word("from inside"))
	o := shell(t, fmt.Sprintf(`
		busybox wget -q -O - http://%s:%d/ && echo
		busybox wget -q -O - http://127.0.0.1:%[3]d/ 2>/dev/null || echo none
		busybox wget -q -O - http://198.18.0.1:%[3]d/ 2>/dev/null || echo none
		busybox wget -q -O - http://%[1]s:%[3]d/ 2>/dev/null || echo none
		echo 'from a low port' | busybox nc -l -p 80 &
		busybox mkfifo /tmp/silence && exec 3<>/tmp/silence # the one who listens ends when nobody can say anything to it any more, before it has spoken
		until said=$(busybox nc 127.0.0.1 80 <&3 2>/dev/null) || ! kill -0 $!; do busybox usleep 20000; done
		echo "$said"`, address, open, closed))
	o.OwnNetwork = true
	wantOutput(t, o, "from outside\nnone\nnone\nnone\nfrom a low port\n")
}

// What a download costs with a network of its own, against this machine's: both from a server of this machine, which no network slows
// down.
func BenchmarkDownload(b *testing.B) {
	address, size := tooltest.OutsideAddress(b).String(), int64(1<<30)
	port := serve(b, address, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		block := make([]byte, 1<<20)
		for range size / int64(len(block)) {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	for _, own := range []bool{false, true} {
		b.Run(fmt.Sprint("own=", own), func(b *testing.B) {
			o := shell(b, fmt.Sprintf("busybox wget -q -O /dev/null http://%s:%d/", address, port))
			o.OwnNetwork = own
			b.SetBytes(size)
			for b.Loop() {
				if code, err := Run(b.Context(), o); code != 0 || err != nil {
					b.Fatal(code, err)
				}
			}
		})
	}
}
