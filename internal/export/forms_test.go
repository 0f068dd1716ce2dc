package export

import (
	"os"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/source"
)

// The table of forms in the reference has all that there are, and says of each what is true.
func TestFormsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## Forms of images\n")
	table, _, _ = strings.Cut(table, "\n## ")
	rows := map[string][]string{}
	for line := range strings.Lines(table) {
		if form, is := strings.CutPrefix(line, "| `"); is {
			transport, _, _ := strings.Cut(form, ":")
			rows[transport] = strings.Split(line, " | ")
		}
	}
	all := []source.Transport{
		source.Store, source.Docker, source.OCI, source.OCIArchive, source.DockerArchive, source.Tar, source.Dir, source.Squashfs, source.SIF, Plain, Uenv,
	}
	if len(rows) != len(all) {
		t.Errorf("%d forms are documented, and there are %d", len(rows), len(all))
	}
	for _, transport := range all {
		row := rows[string(transport)]
		if len(row) < 4 {
			t.Errorf("%s: is not documented", transport)
			continue
		}
		ref, err := source.Parse(string(transport) + ":x")
		if transport == source.Docker {
			ref, err = source.Parse("docker://x")
		}
		if reads := err == nil && ref.Transport == transport; reads != (row[2] == "yes") {
			t.Errorf("%s: is read: %v, and the table says %s", transport, reads, row[2])
		}
		target, err := ParseTarget(string(transport) + ":./x")
		if writes := err == nil && target.Transport == transport; writes != (row[3] == "yes") {
			t.Errorf("%s: is written: %v, and the table says %s", transport, writes, row[3])
		}
	}
}
