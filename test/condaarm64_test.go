package test

import (
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/tooltest"
)

// An environment for aarch64 is locked and put together on amd64, of a real Python and real packages, without running any of it. It has
// what rattler installs for that machine, file by file; its programs run, by an emulator.
func TestCondaForAnotherArchitecture(t *testing.T) {
	begin(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("this machine is no amd64")
	}
	tooltest.Path(t, "uv")
	emulator := tooltest.Path(t, "qemu-aarch64")
	python := condatest.PythonIn(t, armRoot(t), "linux-aarch64")
	minor := python.Version[:strings.LastIndexByte(python.Version, '.')]
	if minor != condatest.PythonMinor(t) {
		t.Skipf("the wheels are for Python %s, and the Debian has %s", condatest.PythonMinor(t), minor)
	}
	packages := append([]condatest.Package{python}, repacked(t, "linux-aarch64")...)
	native := condatest.Package{Name: "numpy", Version: "99", Subdir: "linux-64"} // which nobody may take
	server := condatest.NewChannel(t, append(slices.Clone(packages), native)...).Serve(t)
	recipe := "name = \"app\"\nversion = \"1\"\n[base]\nimage = \"tar:" + armRoot(t) + "\"\n[target]\nplatform = \"linux/arm64\"\n" +
		"[conda]\npackages = [" + condaNames(packages) + "]\nchannels = [\"" + server.URL + "\"]\n"
	p := newPlace(t, nil)
	p.write("app/sconce.toml", recipe)
	p.must("build", "app", "-o", "dir:"+p.path("root"), "-o", p.path("app.sif"))
	if lock, err := os.ReadFile(p.path("app/conda-lock.yml")); err != nil || strings.Contains(string(lock), "linux-64/") || !strings.Contains(string(lock), "/linux-aarch64/python-"+python.Version) {
		t.Errorf("the lock, %v:\n%s", err, lock)
	}

	env := p.path("root/opt/conda")
	for name, file := range wantAsRattler(t, env, server, "linux-aarch64", packages) {
		if !strings.HasSuffix(name, ".pyc") { // made by a Python of this machine, where it has this one
			t.Errorf("%s is there: %.100q", name, file)
		}
	}
	site := filepath.Join(env, "lib/python"+minor+"/site-packages")
	wantMachine(t, site, elf.EM_AARCH64)
	pyc, err := os.ReadFile(filepath.Join(site, "numpy/__pycache__/version.cpython-"+strings.ReplaceAll(minor, ".", "")+".pyc"))
	if err != nil || binary.LittleEndian.Uint32(pyc[4:]) != 1 {
		t.Errorf("byte code of numpy is not good whatever the times of files are: %v, % x", err, pyc[:min(len(pyc), 16)])
	}
	const show = "import sys, platform, numpy, markupsafe._speedups, idna; print(platform.machine(), sys.prefix, numpy.arange(4).sum(), numpy.__version__)"
	got, err := exec.Command(emulator, "-L", p.path("root"), filepath.Join(env, "bin/python"), "-I", "-B", "-c", show).CombinedOutput()
	if want := "aarch64 " + env + " 6 2.2.6\n"; err != nil || string(got) != want {
		t.Errorf("numpy says %q, %v, want %q", got, err, want)
	}

	p.wantSound()
	p.wantTidy()
}
