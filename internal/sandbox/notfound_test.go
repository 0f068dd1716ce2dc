package sandbox

import (
	"strings"
	"testing"
)

// Who looks for conda in an image that has an environment without it is told how things are, and nobody else.
func TestNotFound(t *testing.T) {
	for _, c := range []struct {
		name string
		env  []string
		want string
	}{
		{"mamba", []string{"A=b", "CONDA_PREFIX=/opt/conda"}, "the environment in /opt/conda is active without it"},
		{"mamba", nil, "[conda]"},
		{"pip", nil, "[python]"},
		{"nvidia-smi", nil, "--gpu"},
		{"--gpu", nil, "before IMAGE"},
		{"mambo", []string{"CONDA_PREFIX=/opt/conda"}, "it was looked for in /bin"},
	} {
		e := notFound(c.name, "/bin", c.env)
		if !strings.Contains(e.Fix, c.want) || e.Code != codeNotFound {
			t.Errorf("%s, %q: %d, %s", c.name, c.env, e.Code, e.Fix)
		}
	}
}
