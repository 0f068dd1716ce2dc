package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// These tests have Apptainer and enroot themselves start sconce's files, where they are on PATH, and those of slurmjudges_test.go pyxis. No package
// manager of the tests' has them, so that a test is left out without them, also where all other programs must be there.

// judgedBy returns a place whose command is a program of PATH, for images that another place has.
func judgedBy(t *testing.T, program string, p *place) *place {
	t.Helper()
	file, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("no distribution that the tests install from has what clusters run: %v", err)
	}
	judge := *p
	judge.t, judge.program = t, []string{file}
	judge.env = append(slices.Clone(p.env),
		"PATH="+filepath.Dir(file)+":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "XDG_RUNTIME_DIR="+p.tmp(),
		"APPTAINER_UNSQUASH=1", // mounting is for whoever may open /dev/fuse
	)
	return &judge
}

// judgedConfig is a configuration with whatever is hard to carry over. With "do" in front, the image's command runs what follows.
var judgedConfig = v1.Config{
	Env: []string{
		"PATH=/opt/tool/bin:/usr/bin:/bin", `GREETING=it's "quoted" for $5 {a,b} or a ` + "`tick` \\", "EMPTY=", "PINNED=${HOME}/x", `OPTS="-a -b"`,
		`JSON={"a": [1, 2]}`, "VERSE=one\ntwo",
	},
	Entrypoint: []string{"/bin/sh", "-c", `if [ "$1" = do ]; then shift; exec "$@"; fi; printf '%s|' "$@"; pwd`, "it's"},
	Cmd:        []string{"one", "two  words"},
	WorkingDir: "/opt/new dir",
	Labels:     map[string]string{"org.example.name": "judged", "maintainer": `A "B" <a@example.org>`},
	Volumes:    map[string]struct{}{"/data": {}, "/with space": {}},
}

var sharedJudged once[string]

// judged returns an OCI image of busybox with that configuration.
func judged(t *testing.T) string {
	t.Helper()
	return sharedJudged.get(t, func(t *testing.T) string {
		l := newTarLayer(t)
		l.dir("etc", "root", "proc", "sys", "dev", "tmp", "usr")
		l.file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
		l.file("etc/group", "root:x:0:\n")
		l.file("etc/os-release", "ID=judged\nVERSION_ID=1\n")
		// Debian's does that.
		l.file("etc/profile", "PATH=/usr/local/bin:/usr/bin:/bin\nexport PATH\n")
		l.programs()
		return writeLayout(t, filepath.Join(workshop, "judged"), judgedConfig, l.gzipped())
	})
}

// wantEnvironment compares what env -0 prints with the image's variables. changed are those that a runtime must change, with the value that
// it gives them.
func wantEnvironment(t *testing.T, printed string, changed map[string]string) {
	t.Helper()
	got := map[string]string{}
	for entry := range strings.SplitSeq(printed, "\x00") {
		name, value, _ := strings.Cut(entry, "=")
		got[name] = value
	}
	for _, entry := range judgedConfig.Env {
		name, want, _ := strings.Cut(entry, "=")
		if other, ok := changed[name]; ok {
			want = other
		}
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s is %q, want %q", name, value, want)
		}
	}
}

// underEnroot is what enroot changes: it has a shell read /etc/profile, whose directories follow those of the image.
var underEnroot = map[string]string{"PATH": "/opt/tool/bin:/usr/bin:/bin:/usr/local/bin:/usr/bin:/bin"}

func TestEnrootJudges(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	enroot := judgedBy(t, "enroot", p)
	p.must("copy", judged(t), "x.sqsh")
	enroot.must("create", "--name", "x", "x.sqsh")
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "one|two  words|/opt/new dir\n"},
		{[]string{"three", `$HOME "four`}, `three|$HOME "four|/opt/new dir` + "\n"},
		// The root is read-only, volumes are not.
		{[]string{"do", "sh", "-c", `touch /x 2> /dev/null || echo "read-only"; echo kept > /data/f; echo > '/with space/f'; cat /data/f`}, "read-only\nkept\n"},
	} {
		if r := enroot.must(append([]string{"start", "x"}, c.args...)...); r.stdout != c.want {
			t.Errorf("want %q, got %v", c.want, r)
		}
	}
	wantEnvironment(t, enroot.must("start", "x", "do", "env", "-0").stdout, underEnroot)
	if r := enroot.must("start", "-e", "EMPTY=given", "x", "do", "sh", "-c", `echo "$EMPTY"`); r.stdout != "given\n" {
		t.Errorf("with -e: %v", r)
	}
	if r := enroot.sconce("start", "x", "do", "sh", "-c", "exit 9"); r.code != 9 {
		t.Errorf("the command's exit code is lost: %v", r)
	}
	// What enroot exports of its container is the same image.
	enroot.must("export", "--output", "back.sqsh", "x")
	in := p.inspectFile("back.sqsh")
	if !slices.Equal(in.Env, judgedConfig.Env) || !slices.Equal(in.Entrypoint, judgedConfig.Entrypoint) || in.Labels["org.example.name"] != "judged" {
		t.Errorf("of what enroot has exported, inspect says %+v", in)
	}
	t.Run("without a container", func(t *testing.T) {
		enroot := judgedBy(t, "enroot", p)
		if r := enroot.sconce("start", "x.sqsh", "do", "cat", "/etc/os-release"); strings.Contains(r.stderr, "/dev/fuse: Permission denied") {
			t.Skipf("this machine lets ordinary users use no FUSE: %s", r.stderr)
		} else if r.stdout != "ID=judged\nVERSION_ID=1\n" || r.code != 0 {
			t.Error(r)
		}
	})
}

func TestApptainerJudges(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	apptainer := judgedBy(t, "apptainer", p)
	p.must("copy", judged(t), "x.sif")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "--no-eval"}, "one|two  words|" + p.dir + "\n"},
		{[]string{"run"}, "one|two  words|" + p.dir + "\n"},
		{[]string{"run", "--pwd", judgedConfig.WorkingDir}, "one|two  words|" + judgedConfig.WorkingDir + "\n"},
	} {
		if r := apptainer.must(append(c.args, "x.sif")...); r.stdout != c.want {
			t.Errorf("want %q, got %v", c.want, r)
		}
	}
	if r := apptainer.must("run", "x.sif", "three", "four  five"); r.stdout != "three|four  five|"+p.dir+"\n" {
		t.Error(r)
	}
	if r := apptainer.must("run", "--no-eval", "x.sif", `$HOME "four`); r.stdout != `$HOME "four|`+p.dir+"\n" {
		t.Error(r)
	}
	wantEnvironment(t, apptainer.must("exec", "x.sif", "env", "-0").stdout, map[string]string{
		"PATH": "/opt/tool/bin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin", // what is missing of the usual ones follows
	})
	if r := apptainer.must("exec", "--env", "EMPTY=given", "x.sif", "sh", "-c", `echo "$EMPTY"`); r.stdout != "given\n" {
		t.Errorf("with --env: %v", r)
	}
	if r := apptainer.sconce("exec", "x.sif", "sh", "-c", "exit 9"); r.code != 9 {
		t.Errorf("the command's exit code is lost: %v", r)
	}
	if r := apptainer.must("exec", "x.sif", "cat", "/etc/os-release"); r.stdout != "ID=judged\nVERSION_ID=1\n" {
		t.Error(r)
	}
	shell := apptainer.command("shell", "x.sif")
	shell.Stdin = strings.NewReader(`cat /etc/os-release; echo "$GREETING"` + "\n")
	want := "ID=judged\nVERSION_ID=1\n" + strings.TrimPrefix(judgedConfig.Env[1], "GREETING=") + "\n"
	if out, err := shell.Output(); err != nil || string(out) != want {
		t.Errorf("shell: %v\n%s", err, out)
	}
	inspectedByApptainer(t, apptainer)
}

// inspectedByApptainer reads a SIF by apptainer inspect, once from the description beside its file system, and once from the scripts in it.
func inspectedByApptainer(t *testing.T, apptainer *place) {
	t.Helper()
	var labels struct {
		Data struct {
			Attributes struct {
				Labels  map[string]string
				Deffile string
			}
		}
	}
	if err := json.Unmarshal([]byte(apptainer.must("inspect", "--json", "--labels", "--deffile", "x.sif").stdout), &labels); err != nil {
		t.Fatal(err)
	}
	for name, want := range judgedConfig.Labels {
		if got := labels.Data.Attributes.Labels[name]; got != want {
			t.Errorf("label %s is %q, want %q", name, got, want)
		}
	}
	for flag, file := range map[string]string{
		"--deffile": "Singularity", "--runscript": "runscript", "--environment": "env/10-docker2singularity.sh", "--startscript": "startscript",
	} {
		said := apptainer.must("inspect", flag, "x.sif").stdout
		within := apptainer.must("exec", "x.sif", "cat", "/.singularity.d/"+file).stdout
		if within == "" || !strings.Contains(said, strings.TrimSpace(within)) {
			t.Errorf("inspect %s says\n%s\nthe image has\n%s", flag, said, within)
		}
	}
	if r := apptainer.must("sif", "list", "x.sif"); !strings.Contains(r.stdout, "FS (Squashfs/*System/") {
		t.Error(r)
	}
}

// Apptainer unpacks the file, and what it builds of that is the same image.
func TestApptainerBuildsSandbox(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	apptainer := judgedBy(t, "apptainer", p)
	p.must("copy", judged(t), "x.sif")
	apptainer.must("build", "--sandbox", "tree", "x.sif")
	for _, name := range []string{"etc/os-release", ".singularity.d/runscript", "bin/busybox"} {
		if st, err := os.Stat(p.path("tree", name)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	apptainer.must("build", "again.sif", "tree")
	in := p.inspectFile("again.sif")
	if !slices.Equal(in.Env, judgedConfig.Env) || !slices.Equal(in.Entrypoint, judgedConfig.Entrypoint) || !slices.Equal(in.Cmd, judgedConfig.Cmd) {
		t.Errorf("of what Apptainer has built from it, inspect says %+v", in)
	}
}
