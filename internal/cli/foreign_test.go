package cli

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/fault"
)

// What answers a foreign word is a command of ours, with flags that it has.
func TestForeignWordsLeadSomewhere(t *testing.T) {
	ours := map[string]*cobra.Command{}
	everyCommand(t, func(c *cobra.Command) { ours[c.CommandPath()] = c })
	quoted := regexp.MustCompile("`(sconce [^`]*)`")
	flag := regexp.MustCompile(`--([a-z-]+)`)
	for word, answer := range foreignCommands {
		if ours["sconce "+word] != nil {
			t.Errorf("%q is a command of ours", word)
		}
		for _, m := range quoted.FindAllStringSubmatch(answer, -1) {
			fields := strings.Fields(m[1])
			c := ours[strings.Join(fields[:min(3, len(fields))], " ")]
			if c == nil {
				c = ours[strings.Join(fields[:2], " ")]
			}
			if c == nil {
				if fields[1] != "help" {
					t.Errorf("%q: there is no %q", word, m[1])
				}
				continue
			}
			for _, f := range flag.FindAllStringSubmatch(m[1], -1) {
				if c.Flags().Lookup(f[1]) == nil && c.InheritedFlags().Lookup(f[1]) == nil {
					t.Errorf("%q: %s has no --%s", word, c.CommandPath(), f[1])
				}
			}
		}
	}
	run := ours["sconce run"].Flags()
	for word, answer := range foreignFlags {
		if run.Lookup(word) != nil || len(word) == 1 && run.ShorthandLookup(word) != nil {
			t.Errorf("--%s is a flag of ours", word)
		}
		for _, f := range flag.FindAllStringSubmatch(answer, -1) {
			if f[1] != "mem" && f[1] != "cpus-per-task" && run.Lookup(f[1]) == nil { // those two are srun's
				t.Errorf("%q: `sconce run` has no --%s", word, f[1])
			}
		}
	}
}

// What people type who know other programs is answered with what to type here.
func TestForeignCommandLines(t *testing.T) {
	t.Setenv("SCONCE_STORE", t.TempDir())
	for line, want := range map[string]string{
		"tag a b":              "sconce pull IMAGE --name",
		"rmi x":                "sconce images rm",
		"ps":                   "sconce jobs",
		"def":                  "sconce build FILE.def",
		"exec x":               "sconce run",
		"run --gpus all x":     "--gpu",
		"run -v /a:/b x":       "-B /a:/b",
		"run --volume /a:/b x": "-B SRC:DST",
		"run -d x":             "sconce submit",
		"shell --nv x":         "--gpu",
		"wait x":               "sconce submit --wait",
		"exec -it x bash":      "sconce run IMAGE -- COMMAND",
		"rmi -f x":             "sconce images rm",
		"biuld -o x.sqsh":      "sconce build",
		"cache prnue --all":    "sconce cache prune",
		"sign --key k x":       "sconce push --sign",
		"run --pull always x":  "sconce pull docker://",
		"run --label a=b x":    "[image] labels",
		"run --dns 1.1.1.1 x":  "/etc/resolv.conf",
		"run --pid host x":     "--in-job",

		"run --add-host a:1 x":           "/etc/hosts",
		"run --entrypoint=bash x":        "`sconce run IMAGE -- bash`",
		"run --entrypoint bash x:1 -c y": "`sconce run x:1 -- bash`",
		"run --entrypoint /bin/sh x:1":   "`sconce run x:1 -- /bin/sh`",
	} {
		a := &app{stdout: new(strings.Builder), stderr: new(strings.Builder)}
		root := newRootCmd(a)
		root.SetArgs(strings.Fields(line))
		err := root.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(fault.HintOf(err), want) || fault.CodeOf(err) != 2 {
			t.Errorf("sconce %s: %v, hint %q", line, err, fault.HintOf(err))
		}
	}
}
