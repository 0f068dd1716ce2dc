package execop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/hostconfig"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/rootemu"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/searchpath"
	"sconce.dev/sconce/internal/store"
)

// hostname is that of every step's sandbox: the host's would get into files.
const hostname = "sconce"

// running is one command on its way to a layer.
type running struct {
	*Runner
	ctx   context.Context
	title string
	on    []layer.Descriptor
	c     Command

	work    string // for the sandbox; removed at the end
	dirs    []string
	tree    *image.Tree
	owners  rootemu.Owners
	used    sandbox.Usage
	mask    masker
	env     []string // what mounts add
	hostEnv []string // what this machine's configuration adds
	mounts  []sandbox.Mount
	after   time.Time // the time of what the command writes, if it keeps no later one
	ends    []func()  // what mounts need when all is over, the last first
}

func (r *Runner) run(ctx context.Context, title string, on []layer.Descriptor, c Command) (d layer.Descriptor, err error) {
	task := progress.Begin(ctx, "step", title, 0)
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = explain(title, r.Store.Dir(), err)
		}
		if c.answers(err) {
			_ = task.End(nil)
			return
		}
		_ = task.End(err)
	}()
	if err := c.check(); err != nil {
		return d, err
	}
	s := &running{Runner: r, ctx: ctx, title: title, on: on, c: c}
	defer s.end()
	if s.work, err = r.Store.TempDir("step-*"); err != nil {
		return d, err
	}
	if err := s.openImage(); err != nil {
		return d, err
	}
	s.after = s.tree.After(r.Layer.ModTime)
	if err := s.attach(); err != nil {
		return d, err
	}
	started := fileClock()
	if err := s.command(task); err != nil {
		return d, err
	}
	return s.layer(started)
}

// answers reports whether a command's failure is its answer.
func (c *Command) answers(err error) bool {
	var f *Failure
	return c.Answer != 0 && errors.As(err, &f) && f.Code == c.Answer
}

// fileClock returns the time that a file gets which is written now. The kernel dates files by a clock that moves with its ticks, so that it is
// behind time.Now, by milliseconds or, where a busy machine is late with them, by more.
func fileClock() time.Time {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
		return time.Now()
	}
	return time.Unix(now.Unix())
}

// check refuses what the sandbox would understand in another way than it was meant, or not at all.
func (c *Command) check() error {
	if len(c.Args) == 0 || c.Args[0] == "" {
		return fault.Usage(errors.New("there is no command to run"))
	}
	if c.WorkDir != "" && !path.IsAbs(c.WorkDir) {
		return fault.Usage(fmt.Errorf("the working directory %q is not an absolute path", c.WorkDir))
	}
	for _, kv := range c.Env {
		if i := strings.IndexByte(kv, '='); i < 1 {
			return fault.Usage(fmt.Errorf("%q is no environment variable: NAME=VALUE is", kv))
		}
	}
	for _, text := range slices.Concat(c.Args, c.Env) {
		if strings.ContainsRune(text, 0) {
			return fault.Usage(fmt.Errorf("%q contains a NUL, which no argument and no variable can", text))
		}
	}
	for _, f := range c.Files {
		if !path.IsAbs(f.Target) {
			return fault.Usage(fmt.Errorf("the file %q needs an absolute path", f.Target))
		}
	}
	return nil
}

// openImage unpacks the layers and reads what is in them, at once.
func (s *running) openImage() error {
	g, ctx := errgroup.WithContext(s.ctx)
	g.Go(func() (err error) {
		s.dirs, err = sandbox.Layers(ctx, s.Store, s.on)
		return err
	})
	g.Go(func() (err error) {
		s.tree, err = image.NewTree(ctx, s.Store, s.on)
		return err
	})
	return g.Wait()
}

// end undoes everything that was only for the command.
func (s *running) end() {
	for _, f := range slices.Backward(s.ends) {
		f()
	}
	if s.work == "" {
		return
	}
	if err := store.RemoveAll(s.work); err != nil {
		progress.Warn(s.ctx, fmt.Sprintf("what the step %q wrote could not be removed: %v", s.title, err), "`sconce cache prune` tries again")
	}
}

// options are those of the sandbox.
func (s *running) options() (sandbox.Options, error) {
	who, err := s.user()
	if err != nil {
		return sandbox.Options{}, err
	}
	return sandbox.Options{
		Layers: s.dirs, Arch: s.c.Arch, Args: s.c.Args, Env: s.environment(who.home), WorkDir: s.c.WorkDir,
		UID: who.uid, GID: who.gid, Groups: who.groups,
		Mounts: s.mounts, Hostname: hostname, UpperDir: s.work, Owners: &s.owners, NoNetwork: s.c.NoNetwork, OwnNetwork: s.ownNetwork(),
		NoMounts: true, MaxProcesses: cmp.Or(s.MaxProcesses, sandbox.DefaultProcesses()), Usage: &s.used,
	}, nil
}

// environment completes what the command was given.
func (s *running) environment(home string) []string {
	// A secret is meant where it is mounted, whatever the image holds its place with.
	env := slices.DeleteFunc(slices.Clone(s.c.Env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return hasVariable(s.env, name)
	})
	epoch := s.Layer.ModTime
	if epoch.IsZero() || epoch.Equal(layer.KeepTimes) {
		epoch = layer.DefaultModTime
	}
	added := slices.Concat(s.env, s.Pass, s.hostEnv, []string{
		"PATH=" + searchpath.Default, "HOME=" + home, "SOURCE_DATE_EPOCH=" + strconv.FormatInt(epoch.Unix(), 10),
	})
	for _, kv := range added {
		name, _, _ := strings.Cut(kv, "=")
		if !hasVariable(env, name) {
			env = append(env, kv)
		}
	}
	return env
}

func hasVariable(env []string, name string) bool {
	return slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
}

// command runs the command to its end. That it ended badly is a [*Failure].
func (s *running) command(task *progress.Task) error {
	o, err := s.options()
	if err != nil {
		return err
	}
	s.warnOfNetwork()
	log, err := s.Store.NewLog(s.title)
	if err != nil {
		return err
	}
	out := newOutput(task, log, s.mask)
	defer out.Close()
	o.Stdout, o.Stderr = out, out
	killed := oomKills()
	code, err := sandbox.Run(s.ctx, o)
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err != nil || code == 0 {
		return err
	}
	f := &Failure{Title: s.title, Code: code, Tail: out.tail(), Log: log.Name(), Peak: s.used.MaxRSS, ownNetwork: s.ownNetwork(), hostCA: s.Host.Has(hostconfig.CA)}
	f.diagnose(out, oomKills() > killed, s.work, s.c.Mounts)
	if s.OnFailure != nil {
		s.openShell(f, o)
	}
	return f
}

// openShell lets somebody look at what a failed command left.
func (s *running) openShell(f *Failure, o sandbox.Options) {
	s.shell.Lock()
	defer s.shell.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	o.Args, o.Stdin, o.Stdout, o.Stderr = []string{"/bin/sh"}, nil, nil, nil
	s.OnFailure(s.ctx, f, o)
}

// layer makes a layer of what the command changed, and leaves it unpacked for the step that comes next.
func (s *running) layer(started time.Time) (layer.Descriptor, error) {
	upper := filepath.Join(s.work, sandbox.Upper)
	o := s.Layer
	o.ModTime = s.after
	d, err := layer.FromUpper(s.ctx, s.Store, upper, layer.UpperOptions{
		Options: o, Base: unpackedBase{s.tree.Base(), s.tree, s.dirs}, Unpacked: sandbox.Unpacked(),
		Owner: sandbox.Owner(&s.owners), Started: started,
	})
	if err != nil {
		return layer.Descriptor{}, err
	}
	// When it cannot be taken over, the layer is unpacked when somebody needs it.
	_ = sandbox.Adopt(s.ctx, s.Store, d, upper)
	return d, s.ctx.Err()
}

// Empty reports whether a layer changes nothing.
func Empty(ctx context.Context, st *store.Store, d layer.Descriptor) (bool, error) {
	ix, err := layer.OpenIndex(ctx, st, d)
	if err != nil {
		return false, err
	}
	return len(ix.Entries) == 0, nil
}

// unpackedBase is the image that a step ran on. Contents are read where they are unpacked: that takes no decompressor.
type unpackedBase struct {
	layer.Base
	tree *image.Tree
	dirs []string
}

func (b unpackedBase) Open(p string) (io.ReadCloser, error) {
	if n, err := b.tree.Lstat(p); err == nil && n.Layer < len(b.dirs) {
		if f := openUnpacked(b.dirs[n.Layer], n); f != nil {
			return f, nil
		}
	}
	return b.Base.Open(p)
}

// openUnpacked opens a file of an unpacked layer, nil if it cannot be read or is not what it should be.
func openUnpacked(dir string, n *image.Node) io.ReadCloser {
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, n.Path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), n.Path)
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() != n.Size {
		f.Close()
		return nil
	}
	return f
}
