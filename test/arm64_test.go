package test

import (
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/mirrortest"
	"sconce.dev/sconce/internal/tooltest"
)

var sharedARM once[string]

// armRoot is a Debian for arm64 with Python, as a tar, made without running a program of it: packages are unpacked, not configured.
func armRoot(t *testing.T) string {
	t.Helper()
	return sharedARM.get(t, func(t *testing.T) string {
		p := placeIn(t, filepath.Join(workshop, "arm64"), nil)
		out := p.path("arm64.tar")
		mmdebstrap := tooltest.Path(t, "mmdebstrap")
		text, err := mirrortest.Run(func() *exec.Cmd {
			cmd := exec.Command(mmdebstrap, "--variant=extract", "--architectures=arm64", "--include=python3,python3-minimal,libpython3-stdlib", "bookworm", out)
			cmd.Env = append(os.Environ(), "TMPDIR="+p.tmp(), "DEBIAN_FRONTEND=noninteractive")
			return cmd
		})
		if err != nil {
			t.Fatalf("mmdebstrap: %v\n%s", err, text)
		}
		return out
	})
}

// An image for arm64 is locked and built on amd64: nothing of it runs.
func TestImageForAnotherArchitecture(t *testing.T) {
	begin(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("this machine is no amd64")
	}
	tooltest.Path(t, "uv")
	first, ix := newPlace(t, nil), newIndex(t)
	ix.use(first)
	first.write("app/sconce.toml", recipe("tar:"+armRoot(t), []string{"numpy", "markupsafe", "six"}, "[target]", `platform = "linux/arm64"`))
	first.must("lock", "app")
	wantARMWheels(t, first.path("app"))

	r := first.must("build", "--locked", "app", "-o", "oci:"+first.path("out"), "-o", "dir:"+first.path("root"))
	digest := digestOf(t, r)
	wantByteCode(t, first, r)
	wantMachine(t, first.path("root/opt/venv/lib/python3.11/site-packages"), elf.EM_AARCH64)

	second := newPlace(t, ordinary(t))
	second.take(first.path("app"), "again")
	if again := second.build("--locked", "again", "-o", "oci:"+second.path("out")); again != digest {
		t.Errorf("digests differ: %s, %s", digest, again)
	}
	wantSameFiles(t, first.path("out"), second.path("out"))

	var config struct{ Architecture, OS string }
	if err := json.Unmarshal([]byte(skopeo(t, "inspect", "--config", "oci:"+first.path("out"))), &config); err != nil {
		t.Fatal(err)
	}
	if config.Architecture != "arm64" || config.OS != "linux" {
		t.Errorf("the image says that it is for %s on %s", config.OS, config.Architecture)
	}
	first.env = []string{"PATH=" + first.path("none")} // without an emulator
	trees := namesIn(t, filepath.Join(first.store, "trees-v1"))
	first.fails(1, []string{"the image is for linux/arm64, and this machine is linux/amd64"}, "run", "app:1", "--", "python", "-V")
	if after := namesIn(t, filepath.Join(first.store, "trees-v1")); !slices.Equal(after, trees) {
		t.Errorf("before it was refused, it was unpacked: %q, and then %q", trees, after)
	}
}

// Where there is an emulator on PATH, of which the machine's kernel knows nothing, a base from packages for arm64 is completed on amd64, steps run on
// it, and so does the image. What comes of it is the same for root as for a user without any privilege, by a Containerfile too.
func TestProgramsForAnotherArchitecture(t *testing.T) {
	begin(t)
	if testing.Short() {
		t.Skip("bootstraps, and every program by an emulator")
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("this machine is no amd64")
	}
	tooltest.Path(t, "qemu-aarch64-static")
	first := newPlace(t, ordinary(t))
	r := first.must("info")
	if strings.Contains(r.stdout, "programs for linux/arm64 run, by an emulator that is registered") {
		t.Skip("this machine has an emulator registered for everybody")
	}
	if !strings.Contains(r.stdout, "programs for linux/arm64 run, by /usr/bin/qemu-aarch64-static\n") {
		tooltest.Missing(t, "a kernel that lets a sandbox have an emulator of its own: %v", r)
	}
	first.write("app/sconce.toml", `name = "app"
version = "1"
[base]
bootstrap = { suite = "bookworm", variant = "essential" }
[target]
platform = "linux/arm64"
[[step]]
run = "{ uname -m; dpkg --print-architecture; } >/is && chown www-data:mail /is && su -s /bin/sh www-data -c 'cat /is'"
`)
	first.must("lock", "app")
	env := first.env
	first.env = []string{"PATH=" + first.path("none")}
	first.fails(1, []string{"the packages for arm64 cannot be configured on this machine", "put qemu-aarch64-static on PATH"}, "build", "--locked", "app")
	first.env = env
	first.must("build", "--locked", "app", "-o", "oci:"+first.path("base"))
	if r := first.must("run", "app:1", "--", "/bin/sh", "-c", "uname -m; cat /is"); r.stdout != "aarch64\naarch64\narm64\n" {
		t.Errorf("it printed %q", r.stdout)
	}

	second, digest := newPlace(t, nil), ""
	for _, p := range []*place{first, second} {
		p.write("on/Containerfile", "FROM oci:"+first.path("base")+"\nRUN test $(stat -c %U:%G /is) = www-data:mail && dpkg-query -W dpkg >/dpkg && chown mail /dpkg\nUSER www-data\nRUN test $(id -un) = www-data\nCMD [\"uname\", \"-m\"]\n")
		got := p.build("--platform", "linux/arm64", "on", "-t", "on:1")
		if digest != "" && got != digest {
			t.Errorf("digests differ: %s, %s", digest, got)
		}
		digest = got
		if r := p.must("run", "on:1"); r.stdout != "aarch64\n" {
			t.Errorf("it printed %q", r.stdout)
		}
	}
}

// namesIn lists a directory.
func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// wantByteCode: a Python of this machine compiles, if there is one of the image's minor version.
func wantByteCode(t *testing.T, p *place, r result) {
	t.Helper()
	_, err := os.Stat("/usr/bin/python3.11")
	if os.IsNotExist(err) {
		if !strings.Contains(r.stderr, "warning: no byte code is compiled") || !strings.Contains(r.stderr, "bytecode = false") {
			t.Errorf("no warning that there is no byte code, and how to silence it: %v", r)
		}
		return
	}
	if _, err := os.Stat(p.path("root/opt/venv/lib/python3.11/site-packages/__pycache__/six.cpython-311.pyc")); err != nil || strings.Contains(r.stderr, "byte code is compiled") {
		t.Errorf("%v; no warning is due: %v", err, r)
	}
}

// wantARMWheels looks at the files of a lock: the compiled packages are there for arm64.
func wantARMWheels(t *testing.T, dir string) {
	t.Helper()
	l, err := os.ReadFile(filepath.Join(dir, "sconce.lock"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"numpy-2.2.6-cp311-cp311-", "markupsafe-3.0.4-cp311-cp311-"} {
		_, rest, _ := strings.Cut(string(l), want)
		file, _, _ := strings.Cut(rest, ".whl")
		if !strings.HasSuffix(file, "aarch64") {
			t.Errorf("the lock has no wheel %s…aarch64.whl:\n%s", want, l)
		}
	}
	if strings.Contains(string(l), "x86_64") {
		t.Errorf("the lock has something for x86_64:\n%s", l)
	}
}

// wantMachine reads the shared libraries below dir.
func wantMachine(t *testing.T, dir string, want elf.Machine) {
	t.Helper()
	seen := 0
	for _, pattern := range []string{"numpy/_core/*.so", "markupsafe/*.so"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			f, err := elf.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			if f.Machine != want {
				t.Errorf("%s is for %v", name, f.Machine)
			}
			f.Close()
			seen++
		}
	}
	if seen < 2 {
		t.Errorf("%d shared libraries in %s", seen, dir)
	}
}
