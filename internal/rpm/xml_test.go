package rpm

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// seen is what a scanner calls, as text.
func seen(r io.Reader) (calls []string, err error) {
	err = newScanner(r).run(func(t *tag) error {
		call := "start " + t.name
		for _, a := range t.attributes {
			call += fmt.Sprintf(" %s=%q", a.name, a.value)
		}
		calls = append(calls, call)
		return nil
	}, func(name string, text []byte) error {
		calls = append(calls, fmt.Sprintf("end %s %q", name, text))
		return nil
	})
	return calls, err
}

// judged is what encoding/xml says that it should call.
func judged(r io.Reader) (calls []string, err error) {
	d := xml.NewDecoder(r)
	var text strings.Builder
	for {
		token, err := d.RawToken()
		if errors.Is(err, io.EOF) {
			return calls, nil
		}
		if err != nil {
			return calls, err
		}
		switch token := token.(type) {
		case xml.StartElement:
			text.Reset()
			call := "start " + token.Name.Local
			for _, a := range token.Attr {
				call += fmt.Sprintf(" %s=%q", a.Name.Local, a.Value)
			}
			calls = append(calls, call)
		case xml.EndElement:
			calls = append(calls, fmt.Sprintf("end %s %q", token.Name.Local, strings.TrimSpace(text.String())))
			text.Reset()
		case xml.CharData:
			if text.Len()+len(token) <= maxText {
				text.Write(token)
			}
		}
	}
}

// generated is a list with all that XML allows in one.
func generated(packages int) string {
	random := rand.New(rand.NewPCG(3, 4))
	texts := []string{
		"a &amp; b &lt;c&gt; &quot;d&quot; &apos;e&apos;", "<![CDATA[<raw> & ]] not the end]]>", "&#65;&#x42;&#x1F600;", "Zürich, 東京, 🚀",
		"one\r\ntwo\rthree\n", "<!-- a comment, with <tags> & all -->around", "  \t blanks \n ", "", "<![CDATA[]]>", "x<!--->y-->", strings.Repeat("long ", 900), "]] >",
	}
	values := []string{`"plain"`, `'single "quotes"'`, `"a &amp; b > c"`, `"&#10;"`, "\"two\r\nlines\"", `""`, `"é"`}
	one := func(of []string) string { return of[random.IntN(len(of))] }
	var b strings.Builder
	b.WriteString("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<metadata xmlns=\"http://linux.duke.edu/metadata/common\" xmlns:rpm='http://linux.duke.edu/metadata/rpm'>\n")
	for i := range packages {
		fmt.Fprintf(&b, "<package type = \"rpm\"\n\tpkgid=\"%d\"><name>p%d</name><summary>%s</summary><description>%s%s</description>", i, i, one(texts), one(texts), one(texts))
		fmt.Fprintf(&b, "<rpm:entry name=%s flags='GE'/><rpm:entry a_b.c-d=%s name = %s /><file type=\"dir\" >%s</file ><empty/>", one(values), one(values), one(values), one(texts))
		b.WriteString("</package>\n<?pi whatever?>")
	}
	return b.String() + "</metadata>\n"
}

// encoding/xml is the judge, however the list comes in.
func TestAsEncodingXML(t *testing.T) {
	text := generated(200)
	want, err := judged(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]io.Reader{
		"at once": strings.NewReader(text), "byte by byte": iotest.OneByteReader(strings.NewReader(text)), "half of what is wanted": iotest.HalfReader(strings.NewReader(text)),
		"the end with the last bytes": iotest.DataErrReader(strings.NewReader(text)),
	} {
		got, err := seen(r)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-encoding/xml +ours):\n%s", name, err, diff)
		}
	}
}

// A text that is too long to be kept is no error, and one that is too long for a buffer is.
func TestLongTexts(t *testing.T) {
	for _, n := range []int{maxText, maxText + 1, maxItem - 100} {
		text := "<a>x<!-- -->" + strings.Repeat("y", n-1) + "</a>"
		want, _ := judged(strings.NewReader(text))
		got, err := seen(strings.NewReader(text))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%d bytes: %v\n%.300s", n, err, diff)
		}
	}
	// A value with ends of tags in it is gone through once, and not again for each of them.
	if got, err := seen(strings.NewReader("<a b='" + strings.Repeat(">", maxItem-100) + "'/>")); err != nil || len(got) != 2 {
		t.Errorf("a value of >: %v, %.100q", err, got)
	}
	for _, text := range []string{"<a>" + strings.Repeat("y", 3*maxItem), "<a b='" + strings.Repeat("y", 3*maxItem), "<!--" + strings.Repeat("y", 3*maxItem)} {
		if _, err := seen(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "longer than 1 MiB") {
			t.Errorf("%.10s…: %v", text, err)
		}
	}
}

func TestDamagedXML(t *testing.T) {
	for _, text := range []string{
		"<", "<a", "<a b", "<a b=", "<a b='", "<a b='c", "<a b='c'", "<a b=c>", "<a b='<'>", "<a b='c>", "<a b>", "< a>", "<a></", "<a></a", "</>", "</ a>", "<>", "<1>", "<a:b:c>",
		"&nothing;", "&", "&#;", "&#x;", "&#x110000;", "&#0;", "&amp", "<a b='&b;'>", "]]>", "\x01", "\xff", "\xed\xa0\x80", "\uffff", "<a b='\x00'>",
		"<!-- -- -->", "<!-- --->", "<!--", "<![CDATA[", "<![CDATA[\x02]]>", "<!", "<?", "<? ?>", "<?xml version='1.1'?>", "<?xml encoding='latin1'?>",
		"<a/", "<a / >", "<a></a b>",
		"<a>", "<a><b></b>", "</a>", "<a/></a>", "<a></b>", "<a><b></a></b>", strings.Repeat("<a>", maxDepth+1) + strings.Repeat("</a>", maxDepth+1),
	} {
		if got, err := seen(strings.NewReader(text)); err == nil {
			t.Errorf("%q is read as %q", text, got)
		}
	}
	failing := errors.New("the disk is gone")
	if _, err := seen(io.MultiReader(strings.NewReader("<a>"), iotest.ErrReader(failing))); !errors.Is(err, failing) {
		t.Error(err)
	}
}

// FuzzAsEncodingXML: what is read is read as encoding/xml reads it, and what that refuses is refused.
func FuzzAsEncodingXML(f *testing.F) {
	f.Add(generated(2))
	f.Add(`<?xml version='1.0'?><x><a:b c = 'd"' e="&#x41;"/>]]<![CDATA[]]]]><!-- - --></x >`)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := seen(strings.NewReader(text))
		if err != nil {
			return
		}
		want, err := judged(strings.NewReader(text))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v (-encoding/xml +ours):\n%s", err, diff)
		}
	})
}

func BenchmarkPrimary(b *testing.B) {
	var list strings.Builder
	list.WriteString(`<metadata xmlns:rpm="http://linux.duke.edu/metadata/rpm">`)
	for i := range 2000 {
		list.WriteString(strings.NewReplacer("NUMBER", fmt.Sprint(i), "SUM", sum).Replace(`
<package type="rpm"><name>package-NUMBER</name><arch>x86_64</arch><version epoch="0" ver="1.NUMBER" rel="3.el9"/><checksum type="sha256" pkgid="YES">SUM</checksum>
<summary>The package of the number NUMBER</summary><description>What it is for &amp; what it does, in some words that go on for a while,
as descriptions do, and tell nobody anything that matters here.</description><packager>Somebody</packager><url>https://example.org/NUMBER</url>
<time file="1700000000" build="1700000000"/><size package="12345" installed="54321" archive="54999"/><location href="Packages/p/package-NUMBER.rpm"/>
<format><rpm:license>MIT</rpm:license><rpm:vendor>Somebody</rpm:vendor><rpm:group>Unspecified</rpm:group><rpm:buildhost>builder</rpm:buildhost>
<rpm:sourcerpm>package-NUMBER.src.rpm</rpm:sourcerpm><rpm:header-range start="4504" end="9000"/>
<rpm:provides><rpm:entry name="package-NUMBER" flags="EQ" epoch="0" ver="1.NUMBER" rel="3.el9"/><rpm:entry name="libNUMBER.so.1()(64bit)"/></rpm:provides>
<rpm:requires><rpm:entry name="libc.so.6(GLIBC_2.34)(64bit)"/><rpm:entry name="libm.so.6()(64bit)"/><rpm:entry name="rtld(GNU_HASH)"/><rpm:entry name="/bin/sh" pre="1"/></rpm:requires>
<file>/usr/bin/package-NUMBER</file><file type="dir">/etc/package-NUMBER</file></format></package>`))
	}
	list.WriteString("</metadata>")
	text := list.String()
	b.Run("packages", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			if err := ReadPrimary(strings.NewReader(text), func(*Package) error { return nil }); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("tokens of encoding/xml", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			for d := xml.NewDecoder(strings.NewReader(text)); ; {
				if _, err := d.RawToken(); err != nil {
					break
				}
			}
		}
	})
}
