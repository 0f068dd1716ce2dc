package cli

import (
	"io"
	"strings"
	"testing"
)

// Text of somebody else's reaches a terminal without what is harmful to it, wherever its pieces are cut.
func TestLineCleaner(t *testing.T) {
	const text = "10%\r20%\r\ndone \x1b[31mred\x1b[0m\n\x1b]52;c;aGk=\x07title \u009b1mC1 \u202egnp.sh\nlast"
	const want = "10%\n20%\ndone red\ntitle 1mC1 gnp.sh\nlast"
	for cut := range len(text) {
		var b strings.Builder
		c := &lineCleaner{w: &b}
		for _, piece := range []string{text[:cut], text[cut:]} {
			if _, err := io.WriteString(c, piece); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.pass(len(c.rest)); err != nil || b.String() != want {
			t.Fatalf("cut at %d: %v, %q, want %q", cut, err, b.String(), want)
		}
	}
	c := &lineCleaner{w: io.Discard}
	if _, err := c.Write(make([]byte, longestLine+1)); err != nil || len(c.rest) > 0 {
		t.Errorf("%d bytes are kept of a line without an end: %v", len(c.rest), err)
	}
}
