package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// targets are what popular images have to be fine for: each runtime, with a processor, a driver and a C library that many have.
var targets = []string{
	"",
	"--gpu 8.0 --driver 580.65.06 --glibc 2.31 --cpu-level 3 --runtime apptainer --fabric infiniband",
	"--gpu 9.0 --driver 580.65.06 --glibc 2.34 --cpu-level 3 --runtime pyxis --fabric infiniband --pmi pmix",
	"--gpu 9.0 --driver 580.65.06 --glibc 2.34 --cpu-level 3 --runtime enroot --fabric slingshot --mpi mpich --pmi cray",
	"--gpu 9.0 --driver 580.65.06 --glibc 2.31 --cpu-level 3 --runtime container-engine --fabric slingshot",
	"--gpu 9.0 --driver 580.65.06 --glibc 2.39 --cpu-level 3 --runtime podman --fabric ethernet",
}

// Packages as their index has them, in an image as anybody builds it, are found fine for every kind of machine.
func TestCleanStack(t *testing.T) {
	begin(t)
	tooltest.Path(t, "uv")
	p := newPlace(t, ordinary(t))
	newIndex(t).use(p)
	p.write("app/sconce.toml", recipe(base(t).ref, everything))
	p.must("lock", "app")
	p.build("--locked", "app")
	p.must("copy", "app:1", "app.sqsh")
	for _, ref := range []string{"app:1", "app.sqsh"} {
		for _, target := range targets {
			wantClean(t, p, ref, target)
		}
	}
}

// wantClean fails when something is found in an image that is more than worth knowing.
func wantClean(t *testing.T, p *place, ref, target string) {
	t.Helper()
	v := p.check(0, append([]string{ref}, strings.Fields(target)...)...)
	for _, f := range v.Findings {
		if f.Severity != "note" {
			t.Errorf("%s, %s: %s of %s: %s (%s)", ref, target, f.Severity, f.Rule, f.Message, strings.Join(f.Seen, ", "))
		}
	}
}

// sitesEnv names directories of installed packages, parted by colons, such as a whole PyTorch.
const sitesEnv = "SCONCE_TEST_SITES"

// systemLibraries are those of the C and C++ compilers, which every distribution has.
var systemLibraries = []string{
	"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libgcc_s.so.1", "libstdc++.so.6", "libgomp.so.1", "libz.so.1",
}

// TestCleanSites shows what is found in large stacks, on this machine's libraries. For a machine that they were made for there are no
// errors.
func TestCleanSites(t *testing.T) {
	begin(t)
	sites := os.Getenv(sitesEnv)
	if sites == "" {
		t.Skip(sitesEnv + " is not set")
	}
	p := newPlace(t, nil)
	b := corpusBinaries(t)
	for dir := range strings.SplitSeq(sites, ":") {
		name := filepath.Base(dir)
		root := p.path(name)
		join(b.base(), b.python(), systemFiles(t), files{"usr/local/bin/python3.12": b.prog("python-linked")}).toDir(t, root)
		inside := filepath.Join(root, strings.TrimSuffix(site, "/"))
		do(t, "mkdir", "-p", inside)
		do(t, "cp", "-rlT", dir, inside)
		ref := p.path(name + ".sqsh")
		do(t, "mksquashfs", root, ref, "-quiet", "-no-progress", "-comp", "lz4")
		do(t, "rm", "-r", root)
		for _, target := range targets {
			v := p.check(0, append([]string{ref}, strings.Fields(target)...)...)
			for _, f := range v.Findings {
				t.Logf("%s, %s: %s of %s: %s", name, target, f.Severity, f.Rule, f.Message)
			}
		}
		do(t, "rm", ref)
	}
}

func systemFiles(t *testing.T) files {
	t.Helper()
	all := files{}
	for _, name := range systemLibraries {
		data, err := os.ReadFile("/" + multi + name)
		if err != nil {
			tooltest.Missing(t, "%v", err)
		}
		all[multi+name] = text(string(data))
	}
	return all
}
