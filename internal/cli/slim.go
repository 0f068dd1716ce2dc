package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/slim"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/units"
)

// slimOptions are the options of `sconce slim`.
type slimOptions struct {
	image     string
	gpus      []string
	output    string
	name      string
	ptx       string
	relfatbin string
	strip     bool
	remove    []string
	caches    bool
	explain   bool
	json      bool
	force     bool
	platform  string
	squashfs  squashfsOptions
}

func newSlimCmd(a *app) *cobra.Command {
	var o slimOptions
	cmd := &cobra.Command{
		Use:   "slim IMAGE [--gpu CAPABILITY] [--strip] [--remove PATTERN] [--package-caches]",
		Short: "Remove the device code that your GPUs cannot run, and what else nobody needs",
		Long: `Make an image without the device code that the given GPUs cannot run. Libraries keep their size, and the code that stays
keeps its place in them; what is removed becomes zeros, which take next to nothing in a compressed layer or a .sqsh. Nothing
of the image runs, and no GPU is needed. A file with anything unexpected in it is left as it is, and named.

With -o the new image is written to OUT, any destination of ` + "`sconce copy`" + `. Else it gets a name in the store: --name, or the
name of IMAGE with -sm90, for 9.0, or -slim behind its tag. Layers with nothing to remove stay the same; what was done for a
layer is kept for the next image that has it. With --explain nothing is written, only shown. Where nothing is to be removed
that is said last, and a file of the same kind as IMAGE, which would be a copy, is written with --force only.

PTX, which the driver compiles for GPUs that have no machine code of their own, stays. With --ptx drop-where-native it goes
where there is machine code for all the GPUs given. --relfatbin drop removes what is left over of device links in libraries.

--strip takes symbols and debugging information out of programs and libraries, but not out of those that wheels have bundled
(*.libs). --remove leaves files out: "*.a" by name, "/usr/share/doc/**" by path. --package-caches leaves out what apt, dnf,
pip, conda and their kin keep to be quicker the next time. Layers below lose it too, so that the image really shrinks; what
another file needs to run stays, and is named.

What vendors' licences say of changed libraries matters before such an image is given to others: see the guide.

` + anyImage,
		Example: examples(
			"sconce slim llm-train:25.11 --gpu 9.0                    in the store as llm-train:25.11-sm90",
			"sconce slim llm-train:25.11 --gpu 9.0 --explain          what would go",
			"sconce slim docker://nvcr.io/nvidia/pytorch:25.11-py3 --gpu 8.0,9.0 -o pytorch.sqsh",
			"sconce slim llm-train --strip --package-caches --remove '*.a' --remove '/usr/share/doc/**'",
			"sconce slim pytorch.sqsh --gpu 9.0 --ptx drop-where-native --relfatbin drop -o smaller.sqsh",
		),
		Args:              wants("IMAGE"),
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.image = args[0]
			o.squashfs.given = squashfsFlagsGiven(cmd)
			return a.runSlim(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.gpus, "gpu", nil, "compute `CAPABILITY` of the GPUs to keep code for: 9.0, or several as 8.0,9.0")
	f.BoolVar(&o.strip, "strip", false, "remove symbols and debugging information")
	f.StringArrayVar(&o.remove, "remove", nil, "remove files whose name or path matches `PATTERN` (repeatable)")
	f.BoolVar(&o.caches, "package-caches", false, "remove what package managers keep to be quicker the next time")
	f.StringVarP(&o.output, "output", "o", "", "write the image to `OUT`")
	f.StringVar(&o.name, "name", "", "`NAME[:TAG]` to give to the image in the store")
	f.StringVar(&o.ptx, "ptx", string(slim.KeepPTX), "`WHAT` happens to PTX: keep, drop-where-native")
	f.StringVar(&o.relfatbin, "relfatbin", "keep", "`WHAT` happens to what is left over of device links in libraries: keep, drop")
	f.BoolVar(&o.explain, "explain", false, "show what would go, and write nothing")
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.BoolVar(&o.force, "force", false, "replace an output that holds something else, and write one that is a mere copy")
	addPlatformFlag(cmd, &o.platform)
	addSquashfsFlags(cmd, &o.squashfs)
	complete(cmd, "gpu", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
	complete(cmd, "ptx", string(slim.KeepPTX), string(slim.DropWhereNative))
	complete(cmd, "relfatbin", "keep", "drop")
	for _, flag := range []string{"output", "name", "force"} {
		cmd.MarkFlagsMutuallyExclusive("explain", flag)
	}
	return cmd
}

// parse checks what is to be removed.
func (o slimOptions) parse() (slim.Options, error) {
	how := slim.Options{
		PTX: slim.PTX(o.ptx), DropRelocatable: o.relfatbin == "drop", Strip: o.strip, Remove: o.remove, PackageCaches: o.caches,
	}
	if len(o.gpus) == 0 && !o.strip && !o.caches && len(o.remove) == 0 {
		err := errors.New("nothing says what to remove: --gpu is missing, and so are --strip, --remove and --package-caches")
		return how, fault.Usage(fault.Hint(err, "say which GPUs the image is for, as in `sconce slim IMAGE --gpu 9.0`"))
	}
	if len(o.gpus) > 0 {
		var err error
		if how.GPUs, err = fatbin.ParseGPUs(o.gpus); err != nil {
			return how, fault.Usage(fmt.Errorf("--gpu: %w", err))
		}
	}
	if how.PTX != slim.KeepPTX && how.PTX != slim.DropWhereNative {
		return how, fault.Usage(fmt.Errorf("--ptx %q: it is one of %s, %s", o.ptx, slim.KeepPTX, slim.DropWhereNative))
	}
	if o.relfatbin != "keep" && o.relfatbin != "drop" {
		return how, fault.Usage(fmt.Errorf("--relfatbin %q: it is one of keep, drop", o.relfatbin))
	}
	return how, nil
}

// slimmed is what `sconce slim --json` prints.
type slimmed struct {
	Source string       `json:"source"`
	Digest store.Digest `json:"digest,omitempty"` // of the new image
	Name   string       `json:"name,omitempty"`   // in the store
	Output string       `json:"output,omitempty"`
	*slim.Report
}

func (a *app) runSlim(ctx context.Context, o slimOptions) error {
	how, err := o.parse()
	if err != nil {
		return err
	}
	write, err := o.squashfs.writing(o.force)
	if err != nil {
		return err
	}
	s, image, err := a.openImage(ctx, o.image, o.platform)
	if err != nil {
		return err
	}
	defer image.Close()
	result := slimmed{Source: image.Ref.String()}
	if o.explain {
		if result.Report, err = s.ExplainSlim(ctx, image, how); err != nil {
			return err
		}
		return a.tellSlimmed(result, o.json)
	}
	made, err := s.Slim(ctx, image, engine.SlimOptions{Options: how, Output: o.output, Name: o.name, Write: write})
	if made == nil {
		return err
	}
	if err == nil {
		result.Report, result.Digest = made.Report, made.Image.Digest
		if !made.Left {
			result.Output = o.output
		}
		if made.Named.Name != "" {
			result.Name = made.Named.FullName()
		}
		err = a.tellSlimmed(result, o.json)
	}
	a.sayMade(made)
	if err == nil {
		a.saySame(o, made)
	}
	return err
}

func (a *app) tellSlimmed(result slimmed, asJSON bool) error {
	if asJSON {
		return a.printJSON(result)
	}
	return printSlim(a.out, result.Report)
}

// sayMade tells where an image is.
func (a *app) sayMade(made *engine.Slimmed) {
	if made.Pushed != "" {
		a.say("pushed %s", made.Pushed)
	} else if made.Output != "" {
		a.sayWritten(made.Output)
	}
	if made.Named.Name != "" {
		a.sayNamed(made.Named)
	}
}

// saySame tells of an image that is no other than before, and of what was not made for it.
func (a *app) saySame(o slimOptions, made *engine.Slimmed) {
	switch {
	case made.Left:
		a.say("there is nothing in %s to remove, so %s was not written: it would be a copy, which --force makes", o.image, o.output)
	case made.Same:
		a.say("there is nothing in %s to remove: it is the same image", o.image)
	}
}

func printSlim(w io.Writer, r *slim.Report) error {
	if len(r.GPUs) > 0 {
		if err := printDeviceCode(w, r); err != nil {
			return err
		}
	}
	if err := printTrimmed(w, r); err != nil {
		return err
	}
	return printLayers(w, r.Layers)
}

// printTrimmed shows what was taken out besides device code.
func printTrimmed(w io.Writer, r *slim.Report) error {
	removed := [][]string{{"REMOVED", "FILES", "SIZE"}}
	for _, x := range r.Removed {
		removed = append(removed, []string{x.Reason, strconv.Itoa(x.Files), units.Size(x.Size)})
	}
	if len(r.Stripped) > 0 {
		var size int64
		for _, f := range r.Stripped {
			size += f.Before - f.After
		}
		removed = append(removed, []string{"symbols and debugging information", strconv.Itoa(len(r.Stripped)), units.Size(size)})
	}
	kept := [][]string{{"LEFT AS IT IS", "BECAUSE"}}
	for _, x := range r.Kept {
		kept = append(kept, []string{"/" + x.Path, x.Reason})
	}
	for _, x := range r.Unstripped {
		kept = append(kept, []string{fmt.Sprintf("symbols of %s (%s)", units.Number(x.Files, "file"), units.Size(x.Size)), x.Reason})
	}
	for _, rows := range [][][]string{removed, kept} {
		if len(rows) > 1 {
			if err := printBelow(w, rows); err != nil {
				return err
			}
		}
	}
	return nil
}

func printDeviceCode(w io.Writer, r *slim.Report) error {
	if len(r.Files) == 0 {
		_, err := fmt.Fprintln(w, "no device code")
		return err
	}
	rows, refused, whole := slimRows(r)
	drops := len(rows) > 2
	if !drops {
		if _, err := fmt.Fprintf(w, "%s with device code, and none to remove\n", units.Number(len(r.Files), "file")); err != nil {
			return err
		}
	} else if err := printTable(w, rows); err != nil {
		return err
	}
	if whole > 0 && drops {
		if _, err := fmt.Fprintf(w, "\n%d of the %d files with device code lose none.\n", whole, len(r.Files)); err != nil {
			return err
		}
	}
	if len(refused) == 0 {
		return nil
	}
	return printBelow(w, append([][]string{{"LEFT AS IT IS", "BECAUSE"}}, refused...))
}

func printBelow(w io.Writer, rows [][]string) error {
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return printTable(w, rows)
}

// slimRows are the files that lose code, those that are left alone, and how many keep all they have.
func slimRows(r *slim.Report) (rows, refused [][]string, whole int) {
	rows = [][]string{{"LIBRARY", "KEPT", "DROPPED", "BEFORE", "AFTER"}}
	for i := range r.Files {
		f := &r.Files[i]
		switch {
		case f.Refused != "":
			refused = append(refused, []string{shortPath(&facts.Library{Path: f.Path}), f.Refused})
		case len(f.Dropped) == 0:
			whole++
		default:
			rows = append(rows, []string{
				shortPath(&facts.Library{Path: f.Path}), codeNames(f.Kept), codeNames(f.Dropped),
				units.Size(f.Before()), units.Size(f.After()),
			})
		}
	}
	return append(rows, []string{"all", "", "", units.Size(r.Before), units.Size(r.After)}), refused, whole
}

// codeNames lists architectures: those of machine code first, without a word.
func codeNames(code []slim.Code) string {
	var names []string
	last := "sass"
	for _, c := range code {
		if c.Kind != last {
			names = append(names, map[string]string{"ptx": "PTX", "lto-ir": "LTO-IR", "other": "other"}[c.Kind])
			last = c.Kind
		}
		names = append(names, c.Arch)
	}
	return strings.Join(names, " ")
}

func printLayers(w io.Writer, layers []slim.LayerReport) error {
	if len(layers) == 0 {
		return nil
	}
	rows := [][]string{{"LAYER", "SLIMMED", "BEFORE", "AFTER"}}
	var before, after int64
	for _, l := range layers {
		before += l.Size
		after += l.SlimmedSize
		if l.Slimmed != l.Digest {
			rows = append(rows, []string{l.Digest.Short(), l.Slimmed.Short(), units.Size(l.Size), units.Size(l.SlimmedSize)})
		}
	}
	if len(rows) == 1 {
		return nil
	}
	return printBelow(w, append(rows, []string{fmt.Sprintf("all %d", len(layers)), "", units.Size(before), units.Size(after)}))
}
