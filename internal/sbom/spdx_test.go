package sbom

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/tooltest"
)

// TestSPDX is the same document for the same image, with the image's time, and names licences by SPDX's identifiers where it can.
func TestSPDX(t *testing.T) {
	l := list(t, image)
	l.Created = time.Date(2026, 3, 1, 12, 0, 0, 5, time.FixedZone("", 3600))
	first, err := l.spdx("1.0")
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := l.spdx("1.0"); !bytes.Equal(first, again) {
		t.Error("the same image, another document")
	}
	var d spdxDocument
	if err := json.Unmarshal(first, &d); err != nil {
		t.Fatal(err)
	}
	if d.Creation.Created != "2026-03-01T11:00:00Z" || len(d.Packages) != 5 || len(d.Relations) != 5 || d.Comment != "" {
		t.Errorf("%+v", d)
	}
	declared := map[string]string{}
	for _, p := range d.Packages {
		declared[p.Name] = p.Declared
	}
	if declared["numpy"] != "BSD-3-Clause" || declared["libstdc++6"] != unknown || declared["tar"] != "BSD-2-Clause AND GPL-3+" && !strings.HasPrefix(declared["tar"], "BSD-2-Clause AND LicenseRef-") {
		t.Errorf("%v", declared)
	}
	l.Unread = []string{"var/lib/rpm/Packages"}
	if out, err := l.spdx(""); err != nil || !bytes.Contains(out, []byte("Incomplete")) {
		t.Errorf("%s, %v", out, err)
	}
}

// TestSPDXTools has the SPDX workgroup's own program judge documents.
func TestSPDXTools(t *testing.T) {
	uv := tooltest.Path(t, "uv")
	dir := t.TempDir()
	for name, l := range map[string]*List{"image": list(t, image), "empty": {Image: "x"}, "unread": {Image: "x", Digest: "sha256:0", Unread: []string{"a"}}} {
		l.Components = append(l.Components, Component{Name: "odd", Version: "1", PURL: "pkg:generic/odd@1", Licenses: []string{"GPLv2+ and MIT", "MIT OR Apache-2.0"}})
		out, err := l.Write(SPDX, "1.0")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".spdx.json"), out, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(uv, "tool", "run", "--quiet", "--from", "spdx-tools==0.8.3", "pyspdxtools", "-i", filepath.Join(dir, name+".spdx.json")).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
