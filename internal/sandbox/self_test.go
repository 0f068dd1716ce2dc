package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/users"
)

// whoScript says who its process is, to whom files belong, and what it may do.
const whoScript = `cd; pwd; id -u; id -g; head -n 1 /etc/passwd; busybox tail -n 1 /etc/passwd; head -n 1 /etc/group
	touch /bin/new /home/me/new; stat -c %u:%g /bin/sh /bin/new /home/me/new /data`

// rightsScript says what it may do; a root that is one keeps some rights.
const rightsScript = `; grep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/self/status | busybox cut -f 2 | busybox sort -u; mount -t tmpfs none /home 2> /dev/null && echo mounted`

// asSelf completes options for a command that runs as who runs the test, and returns what [whoScript] says.
func asSelf(o *Options) (says string) {
	me := &users.Account{UID: os.Geteuid(), GID: os.Getegid(), Name: "me", Group: "us", Home: "/home/me"}
	o.Self, o.Env = me, []string{"PATH=/bin", "HOME=/home/me"}
	ids := fmt.Sprintf("%d:%d", me.UID, me.GID)
	says = fmt.Sprintf("/home/me\n%d\n%d\nme:x:%s::/home/me:/bin/sh\nsomebody:x:%s::/:/bin/sh\nus:x:%d:\n", me.UID, me.GID, ids, ids, me.GID) + strings.Repeat(ids+"\n", 4)
	if me.UID != 0 {
		says += "0000000000000000\n"
	}
	return says
}

// selfScript is the script for who runs the test.
func selfScript() string {
	if os.Geteuid() == 0 {
		return whoScript
	}
	return whoScript + rightsScript
}

// addSomebody gives an image a user of the same number, in a file that a link names, which leads elsewhere where the host follows it.
func addSomebody(t *testing.T, data string) {
	t.Helper()
	passwd := filepath.Join(filepath.Dir(data), "etc", "passwd")
	write(t, filepath.Join(data, "passwd"), fmt.Sprintf("somebody:x:%d:%d::/:/bin/sh\n", os.Geteuid(), os.Getegid()))
	if err := errors.Join(os.RemoveAll(passwd), os.Symlink("/data/passwd", passwd)); err != nil {
		t.Fatal(err)
	}
}

// A command that runs as the caller has the caller's ids, no rights, a name, a home, and the image's files; whether these are unpacked or
// served makes no difference, and who joins is the same.
func TestSelf(t *testing.T) {
	t.Run("unpacked", func(t *testing.T) {
		o := shell(t, selfScript())
		addSomebody(t, filepath.Join(o.Layers[0], "data"))
		wantSelf(t, o)
	})
	t.Run("served", func(t *testing.T) {
		wantSelf(t, served(t, selfScript(), func(dir string) { addSomebody(t, dir) }))
	})
	t.Run("joined", func(t *testing.T) {
		out := t.TempDir()
		o := served(t, "", func(dir string) { addSomebody(t, dir) })
		o.ScratchDir, o.Binds = "", []Bind{{Source: out, Target: "/out"}}
		want := asSelf(&o)
		h, err := Hold(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		script := "{ " + selfScript() + "; } > /out/said"
		if _, err := Join(t.Context(), JoinOptions{Spaces: h.Spaces(), UserNS: h.UserNS(), Args: []string{"sh", "-c", script}, Env: o.Env}); err != nil {
			t.Fatal(err)
		}
		if said, err := os.ReadFile(filepath.Join(out, "said")); err != nil || string(said) != want {
			t.Errorf("%v\ngot\n%swant\n%s", err, said, want)
		}
	})
}

func wantSelf(t *testing.T, o Options) {
	t.Helper()
	want := asSelf(&o)
	if _, got := run(t, o); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
