package runtimefiles

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/searchpath"
	"sconce.dev/sconce/internal/store/storetest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	p := filepath.Join("testdata", name)
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(p, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", p, diff)
	}
}

// list describes a tree: a line for each node.
func list(t *testing.T, tree *image.Tree) []string {
	t.Helper()
	var lines []string
	err := tree.Walk(func(n *image.Node) error {
		line := fmt.Sprintf("%04o %s", n.Mode, n.Path)
		switch n.Type {
		case layer.Dir:
			line += "/"
		case layer.Symlink:
			line += " -> " + n.Link
		}
		if n.UID != 0 || n.GID != 0 || !n.ModTime.Equal(layer.DefaultModTime) {
			line += fmt.Sprintf(" %d:%d %s", n.UID, n.GID, n.ModTime.UTC().Format("2006-01-02"))
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func contentsOf(t *testing.T, tree *image.Tree) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(strings.Join(list(t, tree), "\n") + "\n")
	err := tree.Walk(func(n *image.Node) error {
		if n.Type != layer.Regular {
			return nil
		}
		data, err := tree.ReadFile(n.Path, 1<<20)
		fmt.Fprintf(&b, "\n-- %s --\n%s", n.Path, data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestLayer(t *testing.T) {
	_, alone := dressed(t, python())
	golden(t, "layer.golden", contentsOf(t, alone))
	_, again := dressed(t, python())
	if contentsOf(t, again) != contentsOf(t, alone) {
		t.Error("the same image gives two layers")
	}
}

// apptainerWrites is what Apptainer 1.6 puts into the root file system of an OCI image (makeBaseEnv, insertRunScript,
// insertEnv, insertLabelsJSON and insertDefinition of its build package), with the modes it gives the files.
var apptainerWrites = []string{
	"0644 etc/hosts", "0644 etc/resolv.conf",
	"0755 .singularity.d/actions/exec", "0755 .singularity.d/actions/run", "0755 .singularity.d/actions/shell",
	"0755 .singularity.d/actions/start", "0755 .singularity.d/actions/test",
	"0755 .singularity.d/env/01-base.sh", "0755 .singularity.d/env/10-docker2singularity.sh",
	"0755 .singularity.d/env/90-environment.sh", "0755 .singularity.d/env/95-apps.sh",
	"0755 .singularity.d/env/99-base.sh", "0755 .singularity.d/env/99-runtimevars.sh",
	"0755 .singularity.d/runscript", "0755 .singularity.d/startscript",
	"0644 .singularity.d/labels.json", "0644 .singularity.d/Singularity",
	"0777 singularity -> .singularity.d/runscript", "0777 .run -> .singularity.d/actions/run",
	"0777 .exec -> .singularity.d/actions/exec", "0777 .test -> .singularity.d/actions/test",
	"0777 .shell -> .singularity.d/actions/shell", "0777 environment -> .singularity.d/env/90-environment.sh",
	"0755 .singularity.d/", "0755 .singularity.d/libs/", "0755 .singularity.d/actions/", "0755 .singularity.d/env/",
	"0755 dev/", "0755 proc/", "0755 root/", "1777 var/tmp/", "1777 tmp/", "0755 etc/", "0755 sys/", "0755 home/", "0755 var/",
}

// enrootWrites is what enroot 4.1 does (docker::configure), and the working directory and the volumes of the image.
var enrootWrites = []string{
	"0644 etc/fstab", "0644 etc/environment", "0644 etc/rc", "0644 etc/rc.local", "0755 srv/", "0755 srv/app dir/",
	"0755 cache/", "0755 data/", "0755 with space/",
}

func TestLayerHasWhatTheToolsWrite(t *testing.T) {
	_, alone := dressed(t, python())
	want := slices.Concat(apptainerWrites, enrootWrites, []string{"0644 .singularity.d/sconce.json"})
	got := list(t, alone)
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	always := slices.DeleteFunc(Paths(), func(p string) bool { return p == "/"+startEnvPath })
	for _, p := range always {
		if n, err := alone.Lstat(p); err != nil || n.Type != layer.Regular {
			t.Errorf("%s of Paths is not in the layer: %v", p, err)
		}
	}
	files := 0
	for _, line := range got {
		if !strings.HasSuffix(line, "/") && !strings.Contains(line, " -> ") {
			files++
		}
	}
	if files != len(always) {
		t.Errorf("%d files, but %d in Paths", files, len(always))
	}
}

func TestLayerFollowsSymlinks(t *testing.T) {
	odd := directory("private")
	odd.Mode, odd.UID, odd.ModTime = 0o700, 7, layer.DefaultModTime.AddDate(20, 0, 0)
	whole, alone := dressed(t, python(),
		odd, symlink("etc", "/private/../private/etc/."), directory("private/etc"), symlink("var", "../../mnt/var"),
		symlink("tmp", "var/tmp"), symlink("srv", "opt/srv"), symlink("home", "/nowhere/home"),
		regular("private/etc/environment", "OLD=1\n"), symlink("private/etc/resolv.conf", "../run/resolv.conf"),
		regular("environment", "mine"), symlink("singularity", "elsewhere"), symlink(".run", ".singularity.d/actions/run"),
	)
	for _, line := range list(t, alone) {
		_, p, _ := strings.Cut(line, " ")
		first, _, _ := strings.Cut(p, "/")
		if slices.Contains([]string{"etc", "var", "tmp", "srv", "home", "environment", ".run"}, first) {
			t.Errorf("the layer hides the image's own with %s", line)
		}
	}
	for p, mode := range map[string]uint32{
		"private/etc/rc": 0o644, "private/etc/resolv.conf": 0o644, "mnt/var/tmp": 0o1777, "opt/srv/app dir": 0o755, "private": 0o700,
	} {
		if n, err := alone.Lstat(p); err != nil || n.Mode != mode {
			t.Errorf("%s: %v, %v", p, n, err)
		}
	}
	if n, _ := alone.Lstat("private"); n.UID != 7 || !n.ModTime.Equal(odd.ModTime) {
		t.Errorf("attributes of /private changed: %+v", n.Entry)
	}
	if data, err := whole.ReadFile("/etc/environment", 1<<20); err != nil || !strings.Contains(string(data), "LANG=de_DE") || strings.Contains(string(data), "OLD") {
		t.Errorf("/etc/environment: %q, %v", data, err)
	}
	if n, err := whole.Lstat("singularity"); err != nil || n.Link != ".singularity.d/runscript" {
		t.Errorf("/singularity: %+v, %v", n, err)
	}
	if data, err := whole.ReadFile("environment", 100); err != nil || string(data) != "mine" {
		t.Errorf("/environment: %q, %v", data, err)
	}
}

// A volume is there when a container starts, and keeps what it has in the image: its owner, its rights, or being a file.
func TestVolumes(t *testing.T) {
	im := python()
	im.Config.Config.Volumes = map[string]struct{}{"/there": {}, "/link/new": {}, "/file": {}, "/deep/er": {}, "/${HOME}/x": {}}
	there := directory("there")
	there.Mode, there.UID = 0o1777, 7
	whole, _ := dressed(t, im, there, symlink("link", "target"), regular("file", "text"))
	for p, mode := range map[string]uint32{"there": 0o1777, "target/new": 0o755, "deep/er": 0o755, "file": 0o644} {
		if n, err := whole.Lstat(p); err != nil || n.Mode != mode || p == "there" && n.UID != 7 {
			t.Errorf("%s: %+v, %v", p, n, err)
		}
	}
	if n, err := whole.Lstat("${HOME}"); err == nil {
		t.Errorf("a volume that enroot cannot mount is made: %+v", n)
	}
}

func TestLayerRefuses(t *testing.T) {
	withDir := python()
	withDir.Config.Config.WorkingDir = "/etc/rc/x"
	nul := python()
	nul.Config.Config.Cmd = []string{"a\x00b"}
	for name, c := range map[string]struct {
		im    Image
		items []item
		want  string
	}{
		"loop":           {python(), []item{symlink("etc", "etc2"), symlink("etc2", "etc")}, syscall.ELOOP.Error()},
		"file":           {python(), []item{regular("etc", "")}, "/etc must be a directory"},
		"directory":      {python(), []item{directory("etc/rc")}, "/etc/rc must be a file"},
		"workdir":        {withDir, nil, "/etc/rc must be a file"},
		"NUL":            {nul, nil, "contains NUL"},
		"record no JSON": {Image{ConfigFile: []byte("{")}, nil, "no JSON"},
	} {
		st := storetest.Alone(t)
		_, err := Layer(t.Context(), st, c.im, treeOf(t, st, base(t, st, c.items...)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestEscape looks for places outside of the root that symlinks lead to: there is nothing but the root.
func TestEscape(t *testing.T) {
	im := python()
	im.Config.Config.WorkingDir = "/../../x/../../y"
	_, alone := dressed(t, im, symlink("etc", "../../../../../out/../../etc2"))
	if _, err := alone.Lstat("etc2/rc"); err != nil {
		t.Error(err)
	}
	if _, err := alone.Lstat("y"); err != nil {
		t.Error(err)
	}
}

func TestRecord(t *testing.T) {
	im := python()
	im.ConfigFile = []byte(`{"architecture":"arm64","config":{"Env":["A=<&>"]},"x-other":[1,2]}`)
	whole, _ := dressed(t, im)
	data, err := whole.ReadFile(RecordPath, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	r, err := ParseRecord(data)
	if err != nil {
		t.Fatal(err)
	}
	if r.Format != RecordFormat || r.Manifest != im.Digest {
		t.Errorf("%+v", r)
	}
	var want, got any
	if err := errors.Join(json.Unmarshal(im.ConfigFile, &want), json.Unmarshal(r.Config, &got)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if c, err := r.ConfigFile(); err != nil || c.Architecture != "arm64" {
		t.Errorf("%+v, %v", c, err)
	}
	for _, bad := range []string{
		"", "{}", `{"format":2,"config":{}}`, `{"format":1,"manifest":"sha256:x","config":{}}`, `{"format":1}`,
		`{"format":1,"config":[]}`, strings.Repeat("[", 1<<20), strings.Repeat(" ", maxRecord+1),
	} {
		if _, err := ParseRecord([]byte(bad)); err == nil {
			t.Errorf("%.20q was accepted", bad)
		}
	}
}

// TestRoundTrip makes the files of one image from a file system that already has them.
func TestRoundTrip(t *testing.T) {
	st := storetest.Alone(t)
	im := python()
	below := base(t, st, regular("etc/passwd", ""))
	first, err := Layer(t.Context(), st, im, treeOf(t, st, below))
	if err != nil {
		t.Fatal(err)
	}
	tree := treeOf(t, st, below, first)
	found, err := Recover(reading(tree))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(im.Config, found.Config); diff != "" || found.From != FromRecord || found.Manifest != im.Digest {
		t.Errorf("%s %s %s", diff, found.From, found.Manifest)
	}
	second, err := Layer(t.Context(), st, Image{Config: found.Config, Digest: found.Manifest}, tree)
	if err != nil {
		t.Fatal(err)
	}
	before, after := contentsOf(t, treeOf(t, st, below, first)), contentsOf(t, treeOf(t, st, below, first, second))
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
}

// TestHistory keeps the definition file of an image that Apptainer made.
func TestHistory(t *testing.T) {
	whole, _ := dressed(t, python(), regular(".singularity.d/Singularity", "Bootstrap: yum\n"),
		regular(".singularity.d/bootstrap_history/Apptainer1", "older"))
	data, err := whole.ReadFile("/.singularity.d/bootstrap_history/Apptainer2", 100)
	if err != nil || string(data) != "Bootstrap: yum\n" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestMetadata(t *testing.T) {
	data, err := Metadata(python())
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Data struct{ Attributes map[string]any }
		Type string
	}
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "metadata.golden", string(text)+"\n")
	if Deffile(Image{}) == "" || strings.Contains(Deffile(Image{Reference: "a\nb"}), "a\nb") {
		t.Error("definition file")
	}
}

// What misleads a terminal or a reader stays out of the files that people look at.
func TestMisleadingLabels(t *testing.T) {
	im := python()
	const value = "a\nb\u202ec\u009b31m\u2028d\x7f"
	im.Config.Config.Labels = map[string]string{"title": value, value: "x"}
	whole, _ := dressed(t, im)
	for _, path := range []string{"/etc/rc", "/.singularity.d/labels.json"} {
		data, err := whole.ReadFile(path, 1<<20)
		if err != nil || strings.ContainsFunc(string(data), quote.HarmfulInLines) {
			t.Errorf("%s: %v\n%q", path, err, data)
		}
		if path != "/etc/rc" {
			var labels map[string]string
			if err := json.Unmarshal(data, &labels); err != nil || labels["title"] != value {
				t.Errorf("%v: %q", err, labels["title"])
			}
		}
	}
}

// TestEmptyImage is one whose configuration says nothing at all, not even when it was made.
func TestEmptyImage(t *testing.T) {
	whole, _ := dressed(t, Image{})
	data, err := whole.ReadFile("/.singularity.d/labels.json", 1<<20)
	if err != nil || strings.Contains(string(data), "date") || strings.Contains(string(data), "0001") {
		t.Errorf("%s, %v", data, err)
	}
	for _, w := range Warnings(v1.ConfigFile{}, whole) {
		if !strings.Contains(w.Text, "/bin/sh") {
			t.Error(w)
		}
	}
}

func TestWarnings(t *testing.T) {
	st := storetest.Alone(t)
	tree := treeOf(t, st, base(
		t, st,
		symlink("var/run", "/run"), symlink("var/lock", "../run/lock"), regular("run/lock/x", "x"), regular("run/systemd/container", "docker"),
		regular("tmp/a", "a"), regular("tmp/empty", ""), regular("dev/b", "b"), directory("proc/1"), regular("etc/rc", "exec sh"),
	))
	c := v1.ConfigFile{Config: v1.Config{
		Env: []string{
			"bad name=1", "9=x", "ENROOT_A=1", "HOME=/work", "UID=5", "A=1\n2", "B=${HOME}", "C='x'", "D=fine", "NCCL_DEBUG=INFO", `E="`, "F=$HOME",
		},
		Entrypoint: enrootEntrypoint,
	}}
	var got []string
	for _, w := range Warnings(c, tree) {
		got = append(got, w.Text+" | "+w.Hint)
	}
	golden(t, "warnings.golden", strings.Join(got, "\n")+"\n")
	quiet := v1.ConfigFile{Config: v1.Config{Env: []string{"PATH=/bin", "HOME=/root", "A=1\n2", "LD_LIBRARY_PATH=/x", "B=${HOME}"}}}
	tree = treeOf(t, st, base(t, st, program("usr/bin/dash", "x"), symlink("usr/bin/sh", "dash"), symlink("bin", "usr/bin"), directory("tmp")))
	if w := Warnings(quiet, tree); w != nil {
		t.Errorf("warnings about nothing: %v", w)
	}
}

func mapReader(files map[string]string) func(string) ([]byte, error) {
	return func(p string) ([]byte, error) {
		if text, ok := files[p]; ok {
			return []byte(text), nil
		}
		return nil, &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
	}
}

func TestRecover(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		files map[string]string
		want  v1.Config
		from  Origin
	}{
		"nothing": {nil, v1.Config{Env: []string{"PATH=" + searchpath.Default}, Cmd: []string{"/bin/sh"}}, FromNothing},
		"Debian": {
			map[string]string{"/etc/environment": "PATH=\"/usr/bin:/bin\"\n"},
			v1.Config{Env: []string{"PATH=/usr/bin:/bin"}, Cmd: []string{"/bin/sh"}},
			FromNothing,
		},
		"enroot": {
			map[string]string{
				"/etc/rc":          "# enroot-provenance: docker://r#i:t\n# maintainer A B\n# empty \n\nmkdir -p x\n# no label\n",
				"/etc/environment": "  PATH=/x\n# c\n\nA='q'\nENROOT_X=1\nrest of a line\nB=${C}\nA=2\n",
				// An image that enroot imported may have been Apptainer's before.
				"/.singularity.d/actions/run": "",
			},
			v1.Config{
				Env: []string{"PATH=/x", "A=2", "B=${C}"}, Entrypoint: enrootEntrypoint,
				Labels: map[string]string{"maintainer": "A B", "empty": ""},
			},
			FromEnroot,
		},
		"Apptainer": {
			map[string]string{
				"/.singularity.d/actions/run": "#!/bin/sh\n", "/.singularity.d/labels.json": `{"a":"b","n":1}`,
				"/.singularity.d/env/10-docker2singularity.sh": "#!/bin/sh\nexport PATH=\"/x:\\$y\"\nexport A=\"${A:-\"1 \\\"2\\\"\n3\"}\"\n" +
					"export B=\"${B:-}\"\nexport C=\"$(reboot)\"\nexport D=\"${D:-\"\"}\"\nrm -rf /\nexport E=\"x\n[ -n \"${F:-}\" ] || F='{\"a\"'\"'\"'b}\nc'\nexport F\n",
				"/etc/environment": "PATH=/not\n",
			},
			v1.Config{
				Env: []string{"PATH=/x:$y", "A=1 \"2\"\n3", "B=", "D=", "F={\"a\"'b}\nc"}, Entrypoint: apptainerEntrypoint, Labels: map[string]string{"a": "b"},
			},
			FromApptainer,
		},
	} {
		got, err := Recover(mapReader(c.files))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, got.Config.Config); diff != "" || got.From != c.from {
			t.Errorf("%s: from %q\n%s", name, got.From, diff)
		}
	}
	if _, err := Recover(func(string) ([]byte, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("a failure to read: %v", err)
	}
	for p, text := range map[string]string{
		RecordPath: `{"format":7}`, "/etc/rc": strings.Repeat("x", maxScript+1), "/.singularity.d/labels.json": "{",
	} {
		if _, err := Recover(mapReader(map[string]string{p: text, "/.singularity.d/actions/run": ""})); err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("bad %s: %v", p, err)
		}
	}
}

// TestForeignScriptsStay makes files for images that enroot and Apptainer made: their start scripts are the entrypoint.
func TestForeignScriptsStay(t *testing.T) {
	theirs := []item{
		program(".singularity.d/actions/run", "run"), program(".singularity.d/runscript", "theirs"),
		program(".singularity.d/env/90-environment.sh", "export X=1"), regular("etc/hosts", "h"),
		program(".singularity.d/env/10-docker2singularity.sh", "#!/bin/sh\nexport PATH=\"/opt\"\n"),
	}
	st := storetest.Alone(t)
	for _, c := range []struct {
		items []item
		kept  []string
		made  []string
	}{
		{theirs, []string{".singularity.d/runscript", ".singularity.d/env/90-environment.sh", "etc/hosts"}, []string{"etc/rc", ".singularity.d/actions/exec"}},
		{[]item{regular("etc/rc", "theirs"), regular("etc/environment", "A=1")}, []string{"etc/rc"}, []string{"etc/environment", ".singularity.d/runscript"}},
	} {
		tree := treeOf(t, st, base(t, st, c.items...))
		found, err := Recover(reading(tree))
		if err != nil {
			t.Fatal(err)
		}
		d, err := Layer(context.Background(), st, Image{Config: found.Config}, tree)
		if err != nil {
			t.Fatal(err)
		}
		alone := treeOf(t, st, d)
		for _, p := range c.kept {
			if _, err := alone.Lstat(p); err == nil {
				t.Errorf("%s was replaced", p)
			}
		}
		for _, p := range c.made {
			if _, err := alone.Lstat(p); err != nil {
				t.Error(err)
			}
		}
	}
	// Nothing may start itself: without their scripts such an entrypoint leads nowhere.
	for _, entrypoint := range [][]string{apptainerEntrypoint, enrootEntrypoint} {
		whole, _ := dressed(t, Image{Config: v1.ConfigFile{Config: v1.Config{Entrypoint: entrypoint}}})
		p := map[bool]string{true: "/.singularity.d/runscript", false: "/etc/rc"}[entrypoint[0] == apptainerEntrypoint[0]]
		text, err := whole.ReadFile(p, 1<<20)
		if err != nil || strings.Contains(string(text), entrypoint[len(entrypoint)-1]+"'") || strings.Contains(string(text), entrypoint[len(entrypoint)-1]+`"`) {
			t.Errorf("%s starts itself: %s %v", p, text, err)
		}
	}
	own := []item{program(".singularity.d/actions/run", ""), program(".singularity.d/env/10-docker2singularity.sh", "export A=$(date)\n")}
	_, alone := dressed(t, Image{Config: v1.ConfigFile{Config: v1.Config{Entrypoint: apptainerEntrypoint}}}, own...)
	if _, err := alone.Lstat(dockerEnvPath); err == nil {
		t.Error("an environment that somebody wrote was replaced")
	}
}
