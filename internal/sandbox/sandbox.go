// Package sandbox runs a command in an image as an ordinary user, with nothing but an unprivileged user namespace.
//
// The program starts itself again (/proc/self/exe) in new user, mount, pid, ipc and uts namespaces. That second process
// is the sandbox's init: it puts the root file system together, moves into it, starts the command and stays as its
// pid 1. The two talk over two pipes: the spec goes down, what happened comes up. The spec's pipe stays open as a
// lifeline: when the caller dies, whatever the way, init and with it the whole pid namespace dies too.
//
//	sandbox.go   what callers use            init.go     the second process, from its first line to its exit
//	session.go   the caller's side           root.go     the overlay and the move into it
//	layers.go    layers from the store       mounts.go   /proc, /dev, /sys, files of /etc, binds
//	tree.go      files of a squashfs         serve.go    files that the caller serves
//	attach.go    files of other images       limits.go   how much a command may take
//	check.go     can this host do it         inroot.go   paths inside a root that may be hostile
//	upper.go     keeping what was changed    emulate.go  root's calls for one who is not root
//	watch.go     nobody waits for ever       starter.go  who starts the command of an emulated root
//	hold.go      a sandbox for many          join.go     a command in it
//	network.go   a network of its own        netlink.go  its device
//	sockets.go   others' sockets             calls.go    calls that no command can make
//	self.go      the caller instead of root  foreign.go  programs of another architecture
//	trampoline.go  what executes the command
//
// The image is not trusted with the host's files: no path of it is followed out of its root while mounts are made, no process that it
// sees has a file of the host as its program that it can open, and its command cannot gain privileges, but for what setuid programs give in a step of the host's root, which is less than that
// root has. It is still the caller's own process, with the host's network unless it gets another: a sandbox for builds, not
// for malware.
package sandbox

import (
	"context"
	"io"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/rootemu"
	"sconce.dev/sconce/internal/users"
)

// MaxLayers is the number of layers that overlayfs can stack: OVL_MAX_STACK of the kernel.
const MaxLayers = 500

// grace is how long a command may take to end after SIGTERM before it is killed.
const grace = 5 * time.Second

// Bind makes a file or directory of the host visible in the sandbox, together with what is mounted below it.
type Bind struct {
	Source   string // absolute path on the host; must exist
	Target   string // absolute path in the image; made when missing
	ReadOnly bool
}

// Options says what to run, and in what.
type Options struct {
	// Layers are unpacked ones, lowest first; see [Layers]. Where one is [ServedLayer], the next tree of Served has its place, which this
	// process serves; see [ErrNoFUSE].
	Layers []string
	Served []fuse.Node
	Tree   fuse.Node // instead of Layers: the files of the image, served by this process; see [Squashfs] and [ErrNoFUSE]

	// Arch is the architecture of the image's programs, by Go's name; "" is this machine's. Those of another one run where the machine
	// has an emulator for them, or there is one on PATH that the sandbox may use; see [CheckArchitecture].
	Arch string

	Args    []string // the command; Args[0] is looked up in the image, along the PATH of Env
	Env     []string // the whole environment, as KEY=VALUE
	WorkDir string   // absolute, made when missing; "" is /

	// UID, GID and Groups are who the command starts as; 0, 0 and nil is root. For anybody else this process must be root
	// itself, or root be emulated (Owners).
	UID, GID int
	Groups   []int // supplementary ones

	// Self has the command start as who this process is, instead of as root, without capabilities, and with this entry in the
	// image's lists of users and groups. It is for UID 0, and not for emulated root. The supplementary groups are this process's either
	// way; they have no numbers in the sandbox.
	Self *users.Account

	Stdin          io.Reader // nil reads as empty; a pipe, a socket and a terminal are handed over as they are, and the rest is copied
	Stdout, Stderr io.Writer // nil discards

	Binds    []Bind   // in this order
	Tmpfs    []string // directories of the image to cover with an empty file system in memory
	Mounts   []Mount  // after these, in this order
	Hostname string   // "" keeps the host's

	// ScratchDir is an existing directory that takes what the command writes. It is gone when the command has ended.
	// "", or a directory on a file system that cannot hold an overlay's upper layer, keeps the writes in memory.
	ScratchDir string
	ReadOnly   bool // the root cannot be written to

	// UpperDir, instead of ScratchDir, is an existing directory that keeps what the command changes: when it has ended by
	// itself, with whatever exit code, the subdirectory [Upper] is the overlay's upper directory, from which
	// layer.FromUpper makes a layer. Mount points that the sandbox made are not in it. When there is one already, the
	// command goes on from it. Directories in it have the modes that the command gave them, none at all perhaps:
	// store.RemoveAll removes them. The error is an [ErrNoUpper] when the file system cannot hold it.
	UpperDir string

	// Owners makes the calls succeed by which root gives files to users and becomes somebody else, and takes what was asked
	// for and could not be done; see package rootemu. It is complete when the sandbox is gone. For a process that is root
	// itself the kernel does all of it, and Owners stays empty.
	Owners *rootemu.Owners

	// NoMounts says that the command is a build's, see ofBuild. No command can change what is mounted.
	NoMounts bool

	// MaxProcesses, unless 0, bounds how many processes and threads the command and all that it starts can have at once. For
	// the host's root it takes Linux 6.14, where it bounds their numbers (pids) too.
	MaxProcesses int

	// Usage, unless nil, is told what the command took, when the sandbox is gone.
	Usage *Usage

	NoNetwork bool // only a loopback device, instead of the host's network

	// OwnNetwork gives the command a network of its own from which the world outside can be reached, through this process, and what
	// the host offers to itself cannot; see package usernet. [CheckNetwork] says whether it can be had.
	OwnNetwork bool

	// Shared lets commands share with the host what those share that work together on a machine: its processes, System V IPC, POSIX
	// message queues and /dev/shm. Only [Hold] makes such sandboxes.
	Shared bool

	// ForwardSignals passes the signals that this process gets on to the command while [Run] runs.
	ForwardSignals bool
}

// Run runs a command to its end and returns its exit code, 128+n when signal n ended it.
//
// The error is set only when there was no such end: the sandbox could not be made, the command could not be started
// (an [*Error], whose ExitCode is 127 for a command that is not there and 126 for one that cannot be executed), or ctx
// ended first, after which the command got SIGTERM and five seconds later SIGKILL. Nothing is left behind: no process,
// no mount, no file in ScratchDir.
func Run(ctx context.Context, o Options) (int, error) {
	s, err := prepare(o, 1)
	if err != nil {
		return codeOf(err), err
	}
	signals := make(chan os.Signal, 16)
	if o.ForwardSignals {
		signal.Notify(signals, forwarded...)
		defer signal.Stop(signals)
	}
	if err := noDirectory(o.Stdin, o.Stdout, o.Stderr); err != nil {
		s.abandon()
		return codeOf(err), err
	}
	s.stdin, s.stdout, s.stderr = o.Stdin, o.Stdout, o.Stderr
	if err := s.start(ctx); err != nil {
		return codeOf(err), err
	}
	for {
		select {
		case sig := <-signals:
			s.forward(sig)
		case <-s.done:
			return s.result(0)
		}
	}
}

// Process is a command that talks to the caller over pipes.
type Process struct {
	Stdin  io.WriteCloser
	Stdout io.ReadCloser

	session *session
	index   int
}

// Start starts a command whose standard input and output are pipes to the caller; Options.Stdin and Options.Stdout are
// not used. The command ends with ctx, and with this process.
func Start(ctx context.Context, o Options) (*Process, error) {
	p, err := StartGroup(ctx, o, 1)
	if err != nil {
		return nil, err
	}
	return p[0], nil
}

// StartGroup starts n processes of one command in one sandbox, each with its own pipes. Killing one kills all.
func StartGroup(ctx context.Context, o Options, n int) ([]*Process, error) {
	s, err := prepare(o, n)
	if err != nil {
		return nil, err
	}
	s.stderr = o.Stderr
	group := make([]*Process, n)
	for i := range group {
		if group[i], err = s.pipes(i); err != nil {
			s.abandon()
			return nil, err
		}
	}
	if err := s.start(ctx); err != nil {
		for _, p := range group {
			p.Stdin.Close()
			p.Stdout.Close()
		}
		return nil, err
	}
	return group, nil
}

// Wait waits for the process to end and returns its exit code as [Run] does. After the last process of a group the
// sandbox is gone. Read Stdout to its end first; it stays open and is the caller's to close.
func (p *Process) Wait() (int, error) {
	p.session.waitFor(p.index)
	return p.session.result(p.index)
}

// Kill ends the process, and every other one of its sandbox, at once.
func (p *Process) Kill() { p.session.kill() }

// forwarded are the signals that a command may want to know about. Those that a terminal sends to stop and continue a
// job reach the command without us, because it stays in this process's group.
var forwarded = []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2}

// keySignals are those of them that keys of a terminal send, to every process of its foreground group.
var keySignals = []os.Signal{unix.SIGINT, unix.SIGQUIT}
