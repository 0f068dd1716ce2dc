package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
)

// pushOptions are the options of `sconce push`.
type pushOptions struct {
	image    string
	to       string
	platform string
	uenv     bool
}

func newPushCmd(a *app) *cobra.Command {
	var o pushOptions
	cmd := &cobra.Command{
		Use:   "push IMAGE REFERENCE",
		Short: "Send an image to a registry",
		Long: `Send an image to a registry. What the registry has already is not sent again.

REFERENCE is HOST/NAME[:TAG], with docker:// in front or not; without a tag, the image's own is used.

With --uenv, IMAGE is a uenv file, and goes there as the artifact that uenv image pull takes, with its description
beside it: REFERENCE is HOST/NAMESPACE/SYSTEM/UARCH/NAME/VERSION:TAG.

Credentials are those of docker, podman, netrc and enroot.

` + anyImage,
		Example: examples(
			"sconce push llm-train:25.11 registry.example.org/team/llm-train",
			"sconce push oci:build registry.example.org/team/llm-train:test",
			"sconce push --uenv tools.squashfs registry.example.org/deploy/daint/gh200/tools/1.0:v1",
		),
		Args:              wants("IMAGE", "REFERENCE"),
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.image, o.to = args[0], args[1]
			return a.runPush(cmd.Context(), o)
		},
	}
	addPlatformFlag(cmd, &o.platform)
	cmd.Flags().BoolVar(&o.uenv, "uenv", false, "send a uenv file as uenv pulls it")
	return cmd
}

func (a *app) runPush(ctx context.Context, o pushOptions) error {
	if o.uenv {
		return a.pushUenv(ctx, o)
	}
	s, image, err := a.openImage(ctx, o.image, o.platform)
	if err != nil {
		return err
	}
	defer image.Close()
	pushed, err := s.PushSubject(ctx, image, o.to)
	if err != nil {
		return err
	}
	a.say("pushed %s", pushed)
	return nil
}

func (a *app) pushUenv(ctx context.Context, o pushOptions) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	pushed, err := s.PushUenv(ctx, strings.TrimPrefix(o.image, "uenv:"), o.to)
	if err != nil {
		return err
	}
	a.say("pushed %s", pushed)
	return nil
}
