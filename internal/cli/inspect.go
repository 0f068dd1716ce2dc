package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/units"
)

// inspectOptions are the options of `sconce inspect`.
type inspectOptions struct {
	image    string
	files    []string // image and what follows it on the command line
	platform string
	json     bool
	raw      bool
	gpu      bool
	size     bool
	verify   bool
	noSearch bool
	html     string // the file that the page is written to
	cluster  string
	force    bool
	trust    trustOptions
}

func newInspectCmd(a *app) *cobra.Command {
	var o inspectOptions
	cmd := &cobra.Command{
		Use:   "inspect IMAGE",
		Short: "Show what an image is made of and how it is configured",
		Long: "Show an image's configuration, and its layers with what made each. Layers are not downloaded. Of a .sqsh or .sif file\n" +
			"the compression and the objects in it are shown.\n\n" +
			"With --size it is shown where the room goes: by package, by directory, and what could be left out.\n\n" +
			"With --gpu the device code of the image's libraries is shown: for which GPUs there is any, and how much room it takes.\n" +
			"That reads all layers, so they are brought into the store; a .sqsh or .sif is read where it is. Nothing of the image runs.\n" +
			"With --key no layer of an image in a registry is downloaded: the facts tell that `sconce push --sign` or a pipeline left\n" +
			"beside it, when one of the keys has signed them.\n" +
			"In place of IMAGE there may be libraries, programs, archives, fatbins or cubins; --verify unpacks their code and compares it\n" +
			"with its headers.\n\n" +
			"With --html a page is written for a browser: where the image's bytes are, its device code, and what `sconce check` finds,\n" +
			"for the cluster that --cluster names. The page stands alone and loads nothing.\n\n" +
			anyImage,
		Example: examples(
			"sconce inspect llm-train:25.11",
			"sconce inspect docker://debian:bookworm-slim --platform linux/arm64",
			"sconce inspect oci-archive:image.tar --json | jq .layers",
			"sconce inspect pytorch.sif",
			"sconce inspect --size llm-train.sqsh",
			"sconce inspect --gpu llm-train:25.11",
			"sconce inspect --gpu registry.example.org/team/llm-train:25.11 --key team.pub",
			"sconce inspect --gpu --verify libtorch_cuda.so libnccl.so.2",
			"sconce inspect --html report.html llm-train:25.11 --cluster clariden",
		),
		Args:              atLeastImage,
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.image, o.files = args[0], args
			return a.runInspect(cmd.Context(), o)
		},
	}
	addPlatformFlag(cmd, &o.platform)
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	cmd.Flags().BoolVar(&o.raw, "raw", false, "print the manifest, byte by byte as it is")
	cmd.Flags().BoolVar(&o.gpu, "gpu", false, "show for which GPUs the image has device code")
	cmd.Flags().BoolVar(&o.size, "size", false, "show where the room goes, by package and by directory; with --verbose all of them")
	cmd.Flags().BoolVar(&o.verify, "verify", false, "with --gpu and files: unpack all device code and compare it with its headers")
	cmd.Flags().BoolVar(&o.noSearch, "no-search", false,
		"with --gpu and files: look only where compilers put device code, as cuobjdump does, not in all other data")
	cmd.Flags().StringVar(&o.html, "html", "", "write a page for a browser to `FILE`")
	cmd.Flags().StringVar(&o.cluster, "cluster", "", "with --html: judge for this cluster, a `NAME` that sconce clusters lists or a profile's file")
	cmd.Flags().BoolVar(&o.force, "force", false, "with --html: replace FILE, whatever it is")
	o.trust.addFlags(cmd)
	completeClusters(cmd)
	cmd.MarkFlagsMutuallyExclusive("json", "raw")
	cmd.MarkFlagsMutuallyExclusive("gpu", "size", "raw", "html")
	cmd.MarkFlagsMutuallyExclusive("json", "html")
	return cmd
}

func addPlatformFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "platform", "", "`OS/ARCH` to choose where there are several (default: this machine's)")
	complete(cmd, "platform", "linux/amd64", "linux/arm64")
}

func (a *app) runInspect(ctx context.Context, o inspectOptions) error {
	if o.html == "" && (o.cluster != "" || o.force) {
		return fault.Usage(errNoPage)
	}
	if !o.gpu && (len(o.trust.keys) > 0 || o.trust.facts != "") {
		return fault.Usage(errNoFacts)
	}
	if o.gpu {
		libraries, err := engine.Libraries(ctx, o.files, engine.LibraryOptions{SectionsOnly: o.noSearch, Verify: o.verify})
		if err != nil {
			return err
		}
		if len(libraries) > 0 {
			return a.inspectLibraries(ctx, o, libraries)
		}
	}
	if o.verify || o.noSearch || len(o.files) > 1 {
		return fault.Usage(errNoLibrary)
	}
	if o.gpu {
		return a.inspectGPU(ctx, o)
	}
	if o.size {
		return a.inspectSize(ctx, o)
	}
	if o.html != "" {
		return a.inspectHTML(ctx, o)
	}
	_, subject, err := a.openImage(ctx, o.image, o.platform)
	if err != nil {
		return err
	}
	defer subject.Close()
	if subject.IsClusterFile() {
		return a.inspectClusterFile(subject, o)
	}
	img, err := subject.View(ctx)
	if err != nil {
		return err
	}
	if o.raw {
		manifest, err := img.RawManifest()
		if err != nil {
			return err
		}
		_, err = a.out.Write(manifest)
		return err
	}
	seen, err := inspect(img)
	if err != nil {
		return fmt.Errorf("inspect %s: %w", o.image, err)
	}
	seen.Source = subject.Ref.String()
	return a.printInspection(seen, o)
}

func (a *app) inspectClusterFile(subject *engine.Subject, o inspectOptions) error {
	if o.raw {
		return errNoManifest
	}
	seen, err := inspectClusterFile(subject)
	if err != nil {
		return fmt.Errorf("inspect %s: %w", o.image, err)
	}
	seen.Source = subject.Ref.String()
	return a.printInspection(seen, o)
}

func (a *app) printInspection(seen *inspection, o inspectOptions) error {
	if o.json {
		return a.printJSON(seen)
	}
	return seen.print(a.out)
}

// inspection is what `sconce inspect` shows.
type inspection struct {
	Source      string            `json:"source"`
	Digest      string            `json:"digest"`
	MediaType   string            `json:"mediaType"`
	Platform    string            `json:"platform"`
	Created     time.Time         `json:"created"`
	Size        int64             `json:"size"` // of all layers as they are stored, in bytes
	Env         []string          `json:"env"`
	Entrypoint  []string          `json:"entrypoint"`
	Cmd         []string          `json:"cmd"`
	Workdir     string            `json:"workdir"`
	User        string            `json:"user"`
	Volumes     []string          `json:"volumes"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	Layers      []engine.Layer    `json:"layers,omitempty"`
	File        *inspectedFile    `json:"file,omitempty"` // of a squashfs or SIF file, which has no layers
}

func inspect(img v1.Image) (*inspection, error) {
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	manifest, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	in := inspectConfig(config)
	in.Digest, in.MediaType, in.Annotations = digest.String(), string(manifest.MediaType), manifest.Annotations
	in.Layers = engine.LayersOf(manifest, config)
	for _, l := range in.Layers {
		in.Size += l.Size
	}
	return in, nil
}

func (in *inspection) print(w io.Writer) error {
	created := "unknown"
	if !in.Created.IsZero() {
		created = in.Created.UTC().Format(time.RFC3339)
	}
	fields := [][2]string{
		{"Source", in.Source},
		{"Digest", in.Digest},
		{"Type", in.MediaType},
		{"Platform", in.Platform},
		{"Created", created},
		{"Size", in.size()},
		{"Entrypoint", words(in.Entrypoint)},
		{"Command", words(in.Cmd)},
		{"Workdir", in.Workdir},
		{"User", in.User},
		{"Volumes", strings.Join(in.Volumes, " ")},
	}
	for _, f := range fields {
		if f[1] == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%-12s %s\n", f[0]+":", ui.Clean(f[1])); err != nil {
			return err
		}
	}
	for _, list := range []struct {
		title string
		lines []string
	}{
		{"Environment", in.Env}, {"Labels", pairs(in.Labels)}, {"Annotations", pairs(in.Annotations)},
	} {
		if err := printList(w, list.title, list.lines); err != nil {
			return err
		}
	}
	return in.printLayers(w)
}

func printList(w io.Writer, title string, lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString(title + ":\n")
	for _, l := range lines {
		b.WriteString("  " + ui.Clean(l) + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// madeByWidth bounds the column that says what made a layer: old images have whole scripts there. JSON has all of it.
const madeByWidth = 80

func (in *inspection) printLayers(w io.Writer) error {
	if in.File != nil {
		if len(in.File.Objects) == 0 {
			return nil
		}
		return printTable(w, in.File.table())
	}
	rows := [][]string{{"LAYER", "SIZE", "MADE BY"}}
	for _, l := range in.Layers {
		_, hexed, _ := strings.Cut(l.Digest, ":")
		by := l.CreatedBy
		if l.Comment != "" {
			by += " (" + l.Comment + ")"
		}
		rows = append(rows, []string{hexed[:min(12, len(hexed))], units.Size(l.Size), ui.Cut(ui.Clean(by), madeByWidth)})
	}
	return printTable(w, rows)
}

// words shows a command as a list, so that it is seen where one argument ends.
func words(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return fmt.Sprintf("%q", args)
}

func pairs(m map[string]string) []string {
	var lines []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, k+"="+m[k])
	}
	return lines
}
