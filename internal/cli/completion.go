package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
)

func newCompletionCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print the script that completes sconce's commands in a shell",
		Long: `Print the script that makes a shell complete sconce's commands, flags and image names.

For bash it needs the package bash-completion. Start a new shell after installing it.`,
		Example: examples(
			"mkdir -p ~/.local/share/bash-completion/completions",
			"sconce completion bash > ~/.local/share/bash-completion/completions/sconce",
			`sconce completion zsh > "${fpath[1]}/_sconce"`,
			"sconce completion fish > ~/.config/fish/completions/sconce.fish",
		),
		Args:                  wants("bash|zsh|fish"),
		ValidArgs:             []string{"bash", "zsh", "fish"},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.out, true)
			case "zsh":
				return a.printCompletion(root.GenZshCompletion, zshQuotes)
			case "fish":
				return a.printCompletion(func(w io.Writer) error { return root.GenFishCompletion(w, true) }, fishQuotes)
			}
			return fault.Usage(fmt.Errorf("%q is not a shell that sconce completes for: bash, zsh, fish", args[0]))
		},
	}
}

// The scripts of cobra evaluate words of the command line, which are names of files: fish has taken the quotes off them before, and zsh the
// first one of a word that holds a -. These are the lines that say so, each with the one that stands for it.
var (
	fishQuotes = [2]string{"set -l args (commandline -opc)\n", "set -l args (string replace -r '^~/' $HOME/ -- (commandline -opc) | string escape)\n"}
	zshQuotes  = [2]string{`flagPrefix="-P ${BASH_REMATCH}"`, `flagPrefix="-P ${(q)${(Q)BASH_REMATCH}}"`}
)

// printCompletion prints a script with one of its lines replaced.
func (a *app) printCompletion(write func(io.Writer) error, replace [2]string) error {
	var b strings.Builder
	if err := write(&b); err != nil {
		return err
	}
	if strings.Count(b.String(), replace[0]) != 1 {
		return fmt.Errorf("the script for this shell does not hold %q, which would evaluate names of files", replace[0])
	}
	_, err := io.WriteString(a.out, strings.Replace(b.String(), replace[0], replace[1], 1))
	return err
}

// completionPatience bounds how long a shell waits for image names while a prune keeps the store closed.
const completionPatience = 500 * time.Millisecond

// completeImages completes the names of the store's images, then files.
func (a *app) completeImages(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	dir, err := a.settings().Dir()
	if err != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	if _, err := os.Stat(filepath.Clean(dir)); err != nil { // pressing a key must not make a store
		return nil, cobra.ShellCompDirectiveDefault
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
	defer cancel()
	st, err := store.OpenShared(ctx, dir, a.settings().Shared())
	if err != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	defer st.Close()
	images, err := st.Images()
	if err != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var names []string
	for _, im := range images {
		names = append(names, im.FullName())
	}
	return names, cobra.ShellCompDirectiveDefault
}
