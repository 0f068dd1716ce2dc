package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/ui"
)

// The groups of commands, as help shows them.
const (
	groupBuild = "build"
	groupImage = "image"
	groupRun   = "run"
	groupHost  = "host"
)

const rootLong = `sconce builds container images that hold PyTorch: a recipe goes in, an image comes out.

No root, no daemon, no Docker. Images, downloads and everything that was built are kept in one store, so that nothing is
made or downloaded twice.

Environment:
  SCONCE_STORE           the store's directory (default: $XDG_CACHE_HOME/sconce, else ~/.cache/sconce)
  SCONCE_SHARED_STORES   further stores to read from, separated by colons
  SCONCE_SCRATCH         directory of a local disk for what is unpacked and what steps write (default: the store)
  SCONCE_STORE_SIZE      how much the store may hold: 200GB, 30% of its disk (default 50%), none
  SCONCE_ALLOW_PATHS     what recipes may read besides their own directories, separated by colons
  SCONCE_CONFIG          the only configuration to read (default: /etc/sconce/config.toml, ~/.config/sconce/config.toml)
  SCONCE_PROGRESS        default of --progress
  SCONCE_PATIENCE        default of --patience
  SOURCE_DATE_EPOCH      time of what a build makes, in seconds since 1970 (default: a fixed time)
  NO_COLOR               no colour

Exit codes: 0 good, 1 failed, 2 wrong usage or recipe, 3 a check found a problem, 4 a test could not be judged, 75 the
network or a server failed, and the same may go well later, 130 interrupted. ` + "`sconce run` and `sconce shell`" + ` end with the
code of the program they ran.`

// usageTemplate is the part of help below the description.
const usageTemplate = `Usage: {{.UseLine}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}{{$cmds := .Commands}}{{if eq (len .Groups) 0}}

Commands:{{range $cmds}}{{if or .IsAvailableCommand (eq .Name "help")}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{range $group := .Groups}}

{{.Title}}{{range $cmds}}{{if and (eq .GroupID $group.ID) (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableInheritedFlags}}

Flags of all commands:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableSubCommands}}

"{{.CommandPath}} COMMAND --help" says more about a command.{{end}}
`

// newRootCmd builds the whole tree of commands.
func newRootCmd(a *app) *cobra.Command {
	root := &cobra.Command{
		Use: "sconce COMMAND",

		DisableFlagsInUseLine: true,

		Short: "Build container images that hold PyTorch",
		Long:  rootLong,
		Example: examples(
			"sconce init demo                       start a recipe",
			"sconce build demo -o demo.tar          build it, and write an OCI archive",
			"sconce run demo:0.1 -- python -V       run a command in the image",
		),
		Args:              cobra.ArbitraryArgs,
		SilenceUsage:      true,
		SilenceErrors:     true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.start(cmd) },
		RunE:              helpOrUnknown,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetUsageTemplate(usageTemplate)
	cobra.EnableCommandSorting = false // within a group, in the order of use
	root.SetFlagErrorFunc(flagError)
	addGlobalFlags(root, &a.flags)
	root.AddGroup(
		&cobra.Group{ID: groupBuild, Title: "Recipes and building:"},
		&cobra.Group{ID: groupImage, Title: "Images and registries:"},
		&cobra.Group{ID: groupRun, Title: "Running:"},
		&cobra.Group{ID: groupHost, Title: "This machine:"},
	)
	addGroup(root, groupBuild, newInitCmd(a), newLockCmd(a), newPlanCmd(a), newBuildCmd(a), newPipelineCmd(a), newPackagesCmd(a), newExportCmd(a), newSchemaCmd(a), newCotainrCmd(a))
	addGroup(root, groupImage, newImagesCmd(a), newInspectCmd(a), newPullCmd(a), newPushCmd(a), newCopyCmd(a), newMirrorCmd(a), newPromoteCmd(a), newVerifyCmd(a), newWithdrawCmd(a), newTrustCmd(a))
	addGroup(root, groupImage, newLoginCmd(a), newLogoutCmd(a), newSlimCmd(a))
	addGroup(root, groupImage, newCheckCmd(a), newSBOMCmd(a), newLintCmd(a), newClustersCmd(a))
	addGroup(root, groupRun, newVenvCmd(a))
	addGroup(root, groupRun, newRunCmd(a), newShellCmd(a), newPyxisCmd(a), newUnpackCmd(a))
	addGroup(root, groupRun, newTestCmd(a), newSubmitCmd(a), newJobsCmd(a), newLogsCmd(a), newExplainCmd(a), newCancelCmd(a), newStripeCmd(a))
	root.AddCommand(newOnNodeCmd(a))
	addGroup(root, groupHost, newCacheCmd(a), newInfoCmd(a), newVersionCmd(a), newManCmd(a), newCompletionCmd(a))
	help := newHelpCmd()
	help.GroupID = groupHost
	root.SetHelpCommand(help)
	return root
}

func addGroup(root *cobra.Command, id string, commands ...*cobra.Command) {
	for _, c := range commands {
		c.GroupID = id
		root.AddCommand(c)
	}
}

func addGlobalFlags(root *cobra.Command, f *globalFlags) {
	progress := os.Getenv("SCONCE_PROGRESS")
	if progress == "" {
		progress = string(ui.Auto)
	}
	p := root.PersistentFlags()
	p.SortFlags = false
	p.StringVar(&f.progress, "progress", progress, "show progress in this `FORM`: auto, tty, plain, json, quiet")
	p.BoolVarP(&f.verbose, "verbose", "v", false, "show what the programs print that sconce runs, and steps with nothing to do")
	p.BoolVarP(&f.quiet, "quiet", "q", false, "show warnings, errors and long waits only")
	p.StringVar(&f.color, "color", "auto", "use colour in messages `WHEN`: auto, always, never")
	p.StringVar(&f.store, "store", "", "use the store in this `DIR`")
	p.BoolVar(&f.offline, "offline", false, "use no network: what is not in the store is an error")
	p.StringVar(&f.patience, "patience", os.Getenv("SCONCE_PATIENCE"), "retry a server in trouble for this `TIME` (5m if unset, 30s for a server that never answered)")
	p.StringArrayVar(&f.logins, "allow-login", nil, "let `HOST` see logins and variables although only a recipe names it (repeatable)")
	p.StringArrayVar(&f.allowPaths, "allow-path", nil, "let what is built read this `PATH`, outside of its own directory (repeatable)")
	root.MarkFlagsMutuallyExclusive("verbose", "quiet")
	complete(root, "progress", "auto", "tty", "plain", "json", "quiet")
	complete(root, "color", "auto", "always", "never")
	if err := root.MarkPersistentFlagDirname("store"); err != nil {
		panic(err) // there is no such flag: a mistake in this file
	}
}

// complete lets the shell complete a flag's values.
func complete(cmd *cobra.Command, flag string, values ...string) {
	fixed := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(flag, fixed); err != nil {
		panic(err) // there is no such flag: a mistake in this package
	}
}

// helpOrUnknown is what a command does that only has subcommands.
func helpOrUnknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
	hint := fmt.Sprintf("`%s --help` lists the commands", cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if known, ok := foreignCommands[args[0]]; ok && !cmd.HasParent() {
		hint = known
	} else if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "did you mean `" + cmd.CommandPath() + " " + strings.Join(near, "` or `"+cmd.CommandPath()+" ") + "`?"
	}
	return fault.Usage(fault.Hint(err, hint))
}

// allSet finds in cobra's words the flags that exclude each other.
var allSet = lazyregexp.New(`\[([^]]*)\] were all set`)

// exclusive says in our words which flags were given that exclude each other.
func exclusive(cmd *cobra.Command) error {
	err := cmd.ValidateFlagGroups()
	if err == nil {
		return nil
	}
	if m := allSet.FindStringSubmatch(err.Error()); m != nil {
		err = fmt.Errorf("--%s cannot be used together", strings.Join(strings.Fields(m[1]), " and --"))
	}
	return fault.Usage(err)
}

// examples sets lines of examples off, as help shows them.
func examples(lines ...string) string {
	return "  " + strings.Join(lines, "\n  ")
}

// wants checks the number of arguments; names are those of the arguments, "[X]" for one that may be left out.
func wants(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		least := 0
		for _, n := range names {
			if !strings.HasPrefix(n, "[") {
				least++
			}
		}
		var err error
		switch {
		case len(args) < least:
			err = fmt.Errorf("%s: %s is missing", cmd.CommandPath(), names[len(args)])
		case len(args) > len(names) && len(names) == 0:
			err = fmt.Errorf("%s takes no arguments, but got %q", cmd.CommandPath(), args[0])
		case len(args) > len(names):
			err = fmt.Errorf("%s: one argument too many: %q", cmd.CommandPath(), args[len(names)])
		default:
			return nil
		}
		return fault.Usage(fault.Hint(err, "usage: "+cmd.UseLine()))
	}
}
