package cli

import (
	"context"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/units"
)

// pullOptions are the options of `sconce pull`.
type pullOptions struct {
	image    string
	platform string
	name     string
	json     bool
}

func newPullCmd(a *app) *cobra.Command {
	var o pullOptions
	cmd := &cobra.Command{
		Use:   "pull IMAGE",
		Short: "Bring an image into the store and give it a name",
		Long: `Bring an image into the store, and give it a name there: the one it was asked for by, or that of the file, unless --name
is given. Layers are fetched in parallel; one that is here already is not fetched again, and an interrupted pull goes on
where it stopped.

An image that is withdrawn (sconce withdraw), or is based on one that is, comes with a warning that says why.

Credentials are those of docker, podman, netrc and enroot.

` + anyImage,
		Example: examples(
			"sconce pull docker://debian:bookworm-slim",
			"sconce pull nvcr.io/nvidia/pytorch:25.06-py3 --platform linux/arm64 --name ngc:25.06",
			"sconce pull docker-archive:saved.tar --name mine",
			"sconce pull docker://debian:bookworm-slim --json | jq -r .digest",
		),
		Args: wants("IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.image = args[0]
			return a.runPull(cmd.Context(), o)
		},
	}
	addPlatformFlag(cmd, &o.platform)
	cmd.Flags().StringVar(&o.name, "name", "", "`NAME[:TAG]` to give to the image")
	cmd.Flags().BoolVar(&o.json, "json", false, "print the image as sconce images --json does")
	return cmd
}

func (a *app) runPull(ctx context.Context, o pullOptions) error {
	name := o.name
	if name != "" { // before anything is downloaded
		base, tag, err := store.ParseImageName(name)
		if err != nil {
			return err
		}
		name = base + ":" + tag
	}
	s, image, err := a.openImage(ctx, o.image, o.platform)
	if err != nil {
		return err
	}
	defer image.Close()
	keys, err := engine.TrustedKeys(a.settings().Believed(nil))
	if err != nil {
		return err
	}
	warn := s.WarnIfWithdrawn(ctx, image, keys)
	named, err := s.Pull(ctx, image, name)
	warn(named.Digest)
	if err != nil {
		return err
	}
	if o.json {
		return a.printJSON(named)
	}
	a.sayNamed(named)
	return nil
}

// sayNamed tells the user what an image is called in the store.
func (a *app) sayNamed(r store.ImageRef) {
	a.say("%s is %s (%s, %s)", r.FullName(), r.Digest, r.Platform, units.Size(r.Size))
}
