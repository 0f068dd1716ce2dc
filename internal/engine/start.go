package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"sconce.dev/sconce/internal/child"
	"sconce.dev/sconce/internal/clusterfile"
	"sconce.dev/sconce/internal/export"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/imagefs"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/readorder"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/searchpath"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tempdir"
)

// startTime is how long the commands of a start may take together.
const startTime = 15 * time.Minute

// startVersion goes up when the same commands would be recorded in another way.
const startVersion = 1

// startOrder runs commands in an image and returns which of its files they read, in order. It is done once for an image and its commands.
func (s *Session) startOrder(ctx context.Context, im *image.Image, commands []string) ([]string, error) {
	if len(commands) == 0 {
		return nil, nil
	}
	if arch := im.Config.Architecture; arch != runtime.GOARCH {
		return nil, fault.Hint(fmt.Errorf("what is read at the start cannot be recorded: the image is for %s, and this machine is %s", arch, runtime.GOARCH),
			"write the file on a machine of that kind, or without --start and [start]")
	}
	once := store.Once[[]string]{
		Kind: store.KindStart, Key: store.DigestOf(fmt.Appendf(nil, "%d %s %q", startVersion, im.Digest, commands)).Hex(),
		Refs: func([]string) []store.Digest { return im.Refs() }, Does: "records a start",
	}
	order, _, err := once.Do(ctx, s.Store, func(ctx context.Context) (order []string, err error) {
		task := progress.Begin(ctx, "record", "start", 0)
		return order, task.End(func() (err error) {
			order, err = s.recordStart(ctx, im, commands)
			return err
		}())
	})
	return order, err
}

func (s *Session) recordStart(ctx context.Context, im *image.Image, commands []string) ([]string, error) {
	if err := fuse.Check(); err != nil {
		return nil, fault.Hint(fmt.Errorf("what is read at the start cannot be recorded: %w", err),
			"write the file on a machine where /dev/fuse is open to users, or without --start and [start]")
	}
	tree, done, err := s.watchable(ctx, im)
	if err != nil {
		return nil, err
	}
	defer done()
	watched, log := readorder.Watch(tree)
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("the commands of the start have not ended after %s", startTime))
	defer cancel()
	for _, c := range commands {
		if err := runStart(ctx, im, watched, c); err != nil {
			return nil, err
		}
	}
	return log.Paths(), nil
}

// watchable is an image's tree, to be served. Layers from elsewhere cannot be read from anywhere, so a file is written of such an image
// first; what was compressed for it is copied into the one that is wanted.
func (s *Session) watchable(ctx context.Context, im *image.Image) (tree fuse.Node, done func(), err error) {
	done = func() {}
	if tree, err = imagefs.Open(s.Store, im.Layers, sandbox.Unpacked()); tree != nil || err != nil {
		return tree, done, err
	}
	dir, remove, err := tempdir.Make("start")
	if err != nil {
		return nil, done, err
	}
	name := filepath.Join(dir, "image.sqsh")
	how := s.writing(Writing{})
	if err := export.WriteClusterFile(ctx, clusterfile.FromImage(s.Store, im), export.Target{Transport: source.Squashfs, Path: name}, how); err != nil {
		remove()
		return nil, done, err
	}
	c, err := source.OpenClusterFile(name)
	if err != nil {
		remove()
		return nil, done, err
	}
	done = func() {
		c.Close()
		remove()
	}
	if tree, err = sandbox.Squashfs(c.FS); err != nil {
		done()
	}
	return tree, done, err
}

// runStart runs one command in an image, as `sconce run` would, but without a network.
func runStart(ctx context.Context, im *image.Image, tree fuse.Node, command string) error {
	config := im.Config.Config
	args := []string{"/bin/sh", "-c", command}
	if first := config.Labels[image.LabelStart]; first != "" {
		args = append([]string{first}, args...)
	}
	var said child.Tail
	code, err := sandbox.Run(ctx, sandbox.Options{
		Tree: tree, Args: args, Env: append([]string{"PATH=" + searchpath.Default, "HOME=/root"}, config.Env...), WorkDir: config.WorkingDir,
		Stdout: &said, Stderr: &said, NoNetwork: true, MaxProcesses: sandbox.DefaultProcesses(),
	})
	if err == nil && code != 0 {
		err = fmt.Errorf("it ended with code %d: %s", code, lastLines(said.String()))
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("record the start %q: %w", command, err)
	if errors.Is(err, sandbox.ErrNoFUSE) {
		return err
	}
	return fault.Hint(err, "try it by `sconce run --no-network`; there is neither a GPU nor a network while a start is recorded")
}

// lastLines are the last lines of what a command said.
func lastLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}
