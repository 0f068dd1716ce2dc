package test

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"sconce.dev/sconce/internal/registry/registrytest"
)

// listener calls then once, when a program has printed words.
type listener struct {
	words string
	then  func()
	once  sync.Once
	text  bytes.Buffer
}

func (l *listener) Write(p []byte) (int, error) {
	n, err := l.text.Write(p)
	if strings.Contains(l.text.String(), l.words) {
		l.once.Do(l.then)
	}
	return n, err
}

// throughOutage runs a command during which a server's port is closed, from so many bytes on, until the command says that it waits for it.
func throughOutage(t *testing.T, p *place, door *registrytest.Door, bytes int64, args ...string) (stdout string) {
	t.Helper()
	before := door.Shuts()
	if bytes == 0 {
		door.Shut()
	} else {
		door.ShutAfter(bytes)
	}
	said := &listener{words: "connection refused; trying again in", then: door.Open}
	cmd := p.command(append(args, "--progress", "plain")...)
	cmd.Stderr = said
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%q: %v\n%s", args, err, said.text.String())
	}
	if text := said.text.String(); door.Shuts() == before || !strings.Contains(text, said.words) {
		t.Errorf("%q: the port was closed %d times, and of a wait was said:\n%s", args, door.Shuts()-before, text)
	}
	door.Open()
	return string(out)
}

// A server whose port is closed for a while, in the middle of its answers or of what it is sent, is waited for, and that is said.
func TestClosedPort(t *testing.T) {
	begin(t)
	ix := newIndex(t)
	index := registrytest.NewDoor(t, strings.TrimPrefix(ix.url, "http://"))
	ix.url = "http://" + index.Host
	registry := registrytest.NewDoor(t, registrytest.Start(t, false))

	p := newPlace(t, nil)
	app := lockedRecipe(t, ix, recipe("tar:"+smallRoot(t), []string{"numpy"}, "bytecode = false"))
	p.take(app, "app")
	digest := strings.TrimSpace(throughOutage(t, p, index, 1<<20, "build", "--locked", "app"))
	throughOutage(t, p, registry, 1<<20, "push", "app:1", registry.Host+"/team/app:1")
	for _, bytes := range []int64{0, 1, 1 << 20} { // before it was ever asked, before its first answer, and in a layer
		other := newPlace(t, nil)
		throughOutage(t, other, registry, bytes, "pull", registry.Host+"/team/app:1")
		if got := other.must("images", "--json").stdout; digest == "" || !strings.Contains(got, digest) {
			t.Errorf("pulled is not %q:\n%s", digest, got)
		}
	}
}

// So is a package index that uv is to read, from the beginning or after its first answer, and what is locked then is the same.
func TestIndexAwayFromLock(t *testing.T) {
	begin(t)
	ix := newIndex(t)
	index := registrytest.NewDoor(t, strings.TrimPrefix(ix.url, "http://"))
	ix.url = "http://" + index.Host
	text := recipe("tar:"+smallRoot(t), []string{"numpy", "rich"}, "bytecode = false")
	calm := newPlace(t, nil)
	calm.take(lockedRecipe(t, ix, text), "app")
	want := calm.read("app/pylock.toml")

	for _, bytes := range []int64{0, 1} {
		p := newPlace(t, nil)
		ix.use(p)
		p.env = append(p.env, "SCONCE_PATIENCE=10m")
		p.write("app/sconce.toml", text)
		throughOutage(t, p, index, bytes, "lock", "app")
		if got := p.read("app/pylock.toml"); got != want {
			t.Errorf("shut after %d bytes, the lock is\n%s\nwant\n%s", bytes, got, want)
		}
	}
}
