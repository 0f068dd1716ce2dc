package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/nodejob"
	"sconce.dev/sconce/internal/pipeline"
)

// onOptions are the options of commands that can run on a cluster.
type onOptions struct {
	cluster string
	time    string
}

func (o *onOptions) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.cluster, "on", "", "do it on a node of this `CLUSTER` (a name, or a profile's file), as a job of Slurm's")
	cmd.Flags().StringVar(&o.time, "time", "", "with --on: what the job may take at most, a `TIME` such as 2h")
}

func (o onOptions) given() bool { return o.cluster != "" || o.time != "" }

// nodeCommand prepares a command of sconce for a node; dir is that of a recipe, beside which profiles are looked for, "" for none.
func (a *app) nodeCommand(ctx context.Context, o onOptions, dir string) (nodejob.Command, error) {
	if o.cluster == "" {
		return nodejob.Command{}, fault.Usage(errors.New("--time is of jobs: --on CLUSTER is missing"))
	}
	return engine.NodeCommand(ctx, o.cluster, o.time, dir, a.settings())
}

// ofThisView are flags that say where a command runs, and how it is shown.
var ofThisView = []string{"on", "time", "progress", "quiet", "verbose", "color", "store"}

// flagWords are the flags that were given, written as they are read.
func flagWords(cmd *cobra.Command, without ...string) []string {
	var words []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if slices.Contains(without, f.Name) {
			return
		}
		if many, ok := f.Value.(pflag.SliceValue); ok {
			for _, value := range many.GetSlice() {
				words = append(words, "--"+f.Name+"="+value)
			}
			return
		}
		words = append(words, "--"+f.Name+"="+f.Value.String())
	})
	return words
}

// sendThere runs a command on a node. What the job itself says is told like what the command says.
func (a *app) sendThere(ctx context.Context, c nodejob.Command) error {
	return c.Run(ctx, nodejob.Options{Say: a.say, Said: a.said, Events: a.view, Stdout: a.out})
}

// said tells what a command on a node has told.
func (a *app) said(text string) { a.tell(text) }

// checkOn refuses what cannot be had on another machine.
func (s stepOptions) checkOn() error {
	switch {
	case len(s.ssh) > 0:
		return fault.Usage(fault.Hint(errors.New("--ssh and --on: the agent is on this machine alone"), "give the step a key or a token with --secret"))
	case s.shellOnFailure:
		return fault.Usage(fault.Hint(errors.New("--shell-on-failure and --on: the job has no terminal"), "build here: what the job has made is in the store"))
	}
	return nil
}

// buildOn is `sconce build --on`: what is wrong with the recipe is found out here, and it is locked here.
func (a *app) buildOn(cmd *cobra.Command, args []string, o buildOptions) error {
	ctx := cmd.Context()
	if err := o.steps.checkOn(); err != nil {
		return err
	}
	if o.file == "-" {
		return fault.Usage(fault.Hint(errors.New("-f - and --on: standard input is this machine's"), "write it to a file"))
	}
	file, dir, isFile := buildFileOf(o)
	if !isFile {
		dir, _, _ = strings.Cut(o.recipe, ":")
		if info, err := os.Stat(dir); err == nil && !info.IsDir() {
			dir = filepath.Dir(dir)
		}
	}
	c, err := a.nodeCommand(ctx, o.on, dir)
	if err != nil {
		return err
	}
	for _, place := range []string{dir, filepath.Dir(file)} {
		if err := c.AddPlace(place); err != nil {
			return err
		}
	}
	c.Args = append(append(c.Args, "build"), flagWords(cmd, ofThisView...)...)
	if o.platform == "" && o.platformOn(c) {
		o.platform = c.Cluster.Platform
		c.Args = append(c.Args, "--platform="+o.platform)
	}
	c.Args = append(append(c.Args, "--"), args...)
	if err := a.planThere(ctx, &c, o); err != nil {
		return err
	}
	return a.sendThere(ctx, c)
}

// platformOn reports whether nothing but the cluster says for which machines an image is.
func (o buildOptions) platformOn(c nodejob.Command) bool {
	if o.canonical || c.Cluster.Platform == "" || c.Cluster.Platform == "linux/"+runtime.GOARCH {
		return false
	}
	if _, _, isFile := buildFileOf(o); isFile {
		return true
	}
	r, err := loadRecipe(o.recipe, "", "")
	return err == nil && r.Target.Platform == ""
}

// planThere plans here what is built on a node: for its name and its key, its secrets, and the places that it needs.
func (a *app) planThere(ctx context.Context, c *nodejob.Command, o buildOptions) error {
	if err := o.takeOthers(a); err != nil {
		return fault.Usage(err)
	}
	how, err := o.how()
	if err != nil {
		return err
	}
	if err := o.steps.apply(a, &how); err != nil {
		return err
	}
	if c.Secrets, err = secretValues(how.Secrets); err != nil {
		return err
	}
	for _, out := range o.outputs {
		path, err := engine.OutputPath(out)
		if err != nil {
			return err
		}
		if err := c.AddPlace(filepath.Dir(path)); err != nil {
			return err
		}
	}
	if o.canonical {
		return a.planCanonical(ctx, c, o)
	}
	_, p, err := a.plan(ctx, o, &how)
	if err != nil {
		return err
	}
	defer p.Close()
	c.Name, c.Key = p.Name, string(p.Image.Key)
	return nil
}

func (a *app) planCanonical(ctx context.Context, c *nodejob.Command, o buildOptions) error {
	p, err := pipelineOf(o.recipe)
	if err != nil {
		return err
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	i, err := p.Image(ctx, s, o.recipe)
	if err == nil {
		err = i.Problem
	}
	if err != nil {
		return err
	}
	c.Name, c.Key = i.Name+":"+i.Version, i.Canonical
	return nil
}

func secretValues(secrets map[string]func() ([]byte, error)) (map[string][]byte, error) {
	values := make(map[string][]byte, len(secrets))
	for id, read := range secrets {
		value, err := read()
		if err != nil {
			return nil, fmt.Errorf("--secret %s: %w", id, err)
		}
		values[id] = value
	}
	return values, nil
}

// copyOn is `sconce copy --on`: what is wrong with the destination is found out here.
func (a *app) copyOn(cmd *cobra.Command, args []string, o copyOptions) error {
	if _, err := o.squashfs.writing(o.force); err != nil {
		return err
	}
	if err := engine.CheckDestination(o.to, o.force); err != nil {
		return err
	}
	c, err := a.nodeCommand(cmd.Context(), o.on, ".")
	if err != nil {
		return err
	}
	if path, err := engine.OutputPath(o.to); err == nil { // else it is a registry
		if err := c.AddPlace(filepath.Dir(path)); err != nil {
			return err
		}
	}
	if _, path, ok := strings.Cut(o.from, ":"); ok && strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") {
		if err := c.AddPlace(filepath.Dir(path)); err != nil {
			return err
		}
	}
	c.Name = "copy " + filepath.Base(o.to)
	c.Args = append(append(append(c.Args, "copy"), flagWords(cmd, ofThisView...)...), append([]string{"--"}, args...)...)
	if _, err := a.open(cmd.Context()); err != nil { // which the node finds made
		return err
	}
	return a.sendThere(cmd.Context(), c)
}

// jobsAtOnce is how many jobs of a pipeline wait or run at once when nobody says: Slurm is asked for each.
const jobsAtOnce = 20

// pipelineOn has the images of a pipeline built by jobs of their own.
func (a *app) pipelineOn(cmd *cobra.Command, o pipelineRunOptions, how *pipeline.RunOptions) {
	if how.Jobs == 0 {
		how.Jobs = jobsAtOnce
	}
	words := flagWords(cmd, append([]string{"jobs", "test", "promote"}, ofThisView...)...)
	how.On = func(ctx context.Context, st *pipeline.Status) error {
		if err := o.steps.checkOn(); err != nil {
			return err
		}
		c, err := a.nodeCommand(ctx, o.on, st.Recipe.Dir)
		if err != nil {
			return err
		}
		if c.Secrets, err = secretValues(how.Build.Secrets); err != nil {
			return err
		}
		if err := c.AddPlace(st.Recipe.Dir); err != nil {
			return err
		}
		c.Name, c.Key = st.Name+":"+st.Version, st.Canonical
		c.Args = slices.Concat(c.Args, []string{"build", "--canonical"}, words, []string{"--", st.Ref})
		return c.Run(ctx, nodejob.Options{Say: a.say, Said: func(string) {}, Events: a.view, Stdout: io.Discard})
	}
}

// newOnNodeCmd is the command that jobs run, which nobody types.
func newOnNodeCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "on-node DIR",
		Short:  "Run the command that --on has sent to this node",
		Hidden: true,
		Args:   wants("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			code := 0
			err := nodejob.OnNode(cmd.Context(), args[0], func(ctx context.Context, n nodejob.Node) int {
				there := &app{stdin: strings.NewReader(""), stdout: n.Stdout, stderr: n.Events, signals: a.signals, onNode: true, secrets: n.Secrets}
				code = there.run(ctx, n.Args)
				return code
			})
			if err == nil && code != 0 {
				return exitStatus(code)
			}
			return err
		},
	}
}
