package debian

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
)

// ar writes an archive of members, each NAME and content by turns.
func ar(members ...string) []byte {
	var b bytes.Buffer
	b.WriteString(arMagic)
	for i := 0; i < len(members); i += 2 {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n%s", members[i], 0, 0, 0, "100644", len(members[i+1]), members[i+1])
		if len(members[i+1])%2 == 1 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}

func readDeb(deb []byte) (control, data string, err error) {
	keep := func(to *string) func(string, io.Reader) error {
		return func(name string, r io.Reader) error {
			content, err := io.ReadAll(r)
			*to = name + " " + string(content)
			return err
		}
	}
	err = ReadDeb(bytes.NewReader(deb), keep(&control), keep(&data))
	return control, data, err
}

func TestReadDeb(t *testing.T) {
	good := ar("debian-binary", "2.0\n", "_extra", "odd", "control.tar.xz", "con", "data.tar.zst/", "data", "_sig", "x")
	control, data, err := readDeb(good)
	if control != "control.tar.xz con" || data != "data.tar.zst data" || err != nil {
		t.Errorf("%q, %q, %v", control, data, err)
	}
	huge := ar("debian-binary", "2.0\n", "control.tar", "c")
	copy(huge[len(arMagic)+arHeader+4+48:], "9999999999")
	for why, deb := range map[string][]byte{
		"does not begin":           []byte("!<arch>"),
		"first member":             ar("control.tar", "x"),
		"its format is":            ar("debian-binary", "3.0\n"),
		"where it should not":      ar("debian-binary", "2.0\n", "data.tar", "x"),
		"damaged header":           append(ar("debian-binary", "2.0\n"), bytes.Repeat([]byte("x"), arHeader)...),
		"a member should begin":    ar("debian-binary", "2.0\n", "control.tar", "x"),
		"it ends within data":      bytes.TrimSuffix(ar("debian-binary", "2.0\n", "control.tar", "x", "data.tar", "1234"), []byte("4")),
		"control archive has 9999": huge,
	} {
		if _, _, err := readDeb(deb); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
}

func FuzzReadDeb(f *testing.F) {
	f.Add(ar("debian-binary", "2.0\n", "control.tar", "con", "data.tar", "data"))
	f.Fuzz(func(_ *testing.T, deb []byte) { _, _, _ = readDeb(deb) })
}
