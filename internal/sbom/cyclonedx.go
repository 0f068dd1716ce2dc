package sbom

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/quote"
)

// document is a CycloneDX document, with the fields that are used.
type document struct {
	Format       string        `json:"bomFormat"`
	SpecVersion  string        `json:"specVersion"`
	Serial       string        `json:"serialNumber"`
	Version      int           `json:"version"`
	Metadata     metadata      `json:"metadata"`
	Components   []component   `json:"components"`
	Compositions []composition `json:"compositions"`
}

type metadata struct {
	Tools     tools      `json:"tools"`
	Component component  `json:"component"`
	Notes     []property `json:"properties,omitempty"`
}

type tools struct {
	Components []component `json:"components"`
}

type component struct {
	Type     string     `json:"type"`
	Ref      string     `json:"bom-ref,omitempty"`
	Name     string     `json:"name"`
	Version  string     `json:"version,omitempty"`
	Hashes   []hash     `json:"hashes,omitempty"`
	Licenses []license  `json:"licenses,omitempty"`
	PURL     string     `json:"purl,omitempty"`
	Notes    []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

// license has one of its two fields.
type license struct {
	License    *licenseName `json:"license,omitempty"`
	Expression string       `json:"expression,omitempty"`
}

// licenseName has one of its two fields, too: ID is an identifier of SPDX.
type licenseName struct {
	ID   string `json:"id,omitempty"`
	Name string `json:"name,omitempty"`
}

// licensesOf are the licences of a package. An expression must be the only one.
func licensesOf(said []string) []license {
	var all []license
	for _, s := range said {
		e, ok := expression(s)
		single := ok && !strings.ContainsAny(e, " +")
		switch {
		case single:
			all = append(all, license{License: &licenseName{ID: e}})
		case ok && len(said) == 1:
			all = append(all, license{Expression: e})
		default:
			all = append(all, license{License: &licenseName{Name: s}})
		}
	}
	return all
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type composition struct {
	Aggregate  string   `json:"aggregate"` // "complete", "incomplete"
	Assemblies []string `json:"assemblies"`
}

var sha256Form = lazyregexp.New(`^[0-9a-f]{64}$`)

// imageRef names the image within the document.
const imageRef = "image"

// cycloneDX writes the list as CycloneDX 1.6 in JSON. There is no time in it, and its serial number is of what it says.
func (l *List) cycloneDX(version string) ([]byte, error) {
	d := document{Format: "CycloneDX", SpecVersion: "1.6", Version: 1, Components: []component{}}
	d.Metadata.Tools.Components = []component{{Type: "application", Name: "sconce", Version: version}}
	d.Metadata.Component = component{Type: "container", Ref: imageRef, Name: l.Image, Version: l.Digest}
	for _, what := range l.Unread {
		d.Metadata.Notes = append(d.Metadata.Notes, property{"sconce:unread", what})
	}
	for i, c := range l.Components {
		one := component{
			Type: "library", Ref: fmt.Sprintf("%d", i), Name: c.Name, Version: c.Version, PURL: c.PURL, Licenses: licensesOf(c.Licenses),
			Notes: []property{{"sconce:found", "/" + c.Found}},
		}
		if sha256Form.MatchString(c.SHA256) {
			one.Hashes = []hash{{"SHA-256", c.SHA256}}
		}
		d.Components = append(d.Components, one)
	}
	aggregate := "complete"
	if len(l.Unread) > 0 {
		aggregate = "incomplete"
	}
	d.Compositions = []composition{{aggregate, []string{imageRef}}}
	content, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	d.Serial = serial(content)
	return indented(d)
}

// indented writes a document for people and programs.
func indented(d any) ([]byte, error) {
	out, err := quote.JSON(d, "  ")
	return append(out, '\n'), err
}

// serial is a UUID made of a hash (RFC 9562, version 8).
func serial(content []byte) string {
	sum := sha256.Sum256(content)
	sum[6] = sum[6]&0x0f | 0x80
	sum[8] = sum[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}
