package lock

import (
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/recipe"
)

// The target decides over the build of torch only if it says what driver it has.
func TestBackendOfATargetWithoutADriver(t *testing.T) {
	r := &recipe.Recipe{Python: recipe.Python{Packages: []string{"torch"}, TorchBackend: backendOfTarget}}
	err := Options{}.check(t.Context(), r)
	if err == nil || !strings.Contains(err.Error(), "names no driver") || !strings.Contains(fault.HintOf(err), "nvidia-smi") || fault.CodeOf(err) != 2 {
		t.Errorf("%v, %s", err, fault.HintOf(err))
	}
}
