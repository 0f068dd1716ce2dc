package rootemu

import "testing"

// Only a call that is the same at two looks one after the other has waited.
func TestPatience(t *testing.T) {
	chown, slow := &pending{call: callChown}, &pending{call: callOpenat}
	var p patience
	for i, look := range []struct {
		at   *pending
		want int
	}{{nil, 0}, {nil, 0}, {chown, 0}, {&pending{call: callChown}, 0}, {slow, 0}, {slow, 1}, {slow, 2}, {nil, 0}, {slow, 0}, {slow, 1}} {
		if got := p.look(look.at); got != look.want {
			t.Errorf("look %d: %d periods, want %d", i, got, look.want)
		}
	}
}

func TestWaitingSaysWhat(t *testing.T) {
	w := Waiting{Call: callOpenat.String(), Path: "/away", PID: 7, Program: "stat", Periods: 1}
	if got, want := w.String(), `the call openat of "/away" of process 7 (stat)`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestCallsHaveNames(t *testing.T) {
	for c := callChown; c <= callStatx; c++ {
		if c.String() == "" {
			t.Errorf("call %d has no name", c)
		}
	}
}
