package sandbox

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/child/childtest"
	"sconce.dev/sconce/internal/store"
)

// Mounts of every kind, at places that the image has not got, leave nothing in what the command changed.
func TestMounts(t *testing.T) {
	im := stepBase(t)
	files := t.TempDir()
	write(t, filepath.Join(files, "dir/file"), "host\n")
	if err := os.Symlink("/dir", filepath.Join(files, "absolute")); err != nil {
		t.Fatal(err)
	}
	o := im.options(t, "sh", "-c", `
		cat /a/b/secret; stat -c %a /a/b/secret
		cat /host/file /other/d/file; echo
		echo changed >/other/d/file; cat /other/d/file; rm -r /other/d/sub
		cat /single; echo
		touch /host/x 2>/dev/null || echo read-only
		touch /single 2>/dev/null || echo read-only
		touch /a/b/secret 2>/dev/null || echo read-only
		stat -c %a /memory; df -P /memory | grep -c ' 1024 '
		grep -c upperdir /proc/self/mounts`)
	o.Mounts = []Mount{
		{Target: "/a/b/secret", Content: []byte("hidden\n"), Mode: 0o440},
		{Target: "/host", Dir: files, Source: "absolute", ReadOnly: true},
		{Target: "/other", Layers: o.Layers},
		{Target: "/single", Layers: o.Layers, Source: "d/way/../file", ReadOnly: true},
		{Target: "/memory", Mode: 0o1777, Size: 1 << 20},
	}
	want := "hidden\n440\nhost\nd/file\nchanged\nd/file\nread-only\nread-only\nread-only\n1777\n1\n2\n"
	var out, errs bytes.Buffer
	o.Stdout, o.Stderr = &out, &errs
	if code, err := Run(t.Context(), o); err != nil || code != 0 || out.String() != want {
		t.Fatalf("exit code %d, error %v, output %q, want %q\n%s", code, err, out.String(), want, errs.String())
	}
	if names := names(t, o.UpperDir); len(names) != 1 {
		t.Errorf("left behind: %v", names)
	}
	if lines := im.entries(t, im.layer(t, o, time.Time{})); len(lines) != 0 {
		t.Errorf("the layer has %q", lines)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Links of a mounted directory lead nowhere but into that directory, on the way to what is mounted and to where.
func TestMountsDoNotEscape(t *testing.T) {
	outside := t.TempDir()
	write(t, filepath.Join(outside, "file"), "outside\n")
	dir := t.TempDir()
	for name, target := range map[string]string{"up": "../../../../../../.." + outside, "abs": outside, "proc": "/proc/self/root" + outside} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, source := range []string{"up/file", "abs/file", "proc/file", "../" + filepath.Base(outside) + "/file", "up"} {
		o := shell(t, "cat /x/file")
		o.Mounts = []Mount{{Target: "/x", Dir: dir, Source: source, ReadOnly: true}}
		_, err := Run(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), "there is no "+filepath.Join(dir, source)) {
			t.Errorf("%s: error %v", source, err)
		}
	}
	// A link in the image, to where the host has something.
	im := stepBase(t)
	o := im.options(t, "cat", "/away/point")
	if err := os.Symlink(outside, filepath.Join(o.Layers[1], "away")); err != nil {
		t.Fatal(err)
	}
	o.Mounts = []Mount{{Target: "/away/point", Content: []byte("x\n")}}
	wantOutput(t, o, "x\n")
	if n := names(t, outside); len(n) != 1 {
		t.Errorf("the host's directory has %v", n)
	}
}

// A command that starts itself for ever ends, and meets an end.
func TestProcessLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("starts some hundred processes")
	}
	o := shell(t, `i=0; while [ $i -lt 2000 ]; do sleep 1000 & i=$((i+1)); done; echo all`)
	o.MaxProcesses = 600
	var out, errs bytes.Buffer
	o.Stdout, o.Stderr = &out, &errs
	before := hostPIDMax(t)
	code, err := Run(t.Context(), o)
	if ownsFiles() && !pidMaxIsOurs() {
		t.Skip("this kernel cannot bound root's processes")
	}
	if err != nil || code == 0 || out.String() != "" || !strings.Contains(errs.String(), "fork") {
		t.Errorf("exit code %d, error %v, output %q, %q", code, err, out.String(), errs.String())
	}
	if after := hostPIDMax(t); after != before {
		t.Errorf("the host's kernel.pid_max was %s and is %s", before, after)
	}
	o = shell(t, `ulimit -u 100000 2>/dev/null; grep -c 'processes *600 *600 ' /proc/self/limits`) // it cannot be lifted
	o.MaxProcesses = 600
	if !ownsFiles() {
		wantOutput(t, o, "1\n")
	}
}

func hostPIDMax(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestUsage(t *testing.T) {
	o := shell(t, "dd if=/dev/zero of=/dev/null bs=100M count=1 2>/dev/null")
	o.Usage = &Usage{}
	if code, err := Run(t.Context(), o); err != nil || code != 0 {
		t.Fatal(code, err)
	}
	if o.Usage.MaxRSS < 100<<20 || o.Usage.MaxRSS > 1<<30 {
		t.Errorf("largest process: %d bytes", o.Usage.MaxRSS)
	}
}

// What is mounted is gone with a command that does not end when it is told to, and leaves processes of its own.
func TestInterruptedMounts(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the end of the time that a command has to end by itself")
	}
	im := stepBase(t)
	o := im.options(t, "sh", "-c", "trap '' TERM INT HUP; mkdir /other/closed; touch /other/closed/x; chmod 0 /other/closed; sleep 98765 & echo ready; while :; do sleep 1; done")
	o.Mounts = []Mount{{Target: "/other", Layers: o.Layers}, {Target: "/s", Content: []byte("x")}}
	cmd := helperCommand(t, "run", o)
	out := startHelper(t, cmd)
	_ = cmd.Process.Signal(unix.SIGKILL)
	_, _ = out.ReadString(0)
	_ = cmd.Wait()
	childtest.Eventually(t, "end of all processes", func() bool { return len(processesWith(t, "98765")) == 0 })
	if err := store.RemoveAll(o.UpperDir); err != nil {
		t.Error(err)
	}
}
