// Package slurmtest starts a real Slurm cluster of two nodes for a test, on this machine.
//
// The cluster is a container: a root file system with Debian's Slurm in it, in name spaces of its own for mounts, processes, network,
// IPC and host names. Its nodes n1 and n2 have eight cores and four GPUs each that do not exist (/dev/tty0 to /dev/tty3 stand for
// them), a /tmp and a /dev/shm of their own, and /shared in common. It is started by root, or by an ordinary user with one user id in a
// user name space, is up in less than a second, and ends with its first process: nothing of it can outlive the test.
//
// Debian 13's Slurm needs neither cgroups nor systemd for this (CgroupPlugin=disabled). So what depends on cgroups is not tested here:
// limits of memory, and devices that a task must not open.
package slurmtest

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sconce.dev/sconce/internal/searchpath"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

//go:embed slurm.conf
var slurmConf string

//go:embed machine.sh
var machineSh string

//go:embed daemons.sh
var daemonsSh string

// The users of a cluster. One that was started by an ordinary user has Alice alone, who is that user.
const (
	Root  = "root"
	Alice = "alice" // 1000, with the home /home/alice
)

// Options says how a cluster is started.
type Options struct {
	// UID and GID are the ordinary user who starts it, 0 for who runs the test.
	UID, GID uint32

	// Plugins are lines of plugstack.conf: "required /shared/plugin.so".
	Plugins []string

	// StandIn loads a plug-in that stands in for pyxis, the Container Engine, Sarus Suite and uenv: it accepts their options and records
	// them, see [Cluster.Recorded].
	StandIn bool

	// Pyxis loads NVIDIA's pyxis and has the nodes start containers by its enroot, and Programs are further ones of this machine that the
	// nodes have. The test is left out where they are not on PATH.
	Pyxis    bool
	Programs []string
}

// Cluster is a running cluster.
type Cluster struct {
	// SharedDir is the directory, on this machine, that is /shared on both nodes. Everybody may write to it. Programs in its
	// directory bin are on the PATH of commands.
	SharedDir string

	t        testing.TB
	as       *syscall.Credential // who starts it, nil for who runs the test
	ordinary bool                // started in a user name space
	pid      int                 // of its first process
	ended    chan struct{}       // closed when it has ended
	output   bytes.Buffer        // of the machine, to be read when it has ended
}

// Start starts a cluster, which ends with the test. In a short run of tests there is none: making its root takes most of a minute, the
// first time.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("a Slurm cluster is nothing for a short run")
	}
	for _, program := range []string{"unshare", "nsenter", "setpriv"} {
		tooltest.Path(t, program)
	}
	prefixes, plugins := o.installed(t)
	o.Plugins = append(slices.Clone(o.Plugins), plugins...)
	root := RootDir(t)
	c := &Cluster{t: t, ordinary: os.Getuid() != 0 || o.UID != 0, ended: make(chan struct{})}
	if o.UID != 0 {
		c.as = &syscall.Credential{Uid: o.UID, Gid: o.GID}
	}
	dir, err := os.MkdirTemp("", "sconce-slurm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeAll(t, dir) })
	config := filepath.Join(dir, "config")
	c.SharedDir = filepath.Join(dir, "shared")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(c.SharedDir, 0o777), os.Chmod(c.SharedDir, 0o777)); err != nil {
		t.Fatal(err)
	}
	if o.StandIn {
		o.Plugins = append(o.Plugins, c.addStandIn(root))
	}
	if err := errors.Join(c.configure(config, o.Plugins), c.link(prefixes)); err != nil {
		t.Fatal(err)
	}
	c.start(root, config, prefixes)
	c.WaitUntilIdle()
	return c
}

func (c *Cluster) configure(dir string, plugins []string) error {
	user := Root
	if c.ordinary {
		user = Alice
	}
	if err := os.MkdirAll(filepath.Join(dir, "enroot.conf.d"), 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"slurm.conf":     strings.ReplaceAll(slurmConf, "@USER@", user),
		"cgroup.conf":    "CgroupPlugin=disabled\n",
		"gres.conf":      "NodeName=n[1-2] Name=gpu Type=h100 File=/dev/tty[0-3]\n",
		"plugstack.conf": strings.Join(append(plugins, ""), "\n"),
		"user":           user,
		"machine.sh":     machineSh,
		"daemons.sh":     daemonsSh,

		"enroot.conf.d/nodes.conf": enrootConf,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// start starts the first process of the cluster. It is a child of unshare(1), which the kernel ends with this process, and which takes
// its child along.
func (c *Cluster) start(root, config string, prefixes []string) {
	c.t.Helper()
	args := []string{"--mount", "--pid", "--uts", "--ipc", "--net", "--fork", "--kill-child"}
	if c.ordinary {
		args = append(args, "--user", "--map-root-user")
	}
	args = append(args, "/bin/sh", filepath.Join(config, "machine.sh"), root, config, c.SharedDir)
	cmd := exec.Command("unshare", append(args, prefixes...)...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + path}
	cmd.Stdout, cmd.Stderr = &c.output, &c.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: c.as}
	cmd.WaitDelay = 10 * time.Second
	started := make(chan error)
	go func() {
		defer close(c.ended)
		runtime.LockOSThread() // the kernel goes by the thread that forked
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed in the end
		}
	}()
	if err := <-started; err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if c.t.Failed() {
			c.t.Logf("what Slurm's daemons wrote:\n%s", c.logs())
		}
		if c.pid == 0 || syscall.Kill(c.pid, syscall.SIGKILL) != nil {
			_ = cmd.Process.Kill()
		}
		<-c.ended // unshare waits for the first process, and that one's end is that of all others
	})
	c.until("start", func() bool {
		c.pid = childOf(cmd.Process.Pid)
		return c.pid != 0
	})
}

// childOf returns the process that another one has started, 0 for none.
func childOf(pid int) int {
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(list), " ")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return n
}

// patience is how long the cluster may take for what takes less than a second, on a machine with too much to do.
const patience = 10 * time.Minute

// until waits for the cluster to do what is asked about.
func (c *Cluster) until(do string, done func() bool) {
	c.t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		select {
		case <-c.ended:
			c.t.Fatalf("the Slurm cluster ended before it could %s:\n%s", do, &c.output)
		default:
		}
		if time.Now().After(end) {
			c.t.Fatalf("the Slurm cluster does not %s; its daemons wrote:\n%s", do, c.logs())
		}
	}
}

// WaitUntilIdle waits until both nodes are up and have nothing to do.
func (c *Cluster) WaitUntilIdle() {
	c.t.Helper()
	c.until("have two idle nodes", func() bool {
		out, err := c.Command(c.Admin(), "sinfo", "-h", "-t", "idle", "-o", "%D").Output()
		return err == nil && strings.TrimSpace(string(out)) == "2"
	})
}

// Admin is the user who may do everything in Slurm.
func (c *Cluster) Admin() string {
	if c.ordinary {
		return Alice
	}
	return Root
}

const path = searchpath.Default

// Command prepares a command on the login node, which has the machine's own name, ctl. It starts in /shared with an environment of its
// own. When it is killed, what it started goes on.
func (c *Cluster) Command(user string, args ...string) *exec.Cmd {
	return c.command(c.t.Context(), user, args...)
}

func (c *Cluster) command(ctx context.Context, user string, args ...string) *exec.Cmd {
	line := []string{"--target", strconv.Itoa(c.pid), "--mount", "--pid", "--uts", "--ipc", "--net", "--root", "--wd"}
	if c.ordinary {
		line = append(line, "--user", "--preserve-credentials")
	}
	line = append(line, "--")
	home := "/root"
	switch {
	case user == Alice && c.ordinary:
		line = append(line, "unshare", "--user", "--map-user=1000", "--map-group=1000")
	case user == Alice:
		line = append(line, "setpriv", "--reuid=1000", "--regid=1000", "--clear-groups")
	case c.ordinary:
		c.t.Fatalf("there is no user %s in a cluster of an ordinary user", user)
	}
	if user == Alice {
		home = "/home/alice"
	}
	line = append(line, "env", "-i", "--chdir=/shared", "HOME="+home, "USER="+user, "LANG=C.UTF-8", "SLURM_CONF=/etc/slurm/slurm.conf", "PATH=/shared/bin:"+path,
		"SCONCE_ALLOW_PATHS=/shared:/tmp") // where recipes of tests stand beside their bases
	cmd := exec.CommandContext(ctx, "nsenter", append(line, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.as}
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// Run runs a script of bash as a user on the login node, to its end, and returns what it printed. A script that fails fails the test.
func (c *Cluster) Run(user, script string) string {
	c.t.Helper()
	out, err := c.Try(user, script)
	if err != nil {
		c.t.Fatalf("%s\nas %s: %v\n%s", script, user, err, out)
	}
	return out
}

// Try is Run for a script that may fail. What it printed on stderr follows what it printed on stdout.
func (c *Cluster) Try(user, script string) (string, error) {
	cmd := c.Command(user, "bash", "-c", script)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	return out.String() + errs.String(), err
}

func (c *Cluster) logs() string {
	out, err := c.command(context.Background(), c.Admin(), "sh", "-c", "tail -n 40 /var/slurm/*.log /run/slurm/*.log").CombinedOutput()
	return fmt.Sprintf("%s%v", out, err)
}

// removeAll removes what users of the cluster may have made unreadable.
func removeAll(t testing.TB, dir string) {
	if err := store.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}
