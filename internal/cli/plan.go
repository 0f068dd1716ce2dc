package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/build"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/units"
)

// planOptions are the options of `sconce plan`: what is built, and how it is shown.
type planOptions struct {
	buildOptions
	why bool
	dot bool
}

func newPlanCmd(a *app) *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan [RECIPE | -f CONTAINERFILE [CONTEXT]]",
		Short: "Show what a build would do, and why",
		Long: `Show the steps of the image that RECIPE or a Containerfile describes, and where the result of each is: in the store (here),
in the recipe's cache in a registry, with --read-cache (registry), or still to be made, with what that will download and
about how long it takes, by how long it took before. Nothing is built. A recipe without a lock that fits is locked, as
sconce build does.

A step that is made only if what it is based on comes out otherwise than before is called "if changed": a component that was
patched may come out the same, and then nothing after it is made.

Steps have keys. A key stands for everything that decides what a step makes, and a step whose key is known is never run. With
--why each step that is to be made says what made its key another than in the last build of this image: the file, package or
variable, or the step below it.`,
		Example: examples(
			"sconce plan                                 what sconce build would do",
			"sconce plan --why demo                      and what has changed since the last build",
			"sconce plan -f Containerfile . --why        of a Containerfile",
			"sconce plan --json | jq '.steps[] | select(.where == \"to make\")'",
			"sconce plan --dot | dot -Tsvg > plan.svg    as a drawing, by graphviz",
		),
		Args: wants("[RECIPE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.recipe = withVariant(recipeArgument(args), o.variant)
			return a.runPlan(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.why, "why", false, "say what has changed since the last build of this image")
	f.BoolVar(&o.json, "json", false, "print the steps, with all that is in their keys, as JSON")
	f.BoolVar(&o.dot, "dot", false, "print a graph for graphviz")
	f.BoolVar(&o.locked, "locked", false, "refuse when the lock is missing or does not fit the recipe")
	f.StringVar(&o.variant, "variant", "", "plan this `VARIANT` of the recipe, as RECIPE:VARIANT does")
	f.StringVarP(&o.file, "file", "f", "", "plan this Containerfile or Dockerfile `FILE`; the argument is the context then")
	f.StringArrayVar(&o.buildArgs, "build-arg", nil, "`NAME[=VALUE]` of an ARG; without a value, this environment's (repeatable)")
	f.StringVar(&o.target, "target", "", "plan this `STAGE` of the Containerfile (default: the last)")
	f.StringVar(&o.ignoreFile, "ignore-file", "", "`FILE` that says what the context leaves out (default: .containerignore, .dockerignore)")
	addFileFlags(cmd, &o.buildOptions)
	a.addReadCacheFlag(f)
	f.BoolVar(&o.noCheck, "no-check", false, "as if built with --no-check, which a label of the image says")
	f.StringVar(&o.compression, "compression", "", "compress new layers by this `METHOD`, gzip or zstd (default: the recipe's, else gzip)")
	f.StringVar(&o.platform, "platform", "", "plan for this `PLATFORM`, linux/amd64 or linux/arm64 (default: the recipe's, else this machine's)")
	complete(cmd, "compression", "gzip", "zstd")
	complete(cmd, "platform", "linux/amd64", "linux/arm64")
	cmd.MarkFlagsMutuallyExclusive("json", "dot")
	return cmd
}

func (a *app) runPlan(ctx context.Context, o planOptions) error {
	if err := checkCompression(o.compression); err != nil {
		return err
	}
	s, p, err := a.plan(ctx, o.buildOptions, &engine.BuildOptions{})
	if err != nil {
		return err
	}
	defer p.Close()
	x, err := s.Explain(ctx, p)
	switch {
	case err != nil:
		return err
	case o.json:
		return a.printJSON(plannedOf(x))
	case o.dot:
		return printDot(a.stdout, x)
	}
	return a.printPlan(x, o.why)
}

// planned is what `sconce plan --json` prints.
type planned struct {
	Image string        `json:"image"`
	Steps []plannedStep `json:"steps"`
}

type plannedStep struct {
	Stage    string       `json:"stage,omitempty"`
	Kind     string       `json:"kind"`
	Title    string       `json:"title"`
	Place    string       `json:"place,omitempty"`
	Key      plan.Key     `json:"key"`
	On       []plan.Key   `json:"on,omitempty"` // keys of steps and stages that it is based on
	Where    build.Where  `json:"where"`
	Download int64        `json:"download,omitempty"` // bytes; -1: not known
	Seconds  float64      `json:"seconds,omitempty"`  // about how long it takes
	Why      []string     `json:"why,omitempty"`
	Inputs   []plan.Input `json:"inputs,omitempty"`
}

func plannedOf(x *engine.Explained) planned {
	p := planned{Image: x.Image}
	for _, t := range x.Steps {
		p.Steps = append(p.Steps, plannedStep{
			t.Stage, t.Kind, t.Title, t.Place, t.Key, t.On, t.Where, t.Download, t.Seconds, t.Why, t.Inputs,
		})
	}
	return p
}

// shortKey is how many digits of a key are shown.
const shortKey = 12

func (a *app) printPlan(x *engine.Explained, why bool) error {
	rows := [][]string{{"STEP", "KEY", "RESULT", "DOWNLOAD", "TIME"}}
	for _, t := range x.Steps {
		rows = append(rows, []string{cutTitle(t.Title), string(t.Key)[:shortKey], string(t.Where), downloads(t), about(t)})
		for _, cause := range t.Why {
			if why && t.Where != build.Here {
				rows = append(rows, []string{"  because: " + cause, "", "", "", ""})
			}
		}
	}
	if err := printTable(a.stdout, rows); err != nil {
		return err
	}
	if why && x.First {
		a.say("no build of %s is remembered here, so there is nothing to compare with", x.Image)
	}
	a.tell(summaryOf(x))
	return nil
}

// maxTitle is how much of a step's title a table shows, in characters.
const maxTitle = 60

func cutTitle(s string) string {
	if r := []rune(s); len(r) > maxTitle {
		return string(r[:maxTitle-1]) + "…"
	}
	return s
}

func downloads(t engine.ExplainedStep) string {
	switch {
	case t.Download < 0:
		return "?"
	case t.Download == 0:
		return ""
	}
	return units.Size(t.Download)
}

func about(t engine.ExplainedStep) string {
	const moment = 0.1 // seconds; less than that is no time
	if t.Where != build.ToMake || t.Seconds < moment {
		return ""
	}
	return "about " + units.Duration(time.Duration(t.Seconds*float64(time.Second)))
}

// summaryOf says what it comes to.
func summaryOf(x *engine.Explained) string {
	n, bytes, unknown, perhaps := 0, int64(0), false, 0
	for _, t := range x.Steps {
		if t.Where == build.IfChanged {
			perhaps++
		}
		if t.Where != build.ToMake {
			continue
		}
		n, unknown = n+1, unknown || t.Download < 0
		bytes += max(0, t.Download)
	}
	if n == 0 {
		return x.Image + " is up to date: there is nothing to do"
	}
	text := fmt.Sprintf("%s: %s to make", x.Image, units.Number(n, "step"))
	if bytes > 0 {
		text += ", " + units.Size(bytes) + " to download"
	}
	if perhaps > 0 {
		text += fmt.Sprintf(", and %s if what is below comes out otherwise", units.Number(perhaps, "step"))
	}
	if unknown {
		text += ", and more of which the lock does not say the size"
	}
	return text
}

// printDot draws steps as boxes, those to be made filled, and what each is based on as arrows.
func printDot(w io.Writer, x *engine.Explained) error {
	var b strings.Builder
	b.WriteString("digraph plan {\n  rankdir=BT\n  node [shape=box]\n")
	known := make(map[plan.Key]bool)
	for _, t := range x.Steps {
		known[t.Key] = true
		style := ""
		if t.Where == build.ToMake {
			style = ", style=filled"
		}
		fmt.Fprintf(&b, "  %q [label=%q%s]\n", t.Key, ui.Clean(cutTitle(t.Title))+"\n"+string(t.Where), style)
	}
	before := make(map[string]plan.Key) // the last step of each stage
	for _, t := range x.Steps {
		arrows := 0
		for _, on := range t.On {
			if known[on] {
				fmt.Fprintf(&b, "  %q -> %q\n", t.Key, on)
				arrows++
			}
		}
		if last := before[t.Stage]; arrows == 0 && last != "" {
			fmt.Fprintf(&b, "  %q -> %q\n", t.Key, last)
		}
		before[t.Stage] = t.Key
	}
	b.WriteString("}\n")
	_, err := io.WriteString(w, b.String())
	return err
}
