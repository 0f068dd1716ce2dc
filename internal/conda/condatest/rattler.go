package condatest

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"sconce.dev/sconce/internal/tooltest"
)

// The releases of rattler's Python packages that the tests are written against.
const (
	Rattler      = "py-rattler==0.28.0"
	RattlerBuild = "py-rattler-build==0.73.0"
)

//go:embed install.py
var installScript string

//go:embed build.py
var buildScript string

// brought has, by their names, whether packages are in uv's cache.
var brought sync.Map

// Bring has uv bring packages of the index into its cache, once in a process. What is there is asked of nobody, and an index that is
// out of reach for a moment is asked again; where it stays so, the test is skipped or fails as [tooltest.Missing] says.
func Bring(t testing.TB, packages ...string) {
	t.Helper()
	if _, err := exec.LookPath("uv"); err != nil {
		tooltest.Missing(t, "%v", err)
	}
	once, _ := brought.LoadOrStore(strings.Join(packages, " "), sync.OnceValue(func() (err error) {
		for try, args := range [][]string{{"--offline"}, nil, nil, nil} {
			time.Sleep(time.Duration(max(0, try-1)) * 5 * time.Second)
			cmd := exec.Command("uv", append(append([]string{"run"}, args...), withPackages(packages, "-c", "pass")...)...)
			cmd.Dir = os.TempDir()
			var text []byte
			if text, err = cmd.CombinedOutput(); err == nil {
				return nil
			}
			err = fmt.Errorf("uv brings no %q: %w\n%s", packages, err, text)
		}
		return err
	}))
	if err := once.(func() error)(); err != nil {
		tooltest.Missing(t, "%v", err)
	}
}

// withPackages are the arguments of uv run that start a Python with packages.
func withPackages(packages []string, args ...string) []string {
	command := []string{"--quiet", "--no-project", "--python", ">=3.10"}
	for _, p := range packages {
		command = append(command, "--with", p)
	}
	return append(append(command, "python"), args...)
}

// pythonCommand is a command that runs a Python script with packages that [Bring] has brought: without a network.
func pythonCommand(t testing.TB, packages []string, script string, args ...string) *exec.Cmd {
	t.Helper()
	Bring(t, packages...)
	dir := t.TempDir()
	file := filepath.Join(dir, "script.py")
	if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("uv", append([]string{"run", "--offline"}, withPackages(packages, append([]string{file}, args...)...)...)...)
	cmd.Dir = dir
	return cmd
}

// Python runs a Python script with packages of the index, through uv, and returns what it prints.
func Python(t testing.TB, packages []string, script string, args ...string) string {
	t.Helper()
	cmd := pythonCommand(t, packages, script, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, stdout.String(), stderr.String())
	}
	return stdout.String()
}

// Installer is a rattler that waits for work. To start one takes seconds on a busy machine, and one input of a fuzz target may take ten.
type Installer struct {
	in     io.Writer
	out    *bufio.Reader
	stderr bytes.Buffer // once it has ended
	end    func() error
}

// StartInstaller starts a rattler, which ends with the test.
func StartInstaller(t testing.TB) *Installer {
	t.Helper()
	cmd := pythonCommand(t, []string{Rattler}, installScript)
	i := &Installer{}
	cmd.Stderr = &i.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	i.in, i.out = in, bufio.NewReader(out)
	i.end = sync.OnceValue(func() error { return errors.Join(in.Close(), cmd.Wait()) })
	t.Cleanup(func() { _ = i.end() })
	return i
}

// Install does what the function [Install] does.
func (i *Installer) Install(t testing.TB, url, subdir, prefix, target string, specs ...string) {
	t.Helper()
	args, err := json.Marshal(append([]string{url, subdir, prefix, target, t.TempDir()}, specs...))
	if err == nil {
		_, err = fmt.Fprintf(i.in, "%s\n", args)
	}
	for line := ""; err == nil && line != "done\n"; {
		line, err = i.out.ReadString('\n')
	}
	if err != nil {
		ended := i.end()
		t.Fatalf("rattler installs %q: %v, %v\n%s", specs, err, ended, i.stderr.String())
	}
}

// Solve returns the addresses of the packages that rattler chooses in the channel at url for specs on linux-64 or linux-aarch64.
func Solve(t testing.TB, url, subdir string, specs ...string) []string {
	t.Helper()
	out := Python(t, []string{Rattler}, installScript, append([]string{url, subdir, "", "", t.TempDir()}, specs...)...)
	return strings.Fields(out)
}

// Install lets rattler install specs from the channel at url into the directory target, with files that name prefix as the place
// where they are. It returns the addresses of the packages.
func Install(t testing.TB, url, subdir, prefix, target string, specs ...string) []string {
	t.Helper()
	out := Python(t, []string{Rattler}, installScript, append([]string{url, subdir, prefix, target, t.TempDir()}, specs...)...)
	return strings.Fields(out)
}

// Build builds recipes of rattler-build and adds their packages to the channel. A recipe that compiles needs patchelf, or
// "dynamic_linking: {binary_relocation: false}" under build.
func (c *Channel) Build(t testing.TB, recipes ...string) {
	t.Helper()
	out := Python(t, []string{RattlerBuild}, buildScript, append([]string{t.TempDir()}, recipes...)...)
	for _, path := range strings.Fields(out) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		c.add(t, describe(t, filepath.Base(path), data), data)
	}
	c.index(t)
}

// describe reads info/index.json of a .conda archive.
func describe(t testing.TB, file string, archive []byte) Package {
	t.Helper()
	p, err := readIndex(archive)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return p
}

func readIndex(archive []byte) (Package, error) {
	z, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		return Package{}, err
	}
	for _, f := range z.File {
		if !strings.HasPrefix(f.Name, "info-") {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return Package{}, err
		}
		d, err := zstd.NewReader(r)
		if err != nil {
			return Package{}, err
		}
		defer d.Close()
		return indexOf(tar.NewReader(d))
	}
	return Package{}, fmt.Errorf("it has no info")
}

func indexOf(r *tar.Reader) (Package, error) {
	for {
		h, err := r.Next()
		if err != nil {
			return Package{}, err
		}
		if h.Name != "info/index.json" {
			continue
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return Package{}, err
		}
		var index struct {
			Name, Version, Build, Subdir, License string
			BuildNumber                           int `json:"build_number"`
			Depends, Constrains                   []string
			Noarch                                string
			Timestamp                             int64
			SitePackages                          string `json:"python_site_packages_path"`
		}
		err = json.Unmarshal(data, &index)
		return Package{
			Name: index.Name, Version: index.Version, Build: index.Build, BuildNumber: index.BuildNumber, Subdir: index.Subdir,
			Depends: index.Depends, Constrains: index.Constrains, Noarch: index.Noarch, License: index.License,
			Timestamp: index.Timestamp, SitePackages: index.SitePackages,
		}, err
	}
}
