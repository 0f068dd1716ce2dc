package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
)

// loginOptions are the options of `sconce login`.
type loginOptions struct {
	registry      string
	user          string
	passwordStdin bool
}

func newLoginCmd(a *app) *cobra.Command {
	var o loginOptions
	cmd := &cobra.Command{
		Use:   "login REGISTRY",
		Short: "Log in at a registry",
		Long: `Log in at a registry. The login is tried there first, and then kept where podman and skopeo look as well: in the file that
has one for this registry already, else in $REGISTRY_AUTH_FILE or ~/.config/containers/auth.json, which only you can read.
Who uses such programs already has nothing to do: their logins, enroot's and netrc's are found.

In a script the password comes by --password-stdin; it never is an argument, which others see in the list of processes.
Many registries want a token in its place.`,
		Example: examples(
			"sconce login registry.example.org",
			"sconce login nvcr.io -u '$oauthtoken' --password-stdin <~/.ngc-key",
			"sconce login registry.example.org/team -u ci --password-stdin <<<\"$CI_TOKEN\"",
		),
		Args: wants("REGISTRY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.registry = args[0]
			return a.runLogin(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVarP(&o.user, "username", "u", "", "`NAME` of the user (default: it is asked for)")
	cmd.Flags().BoolVar(&o.passwordStdin, "password-stdin", false, "read the password from stdin")
	return cmd
}

func newLogoutCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "logout REGISTRY",
		Short: "Forget the login at a registry",
		Long: `Forget the login at a registry, in every file in the format of Docker's config.json that is looked into. Enroot's
.credentials, netrc and what credential helpers keep are left to their owners.`,
		Example: examples("sconce logout registry.example.org"),
		Args:    wants("REGISTRY"),
		RunE: func(_ *cobra.Command, args []string) error {
			host, files, err := engine.LogOut(args[0])
			for _, name := range files {
				a.say("removed the login at %s from %s", host, name)
			}
			if err == nil && len(files) == 0 {
				a.say("there is no login at %s", host)
			}
			return err
		},
	}
}

func (a *app) runLogin(ctx context.Context, o loginOptions) error {
	in, err := engine.LogIn(ctx, o.registry, func() (string, string, error) { return a.askLogin(ctx, o) }, a.open)
	if err != nil {
		return err
	}
	if !in.Tried {
		a.say("%s lets everybody in, whatever the login, so that nothing has proved it", in.Host)
	}
	a.say("the login at %s is kept in %s", in.Host, in.File)
	return nil
}

// maxPassword bounds what is read as a password, in bytes: tokens may be long, files are mistakes.
const maxPassword = 64 << 10

// askLogin gets what flags do not say from stdin or from the terminal.
func (a *app) askLogin(ctx context.Context, o loginOptions) (user, password string, err error) {
	if o.passwordStdin {
		if o.user == "" {
			return "", "", fault.Usage(errors.New("--password-stdin needs --username"))
		}
		password, err = a.readPassword()
		return o.user, password, err
	}
	terminal, ok := a.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(terminal.Fd())) {
		return "", "", fault.Usage(fault.Hint(errors.New("there is no terminal to ask for the password at"), "in a script: --username NAME --password-stdin"))
	}
	return a.askAtTerminal(ctx, o.user, terminal)
}

// readPassword reads a password from stdin, which has nothing else.
func (a *app) readPassword() (string, error) {
	data, err := io.ReadAll(io.LimitReader(a.stdin, maxPassword+1))
	password := strings.TrimRight(string(data), "\r\n")
	switch {
	case err != nil:
		return "", fmt.Errorf("read the password from stdin: %w", err)
	case len(data) > maxPassword || strings.ContainsAny(password, "\r\n\x00"):
		return "", fault.Usage(errors.New("what stdin has is no password: it is one line"))
	case password == "":
		return "", fault.Usage(errors.New("stdin has no password"))
	}
	return password, nil
}

func (a *app) askAtTerminal(ctx context.Context, user string, terminal *os.File) (name, password string, err error) {
	a.closeView()
	if user == "" {
		user, err = a.ask(ctx, terminal, "Username: ", func() (string, error) { return bufio.NewReader(terminal).ReadString('\n') })
		if user = strings.TrimSpace(user); user == "" {
			return "", "", fault.Usage(errors.Join(errors.New("no username was given"), err))
		}
	}
	password, err = a.ask(ctx, terminal, "Password: ", func() (string, error) {
		password, err := term.ReadPassword(int(terminal.Fd()))
		fmt.Fprintln(a.stderr)
		return string(password), err
	})
	if err == nil && password == "" {
		err = fault.Usage(errors.New("no password was given"))
	}
	return user, password, err
}

// ask reads an answer from the terminal, which gets its echo back when the user interrupts instead.
func (a *app) ask(ctx context.Context, terminal *os.File, question string, read func() (string, error)) (string, error) {
	state, err := term.GetState(int(terminal.Fd()))
	if err != nil {
		return "", err
	}
	fmt.Fprint(a.stderr, question)
	type answer struct {
		text string
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		text, err := read()
		answers <- answer{text, err}
	}()
	select {
	case got := <-answers:
		return got.text, got.err
	case <-ctx.Done():
		fmt.Fprintln(a.stderr)
		return "", errors.Join(ctx.Err(), term.Restore(int(terminal.Fd()), state))
	}
}
