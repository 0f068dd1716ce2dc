package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sconce.dev/sconce/internal/fault"
)

// Every command has a page with all its flags, in which no text is taken for a macro.
func TestManPages(t *testing.T) {
	dir := t.TempDir()
	if err := writeManPages(newRootCmd(&app{}), dir); err != nil {
		t.Fatal(err)
	}
	macro := regexp.MustCompile(`^\.(TH|SH|TP|B|BR|nf|fi)( |$)`)
	everyCommand(t, func(c *cobra.Command) {
		data, err := os.ReadFile(filepath.Join(dir, manName(c)+".1"))
		if err != nil {
			t.Error(err)
			return
		}
		page := string(data)
		for line := range strings.Lines(page) {
			line = strings.TrimSuffix(line, "\n")
			if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !macro.MatchString(line) {
				t.Errorf("%s: a line is taken for a macro: %s", c.CommandPath(), line)
			}
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && f.Name != "help" && !strings.Contains(page, `\-\-`+strings.ReplaceAll(f.Name, "-", `\-`)) {
				t.Errorf("%s: nothing is said of --%s", c.CommandPath(), f.Name)
			}
		})
	})
}

func TestHelpOnWhatIsNotThere(t *testing.T) {
	for line, want := range map[string]string{
		"help nosuch":     `unknown command "nosuch"`,
		"help cache prun": `no command "prun"`,
		"help rmi":        `unknown command "rmi"`,
		"help build":      "",
		"help":            "",
	} {
		root := newRootCmd(&app{stdout: new(strings.Builder), stderr: new(strings.Builder)})
		root.SetArgs(strings.Fields(line))
		root.SetOut(new(strings.Builder))
		err := root.ExecuteContext(t.Context())
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", line, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || fault.CodeOf(err) != 2 {
			t.Errorf("%s: %v", line, err)
		}
	}
}
