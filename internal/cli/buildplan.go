package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/ui"
)

// stepOptions are the options of a build that concern the commands it runs.
type stepOptions struct {
	secrets        []string
	ssh            []string
	hostConfig     []string // kinds of hostconfig
	shellOnFailure bool
	network        string // of commands, as readNetwork reads it
}

// addFlags adds the flags that say what commands may use of this machine.
func (s *stepOptions) addFlags(f *pflag.FlagSet) {
	f.StringArrayVar(&s.secrets, "secret", nil, "a secret for steps that mount it: `id=ID,src=FILE` or id=ID,env=VARIABLE (repeatable)")
	f.StringArrayVar(&s.ssh, "ssh", nil, "an SSH agent for steps that mount it: `default|ID[=SOCKET]` (repeatable)")
	f.StringSliceVar(&s.hostConfig, "host-config", nil, "let steps see this machine's configuration of `pip,ca,npm,apt,conda`; none of it stays in the image")
}

// The networks that commands can have: see [stepOptions.network].
const (
	defaultNetwork = "default"
	hostNetwork    = "host"
	noNetwork      = "none"
)

// readNetwork reads --network. Names of networks that docker and podman make are all the default here.
func readNetwork(name string) (string, error) {
	kind, _, _ := strings.Cut(name, ":")
	switch kind {
	case noNetwork, hostNetwork:
		return kind, nil
	case "", defaultNetwork, "bridge", "private", "slirp4netns", "pasta":
		return defaultNetwork, nil
	}
	return "", fault.Usage(fmt.Errorf("--network %q: it is one of default, host, none", name))
}

// proxies are variables that say how the network is reached. Commands get them, and no key knows of them.
var proxies = []string{"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"}

// apply gives a build what its commands may use of this machine.
func (s stepOptions) apply(a *app, to *engine.BuildOptions) error {
	var err error
	if to.Secrets, err = parseSecrets(s.secrets, a.secrets); err != nil {
		return fault.Usage(err)
	}
	if to.SSH, err = parseAgents(s.ssh); err != nil {
		return fault.Usage(err)
	}
	for _, name := range proxies {
		if value, ok := os.LookupEnv(name); ok {
			to.Pass = append(to.Pass, name+"="+value)
		}
	}
	if to.Host, err = engine.ReadHost(s.hostConfig, a.config); err != nil {
		return fault.Usage(err)
	}
	network, err := readNetwork(s.network)
	if err != nil {
		return err
	}
	to.HostNetwork = network == hostNetwork
	if s.shellOnFailure {
		to.OnFailure = a.openShell
	}
	return nil
}

// parseSecrets reads --secret id=ID[,src=FILE|,env=NAME]. Without a source it is the file or the variable ID. What is in known was read
// already.
func parseSecrets(flags []string, known map[string][]byte) (map[string]func() ([]byte, error), error) {
	secrets := make(map[string]func() ([]byte, error))
	for _, text := range flags {
		fields, err := keyValues("--secret", text, "id", "src", "source", "env", "type")
		if err != nil {
			return nil, err
		}
		id, file, env := fields["id"], fields["src"]+fields["source"], fields["env"]
		if id == "" {
			return nil, fmt.Errorf("--secret %q has no id: write id=NAME,src=FILE or id=NAME,env=VARIABLE", text)
		}
		if value, ok := known[id]; ok {
			secrets[id] = func() ([]byte, error) { return value, nil }
			continue
		}
		if _, set := os.LookupEnv(id); file == "" && env == "" && set {
			env = id
		}
		if fields["type"] == "env" && env == "" {
			env, file = file, ""
		}
		secrets[id] = sync.OnceValues(func() ([]byte, error) { // a pipe, as <(command) is one, gives it once
			return engine.ReadSecret(cmp.Or(file, id), env)
		})
		if _, err := secrets[id](); err != nil {
			return nil, fmt.Errorf("--secret %s: %w", id, err)
		}
	}
	return secrets, nil
}

// parseAgents reads --ssh default|ID[=SOCKET]. Without a socket it is SSH_AUTH_SOCK.
func parseAgents(flags []string) (map[string]string, error) {
	agents := make(map[string]string)
	for _, text := range flags {
		id, socket, _ := strings.Cut(text, "=")
		if socket == "" {
			socket = os.Getenv("SSH_AUTH_SOCK")
		}
		if id == "" || socket == "" {
			return nil, fmt.Errorf("--ssh %q: no agent's socket: SSH_AUTH_SOCK is not set; write --ssh default=SOCKET", text)
		}
		socket, err := filepath.Abs(socket)
		if err != nil {
			return nil, err
		}
		if info, err := os.Stat(socket); err != nil || info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("--ssh %q: %s is not the socket of an SSH agent", text, socket)
		}
		agents[id] = socket
	}
	return agents, nil
}

// keyValues reads KEY=VALUE,KEY=VALUE with the given keys.
func keyValues(flag, text string, known ...string) (map[string]string, error) {
	fields := make(map[string]string)
	for part := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(part, "=")
		if !ok || !slices.Contains(known, key) {
			return nil, fmt.Errorf("%s %q: %q is not one of %s", flag, text, part, strings.Join(known, "=, ")+"=")
		}
		fields[key] = value
	}
	return fields, nil
}

// openShell lets the user look around where a step failed.
func (a *app) openShell(ctx context.Context, failed error, look engine.Look) {
	if in, ok := a.stdin.(*os.File); !ok || !ui.IsTerminal(in) {
		progress.Warn(ctx, "--shell-on-failure: standard input is no terminal, so no shell was opened", "")
		return
	}
	a.closeView() // the terminal is the shell's now
	a.say("%v", failed)
	a.say("a shell in the failed step's file system; what is changed there is forgotten when it ends (exit or Ctrl-D)")
	if err := look(ctx, bestShell, a.stdin, a.stdout, a.stderr); err != nil {
		progress.Warn(ctx, fmt.Sprintf("the shell could not be opened: %v", err), "")
	}
}
