package python

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/flate"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// wheelEntry is a member of a crafted wheel.
type wheelEntry struct {
	name string
	data string
	edit func(*zip.FileHeader) // makes the archive's directory lie
}

// testBlock is a piece of content that does not repeat within reach of deflate's window.
func testBlock() []byte {
	block := make([]byte, 1<<20)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(block)
	return block
}

const (
	testWheelFile = "demo_pkg-1.0-py3-none-any.whl"
	testDist      = "demo_pkg-1.0.dist-info/"
	wheelText     = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
	metadataText  = "Metadata-Version: 2.1\nName: demo-pkg\nVersion: 1.0\n\nHello\n"
)

// craft makes a wheel of entries: valid unless they are not. Metadata that entries lack is added, and a RECORD of all.
func craft(t testing.TB, entries ...wheelEntry) []byte {
	t.Helper()
	has := make(map[string]bool)
	for _, e := range entries {
		has[e.name] = true
	}
	if !has[testDist+"WHEEL"] {
		entries = append(entries, wheelEntry{name: testDist + "WHEEL", data: wheelText})
	}
	if !has[testDist+"METADATA"] {
		entries = append(entries, wheelEntry{name: testDist + "METADATA", data: metadataText})
	}
	if !has[testDist+"RECORD"] {
		var lines []recordEntry
		for _, e := range entries {
			if !strings.HasSuffix(e.name, "/") {
				lines = append(lines, recordEntry{e.name, sha256Of([]byte(e.data)), int64(len(e.data))})
			}
		}
		lines = append(lines, recordEntry{path: testDist + "RECORD"})
		entries = append(entries, wheelEntry{name: testDist + "RECORD", data: string(formatRecord(lines))})
	}
	return zipOf(t, entries...)
}

func zipOf(t testing.TB, entries ...wheelEntry) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, e := range entries {
		packed := deflate(t, e.data)
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, CRC32: crc32.ChecksumIEEE([]byte(e.data)), CompressedSize64: uint64(len(packed)), UncompressedSize64: uint64(len(e.data))}
		if strings.HasSuffix(e.name, "/") {
			packed, h.Method, h.CompressedSize64 = nil, zip.Store, 0
		}
		if e.edit != nil {
			e.edit(h)
		}
		if h.Method == zip.Store && len(e.data) > 0 {
			packed = []byte(e.data)
		}
		w, err := z.CreateRaw(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(packed); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func deflate(t testing.TB, data string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w, err := flate.NewWriter(&buf, flate.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func mode(m uint32) func(*zip.FileHeader) {
	return func(h *zip.FileHeader) { h.ExternalAttrs = m << 16 }
}

// consume opens a wheel, lays it out and reads everything, as a build does.
func consume(data []byte, file string) error {
	w, err := OpenWheel(bytes.NewReader(data), int64(len(data)), file)
	if err != nil {
		return err
	}
	files, err := Layout(w, testTarget("3.11.2"))
	if err != nil {
		return err
	}
	for _, f := range files {
		r, err := f.Open()
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, r)
		r.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func TestBadWheels(t *testing.T) {
	file := func(name string) wheelEntry { return wheelEntry{name: name, data: "x = 1\n"} }
	record := func(text string) wheelEntry { return wheelEntry{name: testDist + "RECORD", data: text} }
	good := craft(t, file("demo.py"))
	zeros := strings.Repeat("\x00", 1<<20)
	for name, test := range map[string]struct {
		data []byte
		file string
		want string
	}{
		"a path out of the root":       {craft(t, file("../../etc/cron.d/x")), "", `".."`},
		"a path out of the middle":     {craft(t, file("demo/../../x.py")), "", `".."`},
		"an absolute path":             {craft(t, file("/etc/passwd")), "", "absolute"},
		"a backslash":                  {craft(t, file(`demo\..\..\x.py`)), "", "backslash"},
		"a NUL":                        {craft(t, file("demo\x00.py")), "", "control character"},
		"a newline":                    {craft(t, file("demo\n.py")), "", "control character"},
		"not UTF-8":                    {craft(t, file("demo\xff.py")), "", "UTF-8"},
		"a dot":                        {craft(t, file("./demo.py")), "", `"."`},
		"two slashes":                  {craft(t, file("demo//x.py")), "", `""`},
		"a long name":                  {craft(t, file(strings.Repeat("d/", 600)+"x.py")), "", "longer than 1024"},
		"a long component":             {craft(t, file(strings.Repeat("d", 300))), "", "longer than 255"},
		"a symlink":                    {craft(t, wheelEntry{"demo/link", "/etc/passwd", mode(0o120777)}), "", "symbolic link"},
		"a device":                     {craft(t, wheelEntry{"demo/null", "", mode(0o020666)}), "", "special file"},
		"a directory that is a file":   {craft(t, wheelEntry{"demo", "x", mode(0o040755)}), "", "disagree"},
		"a directory with content":     {craft(t, wheelEntry{"demo/", "", func(h *zip.FileHeader) { h.UncompressedSize64 = 5 }}), "", "directory with content"},
		"encrypted":                    {craft(t, wheelEntry{"demo.py", "x", func(h *zip.FileHeader) { h.Flags |= 1 }}), "", "encrypted"},
		"an odd compression":           {craft(t, wheelEntry{"demo.py", "x", func(h *zip.FileHeader) { h.Method = 14 }}), "", "method 14"},
		"the same name twice":          {craft(t, file("demo.py"), file("demo.py")), "", "twice"},
		"a file and a directory":       {craft(t, file("demo"), file("demo/x.py")), "", "also the directory"},
		"a file and an empty one":      {craft(t, file("demo"), wheelEntry{name: "demo/"}), "", "also the directory"},
		"cut off":                      {good[:len(good)-30], "", "directory"},
		"cut off at the start":         {good[200:], "", ""},
		"cut in the middle":            {append(bytes.Clone(good[:60]), good[120:]...), "", ""},
		"empty":                        {nil, "", "directory"},
		"a giant size":                 {craft(t, wheelEntry{"demo.bin", "x", func(h *zip.FileHeader) { h.UncompressedSize64 = 1 << 60 }}), "", "not believed"},
		"giant sizes together":         {craft(t, giant("a"), giant("b"), giant("c")), "", "unpack to more than"},
		"more than declared":           {craft(t, wheelEntry{"demo.bin", zeros, func(h *zip.FileHeader) { h.UncompressedSize64 = 10 }}, record(recordOf("demo.bin", zeros, 10))), "", "demo.bin: it does not unpack to the 10 bytes"},
		"less than declared":           {craft(t, wheelEntry{"demo.bin", "abc", func(h *zip.FileHeader) { h.UncompressedSize64 = 10 }}, record(recordOf("demo.bin", "abc", 10))), "", "demo.bin"},
		"stored with two sizes":        {craft(t, wheelEntry{"demo.bin", "abc", func(h *zip.FileHeader) { h.Method, h.CompressedSize64 = zip.Store, 2 }}), "", "two sizes"},
		"a wrong checksum":             {craft(t, wheelEntry{"demo.bin", "abc", func(h *zip.FileHeader) { h.CRC32++ }}), "", "demo.bin"},
		"no CSV":                       {craft(t, record("\"demo\n")), "", "RECORD"},
		"four fields":                  {craft(t, record("a,b,c,d\n")), "", "4 fields"},
		"no RECORD":                    {zipOf(t, wheelEntry{name: testDist + "WHEEL", data: wheelText}, wheelEntry{name: testDist + "METADATA", data: metadataText}), "", "RECORD: it is missing"},
		"no metadata directory":        {zipOf(t, file("demo.py")), "", "no *.dist-info"},
		"two metadata directories":     {craft(t, file("other-1.0.dist-info/METADATA")), "", "two metadata directories"},
		"a newer format":               {craft(t, wheelEntry{name: testDist + "WHEEL", data: "Wheel-Version: 2.0\n"}), "", "version \"2.0\""},
		"another name":                 {craft(t, wheelEntry{name: testDist + "METADATA", data: "Name: other\nVersion: 1.0\n"}), "", "describes other 1.0"},
		"another version":              {craft(t, wheelEntry{name: testDist + "METADATA", data: "Name: demo-pkg\nVersion: 1.1\n"}), "", "promises demo_pkg 1.0"},
		"no version":                   {craft(t, wheelEntry{name: testDist + "METADATA", data: "Name: demo-pkg\n"}), "", "no version"},
		"a name that is a path":        {craft(t, wheelEntry{name: testDist + "METADATA", data: "Name: ../x\nVersion: 1\n"}), "", "not a distribution's name"},
		"another file name":            {good, "other-1.0-py3-none-any.whl", "other 1.0, which the file name promises"},
		"no wheel's file name":         {good, "demo_pkg-1.0.zip", "not named as a wheel"},
		"an unknown scheme":            {craft(t, file("demo_pkg-1.0.data/etc/passwd")), "", "no known place"},
		"data in no scheme":            {craft(t, file("demo_pkg-1.0.data/x")), "", "no place for it"},
		"the environment's python":     {craft(t, file("demo_pkg-1.0.data/scripts/python3")), "", "belongs to the Python environment"},
		"the environment's config":     {craft(t, file("demo_pkg-1.0.data/data/pyvenv.cfg")), "", "belongs to the Python environment"},
		"the environment's lib64":      {craft(t, file("demo_pkg-1.0.data/data/lib64")), "", "belongs to the Python environment"},
		"the environment's directory":  {craft(t, file("demo_pkg-1.0.data/data/bin")), "", "belongs to the Python environment"},
		"an entry point with a path":   {craft(t, entryPoints("[console_scripts]\n../../sh = demo:main\n")), "", "cannot be the name of a command"},
		"an entry point with code":     {craft(t, entryPoints("[console_scripts]\nx = demo:main();import os\n")), "", "does not name a function"},
		"an entry point without a fun": {craft(t, entryPoints("[console_scripts]\nx = demo\n")), "", "does not name a function"},
		"python as an entry point":     {craft(t, entryPoints("[console_scripts]\npython = demo:main\n")), "", "belongs to the Python environment"},
		"overlapping members":          {overlapping(t), "", "overlaps"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.file == "" {
				test.file = testWheelFile
			}
			err := consume(test.data, test.file)
			if err == nil {
				t.Fatal("it was accepted")
			}
			if !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), test.file) {
				t.Errorf("got %q; want it to name the file and say %q", err, test.want)
			}
			if fault.HintOf(err) == "" {
				t.Error("it has no hint")
			}
		})
	}
}

func giant(name string) wheelEntry {
	return wheelEntry{name, "x", func(h *zip.FileHeader) { h.UncompressedSize64 = maxMemberSize }}
}

func entryPoints(text string) wheelEntry {
	return wheelEntry{name: testDist + "entry_points.txt", data: text}
}

// recordOf is a RECORD of the crafted wheel's metadata and one more file.
func recordOf(name, data string, size int64) string {
	lines := []recordEntry{
		{testDist + "WHEEL", sha256Of([]byte(wheelText)), int64(len(wheelText))},
		{testDist + "METADATA", sha256Of([]byte(metadataText)), int64(len(metadataText))},
		{path: testDist + "RECORD"},
	}
	if name != "" {
		lines = append(lines, recordEntry{name, sha256Of([]byte(data)), size})
	}
	return string(formatRecord(lines))
}

// overlapping makes two members share their data, by pointing the directory's second entry at the first's header.
func overlapping(t *testing.T) []byte {
	t.Helper()
	data := craft(t, wheelEntry{name: "a.py", data: "x = 1\n"}, wheelEntry{name: "b.py", data: "x = 1\n"})
	header := bytes.LastIndex(data, []byte("b.py")) // in the directory, unless RECORD is not compressed
	directory := bytes.LastIndex(data[:header], []byte("PK\x01\x02"))
	binary.LittleEndian.PutUint32(data[directory+42:], 0)
	return data
}

// TestImperfectWheels: what pip and uv install is installed, with one warning that names the wheel and the file, and a RECORD
// that is right.
func TestImperfectWheels(t *testing.T) {
	file := func(name string) wheelEntry { return wheelEntry{name: name, data: "x = 1\n"} }
	record := func(text string) wheelEntry { return wheelEntry{name: testDist + "RECORD", data: text} }
	weak := recordOf("", "", 0)
	large := strings.Repeat("0123456789", int(3*streamFrom/10))
	for name, test := range map[string]struct {
		data []byte
		want string // the warning
	}{
		"a wrong hash":             {craft(t, file("demo.py"), record(recordOf("demo.py", "x = 2\n", 6))), "demo.py: its hash is not the one in RECORD"},
		"a wrong hash, large":      {craft(t, wheelEntry{name: "demo.py", data: large}, record(recordOf("demo.py", "x", int64(len(large))))), "demo.py: its hash is not the one in RECORD"},
		"a wrong hash of commands": {craft(t, file("demo.py"), entryPoints("[console_scripts]\n"), record(recordOf("demo.py", "x = 1\n", 6)+testDist+"entry_points.txt,sha256="+sha256Of(nil)+",18\n")), "entry_points.txt: its hash is not"},
		"a wrong hash of a script": {craft(t, wheelEntry{name: "demo_pkg-1.0.data/scripts/x", data: "#!python\n"}, file("demo.py"), record(recordOf("demo.py", "x = 1\n", 6)+"demo_pkg-1.0.data/scripts/x,sha256="+sha256Of(nil)+",9\n")), "scripts/x: its hash is not"},
		"two wrong hashes":         {craft(t, file("demo.py"), file("other.py"), record(recordOf("demo.py", "x = 2\n", 6)+"other.py,sha256="+sha256Of(nil)+",6\n")), "(and 1 more faults)"},
		"a wrong size":             {craft(t, file("demo.py"), record(recordOf("demo.py", "x = 1\n", 7))), "demo.py: it has 6 bytes, but RECORD says 7"},
		"not in RECORD":            {craft(t, file("demo.py"), record(weak)), "demo.py: RECORD does not list it"},
		"without a hash":           {craft(t, file("demo.py"), record(weak+"demo.py,,\n")), "demo.py: RECORD lists it without a hash"},
		"a weak hash":              {craft(t, file("demo.py"), record(weak+"demo.py,md5=abc,\n")), `demo.py: RECORD says hash algorithm "md5"`},
		"a short hash":             {craft(t, file("demo.py"), record(weak+"demo.py,sha256=abcd,\n")), `demo.py: RECORD says "abcd"`},
		"no size":                  {craft(t, file("demo.py"), record(weak+"demo.py,sha256="+sha256Of([]byte("x = 1\n"))+",many\n")), `demo.py: RECORD says "many"`},
		"only in RECORD":           {craft(t, file("demo.py"), record(recordOf("demo.py", "x = 1\n", 6)+"gone.py,,\n")), "gone.py: RECORD lists it, but the wheel does not contain it"},
		"twice in RECORD":          {craft(t, file("demo.py"), record(recordOf("demo.py", "x = 1\n", 6)+"demo.py,,\n")), "demo.py: RECORD lists it twice"},
		"a path in RECORD":         {craft(t, file("demo.py"), record(recordOf("demo.py", "x = 1\n", 6)+"../x,sha256=a,\n")), `"../x"`},
		"two ways to one place":    {craft(t, wheelEntry{name: "demo.py", data: "old\n"}, wheelEntry{name: "demo_pkg-1.0.data/purelib/demo.py", data: "x = 1\n"}), "it replaces demo.py"},
	} {
		t.Run(name, func(t *testing.T) {
			st := storetest.New(t)
			item := putWheelBytes(t, st, testWheelFile, test.data)
			said := &recorder{}
			d, m, err := BuildLayer(progress.With(t.Context(), said), st, Group{"demo", []Item{item}}, testTarget("3.11.2"), nil, LayerOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(said.warnings) != 1 || !strings.Contains(said.warnings[0], test.want) || !strings.Contains(said.warnings[0], testWheelFile) {
				t.Errorf("warnings %q; want one with %q", said.warnings, test.want)
			}
			content := readLayer(t, st, d)
			for _, f := range m.Packages[0].Files {
				data, ok := content["opt/venv/"+f.Path]
				if !ok || sha256Of(data) != f.SHA256 || int64(len(data)) != f.Size {
					t.Errorf("%s: %.40q, and the manifest says %+v", f.Path, data, f)
				}
			}
			if data := content["opt/venv/lib/python3.11/site-packages/demo.py"]; string(data) != "x = 1\n" && string(data) != large {
				t.Errorf("demo.py is %.40q", data)
			}
			site := "opt/venv/lib/python3.11/site-packages/"
			installed, found, err := parseRecord(content[site+testDist+"RECORD"])
			for name, line := range installed {
				if data, ok := content[path.Join(site, name)]; !ok || line.hash.algorithm != "" && line.hash.value != sha256Of(data) {
					t.Errorf("the RECORD that is installed says %+v of %s, which is %.40q (%t)", line, name, data, ok)
				}
			}
			if err != nil || found.more > 0 && !strings.Contains(found.first, "..") {
				t.Errorf("the RECORD that is installed: %+v, %v", found, err)
			}
		})
	}
}

// readLayer returns the files of a layer.
func readLayer(t testing.TB, st *store.Store, d layer.Descriptor) map[string][]byte {
	t.Helper()
	ix, err := layer.OpenIndex(t.Context(), st, d)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	for i, e := range ix.Entries {
		if e.Type != layer.Regular {
			continue
		}
		r, err := ix.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		if files[e.Path], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		r.Close()
	}
	return files
}

// recorder keeps warnings.
type recorder struct {
	mu       sync.Mutex
	warnings []string
}

func (r *recorder) Emit(e progress.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Kind == progress.Warning {
		r.warnings = append(r.warnings, e.Text)
	}
}

// TestEveryCorruption damages a good wheel at each byte and cuts it at each length. Nothing may panic, and what is
// accepted must have the same files as before: the archive's checksums notice a slip. (Against an attacker there is the hash of
// the whole wheel.)
func TestEveryCorruption(t *testing.T) {
	good := craft(t, wheelEntry{name: "demo/__init__.py", data: strings.Repeat("x = 1\n", 20)}, wheelEntry{name: "demo_pkg-1.0.data/scripts/tool", data: "#!python\nprint()\n"})
	if err := consume(good, testWheelFile); err != nil {
		t.Fatal(err)
	}
	for i := range good {
		for _, flip := range []byte{0x01, 0x80, 0xff} {
			bad := bytes.Clone(good)
			bad[i] ^= flip
			_ = consume(bad, testWheelFile) // most bytes of headers mean nothing to us; content is checked below
		}
		if err := consume(good[:i], testWheelFile); err == nil {
			t.Errorf("cut to %d bytes, it is accepted", i)
		}
	}
	start := bytes.Index(good, []byte("demo/__init__.py")) + len("demo/__init__.py")
	for i := start; i < start+5; i++ { // the deflated content; its last byte ends in bits without a meaning
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		if consume(bad, testWheelFile) == nil {
			t.Errorf("with byte %d of the content changed, it is accepted", i)
		}
	}
}

// TestBombCostsNothing feeds members that unpack to far more than declared; they must be left at the declared size.
func TestBombCostsNothing(t *testing.T) {
	bomb := strings.Repeat("\x00", 1<<20)
	data := craft(t, wheelEntry{"bomb.bin", bomb, func(h *zip.FileHeader) { h.UncompressedSize64 = 100 }}, wheelEntry{name: testDist + "RECORD", data: recordOf("bomb.bin", bomb, 100)})
	w, err := OpenWheel(bytes.NewReader(data), int64(len(data)), testWheelFile)
	if err != nil {
		t.Fatal(err)
	}
	r, err := w.member("bomb.bin").Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	n, err := io.Copy(io.Discard, r)
	var bad *WheelError
	if n > 100 || !errors.As(err, &bad) || bad.Member != "bomb.bin" {
		t.Errorf("%d bytes came out, %v", n, err)
	}
}

func TestLayoutOfSchemes(t *testing.T) {
	data := craft(
		t,
		wheelEntry{name: "demo/__init__.py", data: "x = 1\n"},
		wheelEntry{"demo/tool.sh", "#!/bin/sh\n", mode(0o100755)},
		wheelEntry{name: "demo/"},
		wheelEntry{name: "demo_pkg-1.0.data/purelib/pure.py", data: "1"},
		wheelEntry{name: "demo_pkg-1.0.data/platlib/plat.py", data: "2"},
		wheelEntry{name: "demo_pkg-1.0.data/headers/demo.h", data: "3"},
		wheelEntry{name: "demo_pkg-1.0.data/scripts/plain", data: "#!/bin/sh\n"},
		wheelEntry{name: "demo_pkg-1.0.data/scripts/marked", data: "#!python -u\r\nprint()\n"},
		wheelEntry{name: "demo_pkg-1.0.data/scripts/gui", data: "#!pythonw\nprint()\n"},
		wheelEntry{name: "demo_pkg-1.0.data/scripts/both", data: "#!python\nold()\n"},
		wheelEntry{name: "demo_pkg-1.0.data/data/share/demo/x", data: "4"},
		wheelEntry{name: "demo_pkg-1.0.data/data/lib64/y", data: "5"},
		wheelEntry{name: testDist + "INSTALLER", data: "pip\n"},
		wheelEntry{name: testDist + "REQUESTED", data: ""},
		wheelEntry{name: testDist + "RECORD.jws", data: "{}"},
		entryPoints("# x\n[console_scripts]\nboth=demo:main.run\nextra = demo.cli:main [color]\n\n[other]\nnot = a script\n[gui_scripts]\nwin = demo:win\n"),
	)
	w, err := OpenWheel(bytes.NewReader(data), int64(len(data)), testWheelFile)
	if err != nil {
		t.Fatal(err)
	}
	files, err := Layout(w, testTarget("3.11.2"))
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, f := range files {
		text, err := f.read()
		if err != nil {
			t.Fatal(err)
		}
		got[f.Path] = fmt.Sprintf("%o %s", f.Mode, text)
	}
	site := "lib/python3.11/site-packages/"
	command := func(from, call string) string {
		return "755 #!/opt/venv/bin/python\nimport sys\n\nfrom " + from + "\n\nif __name__ == \"__main__\":\n    sys.exit(" + call + "())\n"
	}
	want := map[string]string{
		site + "demo/__init__.py":                 "644 x = 1\n",
		site + "demo/tool.sh":                     "755 #!/bin/sh\n",
		site + "pure.py":                          "644 1",
		site + "plat.py":                          "644 2",
		"include/site/python3.11/demo-pkg/demo.h": "644 3",
		"bin/plain":                               "755 #!/bin/sh\n",
		"bin/marked":                              "755 #!/opt/venv/bin/python\nprint()\n",
		"bin/gui":                                 "755 #!/opt/venv/bin/python\nprint()\n",
		"bin/both":                                command("demo import main", "main.run"),
		"bin/extra":                               command("demo.cli import main", "main"),
		"bin/win":                                 command("demo import win", "win"),
		"share/demo/x":                            "644 4",
		"lib/y":                                   "644 5",
		site + "demo_pkg-1.0.dist-info/INSTALLER":        "644 sconce\n",
		site + "demo_pkg-1.0.dist-info/WHEEL":            "644 " + wheelText,
		site + "demo_pkg-1.0.dist-info/METADATA":         "644 " + metadataText,
		site + "demo_pkg-1.0.dist-info/RECORD.jws":       "644 {}",
		site + "demo_pkg-1.0.dist-info/entry_points.txt": "644 " + got[site+"demo_pkg-1.0.dist-info/entry_points.txt"][4:],
	}
	recordPath := site + "demo_pkg-1.0.dist-info/RECORD"
	record := got[recordPath]
	delete(got, recordPath)
	for p, text := range want {
		if got[p] != text {
			t.Errorf("%s is %q; want %q", p, got[p], text)
		}
		delete(got, p)
	}
	for p := range got {
		t.Errorf("%s should not be there", p)
	}
	lines := strings.Split(strings.TrimSpace(record[4:]), "\n")
	if len(lines) != len(want)+1 || !strings.HasPrefix(lines[0], "../../../bin/both,sha256=") || !strings.Contains(record, "\n../../y,sha256=") || !strings.Contains(record, "\ndemo_pkg-1.0.dist-info/RECORD,,\n") {
		t.Errorf("RECORD:\n%s", record)
	}
}

func TestPackagesInOnePlace(t *testing.T) {
	pkg := func(name string, entries ...wheelEntry) (string, []byte) {
		dist := name + "-1.0.dist-info/"
		entries = append(entries, wheelEntry{name: dist + "WHEEL", data: wheelText}, wheelEntry{name: dist + "METADATA", data: "Name: " + name + "\nVersion: 1.0\n"})
		var lines []recordEntry
		for _, e := range entries {
			lines = append(lines, recordEntry{e.name, sha256Of([]byte(e.data)), int64(len(e.data))})
		}
		lines = append(lines, recordEntry{path: dist + "RECORD"})
		return name + "-1.0-py3-none-any.whl", zipOf(t, append(entries, wheelEntry{name: dist + "RECORD", data: string(formatRecord(lines))})...)
	}
	for name, test := range map[string]struct {
		a, b []wheelEntry
		want string
	}{
		"other bytes":          {[]wheelEntry{{name: "m.py", data: "1"}}, []wheelEntry{{name: "m.py", data: "2"}}, "aaa 1.0 and bbb 1.0 both install lib/python3.11/site-packages/m.py"},
		"license and tests":    {[]wheelEntry{{name: "LICENSE", data: "MIT"}, {name: "tests/__init__.py", data: "1"}}, []wheelEntry{{name: "LICENSE", data: "BSD"}, {name: "tests/__init__.py", data: "2"}}, ""},
		"tests of a package":   {[]wheelEntry{{name: "m/tests/a.py", data: "1"}}, []wheelEntry{{name: "m/tests/a.py", data: "2"}}, "site-packages/m/tests/a.py"},
		"a module license":     {[]wheelEntry{{name: "license.py", data: "1"}}, []wheelEntry{{name: "license.py", data: "2"}}, "site-packages/license.py"},
		"a file, a directory":  {[]wheelEntry{{name: "x", data: "1"}}, []wheelEntry{{name: "x/y", data: "1"}}, "site-packages/x,"},
		"a directory, a file":  {[]wheelEntry{{name: "x/y", data: "1"}}, []wheelEntry{{name: "x", data: "1"}}, "site-packages/x,"},
		"through another path": {[]wheelEntry{{name: "x.py", data: "1"}}, []wheelEntry{{name: "bbb-1.0.data/purelib/x.py", data: "2"}}, "site-packages/x.py"},
		"the same bytes":       {[]wheelEntry{{name: "ns/__init__.py", data: ""}}, []wheelEntry{{name: "ns/__init__.py", data: ""}}, ""},
		"two places":           {[]wheelEntry{{name: "ns/a.py", data: "1"}}, []wheelEntry{{name: "ns/b.py", data: "2"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			st := storetest.New(t)
			fileA, dataA := pkg("aaa", test.a...)
			fileB, dataB := pkg("bbb", test.b...)
			a, b := putWheelBytes(t, st, fileA, dataA), putWheelBytes(t, st, fileB, dataB)
			target := testTarget("3.11.2")
			_, _, together := BuildLayer(t.Context(), st, Group{"both", []Item{a, b}}, target, nil, LayerOptions{})
			_, ma, errA := BuildLayer(t.Context(), st, Group{"a", []Item{a}}, target, nil, LayerOptions{})
			_, mb, errB := BuildLayer(t.Context(), st, Group{"b", []Item{b}}, target, nil, LayerOptions{})
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			for _, err := range []error{together, CheckConflicts([]Manifest{mb, ma}, nil)} {
				if test.want == "" {
					if err != nil {
						t.Error(err)
					}
					continue
				}
				var conflict *ConflictError
				if !errors.As(err, &conflict) || !strings.Contains(err.Error(), test.want) || !strings.Contains(fault.HintOf(err), `exclude-dependencies = ["aaa"]`) {
					t.Errorf("got %v; want %q", err, test.want)
				}
			}
		})
	}
}

// TestPreferred: who wins is known from the recipe, as long as the winner's layer is on top; nothing makes a file a directory.
func TestPreferred(t *testing.T) {
	pkg := func(name, file, sum string) Manifest {
		return Manifest{[]PackageFiles{{Name: name, Version: "1", Files: []ManifestFile{{Path: file, SHA256: sum}}}}}
	}
	low, high, other := pkg("low", "x", "1"), pkg("High", "x", "2"), pkg("other", "x", "3")
	for name, test := range map[string]struct {
		order  []Manifest
		prefer []string
		fails  bool
	}{
		"nobody":              {[]Manifest{low, high}, nil, true},
		"the upper":           {[]Manifest{low, high}, []string{"high"}, false},
		"the lower":           {[]Manifest{high, low}, []string{"high"}, true},
		"both":                {[]Manifest{low, high}, []string{"high", "low"}, false},
		"both, wrong order":   {[]Manifest{low, high}, []string{"low", "high"}, true},
		"neither of two":      {[]Manifest{low, other, high}, []string{"high"}, true},
		"a file, not a place": {[]Manifest{low, pkg("high", "x/y", "2")}, []string{"high"}, true},
	} {
		if err := CheckConflicts(test.order, test.prefer); (err != nil) != test.fails {
			t.Errorf("%s: %v", name, err)
		}
		early := &Places{Prefer: test.prefer} // in whatever order they come
		var err error
		for _, m := range test.order {
			err = errors.Join(err, early.Add(m))
		}
		if err != nil && !test.fails {
			t.Errorf("%s, in any order: %v", name, err)
		}
	}
	items := []Item{{Name: "b"}, {Name: "Top", Size: layer.OwnLayerSize}, {Name: "a"}, {Name: "second"}}
	var got []string
	for _, g := range GroupPreferred(items, 10, []string{"top", "second"}) {
		got = append(got, g.Name)
	}
	if n := len(got); n < 3 || got[n-2] != "second" || got[n-1] != "top" {
		t.Errorf("groups %q", got)
	}
	if groups := GroupPreferred(items, 3, []string{"top", "second"}); len(groups) != 3 {
		t.Errorf("%d groups in room for 3", len(groups))
	}
}

// TestDamageMidwayLeavesNoLayer damages content that is only read while the layer is written.
func TestDamageMidwayLeavesNoLayer(t *testing.T) {
	for name, size := range map[string]int{"held": 1000, "streamed": 3 * int(streamFrom)} {
		t.Run(name, func(t *testing.T) {
			content := strings.Repeat("0123456789", size/10)
			data := craft(t, wheelEntry{"demo/data.bin", content, func(h *zip.FileHeader) { h.CRC32++ }})
			st := storetest.New(t)
			item := putWheelBytes(t, st, testWheelFile, data)
			_, _, err := BuildLayer(t.Context(), st, Group{"demo", []Item{item}}, testTarget("3.11.2"), nil, LayerOptions{})
			if err == nil || !strings.Contains(err.Error(), "demo/data.bin") {
				t.Fatalf("got %v", err)
			}
			if keys, _ := st.Keys(store.KindWheelLayer); len(keys) != 0 {
				t.Errorf("there is a record: %v", keys)
			}
			left, err := os.ReadDir(st.Dir() + "/tmp-v1")
			if err != nil || len(left) != 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// TestLayerHoldsTheFiles reads a layer back: large streamed members, small ones, order, modes.
func TestLayerHoldsTheFiles(t *testing.T) {
	st := storetest.New(t)
	path := wheelFor(t, "numpy")
	item := putWheel(t, st, path)
	d, m, err := BuildLayer(t.Context(), st, Group{"numpy", []Item{item}}, testTarget("3.11.2"), nil, LayerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ix, err := layer.OpenIndex(t.Context(), st, d)
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]string)
	for _, f := range m.Packages[0].Files {
		want["opt/venv/"+f.Path] = f.SHA256
	}
	for i, e := range ix.Entries {
		if e.UID != 0 || e.GID != 0 || !e.ModTime.Equal(layer.DefaultModTime) {
			t.Errorf("%s: owner %d:%d, time %v", e.Path, e.UID, e.GID, e.ModTime)
		}
		if e.Type != layer.Regular {
			continue
		}
		r, err := ix.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		r.Close()
		if err != nil || sha256Of(data) != want[e.Path] {
			t.Errorf("%s: %v, its hash is %s, want %s", e.Path, err, sha256Of(data), want[e.Path])
		}
		delete(want, e.Path)
	}
	if len(want) != 0 {
		t.Errorf("%d files are missing", len(want))
	}
}

// TestMemoryIsBounded lays down a wheel whose content is far larger than what may be held of it.
func TestMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("400 MB take long, with the race detector above all")
	}
	const blocks = 400
	block := testBlock()
	h := sha256.New()
	for range blocks {
		h.Write(block)
	}
	lines := []recordEntry{
		{"big.bin", encodeSHA256(h.Sum(nil)), blocks << 20},
		{testDist + "WHEEL", sha256Of([]byte(wheelText)), int64(len(wheelText))},
		{testDist + "METADATA", sha256Of([]byte(metadataText)), int64(len(metadataText))},
		{path: testDist + "RECORD"},
	}
	path := filepath.Join(t.TempDir(), testWheelFile)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	for _, e := range []wheelEntry{{name: "big.bin"}, {name: testDist + "WHEEL", data: wheelText}, {name: testDist + "METADATA", data: metadataText}, {name: testDist + "RECORD", data: string(formatRecord(lines))}} {
		w, err := z.CreateHeader(&zip.FileHeader{Name: e.name, Method: zip.Store})
		if err != nil {
			t.Fatal(err)
		}
		if e.name == "big.bin" {
			for range blocks {
				_, err = w.Write(block)
			}
		} else {
			_, err = io.WriteString(w, e.data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	st := storetest.New(t)
	item := storeFile(t, st, path)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	o := LayerOptions{ReadAhead: 8 << 20}
	o.Workers = 2
	if _, _, err := BuildLayer(t.Context(), st, Group{"big", []Item{item}}, testTarget("3.11.2"), nil, o); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	// Sys never shrinks: it is the peak.
	if grown := int64(after.Sys) - int64(before.Sys); grown > 150<<20 {
		t.Errorf("%d MiB of memory for %d MiB of content", grown>>20, blocks)
	}
}

func storeFile(t *testing.T, st *store.Store, path string) Item {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := st.NewBlob()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := io.Copy(w, f); err != nil {
		t.Fatal(err)
	}
	size := w.Size()
	d, err := w.Commit("")
	if err != nil {
		t.Fatal(err)
	}
	return Item{Name: "demo-pkg", Version: "1.0", File: filepath.Base(path), Digest: d, Size: size}
}
