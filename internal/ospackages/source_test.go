package ospackages

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// uris is what apt-get source --print-uris prints, its own words included.
const uris = `Reading package lists...
NOTICE: 'tool' packaging is maintained in the 'Git' version control system at:
Need to get 3190 kB of source archives.
'http://example.org/debian/pool/main/t/tool/tool_1%2bds-2.dsc' tool_1+ds-2.dsc 2167 SHA256:4635d2f0c965dc11f1dd02f77b377efe3c53876b541756605bbefb83cb5f17ff
'http://example.org/debian/pool/main/t/tool/tool_1%2bds.orig.tar.xz' tool_1+ds.orig.tar.xz 3167432 SHA256:1a66369772d5bb151737214af1c478993e969cf298e8f9ed369e7a2ab8d8c6df
`

func TestReadSource(t *testing.T) {
	files, version, err := readSource("tool=1:1+ds-2", uris)
	want := []SourceFile{
		{"tool_1+ds-2.dsc", "http://example.org/debian/pool/main/t/tool/tool_1%2bds-2.dsc", 2167, "sha256:4635d2f0c965dc11f1dd02f77b377efe3c53876b541756605bbefb83cb5f17ff"},
		{"tool_1+ds.orig.tar.xz", "http://example.org/debian/pool/main/t/tool/tool_1%2bds.orig.tar.xz", 3167432, "sha256:1a66369772d5bb151737214af1c478993e969cf298e8f9ed369e7a2ab8d8c6df"},
	}
	if diff := cmp.Diff(want, files); diff != "" || err != nil || version != "1:1+ds-2" {
		t.Errorf("version %q, %v (-want +got):\n%s", version, err, diff)
	}
	if _, version, err := readSource("tool", uris); version != "1+ds-2" || err != nil {
		t.Errorf("without a version: %q, %v", version, err)
	}
	for name, text := range map[string]string{
		"nothing":             "Reading package lists...\n",
		"a weak hash":         strings.ReplaceAll(uris, "SHA256:", "MD5Sum:"),
		"a file of the base":  strings.ReplaceAll(uris, "http://example.org", "file:"),
		"a name that leads":   strings.ReplaceAll(uris, " tool_1+ds-2.dsc", " ../tool_1+ds-2.dsc"),
		"a name with slashes": strings.ReplaceAll(uris, " tool_1+ds-2.dsc", " %2e%2e%2ftool.dsc"),
	} {
		if files, _, err := readSource("tool", text); err == nil {
			t.Errorf("%s: %v", name, files)
		}
	}
}
