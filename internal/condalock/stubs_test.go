package condalock

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

func TestStubVersion(t *testing.T) {
	for version, want := range map[string]string{
		"2.7.1": "2.7.1+conda", "2.7.1+cu128": "2.7.1+cu128.conda", "v1.0": "1.0+conda", "1.0-1": "1.0.post1+conda", "1.0rc1-2": "1.0rc1.post2+conda",
		"1.0-rc-1": "1.0_rc_1+conda", "1!2.0": "1!2.0+conda", "0+unknown": "0+unknown.conda", "1.0+Local-x_1": "1.0+local.x.1.conda",
		"2023c": "2023c+conda", "9e": "9+conda", "1.2.3_build4": "1.2.3+conda", "master": "0+conda", "": "0+conda",
	} {
		if got := stubVersion(version); got != want || !IsStub(got) {
			t.Errorf("%q is %q, want %q", version, got, want)
		}
	}
	for _, version := range []string{"2.7.1", "1+condarc", "1+my.conda.1", "1+myconda"} {
		if IsStub(version) {
			t.Errorf("%s is taken for a stub", version)
		}
	}
}

// TestStubsByUV has uv resolve against stubs: what conda has is taken as it is, nothing that only its metadata wants comes in, and
// conflicts are told.
func TestStubsByUV(t *testing.T) {
	tooltest.Path(t, "uv")
	t.Setenv("UV_PYTHON_DOWNLOADS", "never") // any Python will do to read metadata
	index := t.TempDir()                     // has torch too, in the same version, and what it wants there
	for name, metadata := range map[string]string{
		"torch": "Requires-Dist: nvidia-cublas\n", "nvidia-cublas": "", "app": "Requires-Dist: torch>=2.5\nRequires-Dist: odd-one\n", "numpy": "", "extra-dep": "",
	} {
		version := map[string]string{"torch": "2.7.1", "numpy": "2.1.0"}[name]
		if version == "" {
			version = "1.0"
		}
		text := "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n" + metadata
		if err := writeStub(index, name, version, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	stubs := t.TempDir()
	constraints, err := WriteStubs(stubs, []Distribution{
		{Name: "Torch", Version: "2.7.1", Metadata: []byte("Metadata-Version: 2.1\nName: torch\nVersion: 2.7.1\nRequires-Dist: numpy>=2\n" +
			"Requires-Dist: extra-dep; extra == 'more'\nProvides-Extra: more\n\nRequires-Dist: text\n")},
		{Name: "numpy", Version: "1.26.4"},
		{Name: "NumPy", Version: "1.9.0"},
		{Name: "numpy", Version: "master"},
		{Name: "odd.one", Version: "2023x-1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"numpy==1.26.4+conda", "odd-one==2023+conda", "torch==2.7.1+conda"}; !slices.Equal(constraints, want) {
		t.Errorf("constraints: %v, want %v", constraints, want)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "constraints.txt"), strings.Join(constraints, "\n")+"\n")
	compile := func(requirements ...string) (string, error) {
		cmd := exec.Command("uv", "pip", "compile", "--quiet", "--format", "pylock.toml", "--no-index", "--find-links", index, "--find-links", stubs,
			"--constraints", "constraints.txt", "--python-version", "3.12", "-")
		cmd.Dir = dir
		cmd.Stdin = strings.NewReader(strings.Join(requirements, "\n"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := compile("app", "torch[more]==2.7.1")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	rest, dropped, err := DropStubs([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(dropped)
	if !slices.Equal(dropped, []string{"odd-one", "torch"}) {
		t.Errorf("dropped: %v of\n%s", dropped, out)
	}
	for _, name := range []string{"torch", "odd-one", "nvidia-cublas", "numpy"} {
		if strings.Contains(string(rest), `name = "`+name+`"`) {
			t.Errorf("%s stays in\n%s", name, rest)
		}
	}
	for _, name := range []string{"app", "extra-dep"} {
		if !strings.Contains(string(rest), `name = "`+name+`"`) {
			t.Errorf("%s is not in\n%s", name, rest)
		}
	}
	if out, err := compile("numpy>=2"); err == nil || !strings.Contains(out, "numpy==1.26.4+conda") {
		t.Errorf("a conflict: %v\n%s", err, out)
	}
}

func TestStubErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := WriteStubs(dir, []Distribution{{Name: "../x", Package: "one"}}); err == nil {
		t.Error("a path is taken as a name")
	}
	if _, err := WriteStubs(dir, []Distribution{{Name: "x", Version: "1.0", Metadata: []byte("Requires-Dist: a\x00\nno field\n b\nRequires-Dist: >1\n")}}); err != nil {
		t.Errorf("damaged metadata: %v", err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v, %v", files, err)
	}
}
