package cotainr

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"sconce.dev/sconce/internal/sandbox"
)

// rule is under the titles of the report.
var rule = strings.Repeat("-", 79)

// info prints what is needed here to build, and which systems are known. What is missing is no failure.
func (a *App) info(context.Context) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Dependency report\n%s\n", rule)
	for _, line := range []string{
		fmt.Sprintf("Running sconce %s, %s", a.Version, a.mark(true)),
		a.sandboxLine(),
		a.solverLine(),
		"Neither python nor apptainer/singularity is needed to build, " + a.mark(true),
	} {
		fmt.Fprintf(&b, "    - %s\n", line)
	}
	fmt.Fprintf(&b, "\nSystem info\n%s\n", rule)
	file := systemsFile(a.Command[0])
	systems, err := readSystems(file)
	switch {
	case err != nil:
	case len(systems) == 0:
		b.WriteString("No system configurations available\n")
	default:
		b.WriteString("Available system configurations:\n")
		for _, s := range systems {
			fmt.Fprintf(&b, "    - %s\n", visible(s.name))
		}
	}
	if _, err := io.WriteString(a.Stdout, b.String()); err != nil {
		return err
	}
	if err != nil {
		(&log{color: a.Color, out: a.Stdout, err: a.Stderr, now: a.Now}).fail(err)
	}
	return err
}

// sandboxLine says whether commands run in images.
func (a *App) sandboxLine() string {
	if err := sandbox.Check(); err != nil {
		return "Commands do not run in images, " + a.mark(false) + ": " + visible(oneLine(err.Error()))
	}
	return "Commands run in images, " + a.mark(true)
}

// solverLine says whether environments can be decided.
func (a *App) solverLine() string {
	if _, err := exec.LookPath("uv"); err != nil {
		return "uv not found, which --conda-env needs unless --locked is given, " + a.mark(false)
	}
	return "Found uv, which decides for --conda-env, " + a.mark(true)
}

func (a *App) mark(good bool) string {
	switch {
	case !a.Color && good:
		return "OK"
	case !a.Color:
		return "ERROR"
	case good:
		return "\x1b[38;5;2mOK" + resetColor
	}
	return "\x1b[38;5;1mERROR" + resetColor
}
