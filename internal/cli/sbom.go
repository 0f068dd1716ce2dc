package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/sbom"
)

// sbomOptions are the options of `sconce sbom`.
type sbomOptions struct {
	image    string
	platform string
	format   string // "" is what the file's name says, else CycloneDX
	to       string // a file; "" is stdout
}

func newSBOMCmd(a *app) *cobra.Command {
	var o sbomOptions
	cmd := &cobra.Command{
		Use:   "sbom IMAGE",
		Short: "List what is installed in an image, for scanners",
		Long: `List what is installed in an image, as a document of CycloneDX 1.6 or SPDX 2.3, both in JSON: packages of Debian and
its children, of Alpine and of RPM, Python distributions and conda packages, with package URLs, licences as they say of
themselves, and hashes where their records keep them. Nothing of the image runs. The same image under the same name gives
the same document.

What cannot be read, such as the database of RPM before RHEL 9, is warned of, and the document says that it is incomplete.

` + anyImage,
		Example: examples(
			"sconce sbom llm-train:25.11 -o llm-train.cdx.json",
			"sconce sbom llm-train:25.11 -o llm-train.spdx.json",
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
	cmd.Flags().StringVar(&o.format, "format", "", "write this `FORMAT`, cyclonedx or spdx (default: spdx for a FILE that ends in .spdx.json, else cyclonedx)")
	cmd.Flags().StringVarP(&o.to, "output", "o", "", "write it to this `FILE` (default: stdout)")
	return cmd
}

// document is the format that is asked for.
func (o sbomOptions) document() (sbom.Format, error) {
	switch f := sbom.Format(o.format); {
	case f == sbom.CycloneDX, f == sbom.SPDX:
		return f, nil
	case f != "":
		return "", fault.Usage(fmt.Errorf("--format %q: it is one of %s, %s", f, sbom.CycloneDX, sbom.SPDX))
	case strings.HasSuffix(o.to, ".spdx.json"):
		return sbom.SPDX, nil
	}
	return sbom.CycloneDX, nil
}

func (a *app) runSBOM(ctx context.Context, o sbomOptions) error {
	format, err := o.document()
	if err != nil {
		return err
	}
	s, image, err := a.openImage(ctx, o.image, o.platform)
	if err != nil {
		return err
	}
	defer image.Close()
	data, err := s.SBOM(ctx, image, format)
	if err != nil {
		return err
	}
	if o.to != "" {
		return atomicfile.Replace(o.to, data, 0o644)
	}
	_, err = a.out.Write(data)
	return err
}
