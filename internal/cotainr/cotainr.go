// Package cotainr is the command line of cotainr, for those who have it in their scripts and fingers: what is typed, what is asked, what
// is printed and how it ends are cotainr's; the image is made by [engine], without Apptainer, Conda or a temporary tree.
//
// cotainr is a program of DeiC (github.com/DeiC-HPC/cotainr). What is followed here was observed of its release 2025.7.1; the test
// TestSideBySide compares the two, and testdata/differences.txt lists where this one is another on purpose.
package cotainr

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
)

// Release is the release of cotainr whose command line this is.
const Release = "2025.7.1"

// App is what a command line works with.
type App struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Live           progress.Sink // a view of what happens, on a terminal; nil: there is none
	Color          bool
	Command        []string // as it was typed, program and all: a label of the image says so
	Version        string   // of sconce
	Open           func(ctx context.Context) (*engine.Session, error)
	Now            func() time.Time
}

// usageError is a mistake in a command line.
type usageError struct {
	command *command
	text    string
}

func (e *usageError) Error() string { return e.text }

// errAnswered says that a question of the command line, such as --help, was answered, and nothing else is to be done.
var errAnswered = errors.New("answered")

// Run runs a command line, without the program's name, says all there is to say, and returns the exit code: 0, also when the user
// decided against it; 1 when it failed; 2 for a command line that is wrong.
func (a *App) Run(ctx context.Context, args []string) int {
	err := a.run(ctx, args)
	var wrong *usageError
	switch {
	case err == nil || errors.Is(err, errAnswered):
		return 0
	case errors.As(err, &wrong):
		fmt.Fprintf(a.Stderr, "%s%s: error: %s\n", wrong.command.usage, wrong.command.name, wrong.text)
		return fault.CodeUsage
	}
	return fault.CodeFailed
}

func (a *App) run(ctx context.Context, args []string) error {
	p := &parser{options: []*option{
		a.helpOption(&mainCommand),
		{names: []string{"--version"}, take: func([]string) error {
			fmt.Fprintf(a.Stdout, "cotainr %s by sconce %s\n", Release, a.Version)
			return errAnswered
		}},
	}}
	rest, err := p.parse(args, true)
	if err != nil {
		return wrongUnlessAnswered(&mainCommand, err)
	}
	var run func(context.Context) error
	if len(rest) > 0 {
		var extras []string
		if run, extras, err = a.subcommand(rest[0], rest[1:]); err != nil {
			return err
		}
		p.extras = append(p.extras, extras...)
	}
	switch {
	case len(p.extras) > 0:
		return &usageError{&mainCommand, "unrecognized arguments: " + strings.Join(p.extras, " ")}
	case run == nil:
		_, err := io.WriteString(a.Stdout, mainCommand.help())
		return err
	}
	return run(ctx)
}

// subcommand reads the arguments of a subcommand. extras are those that it does not know.
func (a *App) subcommand(name string, args []string) (run func(context.Context) error, extras []string, err error) {
	switch name {
	case "build":
		b := &build{app: a}
		extras, err = b.parse(args)
		return b.run, extras, err
	case "info":
		p := &parser{options: []*option{a.helpOption(&infoCommand)}}
		if _, err := p.parse(args, false); err != nil {
			return nil, nil, wrongUnlessAnswered(&infoCommand, err)
		}
		return a.info, append(p.extras, p.words...), nil
	}
	return nil, nil, &usageError{&mainCommand, fmt.Sprintf("argument {build,info}: invalid choice: %s (choose from 'build', 'info')", repr(name))}
}

func (a *App) helpOption(c *command) *option {
	return &option{names: []string{"--help", "-h"}, take: func([]string) error {
		if _, err := io.WriteString(a.Stdout, c.help()); err != nil {
			return err
		}
		return errAnswered
	}}
}

func wrongUnlessAnswered(c *command, err error) error {
	if errors.Is(err, errAnswered) {
		return err
	}
	return &usageError{c, err.Error()}
}
