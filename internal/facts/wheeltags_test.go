package facts

import (
	"strings"
	"testing"
)

// A tag in a WHEEL may stand for several, as in the names of wheels.
func TestWheelTags(t *testing.T) {
	got := strings.Join(wheelTags([]byte("Wheel-Version: 1.0\nTag: cp313-cp313-manylinux_2_17_x86_64.manylinux2014_x86_64\nTag: py2.py3-none-any\nTag: odd\n")), " ")
	if want := "cp313-cp313-manylinux_2_17_x86_64 cp313-cp313-manylinux2014_x86_64 py2-none-any py3-none-any odd"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
