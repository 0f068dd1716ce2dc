package audit

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var updateRules = flag.Bool("update", false, "write docs/rules.md")

const rulesPath = "../../docs/rules.md"

// ruleGroups are what the IDs of rules begin with. Groups of one title stand together.
var ruleGroups = []struct{ prefix, title string }{
	{"gpu", "Device code"},
	{"driver", "Driver and CUDA"},
	{"cuda", "Driver and CUDA"},
	{"duplicate", "Libraries of which there should be one"},
	{"link", "Programs and libraries"},
	{"python", "Python packages"},
	{"conda", "Conda packages"},
	{"env", "Environment"},
	{"files", "Files"},
	{"network", "Network and MPI"},
}

const rulesIntro = `# Rules of the audit

` + "`sconce check IMAGE`" + ` looks at an image with these rules, and at what is known of the machine it is to run on. A rule is silent when it does not
know enough of that machine. An error means that the image will not run there, or will compute something wrong; a warning that it may
not run, or not as it should; a note is worth knowing. The severity given here is the usual one: a rule may find less or more.

This page is generated: ` + "`go test ./internal/audit -run TestRulesPage -update`" + ` writes it.
`

// traps are the mistakes that guides to building images for GPUs make most, and who sees them.
var traps = []struct{ what, rules, otherwise string }{
	{"`ENV X=\"$(command)\"` in a Dockerfile is not evaluated", "env-not-evaluated env-build-flags", ""},
	{"Removing or stripping files in a later layer does not make an image smaller", "files-in-hidden-layers files-caches files-static", ""},
	{"`TORCH_CUDA_ARCH_LIST` without `+PTX`, and code for the wrong GPU", "gpu-arch-list gpu-no-code gpu-ptx-only", ""},
	{"A check that asks the GPU only, and not what the libraries have code for", "gpu-", ""},
	{"Device code looked for in the wrong libraries", "gpu-", "all files are read"},
	{"NCCL copied from the directory of another processor, or a second NCCL", "env-search-path duplicate- link-", "a library for another processor is found with the programs and libraries"},
	{"`strip` breaks libraries that were patched", "link-", "such a library is damaged or lacks symbols"},
	{"`MAX_JOBS` larger than the memory allows", "env-build-flags", ""},
	{"Unpinned base tags and downloads", "", "`sconce lock` pins them"},
	{"Flags of a build that are gone, as `BUILD_CAFFE2` and `USE_OPENCV`", "env-build-flags", ""},
}

// TestRulesPage compares the page with the rules, or writes it.
func TestRulesPage(t *testing.T) {
	got := rulesPage(t)
	if *updateRules {
		if err := os.WriteFile(rulesPath, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(rulesPath)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/rules.md is stale; go test ./internal/audit -run TestRulesPage -update writes it (-file +now):\n%s", diff)
	}
}

func rulesPage(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(rulesIntro)
	grouped := map[string]bool{}
	last := ""
	for _, g := range ruleGroups {
		title := ""
		if g.title != last {
			title = "\n## " + g.title + "\n"
		}
		for _, r := range Rules() {
			if !strings.HasPrefix(r.ID, g.prefix+"-") {
				continue
			}
			grouped[r.ID] = true
			b.WriteString(title)
			title, last = "", g.title
			fmt.Fprintf(&b, "\n### %s\n\n%s · %s.\n\n%s\n\n*What to do:* %s.\n", r.ID, r.Severity, forMarkdown(r.Title), forMarkdown(r.Why), forMarkdown(strings.TrimSuffix(r.Remedy, ".")))
		}
	}
	for _, r := range Rules() {
		if !grouped[r.ID] {
			t.Errorf("%s belongs to no group of this page: add it to one in ruleGroups (rules_doc_test.go)", r.ID)
		}
	}
	b.WriteString("\n## Ten traps\n\nWhat guides to images for GPUs get wrong most often, and what notices it:\n\n| trap | noticed by |\n|---|---|\n")
	for _, trap := range traps {
		fmt.Fprintf(&b, "| %s | %s |\n", trap.what, noticedBy(trap.rules, trap.otherwise))
	}
	return b.String()
}

// noticedBy links to rules; one that ends in a hyphen stands for all whose IDs begin so.
func noticedBy(rules, otherwise string) string {
	var parts []string
	for _, r := range strings.Fields(rules) {
		if prefix, ok := strings.CutSuffix(r, "-"); ok {
			for _, g := range ruleGroups {
				if g.prefix == prefix {
					parts = append(parts, fmt.Sprintf("[%s](#%s)", g.title, strings.ReplaceAll(strings.ToLower(g.title), " ", "-")))
				}
			}
			continue
		}
		parts = append(parts, fmt.Sprintf("[%s](#%s)", r, r))
	}
	if otherwise != "" {
		parts = append(parts, otherwise)
	}
	return strings.Join(parts, "; ")
}

// forMarkdown keeps Markdown from taking a placeholder for HTML or a star for emphasis.
func forMarkdown(s string) string {
	return strings.NewReplacer("<", `\<`, "*", `\*`, "_", `\_`).Replace(s)
}

// Identifiers are words for a recipe, and what is said for people is whole.
func TestRulesAreComplete(t *testing.T) {
	seen := map[string]bool{}
	id := regexp.MustCompile(`^[a-z]+(-[a-z0-9]+)+$`)
	for _, r := range Rules() {
		if !id.MatchString(r.ID) || seen[r.ID] || r.Title == "" || r.Why == "" || r.Remedy == "" || r.look == nil {
			t.Errorf("%+v", r)
		}
		seen[r.ID] = true
		wellSaid(t, r.complete(Finding{Message: "it was seen"}))
	}
}
