package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/facts"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/quote"
)

// The schema that a SARIF log names, and its version (OASIS, "Static Analysis Results Interchange Format Version 2.1.0").
const (
	sarifVersion = "2.1.0"
	sarifSchema  = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)

// The part of SARIF that is written, section by section of the specification.
type (
	sarifLog struct { // 3.13
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct { // 3.14
		Tool       sarifTool      `json:"tool"`
		Automation sarifDetails   `json:"automationDetails"`
		Results    []sarifResult  `json:"results"`
		Properties map[string]any `json:"properties"`
	}
	sarifTool struct { // 3.18
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct { // 3.19
		Name        string      `json:"name"`
		Version     string      `json:"version,omitempty"`
		Information string      `json:"informationUri"`
		Rules       []sarifRule `json:"rules"`
	}
	sarifRule struct { // 3.49
		ID            string             `json:"id"`
		Short         sarifText          `json:"shortDescription"`
		Full          sarifText          `json:"fullDescription"`
		Help          sarifText          `json:"help"`
		Configuration sarifConfiguration `json:"defaultConfiguration"`
	}
	sarifConfiguration struct { // 3.50
		Level Severity `json:"level"`
	}
	sarifDetails struct { // 3.17
		ID string `json:"id"`
	}
	sarifText struct { // 3.11, 3.12
		Text string `json:"text"`
	}
	sarifResult struct { // 3.27
		Rule         string             `json:"ruleId"`
		Index        int                `json:"ruleIndex"`
		Level        Severity           `json:"level"`
		Message      sarifText          `json:"message"`
		Locations    []sarifLocation    `json:"locations"`
		Fingerprints map[string]string  `json:"partialFingerprints"`
		Suppressions []sarifSuppression `json:"suppressions,omitempty"`
	}
	sarifLocation struct { // 3.28
		Physical sarifPhysical `json:"physicalLocation"`
	}
	sarifPhysical struct { // 3.29
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   sarifRegion   `json:"region"`
	}
	sarifArtifact struct { // 3.4
		URI string `json:"uri"`
	}
	sarifRegion struct { // 3.30
		Line   int `json:"startLine"`
		Column int `json:"startColumn,omitempty"`
	}
	sarifSuppression struct { // 3.35
		Kind          string `json:"kind"`
		Justification string `json:"justification"`
	}
)

// SARIF writes findings as a SARIF 2.1.0 log, which code hosts show. Those that are allowed are suppressed in it. A finding is
// placed in the file of the image that it is about, or else in a file named like the image. version is sconce's own.
func SARIF(f *facts.Facts, target cluster.Profile, findings []Finding, version string) ([]byte, error) {
	properties := map[string]any{"image": f.Image, "digest": f.Digest, "platform": f.Platform, "target": target}
	return Log{Rules(), f.Image, properties, version}.SARIF(findings)
}

// Log is what a SARIF log says besides its findings.
type Log struct {
	Rules      []Rule
	Subject    string         // what was judged; findings without a path are placed there
	Properties map[string]any // of the run
	Version    string         // of sconce
}

// SARIF writes findings of the log's rules. Each is placed in its file, at its line where it has one.
func (l Log) SARIF(findings []Finding) ([]byte, error) {
	run := sarifRun{
		Tool: sarifTool{sarifDriver{
			Name: "sconce", Version: l.Version, Information: "https://sconce.dev/sconce", Rules: []sarifRule{},
		}},
		Automation: sarifDetails{"sconce/" + l.Subject + "/"},
		Results:    []sarifResult{},
		Properties: l.Properties,
	}
	for _, r := range l.Rules {
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{
			ID: r.ID, Short: sarifText{r.Title}, Full: sarifText{r.Why}, Help: sarifText{r.Remedy}, Configuration: sarifConfiguration{r.Severity},
		})
	}
	seen := map[string]int{}
	for _, found := range findings {
		index := slices.IndexFunc(l.Rules, func(r Rule) bool { return r.ID == found.Rule })
		run.Results = append(run.Results, sarifOf(found, index, l.Subject, seen))
	}
	data, err := quote.JSON(sarifLog{sarifSchema, sarifVersion, []sarifRun{run}}, "  ")
	if err != nil {
		return nil, fmt.Errorf("write SARIF: %w", err)
	}
	return append(data, '\n'), nil
}

// sarifOf is one finding. seen counts those of the same rule in the same file, so that each has a fingerprint of its own.
func sarifOf(f Finding, rule int, image string, seen map[string]int) sarifResult {
	text := f.Message + "."
	if len(f.Seen) > 0 {
		text += "\n\nSeen:\n- " + strings.Join(f.Seen, "\n- ")
	}
	text += "\n\nWhy it matters: " + f.Why + "\n\nWhat to do: " + f.Remedy
	place := f.Path
	if place == "" {
		place = image
	}
	id := f.Rule + "\x00" + strings.TrimPrefix(f.Path, "/") // as it was when paths had no slash in front
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d", id, seen[id]))
	seen[id]++
	r := sarifResult{
		Rule: f.Rule, Index: rule, Level: f.Severity, Message: sarifText{text},
		Locations:    []sarifLocation{{sarifPhysical{sarifArtifact{relativeURI(place)}, sarifRegion{max(f.Line, 1), f.Column}}}},
		Fingerprints: map[string]string{"ruleAndFile/v1": hex.EncodeToString(sum[:])},
	}
	if f.Allowed != "" {
		r.Suppressions = []sarifSuppression{{"external", f.Allowed}}
	}
	return r
}

// relativeURI writes a path as a relative reference, whose first segment must not look like a scheme (RFC 3986, 4.2).
func relativeURI(path string) string {
	segments := strings.Split(strings.Trim(path, "/"), "/")
	for i, s := range segments {
		segments[i] = strings.ReplaceAll(url.PathEscape(s), ":", "%3A")
	}
	return strings.Join(segments, "/")
}
