package spelling

import "testing"

func TestDistribution(t *testing.T) {
	for in, want := range map[string]string{
		"Flash_Attn": "flash-attn", "zope.interface": "zope-interface", "a-._b": "a-b", "torch": "torch", "_x_": "-x-", "": "",
	} {
		if got := Distribution(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
