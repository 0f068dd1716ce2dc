// Package cli is the command line: one file for each command, which turns flags into an options struct, calls [engine] and prints
// what it returns.
//
// Data goes to stdout, everything else to stderr. A command returns an error; [Main] prints it and chooses the exit code.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/ui"
)

// app is what the commands of one invocation share.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	flags          globalFlags
	signals        *signals

	view *ui.View
	out  io.Writer // stdout, for data: what was reported before comes first

	saying sync.Mutex // see say

	session *engine.Session // of the command that runs; nil for one that needs none
	config  config.Config   // what site and user decide for every command

	onNode  bool              // somebody draws the events of this command elsewhere, see nodejob
	secrets map[string][]byte // for --secret, by id: what was read there
}

// globalFlags are the flags of every command.
type globalFlags struct {
	progress string
	color    string
	verbose  bool
	quiet    bool
	store    string
	offline  bool
	patience string
	logins   []string
	read     bool // the registry under [cache] of a recipe
	push     bool // to it

	allowPaths []string
}

// Main runs the command of this process and returns its exit code.
func Main() int {
	engine.LimitMemory()
	ctx, sig := catchSignals(context.Background())
	defer sig.release()
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, signals: sig}
	sig.atOnce(a.closeView)
	return a.run(ctx, arguments(os.Args))
}

// run runs one command line.
func (a *app) run(ctx context.Context, args []string) int {
	a.out = a.stdout
	root := newRootCmd(a)
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(ctx)
	if a.session != nil {
		if ctx.Err() == nil {
			a.session.Tidy(progress.With(ctx, a.view), a.settings())
		}
		err = errors.Join(err, a.session.Close())
	}
	if err != nil && ctx.Err() != nil {
		err = errInterrupted
	}
	code := fault.CodeOf(err)
	a.closeView()
	if err != nil && !isSilent(err) {
		a.printError(err, code)
	}
	return code
}

func (a *app) closeView() {
	if a.view != nil {
		a.view.Close()
	}
}

// printError prints err as the flags want it, as far as they could be read.
func (a *app) printError(err error, code int) {
	if a.view == nil {
		o, flagErr := a.viewOptions()
		if flagErr != nil {
			o.Mode = ui.Plain
		}
		a.view = ui.New(io.Discard, o)
		a.view.Close()
	}
	a.view.PrintError(a.stderr, err, code)
}

// exitStatus is the result of a command that has said all there is to say, and only has an exit code left: that of
// the program it ran.
type exitStatus int //nolint:errname // it is another program's word, and no failure of ours

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// ExitCode is read by [fault.CodeOf].
func (s exitStatus) ExitCode() int { return int(s) }

func isSilent(err error) bool {
	var s exitStatus
	return errors.As(err, &s)
}

// start makes ready what the flags say, before the command runs.
func (a *app) start(cmd *cobra.Command) error {
	if err := exclusive(cmd); err != nil {
		return err
	}
	if err := a.configure(cmd); err != nil {
		return err
	}
	o, err := a.viewOptions()
	if err != nil {
		return fault.Usage(err)
	}
	a.view = ui.New(a.stderr, o)
	a.out = dataWriter{a.stdout, a.view}
	cmd.SetContext(progress.With(cmd.Context(), a.view))
	return nil
}

func (a *app) viewOptions() (ui.Options, error) {
	o := ui.Options{Verbose: a.flags.verbose}
	switch a.flags.color {
	case "auto":
		o.Color = ui.WantColor(a.stderr)
	case "always":
		o.Color = true
	case "never":
	default:
		return o, fmt.Errorf("--color %q: it is one of auto, always, never", a.flags.color)
	}
	if a.flags.quiet {
		o.Mode = ui.Quiet
		return o, nil
	}
	var err error
	o.Mode, err = ui.ParseMode(a.flags.progress)
	return o, err
}

// open opens the session that a command works in: the store, and with what to download. There is one for a command, however many of its
// parts ask; [app.run] closes it.
func (a *app) open(ctx context.Context) (*engine.Session, error) {
	if a.session != nil {
		return a.session, nil
	}
	set := a.settings()
	dir, err := set.Dir()
	if err != nil {
		return nil, err
	}
	scratch, _ := set.Scratch()
	patience, err := a.flags.networkPatience()
	if err != nil {
		return nil, err
	}
	for _, host := range a.flags.logins {
		if err := config.CheckHost(host); err != nil {
			return nil, fault.Usage(fmt.Errorf("--allow-login: %w", err))
		}
	}
	a.session, err = engine.New(ctx, engine.Options{
		Dir: dir, Shared: set.Shared(), Scratch: scratch, Offline: a.flags.offline, Patience: patience, Version: currentVersion().Version,
		Check: a.config.Check, UV: a.config.UV, Logins: slices.Concat(a.config.LoginHosts, a.flags.logins),
		Cache: engine.CachePermissions{Read: a.config.CacheRead, Push: a.config.CachePush, ReadAll: a.flags.read, PushAll: a.flags.push},
	})
	return a.session, err
}

// openThere opens the store for a command that only looks: a directory that --store names and that does not exist stays so.
func (a *app) openThere(ctx context.Context) (*engine.Session, error) {
	if dir := a.flags.store; dir != "" {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return nil, fault.Usage(fmt.Errorf("--store %s: there is no such directory", dir))
		}
	}
	return a.open(ctx)
}

// networkPatience is --patience, 0 when nothing is said.
func (f *globalFlags) networkPatience() (time.Duration, error) {
	if f.patience == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(f.patience)
	if err != nil || d <= 0 {
		return 0, fault.Usage(fmt.Errorf("--patience %q: it is a time like 90s, 20m or 1h", f.patience))
	}
	return d, nil
}
