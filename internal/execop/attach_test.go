package execop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

func with(c Command, mounts ...Mount) Command {
	c.Mounts = append(c.Mounts, mounts...)
	return c
}

func TestFiles(t *testing.T) {
	b := newBench(t)
	c := sh("sh /pipes/EOF; ! touch /pipes/EOF 2>/dev/null; /pipes/run; wc -c </pipes/none")
	c.Files = []File{
		{Target: "/pipes/EOF", Content: []byte("echo from here\n")},
		{Target: "/pipes/run", Content: []byte("#!/bin/sh\necho executed\n"), Mode: 0o755},
		{Target: "/pipes/none"},
	}
	d, out := b.run(c)
	if out != "from here\nexecuted\n0\n" {
		t.Errorf("output %q", out)
	}
	b.wantEntries(d)
}

func TestCache(t *testing.T) {
	b := newBench(t)
	cache := Mount{Kind: Cache, ID: "pip", Target: "/root/.cache/pip"}
	d, _ := b.run(with(sh("echo one >/root/.cache/pip/file; stat -c %a:%u:%g /root/.cache/pip"), cache))
	b.wantEntries(d)
	cache.Target = "/elsewhere"
	if _, out := b.run(with(sh("cat /elsewhere/file"), cache)); out != "one\n" {
		t.Errorf("output %q", out)
	}
	cache.ReadOnly = true
	if _, out := b.run(with(sh("! touch /elsewhere/x 2>/dev/null; echo $?"), cache)); out != "0\n" {
		t.Errorf("a read-only cache: %q", out)
	}
	// Another name is another cache, and no name is the target.
	if _, out := b.run(with(sh("ls /elsewhere"), Mount{Kind: Cache, Target: "/elsewhere", Mode: 0o1777})); out != "" {
		t.Errorf("output %q", out)
	}
	if _, out := b.run(with(sh("stat -c %a /elsewhere/."), Mount{Kind: Cache, Target: "/elsewhere/"})); out != "1777\n" {
		t.Errorf("output %q", out)
	}
	if _, out := b.run(with(sh("stat -c %a:%u:%g /c; cd /c; touch x"), Mount{Kind: Cache, Target: "/c", UID: 1000, GID: 100, Mode: 0o700})); asRoot() && out != "700:1000:100\n" {
		t.Errorf("output %q", out)
	}
	if _, err := b.Store.Prune(t.Context(), store.PruneOptions{OlderThan: time.Hour}); err != nil {
		t.Fatal(err)
	}
	cache.ReadOnly = false
	b.run(with(sh("cat /elsewhere/file"), cache))
	if _, err := b.Store.Prune(t.Context(), store.PruneOptions{All: true}); err != nil {
		t.Fatal(err)
	}
	b.on = []layer.Descriptor{b.layerOf(busyboxRoot(t))}
	if _, out := b.run(with(sh("ls /elsewhere"), cache)); out != "" {
		t.Errorf("after a prune of everything: %q", out)
	}
}

// A cache begins with files of an image.
func TestCacheBegins(t *testing.T) {
	b := newBench(t)
	base, _ := b.run(sh("mkdir -p /seed/d; echo x >/seed/d/x; ln /seed/d/x /seed/y; ln -s /etc/passwd /seed/l; chmod 4755 /seed/y; mkdir -m 0 /seed/closed; mkfifo /seed/p"))
	cache := Mount{Kind: Cache, Target: "/c", Layers: []layer.Descriptor{base}, Source: "seed", From: "x"}
	_, out := b.run(with(sh("cat /c/d/x; readlink /c/l; stat -c '%a %h' /c/y; test ! -e /c/p; echo more >>/c/y; rmdir /c/closed"), cache))
	mode := "4755"
	if !asRoot() {
		mode = "755"
	}
	if out != "x\n/etc/passwd\n"+mode+" 2\n" {
		t.Errorf("output %q", out)
	}
	if _, out := b.run(with(sh("cat /c/d/x"), cache)); out != "x\nmore\n" {
		t.Errorf("output %q", out)
	}
	if text := b.content("/seed/d/x", base); text != "x\n" {
		t.Errorf("the image has %q", text)
	}
}

// Steps at once, in two stores open on one directory as two processes have it.
func TestCacheSharing(t *testing.T) {
	b := newBench(t)
	other, err := store.Open(t.Context(), b.Store.Dir())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	runners := []*Runner{b.Runner, {Store: other, Layer: b.Layer}}
	b.run(sh("true")) // unpacks
	atOnce := func(sharing Sharing, script string) []string {
		outs := make([]string, 4)
		var all sync.WaitGroup
		for i := range outs {
			all.Go(func() {
				var events recorder
				c := with(sh(script), Mount{Kind: Cache, ID: string(sharing), Target: "/c", Sharing: sharing})
				if _, err := runners[i%2].Run(progress.With(t.Context(), &events), "test", b.on, c); err != nil {
					t.Errorf("%s: %v: %s", sharing, err, events.text())
				}
				outs[i] = events.text()
			})
		}
		all.Wait()
		return outs
	}
	// All four see each other.
	atOnce(Shared, `touch /c/$$-$(cat /proc/sys/kernel/random/uuid); n=0; while [ $(ls /c | wc -l) -lt 4 ]; do n=$((n+1)); test $n -lt 12000; sleep 0.05; done`)
	// Nobody sees anybody.
	atOnce(Private, `mkdir /c/busy; sleep 0.4; rmdir /c/busy`)
	atOnce(Locked, `mkdir /c/busy; sleep 0.1; rmdir /c/busy; echo x >>/c/count`)
	if _, out := b.run(with(sh("wc -l </c/count"), Mount{Kind: Cache, ID: "locked", Target: "/c"})); out != "4\n" {
		t.Errorf("%q steps had the cache", out)
	}
	// Two caches in two orders.
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			c := with(sh("true"), Mount{Kind: Cache, ID: fmt.Sprint(i % 2), Target: "/1", Sharing: Locked}, Mount{Kind: Cache, ID: fmt.Sprint((i + 1) % 2), Target: "/2", Sharing: Locked})
			if _, err := runners[i%2].Run(t.Context(), "test", b.on, c); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	// Who waits can be told to stop.
	c, err := b.Store.CacheDir(t.Context(), Mount{ID: "locked"}.cacheName(), store.CacheLocked, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = b.Run(ctx, "test", b.on, with(sh("true"), Mount{Kind: Cache, ID: "locked", Target: "/c", Sharing: Locked}))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	b.wantNothingLeft()
}

func TestBind(t *testing.T) {
	b := newBench(t)
	lower, _ := b.run(sh("mkdir -p /src/deep; echo 1 >/src/a; echo 1 >/src/deep/b; ln -s /src/deep /link"))
	upper, _ := b.run(sh("mkdir /src; echo 2 >/src/a")) // without the base's, as files of a context are
	other := []layer.Descriptor{lower, upper}
	_, out := b.run(with(sh("cat /x/y/a /x/y/deep/b /one /linked/b; ! touch /x/y/new 2>/dev/null"),
		Mount{Kind: Bind, Target: "/x/y", Layers: other, Source: "src", ReadOnly: true},
		Mount{Kind: Bind, Target: "/one", Layers: other, Source: "/src/../src/a", ReadOnly: true},
		Mount{Kind: Bind, Target: "/linked", Layers: other, Source: "link"},
	).in("/x/y"))
	if !strings.HasPrefix(out, "2\n1\n2\n") {
		t.Errorf("output %q", out)
	}
	// What is written over them is forgotten.
	c := with(sh("echo changed >/x/a; rm -r /x/deep; mkdir /x/deep; cat /x/a; touch /x/deep/new /out"), Mount{Kind: Bind, Target: "/x", Layers: other, Source: "src"})
	for range 2 {
		d, out := b.run(c)
		if out != "changed\n" {
			t.Errorf("output %q", out)
		}
		b.wantEntries(d, "out 644 0:0")
	}
	// A directory of the host.
	dir := t.TempDir()
	write(t, filepath.Join(dir, "sub/file"), "host\n")
	b.run(with(sh("cat /h/sub/file; ! touch /h/x 2>/dev/null"), Mount{Kind: Bind, Target: "/h", Dir: dir, ReadOnly: true}))
	b.run(with(sh("echo written >/h/file"), Mount{Kind: Bind, Target: "/h", Dir: dir, Source: "sub"}))
	if text, _ := os.ReadFile(filepath.Join(dir, "sub/file")); string(text) != "written\n" {
		t.Errorf("the host has %q", text)
	}
	b.wantNothingLeft()
}

func (c Command) in(dir string) Command {
	c.WorkDir = dir
	return c
}

func TestTmpfs(t *testing.T) {
	b := newBench(t)
	d, _ := b.run(with(sh("stat -c %a /m/here; echo x >/m/here/x; ! dd if=/dev/zero of=/m/here/big bs=1M count=3 2>/dev/null"),
		Mount{Kind: Tmpfs, Target: "/m/here", Size: 2 << 20}))
	b.wantEntries(d)
	f := b.fail(with(sh("dd if=/dev/zero of=/m/big bs=1M count=3"), Mount{Kind: Tmpfs, Target: "/m", Size: 2 << 20}))
	if !f.DiskFull || !strings.Contains(f.Error(), "no space was left on a disk") || !strings.Contains(f.Hint(), "SCONCE_STORE") ||
		!strings.Contains(f.Hint(), "/m of 2.1 MB: raise its size, or the file system of") {
		t.Errorf("%v; %s", f, f.Hint())
	}
}

func TestSecret(t *testing.T) {
	const secret, second = "hunter2-and-more", "line-of-a-private-key"
	b := newBench(t)
	b.Layer.Compression = layer.None
	b.Secrets = map[string]func() ([]byte, error){
		"pass": func() ([]byte, error) { return []byte(secret + "\n"), nil },
		"key":  func() ([]byte, error) { return []byte("BEGIN\n" + second + "\nEND\n"), nil },
		"bad":  func() ([]byte, error) { return nil, errors.New("no such file") },
	}
	mounts := []Mount{
		{Kind: Secret, ID: "pass"},
		{Kind: Secret, ID: "key", Target: "/etc/new/key", Mode: 0o440},
		{Kind: Secret, ID: "pass", Env: "PASS"},
		{Kind: Secret, ID: "absent", Target: "/absent"},
	}
	d, out := b.run(with(sh(`cat /run/secrets/pass /etc/new/key; stat -c %a /run/secrets/pass /etc/new/key; echo "in env: $PASS"; env | grep PASS
		printf hunter2-; sleep 0.1; printf 'and-more\n'; test ! -e /absent; ! echo x >/run/secrets/pass; echo >/made`), mounts...))
	if out != "***\n***\n400\n440\nin env: ***\n\nPASS=***\n***\n/bin/sh: can't create /run/secrets/pass: Read-only file system\n" {
		t.Errorf("output %q", out)
	}
	b.wantEntries(d, "made 644 0:0")
	f := b.fail(with(sh("cat /run/secrets/pass; cat /etc/new/key; echo \"$PASS\"; sleep 0.1; exit 1"), mounts...))
	texts := map[string]string{"output": out, "tail": strings.Join(f.Tail, "\n"), "error": f.Error() + f.Hint(), "events": fmt.Sprint(b.events.all)}
	for _, s := range []string{secret, second} {
		wantNowhere(t, s, texts)
		wantNowhere(t, s, b.everything())
	}
	placeholder := with(sh(`echo "$PASS"; [ "$PASS" != none ]; env | grep -c ^PASS=`), mounts[2])
	placeholder.Env = []string{"PASS=none"}
	if _, out := b.run(placeholder); out != "***\n\n1\n" {
		t.Errorf("with a variable of that name: %q", out)
	}
	_, err := b.try(with(sh("true"), Mount{Kind: Secret, ID: "pss", Required: true}))
	if hint := fault.HintOf(err); !strings.Contains(hint, `you gave "pass", did you mean this one?`) || !strings.Contains(hint, "--secret id=pss,src=FILE") {
		t.Errorf("%v; %s", err, hint)
	}
	if _, err := b.try(with(sh("true"), Mount{Kind: Secret, ID: "bad"})); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("error %v", err)
	}
}

func TestSSHAgent(t *testing.T) {
	b := newBench(t)
	sock := filepath.Join(t.TempDir(), "s")
	if len(sock) > 100 {
		sock = filepath.Join(os.TempDir(), fmt.Sprint("sconce-agent-", os.Getpid()))
		t.Cleanup(func() { os.Remove(sock) })
	}
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 100)
			n, _ := c.Read(buf)
			fmt.Fprintf(c, "agent heard %s", buf[:n])
			c.Close()
		}
	}()
	b.SSH = map[string]string{"default": sock}
	tooltest.Path(t, "perl")
	programs := []Mount{}
	for _, dir := range []string{"/usr", "/lib", "/lib64"} {
		if _, err := os.Stat(dir); err == nil {
			programs = append(programs, Mount{Kind: Bind, Target: dir, Dir: dir, ReadOnly: true})
		}
	}
	script := `test -S $SSH_AUTH_SOCK; stat -c %a $SSH_AUTH_SOCK
		/usr/bin/perl -MIO::Socket::UNIX -e '$s = IO::Socket::UNIX->new(Peer => $ENV{SSH_AUTH_SOCK}) or die $!; $s->print("question\n"); $s->flush; print <$s>'`
	d, out := b.run(with(sh(script), append(programs, Mount{Kind: SSH, Required: true})...))
	if out != "600\nagent heard question\n" {
		t.Errorf("output %q", out)
	}
	b.wantEntries(d)
	c := with(sh(script), append(programs, Mount{Kind: SSH, Target: "/tmp/agent", UID: 1000, GID: 100, Mode: 0o660})...)
	c.User = "build"
	if _, out := b.run(c); out != "660\nagent heard question\n" {
		t.Errorf("output %q", out)
	}
	b.run(with(sh("test -z \"$SSH_AUTH_SOCK\""), Mount{Kind: SSH, ID: "other"}))
	b.wantNothingLeft()
}
