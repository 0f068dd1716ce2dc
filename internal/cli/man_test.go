package cli

import (
	"io"
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

// Who reads a page or a log of findings while a new one is written has the old one to its end.
func TestReportsAreReplaced(t *testing.T) {
	dir := t.TempDir()
	page, log := filepath.Join(dir, "sconce.1"), filepath.Join(dir, "sarif.json")
	a := &app{}
	for file, write := range map[string]func() error{
		page: func() error { return writeManPages(newRootCmd(a), dir) },
		log:  func() error { _, err := a.writeSARIF(log, []byte("new")); return err },
	} {
		if err := os.WriteFile(file, []byte("old"), 0o644); err != nil {
			t.Fatal(err)
		}
		reader, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		if err := write(); err != nil {
			t.Fatal(err)
		}
		if data, err := io.ReadAll(reader); string(data) != "old" {
			t.Errorf("%s was written over: who has it open reads %q, %v", filepath.Base(file), data, err)
		}
		if data, err := os.ReadFile(file); err != nil || string(data) == "old" {
			t.Errorf("%s holds %q, %v", filepath.Base(file), data, err)
		}
	}
}

func TestHelpOnWhatIsNotThere(t *testing.T) {
	for line, want := range map[string]string{
		"help nosuch":     `unknown command "nosuch"`,
		"help cache prun": `no command "prun"`,
		"help rmi":        `unknown command "rmi"`,
		"help build":      "",
		"help recipes":    "", // packages, by its name before
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
