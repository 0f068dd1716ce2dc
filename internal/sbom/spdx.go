package sbom

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// spdxDocument is a document of SPDX 2.3 in JSON, with the fields that are used (https://spdx.github.io/spdx-spec/v2.3/).
type spdxDocument struct {
	ID           string             `json:"SPDXID"`
	Version      string             `json:"spdxVersion"`
	DataLicense  string             `json:"dataLicense"`
	Name         string             `json:"name"`
	Namespace    string             `json:"documentNamespace"`
	Comment      string             `json:"comment,omitempty"`
	Creation     spdxCreation       `json:"creationInfo"`
	Packages     []spdxPackage      `json:"packages"`
	Relations    []spdxRelation     `json:"relationships"`
	OtherLicense []spdxOtherLicense `json:"hasExtractedLicensingInfos,omitempty"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID        string         `json:"SPDXID"`
	Name      string         `json:"name"`
	Version   string         `json:"versionInfo,omitempty"`
	Purpose   string         `json:"primaryPackagePurpose,omitempty"`
	Location  string         `json:"downloadLocation"`
	Analyzed  bool           `json:"filesAnalyzed"`
	Checksums []spdxChecksum `json:"checksums,omitempty"`
	Source    string         `json:"sourceInfo,omitempty"`
	Concluded string         `json:"licenseConcluded"`
	Declared  string         `json:"licenseDeclared"`
	Copyright string         `json:"copyrightText"`
	Refs      []spdxRef      `json:"externalRefs,omitempty"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelation struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

// spdxOtherLicense is a licence that is not on SPDX's list.
type spdxOtherLicense struct {
	ID   string `json:"licenseId"`
	Name string `json:"name"`
	Text string `json:"extractedText"`
}

const (
	spdxDoc   = "SPDXRef-DOCUMENT"
	spdxImage = "SPDXRef-Image"
	unknown   = "NOASSERTION"
)

// spdx writes the list as SPDX 2.3 in JSON. The time that the format wants is the image's own, and its name space is made of what it
// says, so that the same image gives the same document.
func (l *List) spdx(version string) ([]byte, error) {
	d := spdxDocument{
		ID: spdxDoc, Version: "SPDX-2.3", DataLicense: "CC0-1.0", Name: l.Image,
		Creation: spdxCreation{Created: spdxTime(l.Created), Creators: []string{"Tool: sconce-" + version}},
		Packages: []spdxPackage{{
			ID: spdxImage, Name: l.Image, Version: l.Digest, Purpose: "CONTAINER",
			Location: unknown, Concluded: unknown, Declared: unknown, Copyright: unknown,
		}},
		Relations: []spdxRelation{{spdxDoc, "DESCRIBES", spdxImage}},
	}
	if len(l.Unread) > 0 {
		d.Comment = "Incomplete: what follows could not be read.\n" + strings.Join(l.Unread, "\n")
	}
	others := spdxLicenses{seen: map[string]bool{}}
	for i, c := range l.Components {
		p := spdxPackage{
			ID: fmt.Sprintf("SPDXRef-Package-%d", i), Name: c.Name, Version: c.Version, Source: "installed as /" + c.Found + " says",
			Location: unknown, Concluded: unknown, Declared: others.declared(c.Licenses), Copyright: unknown,
			Refs: []spdxRef{{"PACKAGE-MANAGER", "purl", c.PURL}},
		}
		if sha256Form.MatchString(c.SHA256) {
			p.Checksums = []spdxChecksum{{"SHA256", c.SHA256}}
		}
		d.Packages = append(d.Packages, p)
		d.Relations = append(d.Relations, spdxRelation{spdxImage, "CONTAINS", p.ID})
	}
	d.OtherLicense = others.list
	content, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	d.Namespace = serial(content)
	return indented(d)
}

// spdxTime writes a time as SPDX wants it (section 6.9): in UTC, without parts of a second. An image that says none gets the earliest.
func spdxTime(t time.Time) string {
	if t.IsZero() {
		t = time.Unix(0, 0)
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}

// spdxLicenses collects the licences that are not on SPDX's list.
type spdxLicenses struct {
	list []spdxOtherLicense
	seen map[string]bool
}

// declared is what a package says of its licence, all of several.
func (o *spdxLicenses) declared(said []string) string {
	if len(said) == 0 {
		return unknown
	}
	var all []string
	for _, s := range said {
		e, ok := expression(s)
		switch {
		case !ok:
			e = o.other(s)
		case len(said) > 1 && strings.Contains(e, " "):
			e = "(" + e + ")"
		}
		all = append(all, e)
	}
	return strings.Join(all, " AND ")
}

// other names a licence by a hash of what is said (section 10.1).
func (o *spdxLicenses) other(said string) string {
	sum := sha256.Sum256([]byte(said))
	id := fmt.Sprintf("LicenseRef-%x", sum[:6])
	if !o.seen[id] {
		o.seen[id] = true
		o.list = append(o.list, spdxOtherLicense{ID: id, Name: said, Text: said})
	}
	return id
}
