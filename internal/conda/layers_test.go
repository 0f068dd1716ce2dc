package conda_test

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

const prefix = "/opt/conda"

// put brings the packages of a channel into a store.
func put(t testing.TB, st *store.Store, c *condatest.Channel, url string) []conda.Package {
	t.Helper()
	packages := c.Packages(url)
	for _, p := range packages {
		if d, err := st.PutBlob(c.Read(t, p)); err != nil || d != p.SHA256 {
			t.Fatal(d, err)
		}
	}
	return packages
}

// object is a file, as text that can be compared.
type object string

func regular(mode uint32, data []byte) object { return object(fmt.Sprintf("file %o %q", mode, data)) }

// layerFiles reads a layer: its files below the prefix, without directories that have files in them.
func layerFiles(t testing.TB, st *store.Store, d layer.Descriptor) map[string]object {
	t.Helper()
	ix, err := layer.OpenIndex(t.Context(), st, d)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]object{}
	for i, e := range ix.Entries {
		name, ok := strings.CutPrefix(e.Path, strings.TrimPrefix(prefix, "/")+"/")
		switch e.Type {
		case layer.Dir:
			if i+1 == len(ix.Entries) || !strings.HasPrefix(ix.Entries[i+1].Path, e.Path+"/") {
				files[name] = "directory"
			}
			continue
		case layer.Symlink:
			files[name] = object("link " + e.Link)
		case layer.HardLink:
			files[name] = files[strings.TrimPrefix(e.Link, strings.TrimPrefix(prefix, "/")+"/")]
		default:
			data, err := readEntry(ix, i)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = regular(e.Mode, data)
		}
		if !ok || e.UID != 0 || e.GID != 0 {
			t.Errorf("%s belongs to %d:%d", e.Path, e.UID, e.GID)
		}
	}
	return files
}

func readEntry(ix *layer.Index, i int) ([]byte, error) {
	r, err := ix.Open(i)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// dirFiles reads a directory in the same way.
func dirFiles(t testing.TB, dir string) map[string]object {
	t.Helper()
	files := map[string]object{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			if entries, err := os.ReadDir(path); err != nil || len(entries) == 0 {
				files[name] = "directory"
			}
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			files[name] = object("link " + target)
			return err
		default:
			data, err := os.ReadFile(path)
			files[name] = regular(uint32(info.Mode().Perm()), data)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// compare reports what differs, one line for each file.
func compare(t *testing.T, got, want map[string]object) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			t.Errorf("%s is there: %.200s", name, got[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s:\n got %.300s\nwant %.300s", name, got[name], want[name])
		}
	}
}

var built = []string{`
package: {name: tools, version: "1.2"}
build:
  number: 3
  dynamic_linking: {binary_relocation: false}
  script: |
    mkdir -p $PREFIX/bin $PREFIX/lib/tools $PREFIX/etc/conda/activate.d $PREFIX/etc/conda/env_vars.d $PREFIX/share/tools
    printf '#!%s/bin/python\nprint(1)\n' $PREFIX > $PREFIX/bin/tools
    chmod 755 $PREFIX/bin/tools
    printf 'a\0%s/lib:%s/share\0b\0\0' $PREFIX $PREFIX > $PREFIX/lib/tools/data.bin
    printf 'a\0end of file %s/x' $PREFIX > $PREFIX/lib/tools/open.bin
    ln -s tools $PREFIX/bin/tools-link
    ln -s $PREFIX/share/tools $PREFIX/lib/absolute
    ln $PREFIX/lib/tools/data.bin $PREFIX/lib/tools/same.bin
    echo "export TOOLS=$PREFIX" > $PREFIX/etc/conda/activate.d/tools.sh
    echo '{"TOOLS_HOME": "yes"}' > $PREFIX/etc/conda/env_vars.d/tools.json
    printf 'read only\n' > $PREFIX/lib/tools/ro; chmod 444 $PREFIX/lib/tools/ro
    printf 'group\n' > $PREFIX/lib/tools/group; chmod 664 $PREFIX/lib/tools/group
    echo "echo $PREFIX > $PREFIX/.messages.txt" > $PREFIX/bin/.tools-post-link.sh
    : > $PREFIX/lib/tools/nothing
`, `
package: {name: greet, version: "0.1"}
requirements: {run: [python]}
build:
  number: 0
  noarch: python
  python: {entry_points: ["greet = greet.main:Main.run", "greet-two=greet:main"]}
  script: |
    site=$PREFIX/lib/python3.11/site-packages
    mkdir -p $site/greet $site/greet-0.1.dist-info $PREFIX/bin $PREFIX/share/greet
    echo 'X = {"a", "b"}' > $site/greet/__init__.py
    echo "where = '$PREFIX'" > $site/greet/main.py
    printf 'Metadata-Version: 2.1\nName: Greet\nVersion: 0.1\n\nText\n' > $site/greet-0.1.dist-info/METADATA
    echo conda > $site/greet-0.1.dist-info/INSTALLER
    printf '#!%s/bin/python\nimport greet\n' $PREFIX > $PREFIX/bin/greet-script; chmod 755 $PREFIX/bin/greet-script
    echo $PREFIX > $PREFIX/share/greet/where
`}

// byHand are packages that no builder makes any more, or not so easily.
func byHand() []condatest.Package {
	return []condatest.Package{
		{Name: "old", Version: "1.0", TarBz2: true, Old: true, Files: map[string]condatest.File{
			"bin/old":      {Data: "#!" + condatest.Placeholder + "/bin/sh\n", Mode: 0o755},
			"lib/old.so":   {Data: "\x00" + condatest.Placeholder + "/lib\x00\x00more\x00"},
			"lib/old":      {Link: "old.so"},
			"lib/unlisted": {Data: "x", Unlisted: true},
		}},
		{Name: "newer", Version: "2.0", TarBz2: true, Files: map[string]condatest.File{"lib/newer": {Data: strings.Repeat(condatest.Placeholder+"\n", 1000)}}},
		{Name: "menus", Version: "1.0", Noarch: "generic", Files: map[string]condatest.File{
			"Menu/menus.json": {Data: "{}"}, "share/menus/x": {Data: "x"},
			"share/menus/wide":  {Data: wide(condatest.Placeholder + "/x"), FileMode: "text", Placeholder: condatest.Placeholder},
			"share/menus/short": {Data: "PFX/a PFX/b", Placeholder: "PFX"},
		}},
	}
}

// random are files of all that matters to the replacement of prefixes, in an order of chance, the same for each seed.
func random(seed uint64) condatest.Package {
	r := rand.New(rand.NewPCG(seed, 2))
	p := condatest.Package{Name: "random", Version: "1.0", Noarch: "generic", Files: map[string]condatest.File{}}
	for i := range 300 {
		placeholder := "/p/" + strings.Repeat("_aab", 3+r.IntN(20))
		pieces := []string{placeholder, placeholder, "/lib", ":", "text ", "\n", placeholder[:r.IntN(len(placeholder))], "#!", "\xff\xfe", strings.Repeat("x", r.IntN(200)), "\x00", "\x00\x00"}
		switch i % 4 {
		case 0, 2:
			pieces = pieces[:len(pieces)-2]
		case 3: // strings of .NET; where one has the placeholder twice, rattler leaves one of them
			pieces = []string{wide("a " + placeholder + "/lib\x00"), wide(placeholder + "\x00\x00"), wide("text\x00"), wide("\x00")}
		}
		var b strings.Builder
		b.WriteByte('-') // rattler writes the first line of a script anew where it is longer than 127 bytes, or no UTF-8
		for range r.IntN(40) {
			b.WriteString(pieces[r.IntN(len(pieces))])
		}
		p.Files[fmt.Sprintf("share/random/%d", i)] = condatest.File{Data: b.String(), Placeholder: placeholder, FileMode: []string{"text", "binary"}[i%2]}
	}
	return p
}

func wide(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		b.WriteByte(c)
		b.WriteByte(0)
	}
	return b.String()
}

// Everything that is laid down is what rattler installs from the same channel, file by file, and so is what the records say.
func TestLayersAgainstRattler(t *testing.T) {
	c := condatest.NewChannel(t, append(byHand(), random(1), condatest.LeanPython(t))...)
	c.Build(t, built...)
	s := c.Serve(t)
	target := filepath.Join(t.TempDir(), "env")
	condatest.Install(t, s.URL, "linux-64", prefix, target, "tools", "greet", "old", "newer", "menus", "random")
	want := dirFiles(t, target)

	st := storetest.New(t)
	packages := put(t, st, c, s.URL)
	got := map[string]object{}
	for _, p := range packages {
		g := conda.Group{Name: p.Name, Packages: []conda.Package{p}}
		d, _, err := conda.BuildLayer(t.Context(), st, g, conda.Target{Prefix: prefix, Python: conda.PythonOf(packages)}, nil, layer.Options{Compression: layer.Zstd}, nil)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(got, layerFiles(t, st, d))
	}
	compareRecords(t, got, want)
	maps.DeleteFunc(want, func(name string, _ object) bool { return strings.HasPrefix(name, "Menu/") }) // no image has a desktop
	normalise(want)
	normalise(got)
	compare(t, got, want)
}

// FuzzPrefixAgainstRattler has rattler replace the prefix in 300 files of chance.
func FuzzPrefixAgainstRattler(f *testing.F) {
	f.Add(uint64(2))
	rattler := condatest.StartInstaller(f) // once: what goes wrong with it is no fault of an input
	f.Fuzz(func(t *testing.T, seed uint64) {
		c := condatest.NewChannel(t, random(seed))
		s := c.Serve(t)
		target := filepath.Join(t.TempDir(), "env")
		rattler.Install(t, s.URL, "linux-64", prefix, target, "random")
		want := dirFiles(t, target)
		st := storetest.New(t)
		d, _, err := conda.BuildLayer(t.Context(), st, conda.Group{Name: "random", Packages: put(t, st, c, s.URL)}, conda.Target{Prefix: prefix}, nil, layer.Options{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := layerFiles(t, st, d)
		normalise(want)
		normalise(got)
		compare(t, got, want)
	})
}

// normalise takes out what differs by intention: see docs/architecture on conda packages.
func normalise(files map[string]object) {
	for name, o := range files {
		switch {
		case strings.HasPrefix(name, "conda-meta/"), name == "CACHEDIR.TAG":
			delete(files, name)
		case name == "bin/greet", name == "bin/greet-two": // the text of a command is each installer's own
			lines := strings.Split(string(o), `\n`)
			files[name] = object(lines[0] + lines[len(lines)-2])
			files[name] = object(strings.NewReplacer(`\t`, "", "    ", "", "file 775", "file 755").Replace(string(files[name])))
		}
	}
}

// compareRecords compares the files of conda-meta. Caches are left out, which images lack, and what only we or only rattler say of
// a file.
func compareRecords(t *testing.T, got, want map[string]object) {
	t.Helper()
	for name := range want {
		if !strings.HasPrefix(name, "conda-meta/") || !strings.HasSuffix(name, ".json") || strings.Contains(name, "menus") {
			continue
		}
		g, w := record(t, got[name]), record(t, want[name])
		g["paths_data"], w["paths_data"] = paths(g), paths(w)
		g["link"], g["extracted_package_dir"] = w["link"], w["extracted_package_dir"]
		w["channel"] = strings.TrimSuffix(fmt.Sprint(w["channel"]), "/")
		delete(w, "requested_specs") // deprecated; the history has them
		for key := range w {
			if a, b := fmt.Sprint(g[key]), fmt.Sprint(w[key]); a != b {
				t.Errorf("%s: %s:\n got %.5500s\nwant %.5500s", name, key, a, b)
			}
		}
	}
}

func paths(record map[string]any) (lines []string) {
	for _, x := range record["paths_data"].(map[string]any)["paths"].([]any) {
		p := x.(map[string]any)
		line := fmt.Sprint(p["_path"], " ", p["path_type"], " ", p["prefix_placeholder"], " ", p["file_mode"])
		if p["path_type"] == "hardlink" {
			line += fmt.Sprint(" ", p["size_in_bytes"])
			if p["sha256_in_prefix"] != nil && p["sha256_in_prefix"] != p["sha256"] { // rattler leaves out what is the same
				line += fmt.Sprint(" ", p["sha256_in_prefix"])
			}
		}
		lines = append(lines, line)
	}
	return lines
}

func record(t *testing.T, o object) map[string]any {
	t.Helper()
	var mode uint32
	var text string
	if _, err := fmt.Sscanf(string(o), "file %o %q", &mode, &text); err != nil {
		t.Fatalf("%.100s: %v", o, err)
	}
	var r map[string]any
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	return r
}
