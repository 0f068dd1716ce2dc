package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/export"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/store"
)

// pushOptions are the options of `sconce push`.
type pushOptions struct {
	image    string
	to       string
	platform string
}

func newPushCmd(a *app) *cobra.Command {
	var o pushOptions
	cmd := &cobra.Command{
		Use:   "push IMAGE REFERENCE",
		Short: "Send an image to a registry",
		Long: `Send an image to a registry. What the registry has already is not sent again.

REFERENCE is HOST/NAME[:TAG], with docker:// in front or not; without a tag, the image's own is used.

Credentials are those of docker, podman, netrc and enroot.

` + anyImage,
		Example: examples(
			"sconce push llm-train:25.11 registry.example.org/team/llm-train",
			"sconce push oci:build registry.example.org/team/llm-train:test",
		),
		Args:              wants("IMAGE", "REFERENCE"),
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.image, o.to = args[0], args[1]
			return a.runPush(cmd.Context(), o)
		},
	}
	addPlatformFlag(cmd, &o.platform)
	return cmd
}

func (a *app) runPush(ctx context.Context, o pushOptions) error {
	im, ref, err := a.importImage(ctx, o.image, o.platform)
	if err != nil {
		return err
	}
	_, tag := nameFor(a.opened, o.image, ref)
	return a.push(ctx, im, withTag(o.to, tag))
}

// withTag adds a tag to a registry's reference that has none.
func withTag(ref, tag string) string {
	_, own := store.SplitImageName(strings.TrimPrefix(ref, dockerPrefix))
	if own != "" || strings.Contains(ref, "@") {
		return ref
	}
	return ref + ":" + tag
}

// dockerPrefix begins references to registries.
const dockerPrefix = "docker://"

// push sends an image of the store to a registry.
func (a *app) push(ctx context.Context, im *image.Image, ref string) error {
	st, err := a.store(ctx)
	if err != nil {
		return err
	}
	ref = strings.TrimPrefix(ref, dockerPrefix)
	if err := export.Push(ctx, im, ref, export.PushOptions{Store: st}); err != nil {
		return err
	}
	a.say("pushed %s@%s", ref, im.Digest)
	return nil
}
