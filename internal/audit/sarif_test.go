package audit

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/facts"

	"sconce.dev/sconce/internal/cluster"
)

// What the schema of SARIF 2.1.0 requires, and what code hosts ask for besides: rules that results lead to, relative
// addresses, fingerprints that tell results apart.
func TestSARIF(t *testing.T) {
	rules := Rules()
	findings := []Finding{
		{Rule: rules[0].ID, Severity: Error, Message: "it is bad", Path: "opt/a b/x:1.so", Seen: []string{"one", "two"}, Why: "why", Remedy: "do"},
		{Rule: rules[0].ID, Severity: Error, Message: "it is bad again", Path: "opt/a b/x:1.so", Why: "why", Remedy: "do"},
		{Rule: rules[1].ID, Severity: Note, Message: "it is known", Why: "why", Remedy: "do", Allowed: "we know"},
	}
	facts := &facts.Facts{Image: "host:5000/team/app:1", Digest: "sha256:ab", Platform: "linux/amd64"}
	data, err := SARIF(facts, cluster.Profile{GPU: []string{"9.0"}}, findings, "1.2")
	if err != nil {
		t.Fatal(err)
	}
	var log struct {
		Schema  string `json:"$schema"`
		Version string
		Runs    []struct {
			Tool struct {
				Driver struct {
					Name, Version string
					Rules         []struct {
						ID                    string
						ShortDescription      struct{ Text string }
						FullDescription, Help struct{ Text string }
						DefaultConfiguration  struct{ Level string }
					}
				}
			}
			Results []struct {
				RuleID              string
				RuleIndex           int
				Level               string
				Message             struct{ Text string }
				PartialFingerprints map[string]string
				Locations           []struct {
					PhysicalLocation struct {
						ArtifactLocation struct{ URI string }
						Region           struct{ StartLine int }
					}
				}
				Suppressions []struct{ Kind, Justification string }
			}
		}
	}
	if err := json.Unmarshal(data, &log); err != nil {
		t.Fatal(err)
	}
	if log.Version != "2.1.0" || !strings.HasSuffix(log.Schema, "/sarif-schema-2.1.0.json") || len(log.Runs) != 1 {
		t.Fatalf("version %q, schema %q, %d runs", log.Version, log.Schema, len(log.Runs))
	}
	run := log.Runs[0]
	if run.Tool.Driver.Name != "sconce" || run.Tool.Driver.Version != "1.2" || len(run.Tool.Driver.Rules) != len(rules) {
		t.Errorf("tool %+v", run.Tool.Driver)
	}
	for _, r := range run.Tool.Driver.Rules {
		if r.ID == "" || r.ShortDescription.Text == "" || r.FullDescription.Text == "" || r.Help.Text == "" || r.DefaultConfiguration.Level == "" {
			t.Errorf("rule %+v", r)
		}
	}
	prints := map[string]bool{}
	for i, r := range run.Results {
		if r.RuleID != findings[i].Rule || run.Tool.Driver.Rules[r.RuleIndex].ID != r.RuleID || r.Level != string(findings[i].Severity) {
			t.Errorf("result %d is of rule %s, number %d, %s", i, r.RuleID, r.RuleIndex, r.Level)
		}
		if !strings.Contains(r.Message.Text, findings[i].Message) || len(r.Locations) != 1 || r.Locations[0].PhysicalLocation.Region.StartLine != 1 {
			t.Errorf("result %d: %+v", i, r)
		}
		if u, err := url.Parse(r.Locations[0].PhysicalLocation.ArtifactLocation.URI); err != nil || u.IsAbs() || u.Path == "" {
			t.Errorf("result %d is at %v, %v", i, u, err)
		}
		for _, p := range r.PartialFingerprints {
			prints[p] = true
		}
	}
	if len(prints) != len(findings) {
		t.Errorf("%d fingerprints of %d results", len(prints), len(findings))
	}
	if s := run.Results[2].Suppressions; len(s) != 1 || s[0].Kind != "external" || s[0].Justification != "we know" || run.Results[0].Suppressions != nil {
		t.Errorf("suppressed: %+v", run.Results)
	}
}

func TestVerdict(t *testing.T) {
	findings := []Finding{{Rule: "a", Severity: Error}, {Rule: "b", Severity: Error}, {Rule: "c", Severity: Warning}, {Rule: "d", Severity: Note}}
	Allow(findings, map[string]string{"b": "reason"})
	if got, want := CountOf(findings), (Count{1, 1, 1, 1}); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
	if !Error.AtLeast(Warning) || !Warning.AtLeast(Warning) || Note.AtLeast(Warning) {
		t.Error("severities are in the wrong order")
	}
	if a, b := RulesKey(), RulesKey(); a != b || len(a) != 64 {
		t.Errorf("keys of the rules: %s, %s", a, b)
	}
}

func TestRuleIDs(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rules() {
		if seen[r.ID] {
			t.Errorf("two rules are called %s", r.ID)
		}
		seen[r.ID] = true
		if err := KnownRule(r.ID); err != nil {
			t.Error(err)
		}
	}
	if KnownRule("no-such-rule") == nil {
		t.Error("a rule that does not exist is known")
	}
}
