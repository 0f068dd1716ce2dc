// Package rootemu lets an ordinary user's sandbox behave as if root ran in it: chown(2), mknod(2) and the calls that change
// user and group ids succeed, and what was asked for is recorded.
//
// A user namespace without subordinate ids knows one user and one group. Package managers give files to users of their own,
// set aside rights for the time of a download and make device nodes; the kernel refuses all of it. Here a seccomp(2) filter
// hands those calls, and only those, to a supervisor (SECCOMP_RET_USER_NOTIF), which answers in the kernel's place:
//
//	rootemu.go      this page, and Supervise       supervisor.go  from a notification to its answer
//	filter.go       the filter                     target.go      memory, paths and files of the calling process
//	calls.go        which calls, by number         files.go       chown and mknod
//	create.go       files of those who are not root
//	stat.go         what stat(2) tells             access.go      what those who are not root may do
//	owners.go       what was asked for             identity.go    setuid and its kin
//	watch.go        calls that wait too long       status.go      /proc/PID/status
//
// # Two processes
//
// One process puts itself under the filter and starts the command ([Filter]), another one answers ([Supervise]). They cannot
// be one. A process that forks holds locks of the Go runtime until its child executes a program, the child's calls on the way
// (setgroups, setuid) wait for an answer, and who answers may at any time need those locks, to collect garbage.
//
// # Files
//
// A chown is done as far as the kernel lets us, with the one user there is: that checks for read-only mounts, clears the
// setuid bits where Linux clears them and copies the file up into the overlay's upper layer. The owner that was asked for
// is recorded in [Owners] under the inode of the file in the upper layer, together with the generation that a file handle
// gives, so that renames and hard links keep it and an inode number that is used again does not inherit it. Symbolic
// links, sockets and FIFOs are recorded like files. A device node becomes an empty regular file and a record.
//
// Who makes a layer of the upper directory asks [Owners.Of] for each file in it, and then the record for the owner. Without
// a record a file that is new belongs to user and group 0, and one that was copied up keeps the owner that it has in the
// layers below:
//
//	record, ok := owners.Of(upper, rel, &st)
//	if ok {
//		owner = record.Owner(owner)
//		// without a record, or a group in it: what is made in a directory with the setgid bit has the directory's group
//		// record.Device: the layer gets a device node instead of the regular file, with the file's permissions
//	}
//
// Setuid and setgid bits need no record, root of a user namespace can set them. The same holds for file capabilities, but
// the kernel stores them bound to the user namespace (VFS_CAP_REVISION_3 with a rootid): a layer takes them as revision 2,
// without it.
//
// stat(2) and its kin show what is recorded, and what the image says of files that it brings. Programs rely on it: initdb,
// git and sshd check whose files they are given; cp -a, tar and useradd copy owners. A filter cannot know which file a path
// names, so that every one of these calls is answered here. It takes 10 to 20 µs instead of one: two or three seconds on the
// half minute in which apt installs 160 packages, with 150,000 of them. The owner of a symlink of the image is not known,
// and shown as root.
//
// # Identities
//
// After setuid(2) and its kin a process sees the ids that it asked for, under the kernel's rules: who has given up user 0
// does not get it back. Children inherit them. That is what apt, su, runuser and initdb look at. Rights stay what they
// were, those of the one user there is. The files that such a process makes are recorded as its own. A program with the
// setuid bit becomes its owner, so that sudo works; its other side, that the kernel then ignores parts of the environment,
// does not happen.
//
// What the owners and modes of files forbid to those who are not root is refused where a file is opened to be written, or
// made, and where access(2) asks. It is not where a file is only read, renamed, removed or given another mode, and the
// directories on the way to a file are not looked at: a step may succeed here that fails on a machine where root is root,
// but a program that asks where it may write gets the same answer.
//
// None of this is a boundary: a call that the filter does not know goes to the kernel, which refuses it as ever. That is so
// for calls of other architectures than the machine's own and, on amd64, i386.
package rootemu

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Options says how to answer.
type Options struct {
	// Upper is a file descriptor of the directory that is the upper layer of the overlay that is this process's root. It stays
	// open.
	Upper int

	// Owners has what is recorded as soon as the call returns that asked for it.
	Owners *Owners

	// Mounts has, by the id of a mount (statx(2)), where owners of the files on it are recorded: other file systems than the
	// root, and directories of the host. Files that have no record are as the kernel says.
	Mounts map[uint64]*Owners

	// Original tells what a regular file or directory is in the image if the file system could not keep it. st holds its mode
	// and the time of the last change to its content as the file system has them. The bool is false for a file that is as the
	// file system says.
	Original func(name string, st *unix.Stat_t) (Attributes, bool)

	// Waiting is told of a call that is not answered, every Period as long as it is not. Answers take microseconds, but for
	// files on a server that does not answer either.
	Waiting func(Waiting)
	Period  time.Duration
}

// Supervise answers the calls that come over a listener, which another process got from [Filter], until nobody is left to make
// any. It has the same root and pid namespace as that process, and returns as soon as it is ready.
//
// When this process dies, calls that wait for an answer fail with ENOSYS; it should be the first process of a pid namespace, so
// that nobody is left to see it. It must not wait for a process that is under the filter, nor fork one.
func Supervise(listener int, o Options) error {
	s := &supervisor{
		listener: listener, upper: o.Upper, owners: o.Owners, mounts: o.Mounts, original: o.Original,
		recorded: map[uint64]struct{}{}, identities: newIdentities(),
	}
	if err := s.open(); err != nil {
		return err
	}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: this thread changes its root, umask and signals
		err := errors.Join(s.ownFS(), blockSignals())
		ready <- err
		if err == nil {
			s.serve()
		}
	}()
	if err := <-ready; err != nil {
		return err
	}
	go s.watch(time.Tick(o.Period), o.Waiting)
	return nil
}

// blockSignals keeps signals from this thread, but for those that its own faults raise. The runtime sends some to schedule
// goroutines, and what they interrupt here would be another process's call: it would be told EINTR, or worse.
func blockSignals() error {
	blocked := ^uint64(0)
	for _, s := range []unix.Signal{unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP, unix.SIGSYS, unix.SIGABRT} {
		blocked &^= 1 << (s - 1)
	}
	set := unix.Sigset_t{Val: [16]uint64{blocked}}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &set, nil); err != nil {
		return fmt.Errorf("block signals: %w", err)
	}
	return nil
}

// ownFS gives this thread a root, a working directory and a umask of its own.
func (s *supervisor) ownFS() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("separate the supervisor's working directory: %w", err)
	}
	unix.Umask(0)
	if err := unix.Fchdir(s.files); err != nil {
		return fmt.Errorf("change to /proc/self/fd: %w", err)
	}
	return nil
}

// open opens what is needed of this process's own root.
func (s *supervisor) open() (err error) {
	if s.sizes, err = notificationSizes(); err != nil {
		return fmt.Errorf("seccomp notifications, which root emulation needs: %w", err)
	}
	if s.proc, err = unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open /proc: %w", err)
	}
	if s.files, err = unix.Open("/proc/self/fd", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open /proc/self/fd: %w", err)
	}
	if s.root, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open /: %w", err)
	}
	var st unix.Statx_t
	if err := unix.Statx(s.root, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_MNT_ID, &st); err != nil {
		return fmt.Errorf("statx /: %w", err)
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return errors.New("the kernel does not tell mounts apart: root emulation needs Linux 5.8 or later")
	}
	s.mount, s.rootIno = st.Mnt_id, st.Ino
	self, err := readLinkAt(s.proc, "self")
	if err != nil {
		return fmt.Errorf("read /proc/self: %w", err)
	}
	s.self, s.foreign = self, self != strconv.Itoa(unix.Getpid())
	return nil
}
