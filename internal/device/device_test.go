package device

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/tooltest"
)

// machine makes the file system of a host: files by name, with their content; "-> x" makes a link.
func machine(t *testing.T, files map[string]string) Host {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(target, file)
		} else {
			err = os.WriteFile(file, []byte(content), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("LD_LIBRARY_PATH", "")
	t.Setenv("PATH", "/usr/bin")
	return Host{Root: root}
}

const procVersion = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x@y)\nGCC version:  gcc version 15.3.0\n"

func driver(more map[string]string) map[string]string {
	files := map[string]string{
		"/proc/driver/nvidia/version":                       procVersion,
		"/proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: NVIDIA H200\nDevice Minor: \t 1\n",
		"/proc/driver/nvidia/gpus/0000:02:00.0/information": "Model: NVIDIA H200\nDevice Minor: \t 0\n",
		"/dev/nvidia0": "", "/dev/nvidia1": "", "/dev/nvidiactl": "", "/dev/nvidia-uvm": "",
		"/usr/lib64/libcuda.so.580.159.04":      "cuda",
		"/usr/lib64/libcuda.so.1":               "-> libcuda.so.580.159.04",
		"/usr/lib64/libcuda.so":                 "-> libcuda.so.1",
		"/usr/lib64/libcuda.so.550.1":           "old",
		"/usr/lib64/libnvidia-ml.so.580.159.04": "ml",
		"/usr/lib64/libGLX_nvidia.so.0":         "graphics",
		"/usr/lib64/libnvidia-cfg.so":           "-> nowhere",
		"/usr/bin/nvidia-smi":                   "smi",
	}
	for k, v := range more {
		files[k] = v
	}
	return files
}

// targets returns SOURCE TARGET of each bind, without the root of the machine, "ro" behind those that are.
func targets(h Host, e *Edits) []string {
	var lines []string
	for _, b := range e.Binds {
		line := strings.TrimPrefix(b.Source, h.Root) + " " + b.Target
		if b.ReadOnly {
			line += " ro"
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

func TestDriver(t *testing.T) {
	h := machine(t, driver(nil))
	e, err := h.Find("all")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/dev/nvidia-uvm /dev/nvidia-uvm",
		"/dev/nvidia0 /dev/nvidia0",
		"/dev/nvidia1 /dev/nvidia1",
		"/dev/nvidiactl /dev/nvidiactl",
		"/usr/bin/nvidia-smi /usr/bin/nvidia-smi ro",
		"/usr/lib64/libcuda.so.550.1 /usr/local/nvidia/lib64/libcuda.so.550.1 ro",
		"/usr/lib64/libcuda.so.580.159.04 /usr/local/nvidia/lib64/libcuda.so ro",
		"/usr/lib64/libcuda.so.580.159.04 /usr/local/nvidia/lib64/libcuda.so.1 ro",
		"/usr/lib64/libcuda.so.580.159.04 /usr/local/nvidia/lib64/libcuda.so.580.159.04 ro",
		"/usr/lib64/libnvidia-ml.so.580.159.04 /usr/local/nvidia/lib64/libnvidia-ml.so.580.159.04 ro",
	}
	if diff := cmp.Diff(want, targets(h, e)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{libraryDir}, e.LibraryDirs); diff != "" {
		t.Error(diff)
	}
}

// TestNumbers: GPUs are numbered in the order of the bus, not of the device files.
func TestNumbers(t *testing.T) {
	h := machine(t, driver(nil))
	e, err := h.Find("0")
	if err != nil {
		t.Fatal(err)
	}
	lines := targets(h, e)
	if !slices.Contains(lines, "/dev/nvidia1 /dev/nvidia1") || slices.Contains(lines, "/dev/nvidia0 /dev/nvidia0") {
		t.Error(lines)
	}
	for _, bad := range []string{"2", "-1", "x", "", "0,", "0 1"} {
		if _, err := h.Find(bad); fault.CodeOf(err) != fault.CodeUsage || fault.HintOf(err) == "" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestSonames: a library is found by the name that programs ask for, also where ldconfig has made no link.
func TestSonames(t *testing.T) {
	gcc := tooltest.Path(t, "gcc")
	h := machine(t, driver(nil))
	lib := filepath.Join(h.Root, "/usr/lib64/libnvidia-ml.so.580.159.04")
	if out, err := exec.Command(gcc, "-shared", "-nostdlib", "-Wl,-soname,libnvidia-ml.so.1", "-o", lib, "-x", "c", "/dev/null").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	e, err := h.Find("all")
	if err != nil {
		t.Fatal(err)
	}
	if want := "/usr/lib64/libnvidia-ml.so.580.159.04 /usr/local/nvidia/lib64/libnvidia-ml.so.1 ro"; !slices.Contains(targets(h, e), want) {
		t.Error(targets(h, e))
	}
}

func TestMissing(t *testing.T) {
	if _, err := machine(t, map[string]string{"/etc/x": ""}).Find("all"); !errors.Is(err, fs.ErrNotExist) || fault.HintOf(err) == "" {
		t.Error(err)
	}
	files := driver(nil)
	delete(files, "/usr/lib64/libcuda.so.580.159.04")
	if _, err := machine(t, files).Find("all"); err == nil || !strings.Contains(err.Error(), "libcuda.so.580.159.04") {
		t.Error(err)
	}
}

const specification = `
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=void]
  deviceNodes:
  - path: /dev/nvidiactl
  - path: /dev/not-here
  mounts:
  - hostPath: /usr/lib64/libcuda.so.580.159.04
    containerPath: /usr/lib64/libcuda.so.580.159.04
    options: [ro, nosuid, nodev, bind]
  - hostPath: /usr/bin/nvidia-smi
    containerPath: /usr/bin/nvidia-smi
    options: [ro, nosuid, nodev, bind]
  hooks:
  - hookName: createContainer
    path: /usr/bin/nvidia-ctk
    args: [nvidia-ctk, hook, create-symlinks, --link, "libcuda.so.580.159.04::/usr/lib64/libcuda.so.1", --link, "../../etc/passwd::/etc/shadow"]
  - hookName: createContainer
    path: /usr/bin/nvidia-ctk
    args: [nvidia-ctk, hook, update-ldcache, --folder, /usr/lib64]
devices:
- name: "0"
  containerEdits:
    deviceNodes: [{path: /dev/nvidia0, hostPath: /dev/nvidia1}]
- name: all
  containerEdits:
    deviceNodes: [{path: /dev/nvidia0}, {path: /dev/nvidia1}]
`

func TestCDI(t *testing.T) {
	h := machine(t, driver(map[string]string{"/etc/cdi/nvidia.yaml": specification}))
	e, err := h.Find("nvidia.com/gpu=0")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/dev/nvidia1 /dev/nvidia0",
		"/dev/nvidiactl /dev/nvidiactl",
		"/usr/bin/nvidia-smi /usr/bin/nvidia-smi ro",
		"/usr/lib64/libcuda.so.580.159.04 /usr/lib64/libcuda.so.1 ro",
		"/usr/lib64/libcuda.so.580.159.04 /usr/lib64/libcuda.so.580.159.04 ro",
	}
	if diff := cmp.Diff(want, targets(h, e)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"/usr/lib64"}, e.LibraryDirs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"NVIDIA_VISIBLE_DEVICES=void"}, e.Env); diff != "" {
		t.Error(diff)
	}
	for request, has := range map[string]string{"all": "/dev/nvidia0 /dev/nvidia0", "0": "/dev/nvidia1 /dev/nvidia0"} {
		if e, err := h.Find(request); err != nil || !slices.Contains(targets(h, e), has) {
			t.Errorf("%s: %v %v", request, e, err)
		}
	}
	if _, err := h.Find("nvidia.com/gpu=7"); err == nil || !strings.Contains(fault.HintOf(err), "nvidia.com/gpu=all") {
		t.Error(err, fault.HintOf(err))
	}
}

// TestCDIPriority: a specification in the later directory goes first, and "all" is every device where none is called so.
func TestCDIPriority(t *testing.T) {
	h := machine(t, driver(map[string]string{
		"/etc/cdi/a.yaml":     "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices: [{name: '0', containerEdits: {env: [FROM=etc]}}]",
		"/var/run/cdi/b.json": `{"cdiVersion":"0.6.0","kind":"nvidia.com/gpu","devices":[{"name":"0","containerEdits":{"env":["FROM=run"]}},{"name":"1","containerEdits":{"env":["AND=1"]}}]}`,
		"/etc/cdi/README":     "no specification",
	}))
	e, err := h.Find("all")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"FROM=run", "AND=1"}, e.Env); diff != "" {
		t.Error(diff)
	}
}

func TestDamagedSpecification(t *testing.T) {
	for _, text := range []string{"", "{", "kind: x", "cdiVersion: 1\nkind: nvidia.com/gpu", "devices: 7", "cdiVersion: [a"} {
		h := machine(t, driver(map[string]string{"/etc/cdi/x.yaml": text}))
		if _, err := h.Find("all"); err == nil || !strings.Contains(err.Error(), "x.yaml") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestAMD(t *testing.T) {
	h := machine(t, map[string]string{"/dev/kfd": "", "/dev/dri/renderD128": ""})
	e, err := h.Find("0,1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/dev/dri /dev/dri", "/dev/kfd /dev/kfd"}, targets(h, e)); diff != "" || e.Env[0] != "ROCR_VISIBLE_DEVICES=0,1" {
		t.Error(diff, e.Env)
	}
}

func FuzzParseSpec(f *testing.F) {
	f.Add([]byte(specification))
	f.Add([]byte(`{"cdiVersion":"0.6.0","kind":"a/b","devices":[{"name":"0"}]}`))
	f.Fuzz(func(_ *testing.T, data []byte) {
		s, err := parseSpec(data)
		if err != nil {
			return
		}
		e := &Edits{}
		e.apply(Host{Root: "/nowhere"}, &s.Edits)
		for i := range s.Edits.Hooks {
			e.hook(&s.Edits.Hooks[i])
		}
	})
}
