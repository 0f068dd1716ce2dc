package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"sconce.dev/sconce/internal/child"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
)

// StripeCommand is the command line by which a directory of Lustre hands a layout on to new files (lfs-setstripe(1)).
func StripeCommand(layout, dir string) []string {
	return append(append([]string{"lfs", "setstripe"}, strings.Fields(layout)...), dir)
}

// Stripe makes a directory whose new files are spread as a layout says, which are options of lfs setstripe. One that is there keeps its
// files as they are.
func Stripe(ctx context.Context, layout, dir string) error {
	if _, err := exec.LookPath("lfs"); err != nil {
		return fault.Hint(errors.New("lfs: there is no such program on PATH"), "run this where Lustre is mounted, such as a login node")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	line := StripeCommand(layout, dir)
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = ".", &said, &said // where dir may begin
	if err := child.Run(cmd); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(line, " "), err, strings.TrimSpace(said.String()))
	}
	return nil
}

// StripeNew is Stripe of a directory of images that is not there yet, where there is a layout and Lustre's program. That an image is
// spread makes it fast and no more, so it is a warning when that fails.
func StripeNew(ctx context.Context, layout, dir string) {
	if _, err := exec.LookPath("lfs"); err != nil || layout == "" {
		return
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err := Stripe(ctx, layout, dir); err != nil {
		progress.Warn(ctx, err.Error(), "correct paths.stripe of the cluster's profile, or leave it out where images are not on Lustre")
	}
}
