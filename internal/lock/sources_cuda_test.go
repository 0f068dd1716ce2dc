package lock

import (
	"slices"
	"testing"
)

func TestCompilerParts(t *testing.T) {
	for _, c := range []struct{ asked, more []string }{
		{[]string{"ninja"}, nil},
		{[]string{"nvidia-cuda-nvcc"}, []string{"nvidia-cuda-crt", "nvidia-nvvm"}},
		{[]string{"ninja", "NVIDIA_cuda-nvcc>=13.0,<13.2"}, []string{"nvidia-cuda-crt>=13.0,<13.2", "nvidia-nvvm>=13.0,<13.2"}},
		{[]string{"nvidia-cuda-nvcc==13.0.*", "nvidia.nvvm==13.0.88"}, []string{"nvidia-cuda-crt==13.0.*"}},
		{[]string{"nvidia-cuda-nvcc @ file:///nvcc.whl"}, nil},
		{[]string{"nvidia-cuda-nvcc ="}, nil},
	} {
		if got := withCompilerParts(slices.Clone(c.asked)); !slices.Equal(got, slices.Concat(c.asked, c.more)) {
			t.Errorf("%q became %q", c.asked, got)
		}
	}
}
