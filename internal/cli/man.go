package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/fault"
)

func newManCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "man [DIR]",
		Short: "Print sconce's manual page, or write those of all commands",
		Long: `Print the manual page of sconce, in the form that man(1) reads. With a directory, the pages of all commands are written
there: sconce.1, sconce-build.1 and so on.`,
		Example: examples(
			"sconce man | man -l -",
			"sconce man ~/.local/share/man/man1      then: man sconce-build",
		),
		Args: wants("[DIR]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				_, err := io.WriteString(a.out, manPage(cmd.Root()))
				return err
			}
			return writeManPages(cmd.Root(), args[0])
		},
	}
}

func writeManPages(cmd *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if cmd.Hidden {
		return nil
	}
	name := filepath.Join(dir, manName(cmd)+".1")
	if err := atomicfile.Replace(name, []byte(manPage(cmd)), 0o644); err != nil {
		return fmt.Errorf("write manual pages: %w", err)
	}
	for _, sub := range cmd.Commands() {
		if err := writeManPages(sub, dir); err != nil {
			return err
		}
	}
	return nil
}

// manName is what a command's page is called: sconce-cache-prune.
func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage is the page of a command, in the macros of man(7). It has no date, so that a release's pages are the same each time.
func manPage(cmd *cobra.Command) string {
	var b strings.Builder
	section := func(title string) { fmt.Fprintf(&b, ".SH %s\n", title) }
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"sconce %s\" \"User Commands\"\n", roff(strings.ToUpper(manName(cmd))), roff(currentVersion().Version))
	section("NAME")
	fmt.Fprintf(&b, "%s \\- %s\n", roff(manName(cmd)), roff(cmd.Short))
	section("SYNOPSIS")
	fmt.Fprintf(&b, ".B %s\n", roff(cmd.UseLine()))
	if cmd.Long != "" {
		section("DESCRIPTION")
		literal(&b, cmd.Long)
	}
	if own := cmd.NonInheritedFlags(); own.HasAvailableFlags() {
		section("OPTIONS")
		manFlags(&b, own)
	}
	if inherited := cmd.InheritedFlags(); inherited.HasAvailableFlags() {
		section("OPTIONS OF ALL COMMANDS")
		manFlags(&b, inherited)
	}
	if cmd.Example != "" {
		section("EXAMPLES")
		literal(&b, cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		section("COMMANDS")
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(&b, ".TP\n.BR %s (1)\n%s\n", roff(manName(sub)), roff(sub.Short))
			}
		}
	}
	if cmd.HasParent() {
		section("SEE ALSO")
		fmt.Fprintf(&b, ".BR %s (1)\n", roff(manName(cmd.Parent())))
	}
	return b.String()
}

func manFlags(b *strings.Builder, flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := `\-\-` + roff(f.Name)
		if f.Shorthand != "" && f.ShorthandDeprecated == "" {
			name = `\-` + roff(f.Shorthand) + ", " + name
		}
		if value != "" {
			name += " " + roff(value)
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", name, roff(usage))
	})
}

// literal writes text with its own lines, as help prints them.
func literal(b *strings.Builder, text string) {
	b.WriteString(".nf\n")
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		b.WriteString(roff(strings.TrimRight(line, "\n")) + "\n")
	}
	b.WriteString(".fi\n")
}

// roff makes text harmless: backslashes and dashes that are to be copied, and dots and quotes that begin a line (groff_man(7)).
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

// newHelpCmd is `sconce help [COMMAND...]`. Cobra's own prints the whole help for a command that there is not.
func newHelpCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]...",
		Short:   "Help about a command",
		Example: examples("sconce help build", "sconce help cache prune"),
		Args:    cobra.ArbitraryArgs,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			at, _, err := cmd.Root().Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []string
			for _, sub := range at.Commands() {
				if sub.IsAvailableCommand() {
					names = append(names, sub.Name()+"\t"+sub.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			at, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				if err := helpOrUnknown(cmd.Root(), args); len(args) > 0 && at == cmd.Root() {
					return err
				}
				return fault.Usage(fault.Hint(fmt.Errorf("%s has no command %q", at.CommandPath(), strings.Join(rest, " ")), "`"+at.CommandPath()+" --help` is about it"))
			}
			at.InitDefaultHelpFlag()
			return at.Help()
		},
	}
}
