package fault

import (
	"errors"
	"fmt"
	"os/exec"
	"testing"
)

func TestCodeOf(t *testing.T) {
	program := exec.Command("sh", "-c", "exit 25").Run()
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("no"), CodeFailed},
		{fmt.Errorf("recipe: %w", Usage(errors.New("no"))), CodeUsage},
		{Hint(Problem(errors.New("no")), "do this"), CodeProblem},
		{fmt.Errorf("mmdebstrap: %w", program), CodeFailed},
		{Usage(fmt.Errorf("git: %w", program)), CodeUsage},
	} {
		if got := CodeOf(c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
	}
}
