package engine_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/tooltest"
)

// The example with flash-attn, DeepSpeed and apex is locked and planned with its own files, from stand-ins for what they name on this
// machine: each is compiled against the torch of the first file, with the variables of that file, and nothing of it is run.
func TestCondaExample(t *testing.T) {
	locktest.UV(t)
	minor := condatest.PythonMinor(t) // uv would look for another one, and bring it
	channel := condatest.NewChannel(t,
		condatest.Package{Name: "python", Version: condatest.PythonVersion(t), Build: "0_cpython", Subdir: condatest.Subdir(), Files: map[string]condatest.File{"bin/python" + minor: {Data: "stands for it\n"}}},
		condatest.Package{Name: "pip", Version: "25.0", Noarch: "generic"},
	).Serve(t)
	index := locktest.NewIndex(t)
	for name, version := range map[string]string{
		"torch": "2.7.0", "transformers": "4.53.0", "accelerate": "1.8.1", "bitsandbytes": "0.46.0", "einops": "0.8.1", "hjson": "3.1.0", "msgpack": "1.1.1",
		"ninja": "1.11.1", "numpy": "2.3.1", "packaging": "25.0", "psutil": "7.0.0", "py_cpuinfo": "9.0.0", "pydantic": "2.11.7", "tqdm": "4.67.1", "setuptools": "80.9.0", "wheel": "0.45.1",
	} {
		index.Add(t, locktest.Wheel{Name: name, Version: version})
	}
	index.AddFile("flash_attn-2.8.3.tar.gz", source(t, "flash_attn", "2.8.3"))
	index.AddFile("deepspeed-0.17.5.tar.gz", source(t, "deepspeed", "0.17.5"))
	apex := repository(t, "25.09", map[string]string{"setup.py": "raise SystemExit('nobody runs this')\n", "PKG-INFO": "Metadata-Version: 2.1\nName: apex\nVersion: 0.1\n"})

	dir := t.TempDir()
	t.Setenv(reach.Variable, dir+":"+apex) // the examples are in one repository
	replace := strings.NewReplacer("3.12", minor, "  - conda-forge\n", "  - "+channel.URL+"\n  - nodefaults\n", "      - --extra-index-url https://download.pytorch.org/whl/cu128\n", "",
		"      - --extra-index-url https://download.pytorch.org/whl/cu126\n", "",
		"https://github.com/NVIDIA/apex", "file://"+apex, "docker://nvcr.io/nvidia/cuda:12.8.1-devel-ubuntu24.04", "tar:root.tar")
	const example = "pytorch-conda"
	for _, name := range []string{"cotainr/conda_envs/pytorch_success.yml", "cotainr/conda_envs/extensions.yml", "cotainr/conda_envs/base_pytorch.yml", example + "/" + recipe.FileName} {
		text := read(t, filepath.Join("../../examples", name))
		local := replace.Replace(text)
		if strings.Contains(local, "://") && !strings.Contains(local, "http://127.") && !strings.Contains(local, "file://") {
			t.Errorf("%s names what is not on this machine:\n%s", name, local)
		}
		locktest.Write(t, dir, map[string]string{name: local})
	}
	machine := map[string]uint16{"amd64": locktest.AMD64, "arm64": locktest.ARM64}[runtime.GOARCH]
	locktest.Write(t, dir, map[string]string{example + "/root.tar": string(locktest.Base{Machine: machine}.Tar(t)), example + "/uv.toml": "[[index]]\nurl = \"" + index.URL + "\"\ndefault = true\n"})

	r, err := engine.LoadRecipe(filepath.Join(dir, example), engine.Changes{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := newSession(t).Plan(t.Context(), r, engine.PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	variables := map[string]map[string]string{
		"flash-attn": {"FLASH_ATTENTION_FORCE_BUILD": "TRUE", "FLASH_ATTN_CUDA_ARCHS": "90"},
		"deepspeed":  {"DS_BUILD_OPS": "1", "DS_BUILD_CCL_COMM": "0"},
		"apex":       {"APEX_CPP_EXT": "1", "APEX_CUDA_EXT": "1"},
	}
	seen := map[string]bool{}
	for _, step := range p.Steps {
		c, ok := step.Op.(*plan.Compile)
		if !ok {
			continue
		}
		name := c.Package.Name
		seen[name] = true
		if c.Package.Isolated || !strings.Contains(strings.Join(c.Package.Against, " "), "torch") {
			t.Errorf("%s is compiled against %q, isolated: %t", name, c.Package.Against, c.Package.Isolated)
		}
		for key, want := range variables[name] {
			if got := c.Package.Env[key]; got != want {
				t.Errorf("%s: %s is %q, want %q", name, key, got, want)
			}
		}
		if c.Package.Env["TORCH_CUDA_ARCH_LIST"] != "9.0" || !strings.HasSuffix(c.Package.Env["CPATH"], "/nvidia/cudnn/include") {
			t.Errorf("%s: %q", name, c.Package.Env)
		}
	}
	for name := range variables {
		if !seen[name] {
			t.Errorf("%s is not compiled", name)
		}
	}

	// The file with PyTorch alone has the release that it names, though there is a newer one.
	index.Add(t, locktest.Wheel{Name: "torch", Version: "2.6.0"})
	locktest.Write(t, dir, map[string]string{
		example + "/" + recipe.FileName: "name = \"base\"\n[base]\nimage = \"tar:root.tar\"\n[conda]\nenvironment = [\"../cotainr/conda_envs/base_pytorch.yml\"]\n",
	})
	l, err := lockIn(t, newSession(t), filepath.Join(dir, example), engine.LockOptions{Upgrade: true})
	if err != nil {
		t.Fatal(err)
	}
	var has []string
	for _, p := range l.Conda.Packages {
		has = append(has, p.Name)
	}
	for _, w := range l.Wheels {
		has = append(has, w.Name+" "+w.Version)
	}
	if got := strings.Join(has, ", "); got != "pip, python, torch 2.6.0" {
		t.Errorf("PyTorch alone is %s", got)
	}
}

// source packs a source distribution that nobody may run.
func source(t *testing.T, name, version string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for file, text := range map[string]string{
		"PKG-INFO": "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n", "setup.py": "raise SystemExit('nobody runs this')\n",
	} {
		if err := w.WriteHeader(&tar.Header{Name: name + "-" + version + "/" + file, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// repository makes a repository of git with a tag.
func repository(t *testing.T, tag string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	locktest.Write(t, dir, files)
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"commit", "-q", "-m", "all"}, {"tag", tag}} {
		cmd := exec.Command(tooltest.Path(t, "git"), args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	return dir
}
