package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func everyCommand(t *testing.T, visit func(*cobra.Command)) {
	t.Helper()
	n := 0
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Name() == "help" || c.Hidden {
			return
		}
		n++
		visit(c)
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	root := newRootCmd(&app{})
	root.InitDefaultHelpCmd()
	walk(root)
	if n < 15 {
		t.Fatalf("only %d commands", n)
	}
}

func TestEveryCommandIsExplained(t *testing.T) {
	everyCommand(t, func(c *cobra.Command) {
		name := c.CommandPath()
		switch {
		case c.Short == "" || strings.HasSuffix(c.Short, "."):
			t.Errorf("%s: short description %q", name, c.Short)
		case !strings.Contains(c.Example, "sconce "):
			t.Errorf("%s has no example", name)
		case c.RunE == nil || c.Args == nil:
			t.Errorf("%s does not check its arguments or does nothing", name)
		case c.HasParent() && !c.Parent().HasParent() && c.GroupID == "":
			t.Errorf("%s is in no group", name)
		}
		for _, line := range strings.Split(c.Long+"\n"+c.Example, "\n") {
			if len(line) > 125 {
				t.Errorf("%s: a line of help is %d characters long: %s", name, len(line), line)
			}
		}
	})
}

// A flag names its argument, once, and not by the type of a variable (docs/style.md, "Help").
func TestFlagsNameTheirArguments(t *testing.T) {
	types := []string{"string", "strings", "stringArray", "int", "uint", "duration", "stringToString", "bytes", "value"}
	everyCommand(t, func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			name, usage := pflag.UnquoteUsage(f)
			flag := c.CommandPath() + " --" + f.Name
			switch {
			case f.Hidden:
			case slices.Contains(types, name):
				t.Errorf("%s: the help calls its argument %q: put a name in backquotes", flag, name)
			case name != "" && strings.HasPrefix(usage, name+","):
				t.Errorf("%s: the help says %q twice", flag, name)
			case strings.Contains(usage, "(default") && f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "0s":
				t.Errorf("%s: the help has a second default, %q: %s", flag, f.DefValue, usage)
			}
		})
	})
}

// Examples must at least be commands that exist, with flags that exist.
func TestExamplesParse(t *testing.T) {
	everyCommand(t, func(c *cobra.Command) {
		for _, line := range strings.Split(c.Example, "\n") {
			command, _, _ := strings.Cut(strings.TrimSpace(line), "   ")
			for _, part := range strings.FieldsFunc(command, func(r rune) bool { return strings.ContainsRune("|&>;", r) }) {
				words := strings.Fields(part)
				if len(words) == 0 || words[0] != "sconce" {
					continue
				}
				root := newRootCmd(&app{})
				found, rest, err := root.Find(words[1:])
				if err != nil || (found == root && len(words) > 1 && !strings.HasPrefix(words[1], "-")) {
					t.Errorf("%s: no such command: %s", c.CommandPath(), part)
					continue
				}
				if err := found.ParseFlags(rest); err != nil {
					t.Errorf("%s: %s: %v", c.CommandPath(), part, err)
				}
			}
		}
	})
}

func TestRunPrintsToTheRightPlace(t *testing.T) {
	var out, err bytes.Buffer
	a := &app{stdout: &out, stderr: &err}
	if code := a.run(context.Background(), []string{"version"}); code != 0 || err.Len() > 0 || !strings.HasPrefix(out.String(), "sconce ") {
		t.Errorf("code %d, stdout %q, stderr %q", code, &out, &err)
	}
}

func TestExitStatusSaysNothing(t *testing.T) {
	if !isSilent(exitStatus(7)) || exitStatus(7).ExitCode() != 7 {
		t.Error("the exit code of a program is taken for an error")
	}
}

// What a new user gets wrong, or sees first.
func TestFirstSteps(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"app/sconce.toml": "name = \"app\"\nversion = \"1\"\n[base]\nimage = \"scratch-is-no-image\"\n",
		"file/Dockerfile": "FROM scratch\nLABEL a=b\n",
		"empty/README.md": "",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"build empty", 2, "a Containerfile, Dockerfile or one definition file (NAME.def) there, or named by -f, is built as well"},
		{"build app --locked", 3, "--locked: app/sconce.lock does not exist"},
		{"build app --tag x", 2, "hint: a recipe says it itself, by name and version"},
		{"build file", 0, "built file:latest for linux/" + runtime.GOARCH + ": 0 layers"},
		{"build file --tag a:b:c/d:", 2, "cannot be an image's name"},
		{"slim file --gpu 9.0 --name :x", 2, "cannot be an image's name"},
		{"export containerfil", 2, "did you mean `sconce export containerfile`?"},
		{"run fiel -- true", 1, `no image "fiel" in the store, but there is file:latest`},
		{"images rm absent", 1, "error: no image \"absent\" in the store\n"},
	} {
		var out, errs bytes.Buffer
		a := &app{stdout: &out, stderr: &errs}
		args := append([]string{"--offline", "--store", "store"}, strings.Fields(c.args)...)
		if code := a.run(t.Context(), args); code != c.code || !strings.Contains(errs.String(), c.want) {
			t.Errorf("%s: code %d, want %d, and %q in:\n%s", c.args, code, c.code, c.want, &errs)
		}
	}
}
