package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/ui"
)

// clustersOptions are the options of `sconce clusters`.
type clustersOptions struct {
	name   string
	recipe string
	detect bool
	json   bool
}

func newClustersCmd(a *app) *cobra.Command {
	var o clustersOptions
	cmd := &cobra.Command{
		Use:   "clusters [NAME]",
		Short: "List the clusters that sconce knows, or show one",
		Long: `List the profiles of clusters, by which images are checked and slimmed, and where each is from. With NAME, print the
profile of that cluster, as a file to start one's own from. What a profile leaves out is not judged.

A profile is a TOML file, NAME.toml. Of several of one name the first counts: in directory clusters beside the recipe, in
$XDG_CONFIG_HOME/sconce/clusters, in /etc/sconce/clusters, and what comes with sconce. With base = "NAME" in it, a profile
starts from another one.

--detect writes a profile of the cluster that this machine is a part of: it asks sinfo, scontrol, srun, nvidia-smi and
getconf, and looks at the network's devices and the file systems. Comments say where each part is from. Look through it.`,
		Example: examples(
			"sconce clusters",
			"sconce clusters clariden",
			"sconce clusters clariden > clusters/mycluster.toml",
			"sconce clusters clariden --json | jq .gpu",
			"sconce clusters --detect > clusters/mycluster.toml",
		),
		Args: wants("[NAME]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.name = args[0]
			}
			return a.runClusters(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&o.recipe, "recipe", ".", "look beside the recipe in `DIR`, too")
	cmd.Flags().BoolVar(&o.detect, "detect", false, "write a profile of the cluster that this machine is a part of")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

// listedCluster is what `sconce clusters --json` prints of each.
type listedCluster struct {
	cluster.Profile
	From string `json:"from"`
}

func (a *app) runClusters(ctx context.Context, o clustersOptions) error {
	switch {
	case o.detect && o.name != "":
		return fault.Usage(fault.Hint(errors.New("--detect takes no NAME: it is about this machine's cluster"), "usage: sconce clusters --detect"))
	case o.detect:
		return a.detectCluster(ctx, o)
	case o.name != "":
		return a.showCluster(o)
	}
	all, wrong := cluster.List(o.recipe)
	for _, err := range wrong {
		progress.Warn(ctx, err.Error(), fault.HintOf(err))
	}
	if o.json {
		out := make([]listedCluster, 0, len(all))
		for _, f := range all {
			out = append(out, listedCluster{f.Profile, f.From})
		}
		return a.printJSON(out)
	}
	rows := [][]string{{"CLUSTER", "GPU", "PLATFORM", "RUNTIME", "FABRIC", "DESCRIPTION", "FROM"}}
	for _, f := range all {
		rows = append(rows, []string{
			f.Name, strings.Join(f.GPU, " "), f.Platform, string(f.Runtime), string(f.Fabric), ui.Cut(f.Description, 80), f.From,
		})
	}
	for _, row := range rows[1:] {
		for i, cell := range row {
			if cell == "" {
				row[i] = "-"
			}
		}
	}
	return printTable(a.out, rows)
}

// detectCluster prints a profile of this machine's cluster, with comments that say where it is from.
func (a *app) detectCluster(ctx context.Context, o clustersOptions) error {
	d := cluster.Detect(ctx)
	if o.json {
		return a.printJSON(listedCluster{d.Profile, "detected"})
	}
	var b strings.Builder
	b.WriteString("# What this machine shows of its cluster. Look through it, and add what it\n# cannot know: a description, the account, the oldest driver.\n#\n")
	for _, note := range d.Notes {
		b.WriteString("# " + ui.Clean(note) + "\n")
	}
	_, err := fmt.Fprintf(a.out, "%s\n%s", b.String(), d.TOML())
	return err
}

// showCluster prints a profile as its file would have it, so that a copy is a start for one's own.
func (a *app) showCluster(o clustersOptions) error {
	t, err := engine.FindTarget(o.name, o.recipe)
	if err != nil {
		return err
	}
	if o.json {
		return a.printJSON(listedCluster{t.Profile, t.From})
	}
	_, err = fmt.Fprintf(a.out, "# %s\n%s", ui.Clean(t.From), t.TOML())
	return err
}
