package cli

import (
	"context"

	"github.com/spf13/cobra"
)

// sbomOptions are the options of `sconce sbom`.
type sbomOptions struct {
	image    string
	platform string
	to       string // a file; "" is stdout
}

func newSBOMCmd(a *app) *cobra.Command {
	var o sbomOptions
	cmd := &cobra.Command{
		Use:   "sbom IMAGE",
		Short: "List what is installed in an image, for scanners",
		Long: `List what is installed in an image, as a CycloneDX document: packages of Debian and its children, and of Alpine, Python
distributions and conda packages, with package URLs, licences as they say of themselves, and hashes where their records keep
them. Nothing of the image runs. The same image under the same name gives the same document.

What cannot be read, such as the database of RPM, is warned of, and the document says that it is incomplete.

` + anyImage,
		Example: examples(
			"sconce sbom llm-train:25.11 -o llm-train.cdx.json",
			"sconce sbom pytorch.sqsh | jq -r '.components[].purl'",
		),
		Args:              wants("IMAGE"),
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.image = args[0]
			return a.runSBOM(cmd.Context(), o)
		},
	}
	addPlatformFlag(cmd, &o.platform)
	cmd.Flags().StringVarP(&o.to, "output", "o", "", "write it to this `FILE` (default: stdout)")
	return cmd
}

func (a *app) runSBOM(ctx context.Context, o sbomOptions) error {
	s, image, err := a.openImage(ctx, o.image, o.platform)
	if err != nil {
		return err
	}
	defer image.Close()
	data, err := s.SBOM(ctx, image)
	if err != nil {
		return err
	}
	if o.to != "" {
		return replaceFile(o.to, data)
	}
	_, err = a.out.Write(data)
	return err
}
