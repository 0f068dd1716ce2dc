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
	sign     string
	uenv     bool
	json     bool
}

func newPushCmd(a *app) *cobra.Command {
	var o pushOptions
	cmd := &cobra.Command{
		Use:   "push IMAGE REFERENCE",
		Short: "Send an image to a registry",
		Long: `Send an image to a registry. What the registry has already is not sent again.

REFERENCE is HOST/NAME[:TAG], with docker:// in front or not; without a tag, the image's own is used.

With --sign, all that ` + "`sconce check`" + ` reads of the image is gathered here, signed, and kept beside it in the registry:
who has the public key checks the image there without downloading it.

With --uenv, IMAGE is a uenv file, and goes there as the artifact that uenv image pull takes, with its description
beside it: REFERENCE is HOST/NAMESPACE/SYSTEM/UARCH/NAME/VERSION:TAG.

Credentials are those of docker, podman, netrc and enroot.

` + anyImage,
		Example: examples(
			"sconce push llm-train:25.11 registry.example.org/team/llm-train",
			"sconce push llm-train:25.11 registry.example.org/team/llm-train --sign team.key",
			"sconce push oci:build registry.example.org/team/llm-train:test",
			"sconce push llm-train:25.11 registry.example.org/team/llm-train --json | jq -r .pushed[0]",
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
	cmd.Flags().StringVar(&o.sign, "sign", "", "keep the image's facts beside it, signed with this private key: a `FILE` in PEM, or env:NAME")
	cmd.Flags().BoolVar(&o.uenv, "uenv", false, "send a uenv file as uenv pulls it")
	cmd.Flags().BoolVar(&o.json, "json", false, "print where the image is")
	cmd.MarkFlagsMutuallyExclusive("sign", "uenv")
	return cmd
}

func (a *app) runPush(ctx context.Context, o pushOptions) error {
	if o.uenv {
		return a.pushUenv(ctx, o)
	}
	key, err := a.settings().SigningKey(o.sign)
	if err != nil {
		return err
	}
	s, image, err := a.openImage(ctx, o.image, o.platform)
	if err != nil {
		return err
	}
	defer image.Close()
	pushed, err := s.PushSubject(ctx, image, o.to, key)
	if err != nil {
		return err
	}
	return a.tellSent(sent{Pushed: []string{pushed}}, o.json)
}

// sent is what `sconce push --json` and `sconce copy --json` print, with the keys that `sconce build --json` has for it.
type sent struct {
	Outputs []string `json:"outputs,omitempty"` // files and directories, as they were named
	Pushed  []string `json:"pushed,omitempty"`  // HOST/NAME:TAG@DIGEST
}

func (a *app) tellSent(s sent, asJSON bool) error {
	if asJSON {
		return a.printJSON(s)
	}
	for _, ref := range s.Pushed {
		a.say("pushed %s", ref)
	}
	a.sayWritten(s.Outputs...)
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
	return a.tellSent(sent{Pushed: []string{pushed}}, o.json)
}
