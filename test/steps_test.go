package test

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/registry/registrytest"
)

// steppedRecipe is a recipe with steps of every kind.
func steppedRecipe(base string, more ...string) string {
	return fmt.Sprintf(`name = "stepped"
version = "1"

[base]
image = %q

[[step]]
copy = ["src:/opt/src/"]
patch = ["loud.patch:/opt/src"]
run = """
cp hello.sh /usr/local/bin/hello
chmod 4755 /usr/local/bin/hello
chown 12:34 /usr/local/bin/hello
date > /cached/when
"""
workdir = "/opt/src"
mounts = ["cache:times:/cached"]

[[step]]
name = "whom to greet"
run = "test \"$WHOM\" = world && echo \"$WHOM\" > /etc/whom && rm /opt/src/hello.sh"
env = { WHOM = "world" }
network = false
%s`, base, strings.Join(more, "\n"))
}

const loudPatch = `--- a/hello.sh
+++ b/hello.sh
@@ -1,2 +1,2 @@
 #!/bin/sh
-echo hello
+echo HELLO $(cat /etc/whom)
`

func (p *place) writeStepped(base string, more ...string) {
	p.write("app/sconce.toml", steppedRecipe(base, more...))
	p.write("app/src/hello.sh", "#!/bin/sh\necho hello\n")
	p.write("app/loud.patch", loudPatch)
}

// Steps copy, patch and run, as root and as an ordinary user, and come to the same image; the second time nothing runs, and
// a change at the end runs only the end.
func TestSteps(t *testing.T) {
	begin(t)
	b := base(t)
	digests := make(map[string]string)
	for name, user := range map[string]*account{"root": nil, "ordinary": ordinary(t)} {
		p := newPlace(t, user)
		p.writeStepped(b.ref)
		digests[name] = p.build("app")
		if r := p.must("run", "stepped:1", "--", "hello"); r.stdout != "HELLO world\n" {
			t.Errorf("%s: %v", name, r)
		}
		again := p.must("build", "app")
		if digestOf(t, again) != digests[name] || !strings.Contains(again.stderr, "up to date") {
			t.Errorf("%s: the second build: %v", name, again)
		}
		p.writeStepped(b.ref, "[[step]]\nrun = \"date > /etc/built\"\n")
		changed := p.must("build", "app")
		if strings.Contains(changed.stderr, "whom to greet") || !strings.Contains(changed.stderr, "date > /etc/built") {
			t.Errorf("%s: not only what was added has run: %v", name, changed)
		}
		p.wantSound()
		p.wantTidy()
	}
	if digests["root"] != digests["ordinary"] {
		t.Errorf("root's image is %s, an ordinary user's %s", digests["root"], digests["ordinary"])
	}
}

// A directory that steps read from decides by its content, not by its times.
func TestStepsKnowTheirFiles(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	p.writeStepped(base(t).ref)
	first := p.build("app")
	if err := os.Chtimes(p.path("app/src/hello.sh"), time.Now(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if second := p.build("app"); second != first {
		t.Errorf("a touched file makes another image: %s and %s", first, second)
	}
	p.write("app/src/more.txt", "more")
	if third := p.build("app"); third == first {
		t.Error("a new file makes no other image")
	}
}

// What one machine's step made is another's download.
func TestStepsFromTheRegistry(t *testing.T) {
	begin(t)
	b := base(t)
	cache := registrytest.Start(t, false)
	more := fmt.Sprintf("[cache]\nregistry = %q\n", cache+"/team/cache")
	first := newPlace(t, nil)
	first.writeStepped(b.ref, more)
	want := first.build("app", "--push-cache")
	second := newPlace(t, ordinary(t))
	second.writeStepped(b.ref, more)
	r := second.must("build", "app", "--read-cache")
	if digestOf(t, r) != want {
		t.Errorf("another image: %v", r)
	}
	if strings.Contains(r.stderr, "run  ") || strings.Contains(r.stderr, "run whom") {
		t.Errorf("a step was run that the cache has: %v", r)
	}
	second.wantSound()
}

// A secret is in no file, no output and no log of a build that used it.
func TestSecretsStaySecret(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	const secret = "hunter2-correct-horse-battery"
	p.write("token", secret+"\n")
	p.write("app/sconce.toml", fmt.Sprintf(`name = "quiet"
version = "1"
[base]
image = %q
[[step]]
run = """
test "$(cat /run/secrets/token)" = %q
cat /run/secrets/token; echo "$TOKEN" | tee /dev/stderr
set -x; test -n "$TOKEN"
"""
mounts = ["secret:token:/run/secrets/token:env=TOKEN"]
`, base(t).ref, "hunter2-correct-horse-battery"))
	// The recipe itself must not hold it for the search to mean anything.
	p.write("app/sconce.toml", strings.ReplaceAll(p.read("app/sconce.toml"), secret, "$(printf %s-%s hunter2 correct-horse-battery)"))
	p.fails(1, []string{"token", "--secret"}, "build", "app")
	r := p.must("--progress", "json", "build", "app", "--secret", "id=token,src="+p.path("token"), "-o", "dir:"+p.path("out"), "-o", "oci:"+p.path("layout"))
	if strings.Contains(r.stdout+r.stderr, secret) {
		t.Errorf("the secret was printed: %v", r)
	}
	for _, dir := range []string{p.store, p.path("out"), p.path("layout")} {
		p.wantNowhere(dir, secret)
	}
	if _, err := os.Lstat(p.path("out/run/secrets")); err == nil {
		t.Error("the place of the secret is in the image")
	}
	if key := digestOf(t, r); key == "" {
		t.Error("no digest")
	}
	p.write("token", "another\n")
	if again := p.must("build", "app", "--secret", "id=token,src="+p.path("token")); !strings.Contains(again.stderr, "up to date") {
		t.Errorf("the secret's value is in a key: %v", again)
	}
}

// wantNowhere searches all files below dir, and what is compressed in them, for a text.
func (p *place) wantNowhere(dir, text string) {
	p.t.Helper()
	searched := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		searched++
		if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
			if plain, err := exec.Command("gzip", "-dc", path).Output(); err == nil {
				data = append(data, plain...)
			}
		}
		if bytes.Contains(data, []byte(text)) {
			p.t.Errorf("%s holds the secret", path)
		}
		return nil
	})
	if err != nil || searched == 0 {
		p.t.Errorf("searched %d files below %s: %v", searched, dir, err)
	}
}

// A step that fails says which, shows the end of what it printed and where all of it is.
func TestStepFails(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	p.write("app/sconce.toml", fmt.Sprintf(`name = "bad"
version = "1"
[base]
image = %q
[[step]]
name = "count and give up"
run = "i=0; while [ $i -lt 500 ]; do i=$((i+1)); echo line $i; done; echo the reason >&2; exit 7"
`, base(t).ref))
	r := p.fails(1, []string{"count and give up", "exit code 7", "the reason", "line 499", "logs"}, "build", "app")
	if strings.Contains(r.stderr, "line 300\n") && strings.Count(r.stderr, "line 400\n") > 1 {
		t.Errorf("too much of the log is shown, or twice: %v", r)
	}
	p.wantSound()
	p.wantTidy()
}

// Whatever a step leaves running, and whenever it is interrupted, nothing outlives the build.
func TestStepsInterrupted(t *testing.T) {
	begin(t)
	b := base(t)
	for name, script := range map[string]string{
		"ignores the signal": `trap '' TERM INT HUP; mkdir -m 0 /opt/closed; while :; do sleep 1; done`,
		"has children":       `(setsid sleep 1000 &) ; (trap '' TERM; sleep 1000 &); mkdir -p /opt/a/b; chmod 0 /opt/a; sleep 1000`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, ordinary(t))
			p.write("app/sconce.toml", fmt.Sprintf("name = \"long\"\nversion = \"1\"\n[base]\nimage = %q\n[[step]]\nname = \"forever\"\nrun = %q\n", b.ref, "echo started; "+script))
			cmd := p.command("--progress", "plain", "--verbose", "build", "app")
			stderr, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			lines := bufio.NewScanner(stderr)
			for !strings.Contains(out.String(), "started") && lines.Scan() {
				fmt.Fprintln(&out, lines.Text())
			}
			family := descendants(cmd.Process.Pid)
			if err := unix.Kill(cmd.Process.Pid, unix.SIGINT); err != nil {
				t.Fatal(err)
			}
			for lines.Scan() {
				fmt.Fprintln(&out, lines.Text())
			}
			_ = cmd.Wait()
			p.wantNobody(cmd.Process.Pid, family)
			if code := cmd.ProcessState.ExitCode(); code != 130 {
				t.Errorf("exit code %d: %s", code, out.String())
			}
			p.wantTidy()
			p.wantSound()
		})
	}
}

// A program with the setuid bit runs as its owner in a step of a user, whoever builds.
func TestSetuidInSteps(t *testing.T) {
	begin(t)
	b := base(t)
	digests := make(map[string]bool)
	for _, user := range []*account{nil, ordinary(t)} {
		p := newPlace(t, user)
		p.write("app/Containerfile", `FROM `+b.ref+`
RUN useradd x && cp /usr/bin/id /usr/bin/setuid-id && chmod 4755 /usr/bin/setuid-id
USER x
RUN test "$(setuid-id -u) $(id -un)" = "0 x" && touch /tmp/mine
`)
		digests[p.build("app")] = true
	}
	if len(digests) != 1 {
		t.Errorf("root and an ordinary user build different images: %v", digests)
	}
}
