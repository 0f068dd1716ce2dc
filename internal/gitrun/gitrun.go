// Package gitrun runs git, and programs that run git, so that none waits for ever for a server that says nothing, asks anybody anything,
// or leaves a process behind.
//
// The user's own configuration of git and ssh counts as it is: git has no limit of its own for ssh:// and git://, and ssh takes its options
// from the command line before those that the user has written down. So nothing is said to ssh, and it is looked at instead whether git
// still moves, see [watch].
package gitrun

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"sconce.dev/sconce/internal/child"
	"sconce.dev/sconce/internal/lazyregexp"
)

// The variables by which git is told when to give up an HTTP connection: that brings less than so many bytes a second, for so many seconds.
const (
	lowSpeed = "GIT_HTTP_LOW_SPEED_LIMIT"
	lowTime  = "GIT_HTTP_LOW_SPEED_TIME"
)

// usualSilence is for how long a git may stand still when the user does not say, as package fetch has it.
const usualSilence = time.Minute

// killTime is how long a program has after it was told to end, or its children to let go of what it prints into.
const killTime = 5 * time.Second

// Silence is for how long a git may stand still: what GIT_HTTP_LOW_SPEED_TIME says, for any protocol. 0 is no limit.
func Silence() time.Duration {
	if seconds, err := strconv.Atoi(os.Getenv(lowTime)); err == nil {
		return time.Duration(max(seconds, 0)) * time.Second
	}
	return usualSilence
}

// Environment returns an environment for git in which it asks nobody and knows its limits. What the user has set of these counts.
func Environment(environ []string) []string {
	var limits []string
	if !userLimits() {
		limits = []string{lowSpeed + "=1", fmt.Sprintf("%s=%d", lowTime, int(usualSilence.Seconds()))}
	}
	env := slices.Concat(limits, environ) // of two values the later one counts
	return append(withSetting(env, "gc.autoDetach", "false"), "GIT_TERMINAL_PROMPT=0")
}

// userLimits reports whether the user's configuration of git has limits, before which the variables would go.
var userLimits = sync.OnceValue(limitsOfUser)

func limitsOfUser() bool {
	cmd := exec.Command("git", "config", "--get-regexp", `^http\.(.*\.)?lowspeed(limit|time)$`)
	cmd.Dir = "/" // of no repository
	return child.Run(cmd) == nil
}

// withSetting adds a setting of git's to an environment, behind those that are there (git-config(1), GIT_CONFIG_COUNT).
func withSetting(env []string, key, value string) []string {
	const count = "GIT_CONFIG_COUNT="
	n := 0
	for _, kv := range env {
		if text, ok := strings.CutPrefix(kv, count); ok {
			n, _ = strconv.Atoi(text)
		}
	}
	return append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", n, key), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", n, value), fmt.Sprint(count, n+1))
}

// settingOf is a variable with the key or the value of a setting (git-config(1), GIT_CONFIG_COUNT).
var settingOf = lazyregexp.New(`^GIT_CONFIG_(KEY|VALUE)_([0-9]+)=((?s).*)$`)

// SettingsInFile moves the settings that an environment has for git into a file, for a program between that shows variables to others: they may
// hold logins. The user's own configuration counts as before, under them.
func SettingsInFile(environ []string, file string) ([]string, error) {
	keys, values := map[string]string{}, map[string]string{}
	var env, below []string
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		m := settingOf.FindStringSubmatch(kv)
		switch {
		case m != nil && m[1] == "KEY":
			keys[m[2]] = m[3]
		case m != nil:
			values[m[2]] = m[3]
		case name == "GIT_CONFIG_GLOBAL":
			below = []string{value}
		case name != "GIT_CONFIG_COUNT":
			env = append(env, kv)
		}
	}
	if home, err := os.UserHomeDir(); err == nil && below == nil {
		below = []string{filepath.Join(cmp.Or(os.Getenv("XDG_CONFIG_HOME"), filepath.Join(home, ".config")), "git", "config"), filepath.Join(home, ".gitconfig")}
	}
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`)
	var b strings.Builder
	for _, path := range below {
		fmt.Fprintf(&b, "[include]\n\tpath = \"%s\"\n", quote.Replace(path)) // one that is not there is passed over
	}
	for i := 0; keys[strconv.Itoa(i)] != ""; i++ {
		key := keys[strconv.Itoa(i)]
		section, rest, _ := strings.Cut(key, ".")
		if at := strings.LastIndex(rest, "."); at >= 0 {
			section, rest = fmt.Sprintf(`%s "%s"`, section, strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(rest[:at])), rest[at+1:]
		}
		fmt.Fprintf(&b, "[%s]\n\t%s = \"%s\"\n", section, rest, quote.Replace(values[strconv.Itoa(i)]))
	}
	return append(env, "GIT_CONFIG_GLOBAL="+file), os.WriteFile(file, []byte(b.String()), 0o600)
}

// Run runs cmd, which is git or runs git, as [child.Group] does. When a git among it stood still for [Silence], that one was ended, and
// the error of cmd is a [SilentError].
func Run(cmd *exec.Cmd) error {
	limit := Silence()
	w := &watch{limit: limit, trees: map[int]*tree{}}
	var look func(group int)
	if limit > 0 {
		look = w.look
	}
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = killTime
	}
	err := child.Watched(cmd, syscall.SIGTERM, limit/looks, look)
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it ended well, and something that it started for others to use, such as ssh's ControlPersist, has its output
	}
	if err != nil && w.ended {
		return &SilentError{Limit: limit, Err: err}
	}
	return err
}

// SilentError says that git was ended, since nothing came of it for too long.
type SilentError struct {
	Limit time.Duration
	Err   error // of the program
}

func (e *SilentError) Error() string {
	return fmt.Sprintf("the server of a repository sent nothing for too long (%s), and git was ended", e.Limit)
}

func (e *SilentError) Unwrap() error { return e.Err }

// networkFailed is what git and the programs that it speaks through say of a connection that another attempt may better.
var networkFailed = lazyregexp.New(`(?i)operation too slow|timed? ?out|connection (was )?(reset|refused|closed)|couldn't connect|failed to connect|` +
	`early eof|unexpected disconnect|the remote end hung up|RPC failed|transfer closed|returned error: (429|5\d\d)|temporary failure in name resolution`)

// NetworkFailed reports whether git failed because of the network, and not of what was asked for: err is what [Run] returned, said what
// git said.
func NetworkFailed(err error, said string) bool {
	var silent *SilentError
	return errors.As(err, &silent) || networkFailed.MatchString(said)
}

// What git and ssh say when they would have to ask.
var (
	wantsLogin = lazyregexp.New(`terminal prompts disabled|could not read (Username|Password)`)
	wantsHost  = lazyregexp.New(`Host key verification failed`)
	wantsKey   = lazyregexp.New(`Permission denied \([a-z,-]*publickey`)
)

// Hint says what to do about something that git or ssh would have to ask, "" for any other failure.
func Hint(said string) string {
	switch {
	case wantsLogin.MatchString(said):
		return "git asks nobody here: give it a credential helper (`git help credentials`), or let ssh speak for you: git+ssh://git@…"
	case wantsHost.MatchString(said):
		return "ssh asks nobody here whether it may trust a server: connect to it once by hand, `ssh -T git@SERVER`"
	case wantsKey.MatchString(said):
		return "ssh asks nobody here for a passphrase: give the key to an agent first, `ssh-add`"
	}
	return ""
}
