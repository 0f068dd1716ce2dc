package build

import (
	"bytes"
	"io"
	"testing"
)

func TestHead(t *testing.T) {
	var h head
	piece := bytes.Repeat([]byte("x"), 3000)
	if n, err := io.Copy(&h, bytes.NewReader(bytes.Repeat(piece, 1000))); n != 3_000_000 || err != nil {
		t.Fatal(n, err)
	}
	if len(h.text) != maxHead {
		t.Errorf("%d bytes are kept", len(h.text))
	}
}
