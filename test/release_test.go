package test

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/tooltest"
)

// What make release makes of a binary is the same in another directory, for a user with another umask and time zone; and the programs
// that read packages, manual pages, completions and module files take it. It is made of the binary that is there, for this architecture:
// compiling another is left to make release itself.
func TestRelease(t *testing.T) {
	begin(t)
	for _, program := range []string{"rpmbuild", "rpm", "dpkg-deb", "strip", "groff", "zsh", "fish", "tclsh"} {
		tooltest.Path(t, program)
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "sconce")
	output(t, dir, "strip", "-o", binary, filepath.Join(workshop, "bin", "sconce"))
	one, other := filepath.Join(dir, "one"), filepath.Join(dir, "one more", "place")
	// As little compressed as can be: that is most of the time.
	release(t, "umask 022", nil, one, binary)
	release(t, "umask 077", []string{"TZ=Asia/Tokyo", "LC_ALL=C.UTF-8", "SOURCE_DATE_EPOCH=1"}, other, binary)
	sums, again := read(t, filepath.Join(one, "SHA256SUMS")), read(t, filepath.Join(other, "SHA256SUMS"))
	if diff := cmp.Diff(sums, again); diff != "" || strings.Count(sums, "\n") != 6 {
		t.Errorf("two runs make (-one +other):\n%s\nof\n%s", diff, sums)
	}
	output(t, other, "sha256sum", "--check", "--strict", "SHA256SUMS")

	t.Run("the archive", func(t *testing.T) { judgeArchive(t, one) })
	t.Run("the Debian package", func(t *testing.T) { judgeDeb(t, one) })
	t.Run("the RPM package", func(t *testing.T) { judgeRPM(t, one) })
	t.Run("the bill of materials", func(t *testing.T) { judgeBOM(t, one, binary) })
}

func release(t *testing.T, umask string, env []string, to, binary string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-c", umask+` && exec ../scripts/release.sh v1.2.3 "$@"`, "bash", to, binary, "quick")
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// output is what a program prints in a directory; it has to end well.
func output(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// packaged are the files below /usr of both packages.
var packaged = []string{
	"bin/sconce", "share/man/man1/sconce.1.gz", "share/man/man1/sconce-build.1.gz", "share/bash-completion/completions/sconce",
	"share/zsh/site-functions/_sconce", "share/fish/vendor_completions.d/sconce.fish", "share/doc/sconce/README.md", "share/doc/sconce/THIRD-PARTY.txt",
}

func judgeArchive(t *testing.T, dir string) {
	name := "sconce-1.2.3-linux-" + runtime.GOARCH
	to := t.TempDir()
	output(t, to, "tar", "-xzf", filepath.Join(dir, name+".tar.gz"))
	root := filepath.Join(to, name)
	for _, file := range packaged {
		if info, err := os.Stat(filepath.Join(root, file)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
	if out := output(t, to, filepath.Join(root, "bin/sconce"), "--help"); !strings.Contains(out, "sconce build") {
		t.Errorf("its sconce prints %s", out)
	}
	output(t, root, "bash", "-n", "share/bash-completion/completions/sconce")
	output(t, root, "zsh", "-n", "share/zsh/site-functions/_sconce")
	output(t, root, "fish", "-n", "share/fish/vendor_completions.d/sconce.fish")
	// groff says what it does not understand, and ends well all the same.
	if out := output(t, root, "sh", "-c", "zcat share/man/man1/*.gz | groff -man -Tutf8 -ww -z"); out != "" {
		t.Errorf("its manual pages:\n%s", out)
	}
	// The commands of Environment Modules and Lmod, as far as the file has them.
	out := output(t, root, "sh", "-c", `tclsh <<'END'
proc module-whatis {text} {puts "whatis $text"}
proc prepend-path {name value} {puts "$name $value"}
set ModulesCurrentModulefile modulefile
source modulefile
END`)
	want := "whatis Container images with PyTorch for GPU clusters, without root\nPATH " + root + "/bin\nMANPATH " + root + "/share/man\n"
	if magic := read(t, filepath.Join(root, "modulefile")); out != want || !strings.HasPrefix(magic, "#%Module1.0\n") {
		t.Errorf("the module file says\n%s\nwant\n%s", out, want)
	}
}

func judgeDeb(t *testing.T, dir string) {
	file := "sconce_1.2.3_" + runtime.GOARCH + ".deb"
	fields := output(t, dir, "dpkg-deb", "--show", "--showformat", "${Package} ${Version} ${Architecture} ${Section} ${Priority}|${Depends}", file)
	if want := "sconce 1.2.3 " + runtime.GOARCH + " utils optional|"; fields != want {
		t.Errorf("it says of itself %q, want %q", fields, want)
	}
	names := map[string]bool{}
	for line := range strings.Lines(output(t, dir, "dpkg-deb", "--contents", file)) {
		words := strings.Fields(line)
		mode, owner, name := words[0], words[1], words[5]
		names[strings.TrimPrefix(name, "./usr/")] = true
		plain := map[bool]string{true: "drwxr-xr-x", false: "-rw-r--r--"}[mode[0] == 'd']
		if name == "./usr/bin/sconce" {
			plain = "-rwxr-xr-x"
		}
		if mode != plain || owner != "root/root" || name != "./" && !strings.HasPrefix(name, "./usr/") {
			t.Errorf("it has %s", line)
		}
	}
	for _, name := range packaged {
		if !names[name] {
			t.Errorf("it lacks %s", name)
		}
	}
}

func judgeRPM(t *testing.T, dir string) {
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	file := "sconce-1.2.3-1." + machine + ".rpm"
	if out := output(t, dir, "rpm", "--checksig", "--nosignature", file); !strings.Contains(out, "digests OK") {
		t.Error(out)
	}
	fields := output(t, dir, "rpm", "-qp", "--qf", "%{NAME} %{VERSION} %{ARCH} %{BUILDHOST}", file)
	if want := "sconce 1.2.3 " + machine + " reproducible"; fields != want {
		t.Errorf("it says of itself %q, want %q", fields, want)
	}
	for line := range strings.Lines(output(t, dir, "rpm", "-qp", "--requires", file)) {
		if !strings.HasPrefix(line, "rpmlib(") {
			t.Errorf("it requires %s", line)
		}
	}
	files := output(t, dir, "rpm", "-qp", "--qf", "[%{FILEMODES:perms} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILENAMES}\n]", file)
	for _, name := range packaged {
		mode := "-rw-r--r--"
		if name == "bin/sconce" {
			mode = "-rwxr-xr-x"
		}
		if want := mode + " root root /usr/" + name + "\n"; !strings.Contains(files, want) {
			t.Errorf("it lacks %s", want)
		}
	}
}

// judgeBOM reads the bill of materials by what the binary itself says that it is made of.
func judgeBOM(t *testing.T, dir, binary string) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}
	for _, dep := range info.Deps {
		want = append(want, "pkg:golang/"+dep.Path+"@"+dep.Version)
	}
	var bom struct {
		BOMFormat, SpecVersion string
		Components             []struct {
			PURL     string
			Ref      string `json:"bom-ref"`
			Licenses []struct{ License struct{ ID string } }
			Hashes   []struct{ Alg, Content string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, filepath.Join(dir, "sconce.cdx.json"))), &bom); err != nil {
		t.Fatal(err)
	}
	notices := read(t, filepath.Join(dir, "THIRD-PARTY.txt"))
	var got []string
	for _, c := range bom.Components {
		got = append(got, c.PURL)
		if c.Ref != c.PURL || len(c.Licenses) != 1 || c.Licenses[0].License.ID == "" {
			t.Errorf("%+v", c)
		}
		for _, h := range c.Hashes {
			if h.Alg != "SHA-256" || len(h.Content) != 64 {
				t.Errorf("%s has the hash %+v", c.PURL, h)
			}
		}
		if title := strings.Replace(strings.TrimPrefix(c.PURL, "pkg:golang/"), "@", " ", 1); !strings.Contains(notices, "\n"+title+"\n") {
			t.Errorf("the notices lack %s", title)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || bom.BOMFormat != "CycloneDX" || bom.SpecVersion != "1.6" {
		t.Errorf("%s %s (-binary +bill):\n%s", bom.BOMFormat, bom.SpecVersion, diff)
	}
}
