package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/units"
	"sconce.dev/sconce/internal/venv"
)

const aboutVenv = `Python packages of your own on top of an image that stays as it is: a virtual environment that sees what the image has, its
torch above all, and adds what is missing. The image's Python may be a distribution's, a virtual environment, as in images
that sconce built, or that of a conda environment.

  sconce venv new llm-train.sqsh exp          an empty environment on top of the image
  sconce venv add exp einops "wandb>=0.19"    resolved against the image's packages, and locked
  sconce run --venv exp llm-train.sqsh -- python train.py
  sconce venv pack exp -o exp.sqsh            one file for jobs, whatever mounts it

The directory holds what was asked for and its lock. The packages are in the store, where they are shared
between environments, until they are packed.`

func newVenvCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "venv",
		Short: "Put Python packages on top of an image, and pack them in one file",
		Long:  aboutVenv,
		Example: examples(
			"sconce venv new llm-train.sqsh exp",
			"sconce venv add exp einops 'wandb>=0.19'",
			"sconce venv pack exp -o exp.sqsh",
		),
		Args: cobra.ArbitraryArgs,
		RunE: helpOrUnknown,
	}
	cmd.AddCommand(newVenvNewCmd(a), newVenvAddCmd(a), newVenvPackCmd(a), newVenvCheckCmd(a), newVenvMergeCmd(a), newVenvHookCmd(a))
	return cmd
}

func newVenvNewCmd(a *app) *cobra.Command {
	var platform, mount string
	cmd := &cobra.Command{
		Use:   "new IMAGE [DIR]",
		Short: "Make an environment on top of an image",
		Long: `Make a directory (by default venv) for an environment on top of an image. It notes which image that is, by its
digest, and which Python it has. The environment has no packages of its own yet.

` + anyImage,
		Example: examples(
			"sconce venv new llm-train:25.11",
			"sconce venv new docker://nvcr.io/nvidia/pytorch:25.11-py3 exp --mount /opt/exp",
		),
		Args:              wants("IMAGE", "[DIR]"),
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "venv"
			if len(args) > 1 {
				dir = args[1]
			}
			return a.runVenvNew(cmd.Context(), args[0], dir, platform, mount)
		},
	}
	cmd.Flags().StringVar(&mount, "mount", venv.DefaultMount, "the `DIR` where containers see it; it works in any other as well")
	addPlatformFlag(cmd, &platform)
	return cmd
}

func (a *app) runVenvNew(ctx context.Context, name, dir, platform, mount string) error {
	if err := venv.CheckMount(mount); err != nil {
		return fault.Usage(fmt.Errorf("--mount: %w", err))
	}
	s, image, err := a.openImage(ctx, name, platform)
	if err != nil {
		return err
	}
	defer image.Close()
	m, err := s.NewVenv(ctx, image, dir, mount)
	if err != nil {
		return err
	}
	a.say("%s is an environment on top of %s (%s), whose Python is %s, %s", dir, name, m.Digest.Short(), m.Python, m.Executable)
	return nil
}

func newVenvAddCmd(a *app) *cobra.Command {
	var r engine.VenvRequest
	cmd := &cobra.Command{
		Use:   "add DIR [PACKAGE...]",
		Short: "Add packages to an environment",
		Long: `Add packages to an environment. All its packages are resolved together by uv, against the packages of the image,
which stay: what needs another version of one of these is an error, unless --allow-shadow NAME lets one of your own go
before it. The lock,
pylock.toml, is in the environment's directory. Versions that are locked stay as long as they fit.

Without packages, what has changed in requirements files and projects is taken up.`,
		Example: examples(
			"sconce venv add exp einops 'wandb>=0.19'",
			"sconce venv add exp -r requirements.txt",
			"sconce venv add exp --project .",
			"sconce venv add exp 'numpy>=2' --allow-shadow numpy",
			"sconce venv add exp --remove wandb",
		),
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fault.Usage(fault.Hint(errors.New("sconce venv add: DIR is missing"), "usage: "+cmd.UseLine()))
			}
			r.Packages = args[1:]
			return a.runVenvAdd(cmd.Context(), args[0], r)
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&r.Requirements, "requirements", "r", nil, "add what a requirements `FILE` lists")
	f.StringVar(&r.Project, "project", "", "add what the pyproject.toml in `DIR` depends on")
	f.StringArrayVar(&r.Shadow, "allow-shadow", nil, "let a `PACKAGE` of the image be covered by one of another version")
	f.StringArrayVar(&r.Remove, "remove", nil, "take back a `PACKAGE` that was added")
	f.BoolVar(&r.Upgrade, "upgrade", false, "take the newest versions instead of those that are locked")
	return cmd
}

func (a *app) runVenvAdd(ctx context.Context, dir string, r engine.VenvRequest) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	change, err := s.ChangeVenv(ctx, dir, r)
	if err != nil {
		return err
	}
	for _, p := range change.Removed {
		a.say("- %s %s", p.Name, p.Version)
	}
	for _, p := range change.Added {
		a.say("+ %s %s", p.Name, p.Version)
	}
	a.sayShadows(change.Shadows)
	a.say("%s has %s of its own", dir, units.Number(change.Packages, "package"))
	return nil
}

func (a *app) sayShadows(shadows []venv.Shadow) {
	for _, x := range shadows {
		a.say("%s %s goes before the image's %s: what the image has was built and tested with the latter", x.Name, x.Own, x.Base)
	}
}

func newVenvPackCmd(a *app) *cobra.Command {
	var (
		output string
		force  bool
		sq     squashfsOptions
	)
	cmd := &cobra.Command{
		Use:   "pack DIR -o FILE.sqsh",
		Short: "Write an environment as one file",
		Long: `Write an environment as one squashfs file, with byte code, so that a job opens one file instead of thousands. It works in any
directory where it is mounted, on the image that it was made for:

  sconce run        --venv exp.sqsh
  Container Engine  mounts = ["/path/exp.sqsh:/venv:sqsh"]
  Apptainer         -B exp.sqsh:/venv:image-src=/
  pyxis, enroot     SCONCE_VENV=/path/exp.sqsh, with the hook that sconce venv hook installs

Then activate it in the container: . /venv/bin/activate. In a recipe, venv = "exp.sqsh" under [job.NAME]
makes job files do so.`,
		Example: examples(
			"sconce venv pack exp -o exp.sqsh",
			"sconce venv pack exp -o $SCRATCH/venvs/exp.sqsh --force",
		),
		Args: wants("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output == "" {
				return fault.Usage(fault.Hint(errors.New("there is no file to write"), "name it with -o FILE.sqsh"))
			}
			how, err := sq.writing(force)
			if err != nil {
				return err
			}
			return a.withVenvOf(cmd.Context(), args[0], func(s *engine.Session, v *engine.Venv) error {
				if err := s.PackVenv(cmd.Context(), v, output, how); err != nil {
					return err
				}
				a.sayShadows(v.Record.Shadows)
				a.say("wrote %s", output)
				return nil
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "write to `FILE`")
	cmd.Flags().BoolVar(&force, "force", false, "replace a file that holds something else")
	addSquashfsFlags(cmd, &sq)
	return cmd
}

func (a *app) withVenvOf(ctx context.Context, name string, use func(*engine.Session, *engine.Venv) error) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	v, err := s.OpenVenv(ctx, name)
	if err != nil {
		return err
	}
	defer v.Close()
	return use(s, v)
}

func newVenvCheckCmd(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check FILE|DIR [IMAGE]",
		Short: "Say what an environment is, whether it is whole, and whether it fits an image",
		Long: `Say what an environment is made of and is based on. A packed one is read to its end. With an IMAGE, the exit code is
3 when it was made for another one.`,
		Example: examples("sconce venv check exp.sqsh", "sconce venv check exp.sqsh llm-train.sqsh", "sconce venv check exp --json"),
		Args:    wants("FILE|DIR", "[IMAGE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withVenvOf(cmd.Context(), args[0], func(s *engine.Session, v *engine.Venv) error {
				return a.runVenvCheck(cmd.Context(), s, v, args[1:], asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) runVenvCheck(ctx context.Context, s *engine.Session, v *engine.Venv, images []string, asJSON bool) error {
	var on *engine.Subject
	if len(images) > 0 {
		var err error
		if on, err = s.Open(images[0], engine.Wanted{OrOther: true}); err != nil {
			return err
		}
		defer on.Close()
	}
	if err := v.Check(ctx, on, true); err != nil {
		return err
	}
	if asJSON {
		return a.printJSON(v.Record)
	}
	out := dataWriter{a.stdout, a.view}
	b := v.Record.Base
	fmt.Fprintln(out, quote.Sprintf("%s: Python %s (%s) of %s, seen in %s", v.Name, b.Python, b.Executable, b.Title(), b.Mount))
	for _, p := range v.Record.Packages {
		fmt.Fprintln(out, quote.Sprintf("  %s %s", p.Name, p.Version))
	}
	a.sayShadows(v.Record.Shadows)
	if on != nil {
		a.say("it was made for %s", on.Name)
	}
	return nil
}

func newVenvMergeCmd(a *app) *cobra.Command {
	var (
		output, name, platform string
		force, anyBase         bool
		sq                     squashfsOptions
	)
	cmd := &cobra.Command{
		Use:   "merge FILE|DIR IMAGE [-o FILE.sqsh] [--name NAME]",
		Short: "Make an image of an image and the environment on top of it",
		Long: `Make one image for production: that of the environment's base, with the environment as its uppermost layer and active in its
variables. What is compressed already for the base is copied.`,
		Example: examples(
			"sconce venv merge exp.sqsh llm-train -o train.sqsh",
			"sconce venv merge exp llm-train --name train:1.0",
		),
		Args: wants("FILE|DIR", "IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output == "" && name == "" {
				return fault.Usage(fault.Hint(errors.New("there is nowhere for the image to go"), "name a file with -o FILE.sqsh, or the image with --name NAME"))
			}
			how, err := sq.writing(force)
			if err != nil {
				return err
			}
			return a.withVenvOf(cmd.Context(), args[0], func(s *engine.Session, v *engine.Venv) error {
				return a.runVenvMerge(cmd.Context(), s, v, args[1], platform, anyBase, output, name, how)
			})
		},
	}
	f := cmd.Flags()
	f.StringVarP(&output, "output", "o", "", "write the image to `FILE`, as sconce copy does")
	f.StringVar(&name, "name", "", "keep it in the store as `NAME`[:TAG]")
	f.BoolVar(&force, "force", false, "replace a file that holds something else")
	f.BoolVar(&anyBase, "any-base", false, "use the environment although it was made for another image")
	addPlatformFlag(cmd, &platform)
	addSquashfsFlags(cmd, &sq)
	return cmd
}

func (a *app) runVenvMerge(ctx context.Context, s *engine.Session, v *engine.Venv, image, platform string, anyBase bool, output, name string, how engine.Writing) error {
	wanted := engine.Wanted{}
	var err error
	if wanted.Platform, err = parsePlatform(platform); err != nil {
		return err
	}
	on, err := s.Open(image, wanted)
	if err != nil {
		return err
	}
	defer on.Close()
	if err := v.Check(ctx, on, false); err != nil && !anyBase {
		return err
	}
	made, err := s.MergeVenv(ctx, v, on)
	if err != nil {
		return err
	}
	if name != "" {
		named, err := s.Name(made, name)
		if err != nil {
			return err
		}
		a.sayNamed(named)
	}
	if output == "" {
		return nil
	}
	if err := s.WriteImage(ctx, made, output, name, how); err != nil {
		return err
	}
	a.say("wrote %s", output)
	return nil
}
