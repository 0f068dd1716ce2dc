package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/pipeline"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/units"
)

func newPipelineCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pipeline COMMAND",
		Short: "Build and publish the images of a team",
		Long: `Work on all images that a pipeline.toml names, the one of the current directory or of the nearest above
it: each variant of each recipe is an image, which has a canonical reference in a registry,
STAGING/NAME:VERSION-KEY. The key stands for everything that decides what the image holds. All state is
in registries, so every command asks them again, and may be run twice.`,
		Example: examples(
			"sconce pipeline lock                pin what all recipes mean today",
			"sconce pipeline plan                what is to be built, tested and published, and why",
			"sconce pipeline run                 build what is missing",
			"sconce pipeline gitlab > child.yml  the same as jobs of GitLab",
		),
		Args: cobra.ArbitraryArgs,
		RunE: helpOrUnknown,
	}
	cmd.AddCommand(newPipelineLockCmd(a), newPipelinePlanCmd(a), newPipelineRunCmd(a), newPipelineTableCmd(a), newPipelineGCCmd(a), newPipelineResignCmd(a))
	cmd.AddCommand(newPipelineJobsCmd(a, "gitlab", "Print the missing jobs as a pipeline of GitLab", (*pipeline.Pipeline).Gitlab))
	cmd.AddCommand(newPipelineJobsCmd(a, "github", "Print all jobs as a workflow of GitHub's actions", (*pipeline.Pipeline).Github))
	cmd.AddCommand(newPipelineJobsCmd(a, "matrix", "Print the missing jobs as matrices of GitHub's actions, one for each stage", (*pipeline.Pipeline).Matrix))
	cmd.AddCommand(newPipelineJobsCmd(a, "json", "Print the missing jobs as JSON", nil))
	return cmd
}

// pipelineImages opens the pipeline of this directory and plans its images, or those that are named with what they stand on.
func (a *app) pipelineImages(ctx context.Context, names []string) (*engine.Session, *pipeline.Pipeline, []*pipeline.Image, error) {
	p, err := pipeline.Open(".")
	if err != nil {
		return nil, nil, nil, err
	}
	s, err := a.open(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	if len(names) == 0 {
		all, err := p.Images(ctx, s)
		return s, p, all, err
	}
	var all []*pipeline.Image
	for _, name := range names {
		i, err := p.Image(ctx, s, name)
		if err != nil {
			return nil, nil, nil, err
		}
		all = withBases(all, i)
	}
	return s, p, all, nil
}

// withBases adds an image to a list, behind what it is based on.
func withBases(all []*pipeline.Image, i *pipeline.Image) []*pipeline.Image {
	if slices.ContainsFunc(all, func(other *pipeline.Image) bool { return other.Ref == i.Ref }) {
		return all
	}
	for _, below := range i.Below() {
		all = withBases(all, below)
	}
	return append(all, i)
}

// pipelineState is pipelineImages with what registries have of them.
func (a *app) pipelineState(ctx context.Context, names []string) ([]*pipeline.Status, error) {
	s, p, images, err := a.pipelineImages(ctx, names)
	if err != nil {
		return nil, err
	}
	return p.Look(ctx, s, images)
}

func newPipelinePlanCmd(a *app) *cobra.Command {
	var asJSON, check bool
	cmd := &cobra.Command{
		Use:   "plan [IMAGE...]",
		Short: "Say what is to be done for each image, and why",
		Long: `Print for each image of the pipeline what is to be done next, and why: build, test, publish, or nothing
(fine). What is based on an image that has not passed its tests is built after these (wait). An image whose
lock does not fit is to be locked first (lock); one whose stable tag, which is written once, leads to
another image needs another version (stuck). What is withdrawn, or is based on what is (withdrawn), is not
promoted: its recipe has to change. One that no trusted key has signed, in a pipeline that signs,
counts as not there (unsigned); one without tests, or with one that is skipped, is published only where
that is allowed (untested). Nothing is built and nothing is written; registries are only asked. One that
does not answer is an error.

With --check the exit code is 3 when something is for a person to do: lock, stuck, unsigned or untested.`,
		Example: examples("sconce pipeline plan", "sconce pipeline plan --json | jq -r '.[] | select(.action != \"fine\") | .image'"),
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := a.pipelineState(cmd.Context(), args)
			if err != nil {
				return err
			}
			if asJSON {
				err = a.printJSON(statusesOf(all))
			} else {
				err = a.printStatuses(all)
			}
			if err == nil && check && slices.ContainsFunc(all, (*pipeline.Status).NeedsPerson) {
				err = exitStatus(fault.CodeProblem)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "end with 3 when a person has to do something")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// pipelineStatus is what `sconce pipeline plan --json` prints of an image.
type pipelineStatus struct {
	Image     string          `json:"image"`
	Name      string          `json:"name"`
	Version   string          `json:"version"`
	Variant   string          `json:"variant,omitempty"`
	Base      string          `json:"base,omitempty"`  // the image of the pipeline that it is based on
	Parts     []string        `json:"parts,omitempty"` // of an index: its images
	Platforms []string        `json:"platforms"`
	Key       string          `json:"key,omitempty"`
	Canonical string          `json:"canonical,omitempty"`
	Digest    store.Digest    `json:"digest,omitempty"` // of what is there
	Stable    []string        `json:"stable"`
	Action    pipeline.Action `json:"action"`
	Reasons   []string        `json:"reasons"`
}

func statusesOf(all []*pipeline.Status) []pipelineStatus {
	out := make([]pipelineStatus, len(all))
	for n, st := range all {
		out[n] = pipelineStatus{
			Image: st.Ref, Name: st.Name, Version: st.Version, Variant: st.Variant, Key: string(st.Key), Canonical: st.Canonical,
			Platforms: st.Platforms(), Digest: st.Digest, Stable: append([]string{}, st.Stable...), Action: st.Action, Reasons: append([]string{}, st.Reasons...),
		}
		if st.Base != nil {
			out[n].Base = st.Base.Ref
		}
		for _, part := range st.Parts {
			out[n].Parts = append(out[n].Parts, part.Ref)
		}
	}
	return out
}

func (a *app) printStatuses(all []*pipeline.Status) error {
	rows := [][]string{{"IMAGE", "TO DO", "BECAUSE"}}
	todo := 0
	for _, st := range all {
		action := string(st.Action)
		if st.Action != pipeline.Fine {
			todo++
		}
		for n, reason := range st.Reasons {
			if n == 0 {
				rows = append(rows, []string{st.Ref, action, reason})
			} else {
				rows = append(rows, []string{"", "", reason})
			}
		}
	}
	if err := printTable(a.stdout, rows); err != nil {
		return err
	}
	if todo == 0 {
		a.say("%s: there is nothing to do", units.Number(len(all), "image"))
	} else {
		a.say("%s, %d with something to do", units.Number(len(all), "image"), todo)
	}
	return nil
}

// pipelineRunOptions are the options of `sconce pipeline run`.
type pipelineRunOptions struct {
	jobs    int
	steps   stepOptions
	test    bool
	replace bool
	branch  string
	promote bool
	on      onOptions
}

func newPipelineRunCmd(a *app) *cobra.Command {
	var o pipelineRunOptions
	cmd := &cobra.Command{
		Use:   "run [IMAGE...]",
		Short: "Build the images that are missing, test and promote them",
		Long: `Build the images of the pipeline of which there is nothing under their canonical reference, and send
them there: first those that others stand on, and several at once. With names, those images and what
they stand on. What fails stops only what is based on it. Run again, or beside another run, it does what
is missing then.

With --on each image is built by a job of its own on a node of a cluster, as by sconce build --canonical --on,
so that they spread over its nodes. What two of them need is made once, and the other one waits for it.

With --test each image is tested as soon as it is there, on each of its clusters, as by sconce test
--canonical, and several images at once; one at a time within an allocation. What has passed in the form
that it has today does not run again. What is based on an image is built once that has passed, and other
images are built meanwhile. With --promote those that have passed get their stable tags, as by sconce
promote: from the pipeline's branch alone.

In a pipeline that signs, an image in the registry that no trusted key has signed is built again. If it comes
out the same it is signed, else it is an error, unless --replace puts what was built in its place.

Exit codes with --test: 3 a test has failed, 4 one could not be judged.`,
		Example: examples("sconce pipeline run", "sconce pipeline run app:small --jobs 4", "sconce pipeline run --test --promote", "sconce pipeline run --on clariden"),
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runPipeline(cmd, args, o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.test, "test", false, "test what is built, on the clusters that it is for")
	f.BoolVar(&o.promote, "promote", false, "give what has passed its stable tags")
	f.BoolVar(&o.replace, "replace", false, "put what is built in the place of images that no trusted key has signed")
	f.IntVarP(&o.jobs, "jobs", "j", 0, "build `N` images at once (default 2, with --on 20)")
	a.addCacheFlags(f)
	addBranchFlag(cmd, &o.branch)
	o.on.addFlags(cmd)
	o.steps.addFlags(f)
	f.StringVar(&o.steps.network, "network", defaultNetwork, "the `NETWORK` of steps: default (of their own, with a way out) or host")
	complete(cmd, "network", defaultNetwork, hostNetwork)
	return cmd
}

func (a *app) runPipeline(cmd *cobra.Command, names []string, o pipelineRunOptions) error {
	ctx := cmd.Context()
	if o.steps.network == noNetwork {
		return fault.Usage(errors.New("--network none: network = false in a recipe takes it from a step"))
	}
	if o.replace && o.on.given() {
		return fault.Usage(errors.New("--replace: what replaces an image is built here, without --on"))
	}
	how := pipeline.RunOptions{Jobs: o.jobs, Tell: a.sayDone, Replace: o.replace}
	if err := o.steps.apply(a, &how.Build); err != nil {
		return err
	}
	s, p, images, err := a.pipelineImages(ctx, names)
	if err != nil {
		return err
	}
	if p.At = o.branch; o.promote {
		if err := canPromote(p, images); err != nil {
			return err
		}
	}
	all, err := p.Look(ctx, s, images)
	if err != nil {
		return err
	}
	if o.on.given() {
		a.pipelineOn(cmd, o, &how)
	}
	v := &validation{app: a, pipeline: p, opts: o}
	if o.test || o.promote {
		how.After, how.Afters = v.after, v.atOnce()
	}
	done, err := p.Run(ctx, s, all, how)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(done, func(d pipeline.Done) bool { return d.Built }) {
		a.say("%s: there is nothing to build", units.Number(len(all), "image"))
	}
	if v.code != 0 {
		return exitStatus(v.code)
	}
	return nil
}

// canPromote tells before hours of tests that none of them would count.
func canPromote(p *pipeline.Pipeline, images []*pipeline.Image) error {
	if err := p.CheckBranch("promote images"); err != nil {
		return err
	}
	if p.Sign != "" || !slices.ContainsFunc(images, func(i *pipeline.Image) bool { return len(i.Recipe.Tests) > 0 }) {
		unpublished := func(i *pipeline.Image) bool { return len(i.Stable) == 0 }
		return p.CheckTested(slices.DeleteFunc(slices.Clone(images), unpublished))
	}
	err := fault.Usage(errors.New("--promote: pipeline.toml names no key, and promotion believes signed verdicts of tests alone"))
	return fault.Hint(err, `"openssl genpkey -algorithm ed25519 -aes256 -out team.key" makes one, whose password goes into SCONCE_KEY_PASSWORD; then sign = "file:team.key" in pipeline.toml`)
}

// sayDone tells what came of an image.
func (a *app) sayDone(d pipeline.Done) {
	switch {
	case d.Action == pipeline.Withdrawn:
		a.say("left %s: %s", d.Ref, strings.Join(d.Reasons, "; "))
	case d.Built:
		a.say("built %s@%s", d.Canonical, d.Digest)
	case d.Waited:
		a.say("left %s: what it is based on, or is made of, is not there or has not passed its tests", d.Ref)
	}
}

// pipelineOf opens the pipeline that an image is of, for all commands alike: that of the recipe's directory, else that of this one.
func pipelineOf(image string) (*pipeline.Pipeline, error) {
	path, _, _ := strings.Cut(image, ":")
	p, err := pipeline.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		p, err = pipeline.Open(".")
	}
	return p, err
}

// buildCanonical builds the image of a recipe of a pipeline, and what it is based on, unless they are where they belong.
func (a *app) buildCanonical(ctx context.Context, o buildOptions) error {
	if o.file != "" || len(o.tags)+len(o.push)+len(o.outputs) > 0 || o.publish || o.noCheck || o.noCache || o.platform != "" || o.compression != "" {
		return fault.Usage(errors.New("--canonical builds the image of a recipe as every machine does, and sends it to its one place: flags that change either cannot be used with it"))
	}
	p, err := pipelineOf(o.recipe)
	if err != nil {
		return err
	}
	how := pipeline.RunOptions{Tell: a.sayDone}
	if err := o.steps.apply(a, &how.Build); err != nil {
		return err
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	i, err := p.Image(ctx, s, o.recipe)
	if err != nil {
		return err
	}
	all, err := p.Look(ctx, s, withBases(nil, i))
	if err != nil {
		return err
	}
	if all, err = neededOf(all); err != nil {
		return err
	}
	done, err := p.Run(ctx, s, all, how)
	if err != nil {
		return err
	}
	last := done[len(done)-1]
	if !last.Built {
		a.say("%s is there", last.Canonical)
	}
	_, err = fmt.Fprintln(a.stdout, last.Digest)
	return err
}

// neededOf leaves what the last image is based on alone when the image itself is there.
func neededOf(all []*pipeline.Status) ([]*pipeline.Status, error) {
	last := all[len(all)-1]
	if last.Action == pipeline.Lock {
		return nil, last.Problem
	}
	if !last.IsToBuild() {
		return all[len(all)-1:], nil
	}
	return all, nil
}

func newPipelineTableCmd(a *app) *cobra.Command {
	var markdown bool
	cmd := &cobra.Command{
		Use:   "table",
		Short: "Print which images users can take, and as what",
		Long: `Print the images whose stable tags lead to what the pipeline builds now, with the references that users
take them by: for a page of documentation, which then is never behind the registry. Of an image that is
withdrawn it says why.`,
		Example: examples("sconce pipeline table --markdown > images.md"),
		Args:    wants(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := a.pipelineState(cmd.Context(), nil)
			if err != nil {
				return err
			}
			if markdown {
				_, err = a.out.Write([]byte(pipeline.Markdown(all)))
				return err
			}
			rows := [][]string{{"IMAGE", "VERSION", "PLATFORM", "TAKE IT AS"}}
			for _, st := range all {
				if take := st.TakeAs(); take != "" {
					rows = append(rows, []string{st.Name, st.Version, strings.Join(st.Platforms(), " "), take})
				}
			}
			return printTable(a.stdout, rows)
		},
	}
	cmd.Flags().BoolVar(&markdown, "markdown", false, "print a table in Markdown")
	return cmd
}

// newPipelineJobsCmd is a command that prints jobs; write is nil for JSON.
func newPipelineJobsCmd(a *app, name, short string, write func(*pipeline.Pipeline, []pipeline.Job) ([]byte, error)) *cobra.Command {
	static := name == "github" // which reads its file from the repository, and so before anybody asks registries
	all := static
	cmd := &cobra.Command{
		Use:   name,
		Short: short,
		Long: short + `:
one for each image to build, for each cluster on which it is tested, and for each image to publish.
A job is one command of sconce that asks registries again what there is to do. What jobs look like
beside it, on which machines they run, is said in pipeline.toml under [ci].`,
		Example: examples("sconce pipeline " + name),
		Args:    wants(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, jobs, err := a.pipelineJobs(cmd.Context(), all)
			if err != nil {
				return err
			}
			if !static { // whose file says by itself for which branch it is
				jobs = p.Allowed(cmd.Context(), jobs)
			}
			if write == nil {
				return a.printJSON(append([]pipeline.Job{}, jobs...))
			}
			text, err := write(p, jobs)
			if err != nil {
				return err
			}
			_, err = a.out.Write(text)
			return err
		},
	}
	if !static {
		cmd.Flags().BoolVar(&all, "all", false, "jobs for all images, whatever registries have")
	}
	return cmd
}

func (a *app) pipelineJobs(ctx context.Context, everything bool) (*pipeline.Pipeline, []pipeline.Job, error) {
	s, p, images, err := a.pipelineImages(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	all := pipeline.Everything(images)
	if !everything {
		if all, err = p.Look(ctx, s, images); err != nil {
			return nil, nil, err
		}
	}
	jobs, err := p.Jobs(all)
	return p, jobs, err
}
