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
		{fmt.Errorf("pull: %w", Hint(TryAgain(errors.New("away")), "later")), CodeTryAgain},
		{Join(TryAgain(errors.New("away")), Hint(fmt.Errorf("b: %w", TryAgain(errors.New("away"))), "later")), CodeTryAgain},
		{errors.Join(TryAgain(errors.New("away")), errors.New("404")), CodeFailed},
		{fmt.Errorf("both: %w", errors.Join(errors.New("404"), TryAgain(errors.New("away")))), CodeFailed},
		{Usage(TryAgain(errors.New("away"))), CodeUsage},
	} {
		if got := CodeOf(c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
	}
}

func TestJoin(t *testing.T) {
	if err := Join(nil, nil); err != nil {
		t.Error(err)
	}
	one := Hint(errors.New("one"), "do this")
	err := Join(one, nil, errors.New("two"), Hint(Usage(errors.New("three")), "do that"), one)
	if err.Error() != "one\ntwo\nthree\none" || HintOf(err) != "do this; do that" || CodeOf(err) != CodeUsage || !errors.Is(err, one) {
		t.Errorf("%q, hint %q, code %d", err, HintOf(err), CodeOf(err))
	}
	if err := Join(errors.New("two")); HintOf(err) != "" {
		t.Errorf("hint %q", HintOf(err))
	}
}
