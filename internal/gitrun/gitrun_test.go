package gitrun

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/tooltest"
)

// slowEnv makes the test binary what git takes for ssh: it has the git that is asked for answer, a byte at a time in the beginning.
const slowEnv = "SCONCE_TEST_SLOW_SSH"

func TestMain(m *testing.M) {
	if os.Getenv(slowEnv) != "" {
		if err := answerSlowly(os.Args[len(os.Args)-1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Bytes that come alone, and the time between two.
const (
	slowBytes = 60
	slowPause = 100 * time.Millisecond
)

func answerSlowly(command string) error {
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for range slowBytes {
		time.Sleep(slowPause)
		if _, err := io.CopyN(os.Stdout, out, 1); err != nil {
			return err
		}
	}
	_, err = io.Copy(os.Stdout, out)
	return errors.Join(err, cmd.Wait())
}

// needGit asks for git, and for what else it starts.
func needGit(t *testing.T, programs ...string) {
	t.Helper()
	for _, name := range append(programs, "git") {
		tooltest.Path(t, name)
	}
}

// isolate hides the configuration of git and ssh that this machine has, and returns the empty home that takes its place.
func isolate(t *testing.T, silence string) string {
	t.Helper()
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(home, "config"))
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	t.Setenv("GIT_SSL_NO_VERIFY", "1")
	t.Setenv(lowSpeed, "1")
	t.Setenv(lowTime, silence)
	return home
}

// silentServer takes every connection and says nothing. It returns its address.
func silentServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		var all []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			all = append(all, c)
		}
		for _, c := range all {
			c.Close()
		}
	}()
	return l.Addr().String()
}

// script writes a program into a directory.
func script(t *testing.T, dir, name, text string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := tooltest.WriteProgram(file, []byte("#!/bin/sh\n"+text+"\n")); err != nil {
		t.Fatal(err)
	}
	return file
}

// lsRemote asks a repository what it has.
func lsRemote(t *testing.T, url string) (said string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-remote", url)
	cmd.Env = Environment(os.Environ())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err = Run(cmd)
	return stderr.String(), err
}

// Whatever git speaks to a server that says nothing, it does not wait for ever, and none of its own processes stays.
func TestSilentServers(t *testing.T) {
	needGit(t, "ssh")
	address := silentServer(t)
	for name, c := range map[string]struct{ url, ssh string }{
		"git":       {url: "git://" + address + "/x"},
		"http":      {url: "http://" + address + "/x"},
		"https":     {url: "https://" + address + "/x"},
		"ssh":       {url: "ssh://git@" + address + "/x"},
		"own ssh":   {url: "ssh://git@" + address + "/x", ssh: "exec sleep 1000"},
		"keepalive": {url: "ssh://git@" + address + "/x", ssh: "while :; do sleep 0.05; done"},
		"deaf":      {url: "ssh://git@" + address + "/x", ssh: `trap "" TERM; while :; do sleep 0.05; done`},
	} {
		t.Run(name, func(t *testing.T) {
			home := isolate(t, "1")
			if c.ssh != "" {
				t.Setenv("GIT_SSH_COMMAND", script(t, home, "own-ssh", c.ssh))
			}
			said, err := lsRemote(t, c.url)
			if err == nil || !NetworkFailed(err, said) {
				t.Errorf("error %v, git said %q", err, said)
			}
			wantNobody(t, home)
		})
	}
}

// wantNobody fails unless soon no process has a directory in its environment.
func wantNobody(t *testing.T, dir string) {
	t.Helper()
	var left []string
	for range 3000 {
		left = nil
		files, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte("HOME="+dir+"\x00")) {
				left = append(left, filepath.Dir(file))
			}
		}
		if len(left) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("left: %q", left)
}

// A server that is slow is no silent one, as long as something comes.
func TestSlowServer(t *testing.T) {
	needGit(t)
	isolate(t, "2")
	dir := t.TempDir()
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch=main"},
		{"-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "x"},
	} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	t.Setenv(slowEnv, "1")
	t.Setenv("GIT_SSH_VARIANT", "simple")
	t.Setenv("GIT_SSH", os.Args[0])
	if slowBytes*slowPause < 2*Silence() {
		t.Fatal("it is not slow enough to show anything")
	}
	if said, err := lsRemote(t, "server:"+dir); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}

// What a tree has to do to count as moving.
func TestMoved(t *testing.T) {
	const between = 15 * time.Second
	for name, c := range map[string]struct {
		last, now use
		want      bool
	}{
		"nothing":              {use{bytes: 5, ticks: 7}, use{bytes: 5, ticks: 7}, false},
		"waits for http":       {use{bytes: 5, ticks: 7}, use{bytes: 5, ticks: 10}, false},
		"computes":             {use{bytes: 5, ticks: 7}, use{bytes: 5, ticks: 70}, true},
		"reads":                {use{bytes: 5, ticks: 7}, use{bytes: 6, ticks: 7}, true},
		"one has ended":        {use{bytes: 5, ticks: 7}, use{bytes: 4, ticks: 6}, true},
		"waits for a disk":     {use{bytes: 5, ticks: 7}, use{bytes: 5, ticks: 7, busy: true}, true},
		"computes, in the end": {use{ticks: 7}, use{ticks: 7 + 16}, true},
	} {
		tr := &tree{last: c.last}
		if got := tr.moved(c.now, between); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// What the user has decided counts.
func TestEnvironment(t *testing.T) {
	needGit(t)
	home := isolate(t, "5")
	get := func(environ []string, name string) (value string) {
		for _, kv := range Environment(environ) {
			if v, ok := strings.CutPrefix(kv, name+"="); ok {
				value = v
			}
		}
		return value
	}
	for _, c := range []struct {
		environ    []string
		name, want string
	}{
		{nil, lowTime, "60"},
		{[]string{lowTime + "=7"}, lowTime, "7"},
		{[]string{lowTime + "=7"}, lowSpeed, "1"},
		{[]string{"GIT_SSH_COMMAND=own -o x"}, "GIT_SSH_COMMAND", "own -o x"},
		{nil, "GIT_SSH_COMMAND", ""},
		{nil, "GIT_TERMINAL_PROMPT", "0"},
		{nil, "GIT_CONFIG_COUNT", "1"},
		{[]string{"GIT_CONFIG_COUNT=2"}, "GIT_CONFIG_COUNT", "3"},
		{[]string{"GIT_CONFIG_COUNT=2"}, "GIT_CONFIG_KEY_2", "gc.autoDetach"},
	} {
		if got := get(c.environ, c.name); got != c.want {
			t.Errorf("%q: %s is %q, want %q", c.environ, c.name, got, c.want)
		}
	}
	if limitsOfUser() {
		t.Error("limits are seen where there are none")
	}
	if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte("[http \"https://example.org\"]\n\tlowSpeedTime = 600\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !limitsOfUser() {
		t.Error("the user's own limits are not seen")
	}
	for value, want := range map[string]time.Duration{"7": 7 * time.Second, "0": 0, "x": usualSilence, "": usualSilence} {
		t.Setenv(lowTime, value)
		if got := Silence(); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}

// Nobody is asked: git says what it would need, and how to give it is in the hint.
func TestNobodyIsAsked(t *testing.T) {
	needGit(t)
	isolate(t, "5")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", "Basic")
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(srv.Close)
	said, err := lsRemote(t, srv.URL)
	if err == nil || NetworkFailed(err, said) || !strings.Contains(Hint(said), "credential helper") {
		t.Errorf("error %v, git said %q, hint %q", err, said, Hint(said))
	}
	hints := []string{Hint("Host key verification failed."), Hint("git@x: Permission denied (publickey)."), Hint("fatal: x")}
	if i := slices.Index(hints, ""); i != 2 {
		t.Errorf("hints %q", hints)
	}
}

// What one started for others to use, which keeps what it prints into, does not hold the program up, nor make it fail.
func TestStrangerHoldsOutput(t *testing.T) {
	isolate(t, "60")
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "setsid sleep 1000 & echo $!")
	cmd.WaitDelay = 100 * time.Millisecond
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := Run(cmd); err != nil {
		t.Error(err)
	}
	if out, err := exec.Command("kill", strings.TrimSpace(out.String())).CombinedOutput(); err != nil {
		t.Errorf("it is gone: %v\n%s", err, out)
	}
}

// TestSettingsInFile: git reads from the file what the variables said, above the user's own.
func TestSettingsInFile(t *testing.T) {
	tooltest.Path(t, "git")
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	os.Unsetenv("XDG_CONFIG_HOME")
	os.Unsetenv("GIT_CONFIG_GLOBAL")
	if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte("[user]\n\tname = own\n[http]\n\tproxy = http://own\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	said := []string{
		"http.proxy", "http://other", `url.https://me:S3cret"x\y@h.example.org/.insteadOf`, "https://h.example.org/", "http.https://h.example.org/.extraHeader", "A: \"b\"\\c # d",
	}
	env := append(os.Environ(), "GIT_CONFIG_COUNT=3")
	for i := range 3 {
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, said[2*i]), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i, said[2*i+1]))
	}
	env, err := SettingsInFile(env, filepath.Join(t.TempDir(), "gitconfig"))
	if err != nil {
		t.Fatal(err)
	}
	if all := strings.Join(env, "\n"); strings.Contains(all, "S3cret") || strings.Contains(all, "GIT_CONFIG_COUNT") {
		t.Errorf("the environment has\n%s", all)
	}
	for i := 0; i < len(said)+2; i += 2 {
		key, want := "user.name", "own"
		if i < len(said) {
			key, want = said[i], said[i+1]
		}
		cmd := exec.Command("git", "config", "--get", key)
		cmd.Dir, cmd.Env = home, env
		if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSuffix(string(out), "\n") != want {
			t.Errorf("%s: %q, %v; want %q", key, out, err, want)
		}
	}
}
