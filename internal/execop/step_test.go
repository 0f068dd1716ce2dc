package execop

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
)

func TestStep(t *testing.T) {
	b := newBench(t)
	d, out := b.run(sh("echo hello; echo problem >&2; mkdir -p /opt/x; echo data >/opt/x/file; rm /home/build -r; echo t >/tmp/kept"))
	if out != "hello\nproblem\n" {
		t.Errorf("output %q", out)
	}
	b.wantEntries(d, "home 755 0:0", "home/.wh.build", "opt 755 0:0", "opt/x 755 0:0", "opt/x/file 644 0:0", "tmp 1777 0:0", "tmp/kept 644 0:0")
	b.wantNothingLeft()
	// The next one is based on it, without unpacking it.
	b.on = append(b.on, d)
	d, out = b.run(sh("cat /opt/x/file; ls /home"))
	if out != "data\n" {
		t.Errorf("output %q", out)
	}
	for _, e := range b.events.all {
		if e.Verb == "unpack" {
			t.Errorf("%s was unpacked", e.Name)
		}
	}
	if empty, err := Empty(t.Context(), b.Store, d); err != nil || !empty {
		t.Errorf("a step that changed nothing: %v, %v, %q", empty, err, b.entries(d))
	}
}

// The same command gives the same layer, whoever runs it, when, and wherever.
func TestStepIsDeterministic(t *testing.T) {
	c := sh(`env >/env; hostname >/hostname; echo $SOURCE_DATE_EPOCH >/epoch; id >/id; mkdir /d; echo 1 >/d/1; ln /d/1 /d/2; chmod 4755 /d/1; umask >/umask; ulimit -c >/dev/null`)
	c.Mounts = []Mount{{Kind: Cache, Target: "/c/ache"}, {Kind: Tmpfs, Target: "/mem/ory"}}
	c.Files = []File{{Target: "/pipes/EOF", Content: []byte("x")}}
	var first layer.Descriptor
	for range 2 {
		b := newBench(t)
		d, _ := b.run(c)
		if first.Digest == "" {
			first = d
		}
		if d != first {
			t.Errorf("layers %v and %v", first, d)
		}
		if env := b.content("/env", d); !strings.Contains(env, "SOURCE_DATE_EPOCH=315619200\n") || !strings.Contains(env, "HOME=/root\n") || !strings.Contains(env, "PATH=/usr/local/sbin:") {
			t.Errorf("environment:\n%s", env)
		}
	}
	const want = "sha256:3ea4ca93278d587506c7024d32e3363972c7de2ec022ad32c5ce8e1622265e07"
	if string(first.DiffID) != want {
		t.Errorf("layer %s, want %s, whoever runs the step", first.DiffID, want)
	}
}

func TestEnvironment(t *testing.T) {
	b := newBench(t)
	b.Pass = []string{"http_proxy=http://proxy", "GIVEN=no"}
	c := sh("echo $http_proxy $GIVEN $HOME $PATH $SOURCE_DATE_EPOCH; pwd")
	c.Env, c.WorkDir = []string{"GIVEN=yes", "HOME=/here", "PATH=/bin", "SOURCE_DATE_EPOCH=5"}, "/new/dir"
	d, out := b.run(c)
	if out != "http://proxy yes /here /bin 5\n/new/dir\n" {
		t.Errorf("output %q", out)
	}
	b.wantEntries(d)
}

func TestWrongCommands(t *testing.T) {
	b := newBench(t)
	for want, c := range map[string]Command{
		"no command to run":                   {},
		"not an absolute path":                {Args: []string{"true"}, WorkDir: "x"},
		"is no environment variable":          {Args: []string{"true"}, Env: []string{"x"}},
		"contains a NUL":                      {Args: []string{"true", "\x00"}},
		"needs an absolute path":              {Args: []string{"true"}, Files: []File{{Target: "x"}}},
		`"strange" is no kind of mount`:       {Args: []string{"true"}, Mounts: []Mount{{Kind: "strange", Target: "/x"}}},
		"needs a target":                      {Args: []string{"true"}, Mounts: []Mount{{Kind: Cache}}},
		`no way to share a cache`:             {Args: []string{"true"}, Mounts: []Mount{{Kind: Cache, Target: "/x", Sharing: "odd"}}},
		"must be an absolute path, and not /": {Args: []string{"true"}, Mounts: []Mount{{Kind: Tmpfs, Target: "/"}}},
		`the image has no user "nobody"`:      {Args: []string{"true"}, User: "nobody"},
		`the image has no group "none"`:       {Args: []string{"true"}, User: "build:none"},
		`command "nothing" is not in`:         {Args: []string{"nothing"}},
		`the secret "key", which was not`:     {Args: []string{"true"}, Mounts: []Mount{{Kind: Secret, ID: "key", Required: true}}},
		`the SSH agent "default", which was`:  {Args: []string{"true"}, Mounts: []Mount{{Kind: SSH, Required: true}}},
		"there is no":                         {Args: []string{"true"}, Mounts: []Mount{{Kind: Bind, Target: "/x", Dir: t.TempDir(), Source: "no"}}},
	} {
		if _, err := b.try(c); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "test: ") {
			t.Errorf("error %v, want %s", err, want)
		}
		b.wantNothingLeft()
	}
}

func TestUser(t *testing.T) {
	b := newBench(t)
	for _, test := range []struct{ user, want string }{
		{"", "0 0 0 10 /root\n"},
		{"build", "1000 100 100 10 44 /home/build\n"},
		{"1000", "1000 100 100 10 44 /home/build\n"},
		{"build:wheel", "1000 10 10 /home/build\n"},
		{"build:7", "1000 7 7 /home/build\n"},
		{"5:6", "5 6 6 /\n"},
		{"5", "5 0 0 /\n"},
		{"root", "0 0 0 10 /root\n"},
	} {
		c := sh("echo $(id -u) $(id -g) $(id -G) $HOME")
		c.User = test.user
		if _, out := b.run(c); out != test.want {
			t.Errorf("USER %s: %q, want %q", test.user, out, test.want)
		}
	}
	c := sh("echo x >/tmp/file; ! touch /root/file 2>/dev/null; id -un")
	c.User = "build"
	d, _ := b.run(c)
	want := []string{"tmp 1777 0:0", "tmp/file 644 1000:100"}
	if got := b.entries(d); asRoot() && strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("layer %q, want %q", got, want)
	}
}

// An exit code by which a command answers is an error to who asked, and no failure to who watches.
func TestAnswer(t *testing.T) {
	b := newBench(t)
	for code, want := range map[string]progress.Kind{"64": progress.Done, "65": progress.Failed} {
		c := sh("exit " + code)
		c.Answer = 64
		_, err := b.try(c)
		var f *Failure
		if !errors.As(err, &f) || strconv.Itoa(f.Code) != code {
			t.Errorf("%s: %v", code, err)
		}
		if last := b.events.all[len(b.events.all)-1]; last.Kind != want {
			t.Errorf("%s: the last event is %+v, want %s", code, last, want)
		}
	}
}

func TestFailure(t *testing.T) {
	b := newBench(t)
	f := b.fail(sh("for i in $(seq 1 100); do echo line $i; done; printf 'no end'; exit 7"))
	if f.Code != 7 || f.Title != "test" || f.Error() != "test: the command ended with exit code 7" || fault.CodeOf(f) != 1 {
		t.Errorf("%+v: %v", f, f)
	}
	if len(f.Tail) != 20 || f.Tail[0] != "line 82" || f.Tail[19] != "no end" {
		t.Errorf("tail %q", f.Tail)
	}
	if log, err := os.ReadFile(f.Log); err != nil || !strings.HasPrefix(string(log), "line 1\nline 2\n") || !strings.HasSuffix(string(log), "line 100\nno end\n") {
		t.Errorf("log %q, %v", log, err)
	}
	if !strings.Contains(fault.HintOf(f), f.Log) || filepath.Dir(f.Log) != filepath.Join(b.Store.Dir(), "logs-v1") {
		t.Errorf("hint %q", fault.HintOf(f))
	}
	b.wantNothingLeft()
	if f := b.fail(sh("kill -TERM $$")); f.Error() != "test: the command was ended by the signal SIGTERM (exit code 143)" {
		t.Error(f)
	}
	if f := b.fail(sh("echo 'E: Unable to locate package git'; exit 100")); !strings.Contains(f.Hint(), "apt-get update") {
		t.Errorf("without lists: %s", f.Hint())
	}
	if f := b.fail(sh("echo 'Hit:1 http://m bookworm InRelease'; echo 'E: Unable to locate package gti'; exit 100")); strings.Contains(f.Hint(), "apt-get update") {
		t.Errorf("with lists: %s", f.Hint())
	}
	// Old logs go with everything else that is old.
	if _, err := b.Store.Prune(t.Context(), store.PruneOptions{All: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(f.Log); err == nil {
		t.Error("the log outlived a prune of everything")
	}
}

func TestShellOnFailure(t *testing.T) {
	b := newBench(t)
	b.Secrets = map[string]func() ([]byte, error){"s": func() ([]byte, error) { return []byte("hidden"), nil }}
	var out strings.Builder
	b.OnFailure = func(ctx context.Context, f *Failure, o sandbox.Options) {
		if f.Code != 3 || o.Args[0] != "/bin/sh" {
			t.Errorf("failure %v, command %q", f, o.Args)
		}
		o.Args = []string{"/bin/sh", "-c", "cat /made; cat /run/secrets/s; ls /cache; ls /gone; pwd; echo $A"}
		o.Stdout = &out
		if code, err := sandbox.Run(ctx, o); code != 0 && err != nil {
			t.Error(code, err)
		}
	}
	c := sh("echo made >/made; touch /cache/kept; mkdir /closed; chmod 0 /closed; exit 3")
	c.Env, c.WorkDir = []string{"A=b"}, "/home"
	c.Mounts = []Mount{{Kind: Secret, ID: "s"}, {Kind: Cache, Target: "/cache", Sharing: Locked}}
	b.fail(c)
	if out.String() != "made\nhiddenkept\n/home\nb\n" {
		t.Errorf("the shell saw %q", out.String())
	}
	b.wantNothingLeft()
}
