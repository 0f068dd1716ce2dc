package cli

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/spelling"
)

// exportCondaOptions are the options of `sconce export conda`.
type exportCondaOptions struct {
	subject  string // a recipe or an image
	format   string
	prefix   string
	platform string
	locked   bool
	output   string
	force    bool
}

// The forms of a lock.
const (
	formatCondaLock = "conda-lock"
	formatExplicit  = "explicit"
)

func newExportCondaCmd(a *app) *cobra.Command {
	var o exportCondaOptions
	cmd := &cobra.Command{
		Use:   "conda [RECIPE|IMAGE]",
		Short: "Write which packages a conda environment is made of, as a lock",
		Long: `Write the packages of a conda environment, each with its address and hash, so that conda, mamba
and conda-lock make the same one elsewhere. It is that of RECIPE (a sconce.toml or its
directory, by default the current one), as its lock pins it, or the one in an IMAGE, whoever made
it: what conda-meta says there.

A conda-lock.yml of a recipe has the wheels of its Python packages too; those that are compiled are
told. Of an image, and in a list of addresses (@EXPLICIT), there are conda packages alone.`,
		Example: examples(
			"sconce export conda -o conda-lock.yml                          conda-lock install --name train",
			"sconce export conda --format explicit -o train.txt             conda create --name train --file train.txt",
			"sconce export conda app.sif --format explicit                  what an image has",
			"sconce export conda docker://registry.example.org/team/app:1   wherever it is",
		),
		Args:              wants("[RECIPE|IMAGE]"),
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.subject = recipeArgument(args)
			return a.runExportConda(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.format, "format", formatCondaLock, "the `FORM` of the lock: conda-lock or explicit")
	f.StringVarP(&o.output, "output", "o", "", "write to `FILE` (default: standard output)")
	f.BoolVar(&o.force, "force", false, "replace a file that is there already")
	f.StringVar(&o.prefix, "prefix", "", "of an image with several environments, the one in `DIR`")
	f.BoolVar(&o.locked, "locked", false, "refuse when the lock is missing or does not fit the recipe")
	addPlatformFlag(cmd, &o.platform)
	return cmd
}

func (a *app) runExportConda(ctx context.Context, o exportCondaOptions) error {
	formats := []string{formatCondaLock, formatExplicit}
	if o.format != formatCondaLock && o.format != formatExplicit {
		hint := "the forms are " + strings.Join(formats, " and ")
		if near := spelling.Nearest(o.format, formats); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		return fault.Usage(fault.Hint(fmt.Errorf("--format %s is no form of a lock", o.format), hint))
	}
	found, err := a.condaExport(ctx, o)
	if err != nil {
		return err
	}
	left := found.Left
	text := found.Platforms[0].Explicit()
	if o.format == formatCondaLock {
		if text, err = found.Write(); err != nil {
			return err
		}
	} else {
		for _, w := range found.Platforms[0].Wheels {
			left = append(left, w.Name+" "+w.Version)
		}
	}
	if len(left) > 0 {
		a.say("not in it, as they are no conda packages%s: %s", map[string]string{formatCondaLock: " and have no wheel at an address"}[o.format], strings.Join(left, ", "))
	}
	return a.deliverText(o.output, string(text), o.force)
}

// condaExport reads the environment of a recipe or an image.
func (a *app) condaExport(ctx context.Context, o exportCondaOptions) (*engine.CondaExport, error) {
	if engine.IsRecipe(o.subject) {
		if o.prefix != "" {
			return nil, fault.Usage(fmt.Errorf("--prefix is for an image, and %s is a recipe", o.subject))
		}
		r, err := loadRecipe(o.subject, o.platform, "")
		if err != nil {
			return nil, err
		}
		s, err := a.open(ctx)
		if err != nil {
			return nil, err
		}
		return s.CondaLock(ctx, r, o.locked)
	}
	_, image, err := a.openImage(ctx, o.subject, o.platform)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	return image.CondaLock(ctx, o.prefix)
}

// deliverText writes a text to a file, or to standard output where none is named.
func (a *app) deliverText(file, text string, force bool) error {
	if file == "" {
		_, err := fmt.Fprint(a.stdout, text)
		return err
	}
	if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && !force {
		return fault.Hint(fmt.Errorf("%s exists", file), "--force replaces it")
	}
	if err := atomicfile.Replace(file, []byte(text), 0o644); err != nil {
		return err
	}
	a.say("wrote %s", file)
	return nil
}
