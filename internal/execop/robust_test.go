package execop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/child/childtest"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// A step tries to leave its sandbox, each way a line; what it gets is written next to it.
func TestEscapes(t *testing.T) {
	b := newBench(t)
	outside := filepath.Join(t.TempDir(), "outside")
	write(t, outside, "of the host\n")
	self := fmt.Sprint(os.Getpid())
	for _, script := range []string{
		"cat " + outside,
		"cat ../../../../../../../.." + outside,
		"cat /proc/1/root" + outside,
		"cat /proc/self/root" + outside,
		"mkdir /jail; exec 3</; chroot /jail /bin/sh -c 'cd /proc/self/fd/3'; cat /proc/self/fd/3/../.." + outside,
		"mkdir -p /jail/bin; cp /bin/busybox /jail/bin; chroot /jail /bin/busybox cat ../../../../.." + outside,
		"cat /proc/" + self + "/root" + outside,
		"kill -0 " + self,
		"cat /proc/1/environ | grep .",
		"cat /proc/1/exe | grep .",
		"cat /proc/1/fd/* | grep .",
		"cat /proc/1/mem",
		"mount -o remount,rw /sys && echo 1 >/sys/kernel/uevent_helper",
		"echo /bin/x >/proc/sys/kernel/core_pattern",
		"echo b >/proc/sysrq-trigger",
		"umount /etc/resolv.conf && umount -l / && cat " + outside,
		"mknod /disk b 254 0 && head -c 1 /disk | grep .",
		"echo x >/ro/file", "rm /ro/file", "mount -o remount,rw,bind /ro && echo x >/ro/file",
		"mount --bind /ro /tmp && echo x >/tmp/file", "unshare -Urm sh -c 'mount -o remount,rw,bind /ro && echo x >/ro/file'",
		"ln -s " + filepath.Dir(outside) + " /away; cat /away/outside",
		"insmod /x.ko", "swapon /bin/busybox", "reboot -f", "nsenter -t 1 -m cat " + outside,
		"hostname changed && test $(unshare -u hostname) = never",
	} {
		ro := t.TempDir()
		write(t, filepath.Join(ro, "file"), "as it was")
		_, err := b.try(with(sh(script), Mount{Kind: Bind, Target: "/ro", Dir: ro, ReadOnly: true}))
		var f *Failure
		if !errors.As(err, &f) || strings.Contains(b.events.text(), "of the host") {
			t.Errorf("%s: %v\n%s", script, err, b.events.text())
		}
		if data, _ := os.ReadFile(filepath.Join(ro, "file")); string(data) != "as it was" {
			t.Errorf("%s: a read-only file is now %q", script, data)
		}
	}
	b.wantNothingLeft()
}

// Targets of mounts that are symlinks of a hostile image.
func TestHostileTargets(t *testing.T) {
	b := newBench(t)
	outside := t.TempDir()
	d, _ := b.run(sh("ln -s ../../../../../../.." + outside + " /up; ln -s " + outside + " /abs; ln -s /proc/1/root" + outside + " /proc-way; ln -s loop /loop"))
	b.on = append(b.on, d)
	for _, target := range []string{"/up/x", "/abs/x", "/proc-way/x", "/loop/x", "/up", "/../../x", "/abs/../../x"} {
		if _, err := b.try(with(sh("true"), Mount{Kind: Tmpfs, Target: target}, Mount{Kind: Cache, Target: target + "-cache"})); err != nil {
			t.Logf("%s: %v", target, err) // refused, or within the image
		}
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("made outside: %v", left)
	}
	b.wantNothingLeft()
}

// What a step leaves running, and one that starts itself without end, is gone with it.
func TestLeftProcesses(t *testing.T) {
	b := newBench(t)
	marker := longTime()
	b.run(sh("trap '' TERM HUP; (sleep " + marker + " &) ; setsid sleep " + marker + " & nohup sleep " + marker + " >/dev/null 2>&1 & echo started"))
	if n := processesWith(marker); n > 0 {
		t.Errorf("%d processes are left", n)
	}
	b.wantNothingLeft()
}

// The limit is a small one here, since other tests need processes too.
func TestForkBomb(t *testing.T) {
	b := newBench(t)
	if asRoot() && host.ReleaseBefore(host.KernelRelease(), "6.14") {
		t.Skip("before Linux 6.14 there is no limit for root")
	}
	b.MaxProcesses = 600
	f := b.fail(sh(`bomb() { bomb | bomb & bomb; }; ulimit -s 256; bomb 2>&1 | head -n 3; exit 9`))
	if !strings.Contains(b.events.text(), "fork") {
		t.Errorf("%v: %s", f, b.events.text())
	}
	b.run(sh("true"))
	b.wantNothingLeft()
}

// An interrupted step leaves nothing, whatever it does with signals.
func TestInterrupt(t *testing.T) {
	b := newBench(t)
	marker := longTime()
	scripts := []string{"sleep " + marker}
	if !tooltest.Less(t) {
		scripts = append(scripts, "trap '' TERM INT HUP; mkdir -p /a/b; touch /a/b/c; chmod 0 /a/b /a; while :; do sleep "+marker+"; done")
	}
	for _, script := range scripts {
		ctx, cancel := context.WithCancel(progress.With(t.Context(), b.events))
		b.events.reset()
		go func() {
			for !strings.Contains(b.events.text(), "ready") {
				time.Sleep(10 * time.Millisecond)
			}
			cancel()
		}()
		_, err := b.Run(ctx, "test", b.on, with(sh("echo ready; "+script), Mount{Kind: Cache, Target: "/c", Sharing: Locked}, Mount{Kind: Bind, Layers: b.on, Target: "/b"}))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		if n := processesWith(marker); n > 0 {
			t.Errorf("%d processes are left", n)
		}
		b.wantNothingLeft()
	}
	// At any time.
	for wait := time.Duration(0); wait < 150*time.Millisecond; wait += 7 * time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		_, _ = b.Run(ctx, "test", b.on, with(sh("mkdir -m 0 /x; echo y >/y"), Mount{Kind: Cache, Target: "/c", Sharing: Locked}, Mount{Kind: Bind, Layers: b.on, Target: "/b"}))
		cancel()
		b.wantNothingLeft()
	}
	b.run(with(sh("true"), Mount{Kind: Cache, Target: "/c", Sharing: Locked}))
}

// Whoever is killed can do nothing; the next prune does it.
func TestKilled(t *testing.T) {
	b := newBench(t)
	marker := longTime()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	root := busyboxRoot(t)
	cmd.Env = append(os.Environ(), helperEnv+"=step", "SCONCE_TEST_STORE="+b.Store.Dir(), "SCONCE_TEST_ROOT="+root,
		"SCONCE_TEST_SCRIPT=trap '' TERM HUP INT; mkdir -p /a/b; touch /a/b/c; chmod 0 /a/b /a; echo ready; while :; do sleep "+marker+"; done")
	var out lockedBuilder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	childtest.Eventually(t, "start", func() bool { return strings.Contains(out.String(), "ready") })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	childtest.Eventually(t, "end", func() bool { return processesWith(marker) == 0 })
	if _, err := b.Store.Prune(t.Context(), store.PruneOptions{}); err != nil {
		t.Fatal(err)
	}
	b.wantNothingLeft()
}

func TestOutOfMemory(t *testing.T) {
	b := newBench(t)
	for _, text := range []string{
		"g++: fatal error: Killed signal terminated program cc1plus", "MemoryError", "terminate called after throwing an instance of 'std::bad_alloc'",
		"sh: can't fork: Cannot allocate memory", "nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "rustc: memory allocation of 1073741824 bytes failed",
	} {
		f := b.fail(sh("dd if=/dev/zero of=/dev/null bs=90M count=1 2>/dev/null; echo \"" + text + "\"; echo other; exit 2"))
		if !f.OutOfMemory || f.Peak < 90<<20 || !strings.Contains(f.Error(), "not enough memory: the largest process had ") || !strings.Contains(f.Hint(), "MAX_JOBS") {
			t.Errorf("%s: %v, %+v", text, f, f)
		}
	}
	for _, script := range []string{"kill -9 $$", "echo no memory of that; exit 1", "echo all done", "echo Killed; exit 1"} {
		if f := b.fail(sh(script + "; exit 1")); f.OutOfMemory {
			t.Errorf("%s: %v", script, f)
		}
	}
}

// A step killed by its control group for want of memory.
func TestKilledForMemory(t *testing.T) {
	const group = "/sys/fs/cgroup/memory"
	if !asRoot() || testing.Short() {
		t.Skip("needs root, who can limit memory")
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	var dir string
	for line := range strings.Lines(string(own)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && f[1] == "memory" {
			dir = filepath.Join(group, f[2], fmt.Sprint("sconce-test-", os.Getpid()))
		}
	}
	if dir == "" || os.Mkdir(dir, 0o755) != nil {
		t.Skip("needs a control group of memory (version 1) to make others in")
	}
	defer os.Remove(dir)
	must(os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), []byte("150M"), 0))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t)
	cmd := exec.Command("/bin/sh", "-c", "echo $$ >"+dir+"/cgroup.procs; exec "+self)
	cmd.Env = append(os.Environ(), helperEnv+"=step", "SCONCE_TEST_STORE="+b.Store.Dir(), "SCONCE_TEST_ROOT="+busyboxRoot(t),
		"SCONCE_TEST_SCRIPT=dd if=/dev/zero of=/dev/null bs=400M count=1; exit 1")
	out, _ := cmd.CombinedOutput()
	if !strings.Contains(string(out), "there was not enough memory: the largest process had 1") || !strings.Contains(string(out), "157.3 MB are the limit here") {
		t.Errorf("%s", out)
	}
}

// A file system that holds no more files is named for that, not for its bytes, and what the step wrote is gone for the next one: homes on
// clusters have a quota of files.
func TestFilesFull(t *testing.T) {
	if !asRoot() {
		t.Skip("needs root, who can mount")
	}
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			if kind == "ext4" {
				file := filepath.Join(t.TempDir(), "disk")
				if out, err := exec.Command(tooltest.Path(t, "mkfs.ext4"), "-q", "-N", "3000", file, "64M").CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				if out, err := exec.Command("mount", "-o", "loop", file, dir).CombinedOutput(); err != nil {
					t.Skipf("needs a kernel that mounts files: %s", out)
				}
			} else if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=200m,nr_inodes=3000"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { must(unix.Unmount(dir, 0)) })
			b := newBenchIn(t, dir)
			script := "i=0; while [ $i -lt %d ]; do echo x >/tmp/$i || exit 1; i=$((i+1)); done; rm -r /tmp/*; echo x >/made"
			f := b.fail(sh(fmt.Sprintf(script, 4000)))
			if !f.DiskFull || !strings.Contains(f.Hint(), "has no inodes left") {
				t.Errorf("%v; %s", f, f.Hint())
			}
			for range 2 { // more than there were if the first had left its own
				d, _ := b.run(sh(fmt.Sprintf(script, 1500)))
				b.wantEntries(d, "made 644 0:0")
			}
		})
	}
}

func TestDiskFull(t *testing.T) {
	b := newBench(t)
	f := b.fail(sh("echo 'cp: error writing: No space left on device'; exit 1"))
	if !f.DiskFull || !strings.Contains(f.Hint(), "left; `sconce cache prune`") {
		t.Errorf("%v; %s", f, f.Hint())
	}
}
