package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
)

// dockerOptions are flags of `docker build`, `podman build` and `buildah build` that stand in people's scripts.
type dockerOptions struct {
	load, squash bool
	pull         string
	format       string
	idFile       string
	metadataFile string
}

// silent are flags that ask for what a build does anyway, or for what it has no use for. They are taken and not shown.
var silent = map[string]string{
	"rm": "true", "force-rm": "true", "compress": "true", "layers": "true", "disable-content-trust": "true", "identity-label": "true",
	"provenance": "true", "sbom": "true", "builder": "", "isolation": "", "jobs": "", "cache-from": "", "cache-to": "",
}

func (d *dockerOptions) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&d.idFile, "iidfile", "", "write the image's digest to `FILE`")
	f.StringVar(&d.metadataFile, "metadata-file", "", "write what was built to `FILE`, as docker's JSON")
	f.BoolVar(&d.load, "load", false, "")
	f.BoolVar(&d.squash, "squash", false, "")
	f.StringVar(&d.pull, "pull", "", "")
	f.StringVar(&d.format, "format", "", "")
	f.Lookup("pull").NoOptDefVal = "always"
	hidden := []string{"load", "squash", "pull", "format"}
	for name, otherwise := range silent {
		f.StringArray(name, nil, "")
		f.Lookup(name).NoOptDefVal = otherwise
		hidden = append(hidden, name)
	}
	for _, name := range hidden {
		if err := f.MarkHidden(name); err != nil {
			panic(err) // there is no such flag: a mistake in this function
		}
	}
}

// takeOthers turns what is asked for in docker's words into sconce's, and says of the rest what becomes of it.
func (o *buildOptions) takeOthers(a *app) error {
	outputs := o.outputs
	o.outputs = nil
	for _, out := range outputs {
		if !strings.HasPrefix(out, "type=") && !strings.Contains(out, ",type=") {
			o.outputs = append(o.outputs, out)
			continue
		}
		if err := o.takeOutput(a, out); err != nil {
			return fmt.Errorf("--output %q: %w", out, err)
		}
	}
	d := o.others
	switch d.pull {
	case "", "always", "true", "missing", "ifmissing", "false", "newer", "ifnewer": // tags are looked up each time
	case "never":
		return fault.Hint(fmt.Errorf("--pull=never: images are looked up in registries"), "--offline uses what the store has, and no network")
	default:
		return fmt.Errorf("--pull %q: it is one of always, missing, newer, never", d.pull)
	}
	switch d.format {
	case "", "oci", "OCI":
	case "docker":
		a.say("--format docker: the image is in OCI's format, which docker reads as well")
	default:
		return fmt.Errorf("--format %q: it is one of oci, docker", d.format)
	}
	if d.load {
		a.sayLoad()
	}
	if d.squash {
		a.say("--squash: the layers stay, so that nothing is made twice; a .sqsh, a .sif, tar: and dir: hold one file system")
	}
	return nil
}

func (a *app) sayLoad() {
	a.say("the image is in sconce's store; -o docker-archive:FILE writes it for `docker load` and `podman load`")
}

// takeOutput takes --output type=TYPE,dest=PATH (docker build, "--output").
func (o *buildOptions) takeOutput(a *app, text string) error {
	fields := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(part, "=")
		fields[key] = value
	}
	dest, name := fields["dest"], fields["name"]
	if err := knownFields(fields); err != nil {
		return err
	}
	if c := fields["compression"]; c != "" {
		o.compression = c
	}
	if dest == "-" {
		return fault.Hint(fmt.Errorf("standard output takes no image"), "give a file: dest=image.tar")
	}
	prefix := map[string]string{"docker": "docker-archive:", "oci": "oci-archive:", "tar": "tar:", "local": "dir:"}[fields["type"]]
	if plain, err := strconv.ParseBool(fields["tar"]); fields["type"] == "oci" && err == nil && !plain {
		prefix = "oci:"
	}
	push, _ := strconv.ParseBool(fields["push"])
	switch kind := fields["type"]; {
	case kind == "docker" && dest == "":
		a.sayLoad()
	case prefix != "" && dest == "":
		return fault.Hint(fmt.Errorf("it says not where to"), "add dest=PATH")
	case prefix != "" && name != "" && (kind == "docker" || kind == "oci"):
		o.outputs = append(o.outputs, prefix+dest+":"+name)
	case prefix != "":
		o.outputs = append(o.outputs, prefix+dest)
	case kind == "registry" || kind == "image" && push:
		return o.takePush(name)
	case kind == "image" || kind == "cacheonly":
	default:
		return fmt.Errorf("there is no type %q: it is one of docker, oci, tar, local, image, registry", kind)
	}
	return nil
}

// takePush pushes under the names of an output, or else under those of --tag.
func (o *buildOptions) takePush(name string) error {
	names := o.tags
	if name != "" {
		names = []string{name}
	}
	if len(names) == 0 {
		return fault.Hint(fmt.Errorf("it says not where to"), "add name=REGISTRY/NAME:TAG, or -t")
	}
	o.push = append(o.push, names...)
	return nil
}

// knownFields refuses fields of an output that are none. Those that say how docker encodes an image are passed over.
func knownFields(fields map[string]string) error {
	known := []string{
		"type", "dest", "name", "push", "tar", "compression", "compression-level", "force-compression", "oci-mediatypes", "rewrite-timestamp", "store",
		"unpack", "dangling-name-prefix", "name-canonical", "buildinfo",
	}
	for key := range fields {
		if !slices.Contains(known, key) && !strings.HasPrefix(key, "annotation") {
			return fmt.Errorf("there is no field %q", key)
		}
	}
	return nil
}

// parseLabels reads --label NAME=VALUE, or NAME for a label without a value.
func parseLabels(flags []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, text := range flags {
		name, value, _ := strings.Cut(text, "=")
		if name == "" || !utf8.ValidString(text) {
			return nil, fault.Usage(fmt.Errorf("--label %q is not of the form NAME=VALUE", text))
		}
		labels[name] = value
	}
	return labels, nil
}

// write writes the files that say what was built.
func (d dockerOptions) write(b *engine.Built) error {
	if d.idFile != "" {
		if err := atomicfile.Replace(d.idFile, []byte(b.Image.Digest), 0o644); err != nil {
			return fmt.Errorf("--iidfile: %w", err)
		}
	}
	if d.metadataFile == "" {
		return nil
	}
	data, err := json.MarshalIndent(map[string]any{
		"containerimage.config.digest": b.Image.Manifest.Config.Digest,
		"containerimage.descriptor":    map[string]any{"mediaType": b.Image.MediaType, "digest": b.Image.Digest, "size": b.Image.Size},
		"containerimage.digest":        b.Image.Digest,
		"image.name":                   b.Name,
	}, "", "  ")
	if err == nil {
		err = atomicfile.Replace(d.metadataFile, append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("--metadata-file: %w", err)
	}
	return nil
}
