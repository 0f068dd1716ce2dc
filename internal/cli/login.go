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

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/registry"
)

// loginOptions are the options of `sconce login`.
type loginOptions struct {
	at            registry.Endpoint
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
			var err error
			if o.at, err = registry.ParseLogin(args[0]); err != nil {
				return err
			}
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
			at, err := registry.ParseLogin(args[0])
			if err != nil {
				return err
			}
			files, err := registry.Logout(at)
			for _, name := range files {
				a.say("removed the login at %s from %s", at.Host, name)
			}
			if err == nil && len(files) == 0 {
				a.say("there is no login at %s", at.Host)
			}
			return err
		},
	}
}

func (a *app) runLogin(ctx context.Context, o loginOptions) error {
	c, err := a.askLogin(ctx, o)
	if err != nil {
		return err
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	file, asked, err := registry.Login(ctx, o.at, c, s.Fetch)
	if err != nil {
		return err
	}
	if !asked {
		a.say("%s lets everybody in, so that the login could not be tried", o.at.Host)
	}
	a.say("the login at %s is kept in %s", o.at.Host, file)
	return nil
}

// maxPassword bounds what is read as a password, in bytes: tokens may be long, files are mistakes.
const maxPassword = 64 << 10

// askLogin gets what flags do not say from stdin or from the terminal.
func (a *app) askLogin(ctx context.Context, o loginOptions) (registry.Credential, error) {
	c := registry.Credential{User: o.user}
	if o.passwordStdin {
		if o.user == "" {
			return c, fault.Usage(errors.New("--password-stdin needs --username"))
		}
		data, err := io.ReadAll(io.LimitReader(a.stdin, maxPassword+1))
		c.Password = strings.TrimRight(string(data), "\r\n")
		switch {
		case err != nil:
			return c, fmt.Errorf("read the password from stdin: %w", err)
		case len(data) > maxPassword || strings.ContainsAny(c.Password, "\r\n\x00"):
			return c, fault.Usage(errors.New("what stdin has is no password: it is one line"))
		case c.Password == "":
			return c, fault.Usage(errors.New("stdin has no password"))
		}
		return c, nil
	}
	terminal, ok := a.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(terminal.Fd())) {
		return c, fault.Usage(fault.Hint(errors.New("there is no terminal to ask for the password at"), "in a script: --username NAME --password-stdin"))
	}
	return a.askAtTerminal(ctx, c, terminal)
}

func (a *app) askAtTerminal(ctx context.Context, c registry.Credential, terminal *os.File) (registry.Credential, error) {
	a.closeView()
	var err error
	if c.User == "" {
		c.User, err = a.ask(ctx, terminal, "Username: ", func() (string, error) { return bufio.NewReader(terminal).ReadString('\n') })
		if c.User = strings.TrimSpace(c.User); c.User == "" {
			return c, fault.Usage(errors.Join(errors.New("no username was given"), err))
		}
	}
	c.Password, err = a.ask(ctx, terminal, "Password: ", func() (string, error) {
		password, err := term.ReadPassword(int(terminal.Fd()))
		fmt.Fprintln(a.stderr)
		return string(password), err
	})
	if err == nil && c.Password == "" {
		err = fault.Usage(errors.New("no password was given"))
	}
	return c, err
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
