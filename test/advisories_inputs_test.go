package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/tooltest"
)

// A path is no beginning of a string: what is said of /scratch is not said of /scratch2 (apptainer CVE-2026-48785, singularity
// CVE-2026-47215). In ignore files, what is removed, what a context holds, and what is mounted.
func TestPathsAreNoPrefixes(t *testing.T) {
	asBoth(t, func(t *testing.T, p *place) {
		p.tiny("tiny", func(root string) {
			locktest.Write(t, root, map[string]string{"opt/a/x": "a", "opt/ab/x": "ab", "opt/a.b": "a.b", "opt/a-c/x": "a-c"})
		})
		files := func(image string) string {
			return p.must("run", image, "sh", "-c", "cd /opt && find . -type f && cd /in 2>/dev/null && find . -type f; true").stdout
		}
		p.write("ignore/.dockerignore", "secret\nb/c\n")
		for _, name := range []string{"secret", "secret2", "secrets/x", "b/c/x", "b/c2/x", "b/cd"} {
			p.write("ignore/"+name, name)
		}
		p.write("ignore/Containerfile", "FROM tiny:1\nCOPY . /in/\n")
		p.build("ignore", "-t", "ignore:1")
		out := files("ignore:1")
		for name, want := range map[string]bool{"./secret\n": false, "./secret2\n": true, "./secrets/x\n": true, "./b/c/x\n": false, "./b/c2/x\n": true, "./b/cd\n": true} {
			if strings.Contains(out, name) != want {
				t.Errorf("an ignore file: %q is there: %t, want %t", name, !want, want)
			}
		}
		p.write("slim/sconce.toml", "name = \"slim\"\nversion = \"1\"\n[base]\nimage = \"tiny:1\"\n[slim]\nremove = [\"/opt/a\"]\n")
		p.build("slim")
		if out := files("slim:1"); strings.Contains(out, "./a/x") || !strings.Contains(out, "./ab/x") || !strings.Contains(out, "./a.b") || !strings.Contains(out, "./a-c/x") {
			t.Errorf("[slim] remove: %s", out)
		}
		// Beside a context lies another with a name that begins the same.
		p.write("ctx2/secret", "SECRET")
		p.write("ctx/file", "")
		for link, target := range map[string]string{"up": "../ctx2", "absolute": p.path("ctx2"), "file2": "../ctx2/secret"} {
			p.link("ctx/"+link, target)
		}
		p.own()
		for _, line := range []string{"COPY ../ctx2/secret /in/", "COPY up/secret /in/", "COPY absolute/secret /in/", "COPY file2 /in/x", "COPY ./up/ /in/", "RUN --mount=type=bind,source=up,target=/in true", "RUN --mount=type=bind,source=../ctx2,target=/in true"} {
			p.write("ctx/Containerfile", "FROM tiny:1\n"+line+"\nRUN if cat /in/* 2>/dev/null | grep SECRET; then exit 9; fi\n")
			r := p.sconce("build", "ctx", "-t", "ctx:1")
			if strings.Contains(r.stderr, "SECRET") || r.code == 0 && strings.Contains(p.must("run", "ctx:1", "sh", "-c", "cat /in/* 2>/dev/null; true").stdout, "SECRET") {
				t.Errorf("%s reads what lies outside: %v", line, r)
			}
		}
		p.write("scratch/x", "x")
		if out := p.must("run", "-B", p.path("scratch")+":/scratch", "tiny:1", "sh", "-c", "ls -d /scratch*").stdout; out != "/scratch\n" {
			t.Errorf("mounted: %s", out)
		}
	})
}

// A directory of a repository that leads out of it is refused, by whatever names it: a lock, a requirement, a Containerfile; and a link there
// leads nowhere on this machine (buildkit CVE-2026-33748).
func TestSubdirectoryClimbsOut(t *testing.T) {
	tooltest.Path(t, "git")
	asBoth(t, func(t *testing.T, p *place) {
		p.write("host/pyproject.toml", "[project]\nname = \"mine\"\nversion = \"1\"\n[build-system]\nrequires = []\nbuild-backend = \"evil\"\nbackend-path = [\".\"]\n")
		p.write("host/evil.py", "raise SystemExit('EVIL RAN')\n")
		p.write("repo/x", "")
		for name, target := range map[string]string{"absolute": p.path("host"), "upwards": "../host"} {
			p.link("repo/"+name, target)
		}
		p.own()
		p.git("repo", "init", "--quiet", "--initial-branch=main")
		p.git("repo", "add", ".")
		p.git("repo", "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "-m", "x")
		out, err := exec.Command("git", "-c", "safe.directory=*", "-C", p.path("repo"), "rev-parse", "HEAD").Output()
		if err != nil {
			t.Fatal(err)
		}
		p.own()
		commit := strings.TrimSpace(string(out))
		p.env = append(p.env, "UV_DEFAULT_INDEX="+locktest.NewIndex(t).URL, "no_proxy=127.0.0.1", "NO_PROXY=127.0.0.1")
		for i, dir := range []string{"..", "../host", "../../..", p.path("host"), "x/../../host", "absolute", "upwards"} {
			climbs := i < 5
			app := fmt.Sprintf("lock%d", i)
			files := map[string]string{
				"base.tar": string(locktest.Base{Files: locktest.Shell(t)}.Tar(t)), "sconce.toml": locktest.Head + "[python]\nlock = \"pylock.toml\"\nbytecode = false\n",
				"pylock.toml": fmt.Sprintf("lock-version = \"1.0\"\ncreated-by = \"somebody\"\nrequires-python = \">=3.11\"\n[[packages]]\nname = \"mine\"\nversion = \"1\"\n"+
					"vcs = { type = \"git\", url = %q, commit-id = %q, subdirectory = %q }\n", "file://"+p.path("repo"), commit, dir),
			}
			locktest.Write(t, p.path(app), files)
			p.own()
			r := p.sconce("build", app)
			if r.code == 0 || strings.Contains(r.stdout+r.stderr, "EVIL RAN") || climbs && !strings.Contains(r.stderr, "leads out of the source") {
				t.Errorf("a lock with %s: %v", dir, r)
			}
			if _, err := exec.LookPath("uv"); err == nil {
				p.write(app+"/sconce.toml", locktest.Head+fmt.Sprintf("[python]\npackages = [%q]\nbytecode = false\n", "mine @ git+file://"+p.path("repo")+"@"+commit+"#subdirectory="+dir))
				if r := p.sconce("build", app); r.code == 0 || strings.Contains(r.stdout+r.stderr, "EVIL RAN") {
					t.Errorf("a requirement with %s: %v", dir, r)
				}
			}
			p.write(app+"/Containerfile", "FROM scratch\nADD file://"+p.path("repo")+"#"+commit+":"+dir+" /in/\n")
			if r := p.sconce("build", app+"/Containerfile"); r.code == 0 {
				t.Errorf("ADD with %s: %v", dir, r)
			}
		}
	})
}

// A program that sconce starts and that is killed is told as that, and nothing half-made is believed: with the program whole, the same command
// goes well (apptainer 1.5.1: a file that was corrupt as mksquashfs had died).
func TestChildKilled(t *testing.T) {
	for _, name := range []string{"git", "uv"} {
		tooltest.Path(t, name)
	}
	asBoth(t, func(t *testing.T, p *place) {
		p.tiny("tiny")
		p.write("repo/x", "x")
		p.git("repo", "init", "--quiet", "--initial-branch=main")
		p.git("repo", "add", ".")
		p.git("repo", "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "-m", "x")
		p.own()
		p.write("git/sconce.toml", fmt.Sprintf("name = \"c\"\nversion = \"1\"\n[base]\nimage = \"tiny:1\"\n[source.x]\ngit = %q\ncommit = \"main\"\n[component.x]\nrun = \"mkdir -p /opt/x; cp -r . /opt/x/\"\n", "file://"+p.path("repo")))
		index := locktest.NewIndex(t, locktest.Wheel{Name: "alpha", Version: "1.0"})
		p.env = append(p.env, "UV_DEFAULT_INDEX="+index.URL, "no_proxy=127.0.0.1", "NO_PROXY=127.0.0.1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
		locktest.Write(t, p.path("uv"), map[string]string{"base.tar": string(locktest.Base{}.Tar(t)), "sconce.toml": locktest.Head + "[python]\npackages = [\"alpha\"]\nbytecode = false\n"})
		p.own()
		usual := p.env
		for name, made := range map[string][]string{"git": {"sconce.lock"}, "uv": {"sconce.lock", "pylock.toml"}} {
			for _, sig := range []string{"KILL", "SEGV", "BUS", "TERM"} {
				bin := filepath.Join("bin-"+name, sig)
				// The first call may ask for the version alone; the work dies when some of it is done.
				p.write(bin+"/"+name, fmt.Sprintf("#!/bin/sh\ncase \"$1\" in version|--version) PATH=%q exec %s \"$@\";; esac\necho half\nkill -%s $$\nsleep 9\n", filepath.Join(workshop, "bin")+":/usr/local/bin:/usr/bin:/bin", name, sig))
				if err := os.Chmod(p.path(bin, name), 0o755); err != nil {
					t.Fatal(err)
				}
				p.env = slices.Concat(usual, []string{"PATH=" + p.path(bin) + ":" + filepath.Join(workshop, "bin") + ":/usr/local/bin:/usr/bin:/bin"})
				p.fails(1, []string{name}, "build", name)
				for _, file := range made {
					if p.exists(name, file) {
						t.Errorf("%s was killed by %s, and %s is there", name, sig, file)
					}
				}
				p.wantSound()
			}
			p.env = usual
			p.build(name)
		}
		// A step's shell, and what it started.
		p.write("step/sconce.toml", "name = \"s\"\nversion = \"1\"\n[base]\nimage = \"tiny:1\"\n[[step]]\nrun = \"echo half >/made; kill -9 $$\"\n")
		p.fails(1, []string{"signal"}, "build", "step")
		if r := p.sconce("run", "s:1", "true"); r.code == 0 {
			t.Errorf("a step that was killed made an image: %v", r)
		}
		if r := p.sconce("run", "tiny:1", "sh", "-c", "kill -9 $$"); r.code != 128+int(unix.SIGKILL) {
			t.Errorf("a command that was killed: %v", r)
		}
		p.wantSound()
	})
}
