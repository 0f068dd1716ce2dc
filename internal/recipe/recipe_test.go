package recipe

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/job"
)

var update = flag.Bool("update", false, "write the golden files, the schema and the tables of docs/recipe.md")

// checkGolden compares got with the file, or writes it with -update.
func checkGolden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is stale; go test ./internal/recipe -update writes it (-file +now):\n%s", path, diff)
	}
}

// render is what a terminal would show of an error.
func render(err error) string {
	var b strings.Builder
	for _, p := range mistakes(err) {
		fmt.Fprintf(&b, "%s\n%s\n", p.Error(), p.Excerpt())
		if p.Hint() != "" {
			fmt.Fprintf(&b, "hint: %s\n", p.Hint())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestErrors(t *testing.T) {
	files, err := filepath.Glob("testdata/errors/*.toml")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".toml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = parseVariant(data, FileName, "testdata/dir", "")
			if len(mistakes(err)) == 0 {
				t.Fatalf("no problem found, err = %v", err)
			}
			if got := fault.CodeOf(err); got != fault.CodeUsage {
				t.Errorf("exit code %d, want %d", got, fault.CodeUsage)
			}
			checkGolden(t, strings.TrimSuffix(file, ".toml")+".golden", render(err))
		})
	}
}

const minimal = "name = \"x\"\nbase.image = \"debian:12\"\n"

func TestLoadDefaults(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, FileName), minimal)
	r, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := &Recipe{
		Path: filepath.Join(dir, FileName), Dir: dir,
		Name: "x", Version: "latest",
		Base:   Base{Image: "debian:12"},
		Target: Target{Profile: cluster.Profile{Platform: "linux/" + runtime.GOARCH}, AnyPlatform: true},
		Image:  ImageConfig{Compression: "gzip", MaxLayers: 60},
	}
	if diff := cmp.Diff(want, r, cmpopts.IgnoreFields(Recipe{}, "Reach")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !r.Python.CompilesBytecode() {
		t.Error("byte code is not compiled by default")
	}
}

func TestLoadEverything(t *testing.T) {
	data, err := os.ReadFile("testdata/everything.toml")
	if err != nil {
		t.Fatal(err)
	}
	r, err := parseVariant(data, FileName, "testdata/dir", "")
	if err != nil {
		t.Fatal(render(err))
	}
	no := false
	want := &Recipe{
		Path: FileName, Dir: "testdata/dir",
		Name: "llm-train", Version: "25.11",
		Base: Base{Bootstrap: &Bootstrap{
			Suite: "noble", Packages: []string{"python3", "libibverbs1=44.0-2", "libc6:amd64"}, Mirror: "https://mirror.example.org/ubuntu",
			Components: []string{"main", "universe"}, Variant: "apt",
		}},
		Target: Target{
			Cluster: "clariden", Profile: cluster.Profile{
				Platform: "linux/arm64", GPU: []string{"8.0", "9.0"}, Driver: "550.54.15", Glibc: "2.31",
				Runtime: "apptainer", Fabric: "slingshot", MPI: "mpich", PMI: "pmix",
			},
		},
		System: System{Packages: []string{"git", "libibverbs1=44.0-2", "libc6:amd64", "@development-tools", "curl~8"}},
		Conda: Conda{
			Environment: []string{"requirements.txt"}, Packages: []string{"python=3.12"}, Channels: []string{"conda-forge"}, ChannelPriority: "flexible",
			Prefix: "/opt/env", Virtual: map[string]string{"__cuda": "12.9", "__archspec": ""}, LinkScripts: &[]string{}, Client: true, AcceptLicenses: true,
		},
		Python: Python{
			Packages:     []string{"numpy", "torch[opt]>=2.7,<3 ; python_version >= '3.10'", "a @ https://example.org/a-1-py3-none-any.whl"},
			Requirements: []string{"requirements.txt"}, Project: "project", TorchBackend: "cu128", Protect: &[]string{"torch"}, Bytecode: &no,
			Extras: []string{"train"}, Groups: []string{"dev"},
			Compile: map[string]Compile{
				"flash-attn": {
					Isolation: &no, Requires: []string{"ninja", "packaging>=24"}, Env: map[string]string{"FLASH_ATTENTION_FORCE_BUILD": "TRUE"},
					MemoryPerJob: "5GiB", Jobs: 8, Base: "oci:devel", Depends: []string{"torch", "einops"},
				},
				"zope-interface": {},
			},
		},
		Source: map[string]Source{
			"libfabric": {
				URL: "https://example.org/libfabric-2.1.0.tar.bz2", SHA256: "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
				Patch: []string{"requirements.txt"},
			},
			"nccl": {Git: "https://example.org/nccl.git", Commit: "v2.27.3-1"},
			"ucx":  {Debian: "ucx=1.18.1+ds-2"},
		},
		Component: map[string]Component{
			"libfabric": {
				Packages: []string{"build-essential"}, Run: "./configure --prefix=$PREFIX && make -j$JOBS install", MemoryPerJob: "1GiB", Line: 173,
			},
			"nccl": {
				Sources: []string{"nccl", "ucx"}, Needs: []string{"libfabric"}, Run: "cd src\nmake -j$JOBS\n", Prefix: "/opt/nccl-2",
				Env: map[string]string{"CFLAGS": "-O3"}, Workdir: "src", Network: true, Line: 178,
			},
		},
		Steps: []Step{
			{
				Name: "tools", Run: "set -u\n\tmake\n", Copy: []string{"project:/opt/src", "*.txt"}, Patch: []string{"requirements.txt"},
				Env: map[string]string{"CC": "gcc-12"}, Workdir: "/opt", User: "1000:1000", Shell: []string{"/bin/bash", "-ec"},
				Mounts: []string{"cache:ccache", "bind:project:/src", "type=secret,id=token"}, Network: &no, Line: 50,
			},
			{Copy: []string{"requirements.txt:/r.txt"}, Line: 65},
		},
		Image: ImageConfig{
			Env: map[string]string{"NCCL_DEBUG": "INFO"}, Entrypoint: []string{"python"}, Cmd: []string{"-V"}, Workdir: "/w",
			Labels: map[string]string{"org.example.team": "vision"}, Volumes: []string{"/scratch"}, User: "1000:1000",
			Compression: "zstd", MaxLayers: 40,
		},
		Slim:    Slim{GPU: true, PTX: "drop-where-native", Relfatbin: "keep", Strip: true, Remove: []string{"*.a", "/usr/share/doc/**"}, PackageCaches: true},
		Check:   Check{Allow: map[string]string{"python-requirement-unmet": "never imported"}},
		Cache:   Cache{Registry: "registry.example.org/team/cache", Push: &no},
		Publish: Publish{Repository: "registry.example.org:5000/team/llm"},
		Jobs: map[string]job.Job{
			"train": {
				Nodes: 4, Time: "1-12:00:00", Launcher: "torchrun", Command: "python train.py --epochs 3", Workdir: "${HOME}/my-app",
				Mounts: []string{"${HOME}/my-app", "/datasets:/data:ro"}, Env: map[string]string{"NCCL_DEBUG": "INFO"}, Venv: "${SCRATCH}/exp.sqsh:/venv",
				Uenv: "pytorch/v2.6.0:v1", View: "default", Checkpoint: job.Checkpoint{Takes: "90s"}, Continue: "chain", WarnBefore: "5m", Array: "0-9%2",
				Dependency: "singleton", Runtime: "apptainer", TasksPerNode: 2, CPUsPerTask: 8, GPUsPerNode: new(int), Account: "g123", Partition: "debug",
				QOS: "regular", Constraint: "gpu&hbm80g", Reservation: "course", Logs: "logs", Options: []string{"--exclusive", "--mem=0"},
			},
			"debug.1": {Command: "cd /src\npython -c 'import torch'\n"},
		},
		Tests: []imagetest.Test{
			{Use: "import", Modules: []string{"torch", "numpy"}, Clusters: []string{"clariden"}},
			{
				Name: "bench", Run: "python bench.py", Files: []string{"project"}, Nodes: 2, TasksPerNode: 4, Time: "5m", Env: map[string]string{"NCCL_DEBUG": "INFO"},
				Expect: map[string]string{"busbw": ">= 90%", "time@8": "<= 5 us", "rate": "24 GB/s ± 5%"},
				Log:    []string{"Selected provider is cxi"}, NotLog: []string{"NET/Socket"}, Reader: "table", Repeat: 3, Skip: "waits for a driver",
			},
		},
	}
	if diff := cmp.Diff(want, r, cmpopts.IgnoreFields(Recipe{}, "Reach")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPlatformAliases(t *testing.T) {
	for in, want := range map[string]string{
		"amd64": "linux/amd64", "x86_64": "linux/amd64", "linux/amd64": "linux/amd64", "linux/x86_64": "linux/amd64",
		"arm64": "linux/arm64", "aarch64": "linux/arm64", "linux/aarch64": "linux/arm64", "linux/arm64/v8": "linux/arm64",
	} {
		r, err := parseVariant([]byte(minimal+"target.platform = \""+in+"\"\n"), FileName, t.TempDir(), "")
		if err != nil {
			t.Errorf("%s: %v", in, err)
		} else if r.Target.Platform != want {
			t.Errorf("%s is %s, want %s", in, r.Target.Platform, want)
		}
	}
}

func TestLoadMissing(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), FileName))
	if err == nil || fault.CodeOf(err) != fault.CodeUsage || !strings.Contains(fault.HintOf(err), "sconce init") {
		t.Errorf("err = %v, hint %q, code %d", err, fault.HintOf(err), fault.CodeOf(err))
	}
}

func TestLoadTooLarge(t *testing.T) {
	file := filepath.Join(t.TempDir(), FileName)
	write(t, file, minimal+strings.Repeat("#", maxSize))
	if _, err := Load(file); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("err = %v", err)
	}
}

func TestBaseReference(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "rootfs.tar"), "")
	parent := filepath.Dir(dir)
	for in, want := range map[string]string{
		"debian:12":                     "debian:12",
		"docker://debian:12":            "docker://debian:12",
		"registry.example.org/a/b:1":    "registry.example.org/a/b:1",
		"oci:layout":                    "oci:" + dir + "/layout",
		"oci:../layout:v1":              "oci:" + parent + "/layout:v1",
		"oci-archive:a.tar":             "oci-archive:" + dir + "/a.tar",
		"docker-archive:a.tar:team/x:1": "docker-archive:" + dir + "/a.tar:team/x:1",
		"tar:./a:b.tar":                 "tar:" + dir + "/a:b.tar",
		"dir:/abs/../root":              "dir:/root",
		"rootfs.tar":                    dir + "/rootfs.tar",
		"./absent.sqsh":                 dir + "/absent.sqsh",
		"../absent.sqsh":                parent + "/absent.sqsh",
		"":                              "",
	} {
		r := &Recipe{Dir: dir, Base: Base{Image: in}}
		if got := r.BaseReference(); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// mistakes returns those that err carries.
func mistakes(err error) []*Error {
	var many fault.Errors[*Error]
	if errors.As(err, &many) {
		return many
	}
	var one *Error
	if errors.As(err, &one) {
		return []*Error{one}
	}
	return nil
}

func TestErrorsAs(t *testing.T) {
	_, err := parseVariant([]byte("nam = \"x\"\n\n[bse]\n"), FileName, t.TempDir(), "")
	err = fmt.Errorf("load: %w", err)
	var first *Error
	if !errors.As(err, &first) || first.Line != 1 {
		t.Fatalf("first problem is %v", first)
	}
	if all := mistakes(err); len(all) < 2 {
		t.Errorf("problems: %v", all)
	}
	if got := fault.HintOf(err); got != `did you mean "name"?` {
		t.Errorf("hint %q", got)
	}
}

func TestManyProblemsAreBounded(t *testing.T) {
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, "x%d = 1\n", i)
	}
	_, err := parseVariant([]byte(b.String()), FileName, t.TempDir(), "")
	if n := len(mistakes(err)); n != maxProblems {
		t.Errorf("%d problems, want %d", n, maxProblems)
	}
}

func TestRequirementProblem(t *testing.T) {
	for _, good := range []string{
		"numpy", "numpy==1.26.4", "numpy >= 1.2, < 2", "numpy(>=1.2)", "a[b]", "a[b, c-d]==1.*", "a[]", "torch==2.7.0+cu128", "x~=1.0,",
		"a; python_version < '3.12'", "a @ file:///x/a.whl", "a[b] @ git+https://example.org/a.git@main", "zope.interface", "a===foo-bar", "a!=1!2.0",
	} {
		if message, _ := requirementProblem(good); message != "" {
			t.Errorf("%q: %s", good, message)
		}
	}
	for _, bad := range []string{
		"-r requirements.txt", "./a.whl", "a.whl", "https://example.org/a.whl", "numpy 1.2", "numpy=1.2", "a[b", "a[b,,c]", "a[-]", "a @ nowhere", "a;", "a>=",
		"a >> 1", "a(>=1", "é", "==1", "a b",
	} {
		if message, _ := requirementProblem(bad); message == "" {
			t.Errorf("%q: no problem", bad)
		}
	}
}

func TestStarter(t *testing.T) {
	for _, name := range []string{"llm-train", "My Project (2)", "", "…"} {
		data := Starter(name, false)
		r, err := parseVariant(data, FileName, t.TempDir(), "")
		if err != nil {
			t.Fatalf("%q:\n%s", name, render(err))
		}
		if r.Base.Bootstrap == nil || len(r.Python.Packages) == 0 {
			t.Errorf("%q: %+v", name, r)
		}
		if !strings.HasPrefix(string(data), "#:schema ./"+SchemaFile+"\n") {
			t.Error("the starter does not name its schema")
		}
	}
	data := Starter("x", true)
	r, err := parseVariant(data, FileName, t.TempDir(), "")
	if err != nil {
		t.Fatal(render(err))
	}
	if r.Base.Bootstrap != nil || !strings.HasPrefix(r.Base.Image, "docker://") || strings.Count(string(data), "bootstrap =") != 1 {
		t.Errorf("on an image:\n%s", data)
	}
	packages := func(text string) string { _, rest, _ := strings.Cut(text, "[target]"); return rest }
	if packages(string(data)) != packages(string(Starter("x", false))) {
		t.Errorf("on an image, more than the base is another:\n%s", data)
	}
	if got := ImageName("My Project (2)"); got != "my-project-2" {
		t.Errorf("image name %q", got)
	}
}

// Every key that is commented out in the starter must work once the comment sign is gone.
func TestStarterComments(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "requirements.txt"), "")
	write(t, filepath.Join(dir, "pyproject.toml"), "")
	write(t, filepath.Join(dir, "src"), "")
	lines := strings.Split(string(Starter("x", false)), "\n")
	tried := 0
	for i, line := range lines {
		bare, commented := strings.CutPrefix(line, "# ")
		name, _, isKey := strings.Cut(bare, " = ")
		if !commented || !isKey || strings.ContainsAny(name, " `") || name == "image" || name == "lock" {
			continue
		}
		changed := append([]string{}, lines...)
		changed[i] = bare
		tried++
		if name == "copy" || name == "run" { // in a table that is commented out, too
			j := slices.Index(lines, "# [[step]]")
			changed[j] = "[[step]]"
		}
		for key, needs := range map[string]string{"gpu = true": "# gpu = [", `torch-backend = "target"`: "# driver = "} { // which are the target's
			if strings.HasPrefix(bare, key) {
				j := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, needs) })
				changed[j] = strings.TrimPrefix(lines[j], "# ")
			}
		}
		r, err := parseVariant([]byte(strings.Join(changed, "\n")), FileName, dir, "")
		if err != nil {
			t.Errorf("%s", render(err))
		} else if name == "torch-backend" && (r.Python.TorchBackend != "target" || r.Target.Driver == "") {
			t.Errorf("the starter's torch-backend is %q, with the driver %q", r.Python.TorchBackend, r.Target.Driver)
		}
	}
	if tried < 8 {
		t.Errorf("only %d commented keys found", tried)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func FuzzLoad(f *testing.F) {
	files, _ := filepath.Glob("testdata/errors/*.toml")
	for _, file := range append(files, "testdata/everything.toml", "starter.toml") {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("base.bootstrap.suite.x = 1\n[[base]]\n[base.bootstrap]\n"))
	f.Add([]byte("\"\x1b[31m\" = 1"))
	f.Add([]byte("name = \"x\"\nbase.image = \"debian:12\"\n[Slim]\ngpu = true\n")) // go-toml takes it for [slim]
	f.Add([]byte("name = \"x\"\nbase.image = \"debian:12\"\n[cache]\nrEgistry = \"te\tam/cache\"\n"))
	f.Add([]byte("step.a = 1\n[[python.compile.\"\\n\"]]\n"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseVariant(data, FileName, dir, "")
		if err == nil {
			if r.Name == "" || (r.Base.Image == "") == (r.Base.Bootstrap == nil) {
				t.Fatalf("accepted without name or base: %+v", r)
			}
			r.BaseReference()
			checkSteps(t, r)
			return
		}
		problems := mistakes(err)
		if len(problems) == 0 {
			t.Fatalf("an error without a place: %v", err)
		}
		for _, p := range problems {
			checkProblem(t, p, data)
		}
	})
}

// checkSteps wants everything in a step that was accepted to be readable.
func checkSteps(t *testing.T, r *Recipe) {
	t.Helper()
	for _, s := range r.Steps {
		if s.Run == "" && len(s.Copy)+len(s.Patch) == 0 || s.Line < 1 || strings.ContainsAny(s.Title(), "\n\x1b") {
			t.Fatalf("accepted: %+v", s)
		}
		for _, text := range s.Copy {
			c, err := s.ParseCopy(text)
			if dir, _ := r.CopySource(c); err != nil || !strings.HasPrefix(c.Dest, "/") || !filepath.IsAbs(dir) {
				t.Fatalf("copy %q: %+v, %v", text, c, err)
			}
		}
		for _, text := range s.Patch {
			if p, err := s.ParsePatch(text); err != nil || !strings.HasPrefix(p.Dir, "/") {
				t.Fatalf("patch %q: %+v, %v", text, p, err)
			}
		}
		for _, text := range s.Mounts {
			checkMounts(t, r, text)
		}
	}
}

func checkMounts(t *testing.T, r *Recipe, text string) {
	t.Helper()
	mounts, err := r.ParseMount(text)
	if err != nil || len(mounts) == 0 {
		t.Fatalf("%q: %v, %v", text, mounts, err)
	}
	for _, m := range mounts {
		if m.Target != "" && (!strings.HasPrefix(m.Target, "/") || m.Target == "/") || m.Kind == "bind" && !filepath.IsAbs(m.Source) {
			t.Fatalf("%q: %+v", text, m)
		}
	}
}

func checkProblem(t *testing.T, p *Error, data []byte) {
	t.Helper()
	lines := strings.Count(string(data), "\n") + 1
	if p.Line < 1 || p.Line > lines || p.Column < 1 || p.Message == "" {
		t.Fatalf("bad place: %+v", p)
	}
	for _, text := range []string{p.Error(), p.Hint(), strings.ReplaceAll(p.Excerpt(), "\n", "")} {
		if printable(text) != text {
			t.Fatalf("a control character in %q", text)
		}
	}
}

// TestMisspeltCase: a key in another case is told once, as that, and its value is not judged as if the key were right.
func TestMisspeltCase(t *testing.T) {
	for text, want := range map[string]string{
		"[cache]\nrEgistry = \"te\tam/cache\"": `unknown key "rEgistry" in [cache]`,
		"[cache]\nRegistry = \"team/cache\"":   `unknown key "Registry" in [cache]`,
		"[Cache]\nregistry = \"team/cache\"":   `unknown table [Cache]`,
		"[[Step]]\ncopy = [\"a\"]":             `unknown table [[Step]]`,
	} {
		_, err := parseVariant([]byte("name = \"x\"\nbase.image = \"debian:12\"\n"+text+"\n"), FileName, t.TempDir(), "")
		if problems := mistakes(err); len(problems) != 1 || problems[0].Message != want {
			t.Errorf("%q: got %v, want %q alone", text, err, want)
		}
	}
}

// TestPythonPackages: what follows @ may be a path from the recipe's directory.
func TestPythonPackages(t *testing.T) {
	r := &Recipe{Dir: "/here", Python: Python{Packages: []string{
		"six", "a @ ./a/", "b[x]@../b", `c @ ./c.whl ; python_version > "3"`, "d @ file:///d", "e @ git+https://example.org/e@v1",
	}}}
	want := []string{
		"six", "a @ file:///here/a", "b[x] @ file:///b", `c @ file:///here/c.whl ; python_version > "3"`, "d @ file:///d", "e @ git+https://example.org/e@v1",
	}
	if diff := cmp.Diff(want, r.PythonPackages()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestByteOrderMark: what editors put before the text is no part of it, nor of the places in messages.
func TestByteOrderMark(t *testing.T) {
	const text = "name = \"x\"\nbase.image = \"debian:12\"\n"
	if r, err := parseVariant([]byte("\xef\xbb\xbf"+text), FileName, ".", ""); err != nil || r.Name != "x" {
		t.Errorf("%v", err)
	}
	if _, err := parseVariant([]byte("\xef\xbb\xbfnome = \"x\"\n"+text), FileName, ".", ""); err == nil || !strings.Contains(err.Error(), ":1:1: ") {
		t.Errorf("%v", err)
	}
}

// A target is a profile, with all that one can say but what it is called.
func TestTargetIsAProfile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, FileName)
	for line, want := range map[string]string{
		`nccl-net = "ofi"`:        "",
		`injects = ["libx.so.1"]`: "",
		`hides = ["/scratch"]`:    "",
		`cpu-level = 3`:           "",
		`cpu-level = 9`:           "target.cpu-level",
		`hides = ["scratch"]`:     "target.hides must be an absolute path",
		`name = "x"`:              `unknown key "name" in [target]`,
		`description = "x"`:       `unknown key "description" in [target]`,
	} {
		if err := os.WriteFile(file, []byte("name = \"x\"\nbase.image = \"debian:12\"\n[target]\n"+line+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := Load(file)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", line, err, want)
			}
			continue
		}
		if err != nil || !r.Target.Named() {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// TestForeignSpellings: what people bring along from pip, from conda and from word processors is answered with what to write.
func TestForeignSpellings(t *testing.T) {
	for packages, want := range map[string]string{
		`"-e ."`:              "project = \"DIRECTORY\"",
		`"--editable=./here"`: "NAME @ ./DIRECTORY",
		`"pytorch"`:           "write torch",
		`"PyTorch_CUDA=12.4"`: "torch-backend",
		`"cudatoolkit=11.8"`:  "leave it out",
		`"py-opencv>=4"`:      "opencv-python-headless",
		`“numpy”`:             "write \" on both sides",
	} {
		_, err := parseVariant([]byte("name = \"x\"\n[base]\nimage = \"debian\"\n[python]\npackages = ["+packages+"]\n"), FileName, t.TempDir(), "")
		if text := render(err); err == nil || !strings.Contains(text, want) {
			t.Errorf("%s: want %q in\n%s", packages, want, text)
		}
	}
	if _, err := parseVariant([]byte("name = \"x\"\n[base]\nimage = \"debian\"\n[python]\npackages = [\"pytorch @ file:///x/a.whl\"]\n"), FileName, "/x", ""); err != nil {
		t.Errorf("a file that is called so: %v", err)
	}
}
