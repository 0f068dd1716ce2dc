// Package tooltest asks for what tests need of the machine: programs, mostly, and what a kernel or a mirror has to allow. Where that is
// missing, a test is left out; with [Variable], which make test sets once scripts/setup.sh has run, it fails. No other
// package reads that variable, and a test that is skipped for another reason says one that no installation cures.
package tooltest

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Variable says that all that tests need must be there, when it is not empty.
const Variable = "SCONCE_REQUIRE_TOOLS"

// Required reports whether what tests need must be there.
func Required() bool { return os.Getenv(Variable) != "" }

// Missing leaves a test out for want of something that can be installed, or fails it where that must be there.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if Required() {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// Path returns the path of a program.
func Path(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Missing(t, "%s is not installed: scripts/setup.sh tests", name)
	}
	return path
}

// GitlabCI is the command of a program that runs pipelines of GitLab without GitLab, and compares them with GitLab's schema first; offline is
// the command of unshare that goes before it, or before a script with it: it has no network then, and no need of one. Tests that ask for it
// are in packages like internal/pipeline, two levels below the top.
func GitlabCI(t testing.TB) (offline, command []string) {
	t.Helper()
	script, err := filepath.Abs("../../.tools/gitlab-ci-local/node_modules/gitlab-ci-local/src/index.js")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(script); err != nil {
		Missing(t, "gitlab-ci-local is not installed: scripts/setup.sh tests")
	}
	for _, program := range []string{"git", "rsync"} {
		Path(t, program)
	}
	return []string{Path(t, "unshare"), "--user", "--map-root-user", "--net"}, []string{Path(t, "node"), script}
}

// CommitAll are lines of a shell script that make a directory a repository of git with all that is in it, which [GitlabCI] wants.
const CommitAll = `git init --quiet --initial-branch=main
git remote add origin git@gitlab.example.org:team/images.git
git add .
git -c user.name=a -c user.email=a@example.org commit --quiet --message=images
`

// SmallDisk mounts a disk in memory, with options of tmpfs such as "size=1m". Only root can.
func SmallDisk(t testing.TB, options string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	SmallDiskAt(t, dir, options)
	return dir
}

// SmallDiskAt is SmallDisk at a directory that is there.
func SmallDiskAt(t testing.TB, dir, options string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small disk")
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		Missing(t, "mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// WithoutAttributes is a directory that has room and cannot hold what is unpacked, as homes on network file systems. Only root can mount it.
func WithoutAttributes(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	shown := t.TempDir()
	bindfs := exec.Command(Path(t, "bindfs"), "--xattr-none", t.TempDir(), shown)
	if out, err := bindfs.CombinedOutput(); err != nil { //nolint:forbidigo // only tests start it, and it outlives its first process as it must
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(shown, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return shown
}

// ClosedPort is an address of this machine, HOST:PORT, at which nobody listens.
func ClosedPort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// OutsideAddress is an address of this machine that others reach it by: of IPv4, and not its loopback's.
func OutsideAddress(t testing.TB) netip.Addr {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && ip.IP.IsGlobalUnicast() {
			address, _ := netip.AddrFromSlice(ip.IP.To4())
			return address
		}
	}
	t.Skip("this machine has no address but its loopback's")
	return netip.Addr{}
}

// WriteProgram writes a program or script that is to be started. As long as it is open for writing, no process is forked here: a child
// has a copy of the descriptor until it executes another program, and the kernel starts nothing that somebody may still write to
// ("text file busy").
func WriteProgram(file string, data []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(file, data, 0o755)
}

// Less reports whether this is a short run, in which the test does less than in another, and has the test say so: what the race detector
// has seen of it is not all of it then. A test that a short run leaves out says that by itself, with t.Skip.
func Less(t testing.TB) bool {
	t.Helper()
	if testing.Short() {
		t.Log(lessSaid)
	}
	return testing.Short()
}

// lessSaid is what scripts/testlog.py looks for.
const lessSaid = "less is done in a short run"
