package python

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// sdist packs files into a source distribution.
func sdist(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestReadSdist(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		sub   string
		want  SourceInfo
	}{
		{
			name:  "nothing but setup.py",
			files: map[string]string{"a-1/setup.py": ""},
			want:  SourceInfo{Backend: legacyBackend, BuildRequires: legacyRequires},
		},
		{
			name:  "promised",
			files: map[string]string{"a-1/PKG-INFO": "Metadata-Version: 2.4\nName: a\nVersion: 1\nRequires-Dist: b>=2\nDynamic: license\n"},
			want:  SourceInfo{Name: "a", Version: "1", Requires: []string{"b>=2"}, Certainty: Static, Backend: legacyBackend, BuildRequires: legacyRequires},
		},
		{
			name:  "over two lines",
			files: map[string]string{"a-1/PKG-INFO": "Metadata-Version: 2.4\nName: a\nVersion: 1\nRequires-Dist: b>=2\n\t; python_version > '3'\n"},
			want:  SourceInfo{Name: "a", Version: "1", Requires: []string{"b>=2 ; python_version > '3'"}, Certainty: Static, Backend: legacyBackend, BuildRequires: legacyRequires},
		},
		{
			name: "dynamic",
			files: map[string]string{
				"a-1/PKG-INFO":       "Metadata-Version: 2.4\nName: a\nVersion: 1\nRequires-Dist: b\nDynamic: requires-dist\n",
				"a-1/pyproject.toml": "[build-system]\nrequires = [\"hatchling\"]\nbuild-backend = \"hatchling.build\"\n[project]\nname = \"a\"\ndynamic = [\"dependencies\"]\n",
			},
			want: SourceInfo{Name: "a", Version: "1", Requires: []string{"b"}, Certainty: Recorded, Backend: "hatchling.build", BuildRequires: []string{"hatchling"}},
		},
		{
			name: "what setuptools left there",
			files: map[string]string{
				"a-1/PKG-INFO":                "Metadata-Version: 2.1\nName: a\nVersion: 1\n",
				"a-1/a.egg-info/requires.txt": "scipy\n\n[:python_version < \"3\"]\nsix\n\n[test]\npytest\n\n[test:os_name == \"posix\"]\nx\n",
			},
			want: SourceInfo{
				Name: "a", Version: "1", Certainty: Recorded, Backend: legacyBackend, BuildRequires: legacyRequires,
				Requires: []string{"scipy", `six ; (python_version < "3")`, `pytest ; extra == "test"`, `x ; (os_name == "posix") and extra == "test"`},
			},
		},
		{
			name: "project table in a subdirectory",
			sub:  "sub/pkg",
			files: map[string]string{
				"a-1/pyproject.toml": "[project]\nname = \"other\"\n", "a-1/Cargo.lock": "version = 4\n", "a-1/sub/pkg/go/go.sum": "", "go.sum": "",
				"a-1/sub/pkg/pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = \"own\"\nbackend-path = [\".\"]\n" +
					"[project]\nname = \"a\"\nversion = \"3\"\nrequires-python = \">=3.9\"\ndependencies = [\"b\"]\noptional-dependencies = { x = [\"c ; os_name == 'posix'\"] }\n",
			},
			want: SourceInfo{
				Name: "a", Version: "3", RequiresPython: ">=3.9", Certainty: Static, Backend: "own", BackendPath: []string{"."},
				Requires: []string{"b", `c ; (os_name == 'posix') and extra == "x"`}, Extras: []string{"x"}, BuildRequires: []string{},
				Pins: []string{"Cargo.lock", "sub/pkg/go/go.sum"},
			},
		},
		{
			name: "dependencies that setuptools takes from files",
			files: map[string]string{
				"a-1/pyproject.toml": "[project]\nname = \"a\"\ndynamic = [\"version\", \"dependencies\", \"optional-dependencies\"]\n" +
					"[tool.setuptools.dynamic]\ndependencies = { file = [\"requirements.txt\", \"requirements/gpu.in\"] }\noptional-dependencies.x = { file = \"./x.txt\" }\n",
				"a-1/requirements.txt":    "# what it needs\nb>=2  # the newer\n\nc @ https://example.org/c.whl#sha256=00\n",
				"a-1/requirements/gpu.in": "d\n",
				"a-1/x.txt":               "e\n",
			},
			want: SourceInfo{
				Name: "a", Certainty: Recorded, Backend: legacyBackend, BuildRequires: legacyRequires,
				Requires: []string{"b>=2", "c @ https://example.org/c.whl#sha256=00", "d", `e ; extra == "x"`}, Extras: []string{"x"},
			},
		},
		{
			name: "files with options, which setuptools does not take",
			files: map[string]string{
				"a-1/pyproject.toml":   "[project]\nname = \"a\"\ndynamic = [\"dependencies\"]\n[tool.setuptools.dynamic]\ndependencies = { file = \"requirements.txt\" }\n",
				"a-1/requirements.txt": "-r more.txt\nb\n",
			},
			want: SourceInfo{Name: "a", Backend: legacyBackend, BuildRequires: legacyRequires},
		},
		{
			name: "files that are not there, or are no list",
			files: map[string]string{
				"a-1/pyproject.toml": "[project]\nname = \"a\"\ndynamic = [\"dependencies\"]\n[tool.setuptools.dynamic]\ndependencies = { file = [\"../requirements.txt\", \"data.txt\"] }\n",
				"a-1/data.txt":       strings.Repeat("b\n", maxListing),
				"requirements.txt":   "b\n",
			},
			want: SourceInfo{Name: "a", Backend: legacyBackend, BuildRequires: legacyRequires},
		},
	} {
		data := sdist(t, c.files)
		got, err := ReadSdist(bytes.NewReader(data), int64(len(data)), "a-1.tar.gz", c.sub)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.name, diff)
		}
		for _, r := range got.Requires {
			if _, err := ParseRequirement(r); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
}

func TestReadSdistZip(t *testing.T) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	f, err := w.Create("a-1/pyproject.toml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("[project]\nname = \"a\"\nversion = \"1\"\n")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := ReadSdist(bytes.NewReader(b.Bytes()), int64(b.Len()), "a-1.zip", "")
	if err != nil || got.Certainty != Static || got.Version != "1" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestReadSourceDir(t *testing.T) {
	got, err := ReadSourceDir(fstest.MapFS{
		"pyproject.toml":          {Data: []byte("[project]\nname = \"a\"\nversion = \"1\"\ndependencies = [\"b\"]\n")},
		"a.egg-info/requires.txt": {Data: []byte("old\n")},
	})
	if err != nil || !slices.Equal(got.Requires, []string{"b"}) {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = ReadSourceDir(fstest.MapFS{
		"pyproject.toml":        {Data: []byte("[project]\nname = \"a\"\ndynamic = [\"dependencies\"]\n[tool.setuptools.dynamic]\ndependencies = { file = \"requires/b.txt\" }\n")},
		"requires/b.txt":        {Data: []byte("b\n")},
		"requires/two.txt/file": {Data: []byte("a directory by the name of a list\n")},
	})
	if err != nil || !slices.Equal(got.Requires, []string{"b"}) || got.Certainty != Recorded {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestReadSdistBad(t *testing.T) {
	for name, data := range map[string][]byte{
		"a-1.tar.gz": []byte("no archive"),
		"a-1.rar":    nil,
		"a-2.tar.gz": sdist(t, map[string]string{"a-2/pyproject.toml": "= no TOML"}),
		"a-3.tar.gz": sdist(t, map[string]string{"a-3/PKG-INFO": "Name: ../a\nVersion: 1\n"}),
	} {
		if _, err := ReadSdist(bytes.NewReader(data), int64(len(data)), name, ""); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzReadSdist(f *testing.F) {
	f.Add(sdist(f, map[string]string{"a-1/PKG-INFO": "Metadata-Version: 2.4\nName: a\nVersion: 1\nRequires-Dist: b\n"}))
	f.Add(sdist(f, map[string]string{"a-1/pyproject.toml": "[project]\nname = \"a\"\ndependencies = [\"b\"]\n"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, name := range []string{"a-1.tar.gz", "a-1.zip", "a-1.tar", "a-1.tar.bz2"} {
			_, _ = ReadSdist(bytes.NewReader(data), int64(len(data)), name, "")
		}
	})
}
