package test

import (
	"bytes"
	"cmp"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/rpm/rpmtest"
	"sconce.dev/sconce/internal/tooltest"
)

// asked is a command of a definition file's image, and what comes of it.
type asked struct {
	verb string // run, exec, test, or app and its name
	args []string
	out  string
	code int
}

// Each file of testdata/definitions is a definition file, the files that it takes, and what Apptainer's user guide says of the image:
// "$ run ARGS", exec, test and "app NAME ARGS" with what is printed, "? N" with the exit code, or "! TEXT" when there is no image. Where
// there is an apptainer, it is asked as well; what it says otherwise, since sconce differs on purpose, is in the file called apptainer.
// REGISTRY in any of them is a registry that has team/base:1, and REPOSITORY a server of RPM packages; see rpmServer.
func TestDefinitionFiles(t *testing.T) {
	begin(t)
	files, err := filepath.Glob("testdata/definitions/*.txtar")
	if err != nil || len(files) < 60 {
		t.Fatalf("%d definition files, %v", len(files), err)
	}
	all := newPlace(t, ordinary(t))
	busyboxRoot(all, "root")
	host := bases(all)
	served := &rpmServer{of: all}
	_, noJudge := exec.LookPath("apptainer")
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			p := placeIn(t, all.path(name), all.user)
			p.store = all.store
			var args []string
			var expect, differs string
			for _, f := range archive.Files {
				f.Data = bytes.ReplaceAll(f.Data, []byte("REGISTRY"), []byte(host))
				if bytes.Contains(f.Data, []byte("REPOSITORY")) {
					f.Data = bytes.ReplaceAll(f.Data, []byte("REPOSITORY"), []byte(served.address(t)))
				}
				switch f.Name {
				case "args":
					args = strings.Split(strings.TrimSpace(string(f.Data)), "\n")
				case "expect":
					expect = string(f.Data)
				case "apptainer":
					differs = string(f.Data)
				default:
					p.write(f.Name, string(f.Data))
				}
			}
			built := p.sconce(slices.Concat([]string{"build", "x.def", "-o", "x.sif"}, args)...)
			if text, refused := strings.CutPrefix(expect, "! "); refused {
				if built.code == 0 || !strings.Contains(built.stderr, strings.TrimSpace(text)) {
					t.Errorf("want an error with %s: %v", text, built)
				}
				return
			}
			if built.code != 0 {
				t.Fatal(built)
			}
			for _, c := range readAsked(t, expect) {
				if r := p.sconce(c.forSconce()...); r.stdout != c.out || r.code != c.code {
					t.Errorf("want code %d and\n%s\ngot %v", c.code, c.out, r)
				}
			}
			if noJudge == nil {
				askApptainer(t, judgedBy(t, "apptainer", p), args, cmp.Or(differs, expect))
			}
		})
	}
}

// bases makes an image of the directory root in every form that a definition file may begin with, and returns the registry that has it.
func bases(p *place) (host string) {
	p.t.Helper()
	host = registrytest.Start(p.t, false)
	for _, to := range []string{
		"docker://" + host + "/team/base:1", "oci:layout:1", "oci-archive:layout.tar", "docker-archive:saved.tar:base:1", "sif:base.sif", "sqsh:base.sqsh",
	} {
		p.must("copy", "dir:root", to)
	}
	return host
}

// rpmServer serves signed repositories of RPM packages, which are made when a file first asks for them: of the distribution Testland at
// 7/MACHINE, with what zypper takes as well, and of a newer package at 7/updates. The key that signs is in the file packages/KEY of the place.
type rpmServer struct {
	of     *place
	server *httptest.Server
}

// address serves them until all files were read.
func (s *rpmServer) address(t *testing.T) string {
	t.Helper()
	if s.server != nil {
		return s.server.URL
	}
	signer := rpmtest.NewSigner(t)
	noarch := "BuildArch: noarch"
	for dir, packages := range map[string][]rpmtest.Package{
		"7/" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]: append(rpmtest.Testland(t), rpmtest.Package{Name: "aaa_base", Head: noarch}),
		"7/updates": {{Name: "never", Version: "2", Head: noarch}},
	} {
		dir = s.of.path("packages", dir)
		rpmtest.Build(t, dir, packages...)
		signer.SignPackages(t, dir)
		rpmtest.Repository(t, dir)
	}
	if err := copyFile(signer.File, s.of.path("packages/KEY")); err != nil {
		t.Fatal(err)
	}
	s.of.own()
	s.server = httptest.NewServer(http.FileServer(http.Dir(s.of.path("packages"))))
	s.of.t.Cleanup(s.server.Close)
	return s.server.URL
}

// busyboxRoot makes a root file system of busybox alone.
func busyboxRoot(p *place, name string) {
	p.t.Helper()
	p.write(name+"/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
	err := errors.Join(os.MkdirAll(p.path(name, "opt"), 0o755), os.MkdirAll(p.path(name, "bin"), 0o755), copyFile(tooltest.Path(p.t, "busybox"), p.path(name, "bin/busybox")))
	for _, command := range strings.Fields("sh cat echo grep ls mkdir printf test true false touch env chmod cp id") {
		err = errors.Join(err, os.Symlink("busybox", p.path(name, "bin", command)))
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.own()
}

func readAsked(t *testing.T, expect string) []asked {
	t.Helper()
	var all []asked
	for line := range strings.Lines(expect) {
		command, is := strings.CutPrefix(line, "$ ")
		if is {
			words := shellWords(t, command)
			c := asked{verb: words[0], args: words[1:]}
			if c.verb == "app" {
				c.verb, c.args = "app "+words[1], words[2:]
			}
			all = append(all, c)
			continue
		}
		last := &all[len(all)-1]
		if code, is := strings.CutPrefix(line, "? "); is {
			var err error
			if last.code, err = strconv.Atoi(strings.TrimSpace(code)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		last.out += line
	}
	return all
}

// shellWords splits a line as a shell does.
func shellWords(t *testing.T, line string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", `printf '%s\0' `+line).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// forSconce has the scripts of the image do what Apptainer's commands do: a command of its own would go before the runscript.
func (c asked) forSconce() []string {
	if app, isApp := strings.CutPrefix(c.verb, "app "); isApp {
		return slices.Concat([]string{"run", "-e", "SINGULARITY_APPNAME=" + app, "x.sif", "/.singularity.d/actions/run"}, c.args)
	}
	if c.verb == "run" && len(c.args) == 0 {
		return []string{"run", "x.sif"}
	}
	return slices.Concat([]string{"run", "x.sif", "/.singularity.d/actions/" + c.verb}, c.args)
}

func (c asked) forApptainer() []string {
	if app, isApp := strings.CutPrefix(c.verb, "app "); isApp {
		return slices.Concat([]string{"run", "--app", app, "judge.sif"}, c.args)
	}
	return slices.Concat([]string{c.verb, "judge.sif"}, c.args)
}

// askApptainer wants the same of what Apptainer makes of the file.
func askApptainer(t *testing.T, p *place, buildArgs []string, expect string) {
	t.Helper()
	// The user of the tests has no further ids, and the root no C library, by which fakeroot pretends to have them.
	r := p.sconce(slices.Concat([]string{"build", "--ignore-fakeroot-command", "--no-https"}, buildArgs, []string{"judge.sif", "x.def"})...)
	if text, refused := strings.CutPrefix(expect, "! "); refused {
		if r.code == 0 || !strings.Contains(r.stderr, strings.TrimSpace(text)) {
			t.Errorf("Apptainer: want an error with %s: %v", text, r)
		}
		return
	}
	if r.code != 0 {
		t.Fatalf("Apptainer: %v", r)
	}
	for _, c := range readAsked(t, expect) {
		cmd := p.command(c.forApptainer()...)
		var stdout bytes.Buffer
		cmd.Stdout = &stdout
		_ = cmd.Run() // its code is compared
		if stdout.String() != c.out || cmd.ProcessState.ExitCode() != c.code {
			t.Errorf("Apptainer's %v ended with code %d and\n%s\nwant code %d and\n%s", c, cmd.ProcessState.ExitCode(), &stdout, c.code, c.out)
		}
	}
}
