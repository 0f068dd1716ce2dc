package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/wheelbuild/catalog"
)

func newPackagesCmd(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "packages [PACKAGE]",
		Aliases: []string{"recipes"}, // its name before, which lists no recipes
		Short:   "Show what is known of packages that have to be compiled",
		Long: `Show the packages whose compilation sconce knows: whether they are built against the torch in the image, what has to be
there meanwhile, which variables are set, how much memory one compiler takes. With the name of one, show all of it, as the
table [python.compile.PACKAGE] of a recipe would say it. A recipe's own keys go before these facts.`,
		Example: examples("sconce packages", "sconce packages flash-attn", "sconce packages --json | jq '.[].name'"),
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.listPackages(asJSON)
			}
			return a.showPackage(args[0], asJSON)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return knownNames(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func knownNames() []string {
	var names []string
	for _, p := range catalog.All() {
		names = append(names, p.Name)
	}
	return names
}

func (a *app) listPackages(asJSON bool) error {
	if asJSON {
		return a.printJSON(catalog.All())
	}
	rows := [][]string{{"PACKAGE", "SEEN", "BUILT", "MEMORY PER JOB", "CUDA"}}
	for _, p := range catalog.All() {
		built, cuda := "isolated", "any"
		if !p.Isolation {
			built = "against the image"
		}
		if p.CUDA {
			cuda = "as torch"
		}
		rows = append(rows, []string{p.Name, p.Seen, built, p.MemoryPerJob, cuda})
	}
	return printTable(a.out, rows)
}

func (a *app) showPackage(name string, asJSON bool) error {
	p, ok := catalog.Lookup(spelling.Distribution(name))
	if !ok {
		hint := "`sconce packages` lists those that are; a recipe says by itself how others are compiled, under [python.compile.NAME]"
		if near := spelling.Nearest(spelling.Distribution(name), knownNames()); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		return fault.Usage(fault.Hint(fmt.Errorf("nothing is known of a package %q", name), hint))
	}
	if asJSON {
		return a.printJSON(p)
	}
	_, err := a.out.Write([]byte(recipeText(p)))
	return err
}

// recipeText shows p as a recipe would say it.
func recipeText(p catalog.Package) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, "%s\n", ui.Clean(fmt.Sprintf(format, args...))) }
	line("# as seen in %s %s", p.Name, p.Seen)
	if p.Note != "" {
		line("# %s", p.Note)
	}
	if p.Network {
		line("# it downloads while it is built")
	}
	if p.Archs != nil {
		line("# code is made for these GPUs alone: %s", strings.Join(p.Archs, ", "))
	}
	line("[python.compile.%s]", p.Name)
	line("isolation = %t", p.Isolation)
	if p.CUDA {
		line("cuda = true   # nvcc goes with the CUDA of torch")
	}
	line("requires = [%s]", quoted(p.Requires))
	line("memory-per-job = %q", p.MemoryPerJob)
	if p.Depends != nil {
		line("depends = [%s]", quoted(*p.Depends))
	}
	env := p.Environment([]string{"9.0"})
	if len(env) > 0 {
		var pairs []string
		for _, k := range slices.Sorted(maps.Keys(env)) {
			pairs = append(pairs, fmt.Sprintf("%s = %q", k, env[k]))
		}
		line("env = { %s }   # with gpu = [\"9.0\"] under [target]", strings.Join(pairs, ", "))
	}
	return b.String()
}

func quoted(list []string) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = fmt.Sprintf("%q", s)
	}
	return strings.Join(out, ", ")
}
