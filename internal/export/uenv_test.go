package export

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/squashfs/squashfstest"
	"sconce.dev/sconce/internal/store/storetest"
)

// readUenv applies the view of a description to an environment, as the format is documented (stackinator, "meta data"; uenv,
// "envvars"): lists are set, prepended to, appended to or unset, scalars are set, or unset by null.
func readUenv(t *testing.T, text, view string, env map[string]string) (mount string) {
	t.Helper()
	var meta struct {
		Name        string
		Description *string
		Mount       string
		Views       map[string]struct {
			Env *struct {
				Version int
				Type    string
				Values  struct {
					List map[string][]struct {
						Op    string
						Value []string
					}
					Scalar map[string]*string
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &meta); err != nil {
		t.Fatal(err)
	}
	v, ok := meta.Views[view]
	if !ok || v.Env == nil || v.Env.Version != 1 || v.Env.Type != "augment" || meta.Name == "" {
		t.Fatalf("no such view: %s", text)
	}
	for name, changes := range v.Env.Values.List {
		for _, c := range changes {
			paths := slices.DeleteFunc(strings.Split(env[name], ":"), func(s string) bool { return s == "" })
			switch c.Op {
			case "set":
				paths = c.Value
			case "prepend":
				paths = append(slices.Clone(c.Value), paths...)
			case "append":
				paths = append(paths, c.Value...)
			default:
				paths = nil
			}
			env[name] = strings.Join(paths, ":")
		}
	}
	for name, value := range v.Env.Values.Scalar {
		if delete(env, name); value != nil {
			env[name] = *value
		}
	}
	return meta.Mount
}

// A uenv's root is the directory of the image, with a description that puts its programs first; the kernel shows that tree, and
// nothing of the rest of the image.
func TestUenv(t *testing.T) {
	st := storetest.New(t)
	lower := makeLayer(t, st, layer.Zstd, regular("etc/passwd", "root"), regular("opt/env/bin/tool", "old"), regular("opt/env/lib/kept", "kept"),
		regular("opt/environment", "beside it"), regular("opt/env/conda-meta/history", ""))
	upper := makeLayer(t, st, layer.Zstd, regular("opt/env/bin/tool", "new"))
	im := assemble(t, st, lower, upper)
	dir := t.TempDir()
	file := filepath.Join(dir, "x.squashfs")
	o := clusterOptions(st)
	o.Name, o.Uenv = "tools:1", UenvOptions{Root: "/opt/env", Mount: "/user-environment", Description: "for the tests"}
	if err := writeTo(t.Context(), im, "uenv:"+file, o); err != nil {
		t.Fatal(err)
	}
	text := contentOf(t, file, "meta/env.json")
	env := map[string]string{"PATH": "/usr/bin", "PYTHONPATH": "/somewhere", "HOME": "/users/ada"}
	mount := readUenv(t, text, "default", env)
	want := map[string]string{"PATH": "/user-environment/bin:/usr/bin", "HOME": "/users/ada", "PYTHONNOUSERSITE": "1", "CONDA_PREFIX": "/user-environment"}
	if mount != "/user-environment" || !maps.Equal(env, want) {
		t.Errorf("mounted at %s, with %v, want %v", mount, env, want)
	}
	wantSameUenv(t, im, file, o)
	wantUenvMounted(t, file, map[string]string{
		"bin/tool": "new", "lib/kept": "kept", "conda-meta/history": "", "meta/env.json": text,
	})
}

// Where nobody says which directory it is, a uenv is the environment that the image's variables name, mounted where that is.
func TestUenvOfEnvironment(t *testing.T) {
	st := storetest.New(t)
	for variable, marker := range map[string]string{"VIRTUAL_ENV": "pyvenv.cfg", "CONDA_PREFIX": "conda-meta/history"} {
		im := assemble(t, st, makeLayer(t, st, layer.Zstd, regular("etc/passwd", "root"), regular("user-environment/bin/tool", "it"), regular("user-environment/"+marker, "")))
		im.Config.Config.Env = append(im.Config.Config.Env, variable+"=/user-environment")
		file := filepath.Join(t.TempDir(), "x.squashfs")
		if err := writeTo(t.Context(), im, "uenv:"+file, clusterOptions(st)); err != nil {
			t.Fatal(err)
		}
		env := map[string]string{}
		if mount := readUenv(t, contentOf(t, file, "meta/env.json"), "default", env); mount != "/user-environment" || env[variable] != mount || env["PATH"] != mount+"/bin" {
			t.Errorf("%s: mounted at %s, with %v", variable, mount, env)
		}
		if got := contentOf(t, file, "bin/tool"); got != "it" {
			t.Errorf("%s: the tool is %q", variable, got)
		}
	}
}

// TestUenvJudged has uenv itself start a program of a file, with its view and without, where it is on PATH. It mounts, which takes root.
func TestUenvJudged(t *testing.T) {
	uenv, err := exec.LookPath("uenv")
	if err != nil || os.Geteuid() != 0 {
		t.Skipf("no distribution that the tests install from has uenv, and it mounts as root alone: %v", err)
	}
	st := storetest.New(t)
	tool := file{layer.Entry{Path: "opt/env/bin/sconce-judged", Mode: 0o755}, `#!/bin/sh
echo "$0 ${PYTHONPATH-unset} $PYTHONNOUSERSITE ${CONDA_PREFIX-unset}"
exit 7
`}
	im := assemble(t, st, makeLayer(t, st, layer.Zstd, tool, regular("opt/env/conda-meta/history", "")))
	name, mount := filepath.Join(t.TempDir(), "x.squashfs"), t.TempDir()
	o := clusterOptions(st)
	o.Name, o.Uenv = "tools:1", UenvOptions{Root: "/opt/env", Mount: mount, Description: "for the tests"}
	if err := writeTo(t.Context(), im, "uenv:"+name, o); err != nil {
		t.Fatal(err)
	}
	program := mount + "/bin/sconce-judged"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "--view=default", name, "--", "sconce-judged"}, program + " unset 1 " + mount + "\n"},
		{[]string{"run", name, "--", program}, program + " /somewhere  unset\n"},
	} {
		cmd := exec.CommandContext(t.Context(), uenv, c.args...)
		cmd.Env = []string{"PATH=" + filepath.Dir(uenv) + ":/usr/bin:/bin", "HOME=" + t.TempDir(), "PYTHONPATH=/somewhere"}
		out, err := cmd.Output()
		if string(out) != c.want || cmd.ProcessState.ExitCode() != 7 {
			t.Errorf("%q: %q, %v, want %q and code 7", c.args, out, err, c.want)
		}
	}
}

// wantSameUenv writes it once more elsewhere and compares the bytes.
func wantSameUenv(t *testing.T, im *image.Image, file string, o Options) {
	t.Helper()
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "again")
	if err := writeTo(t.Context(), im, "uenv:"+other, o); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(other); err != nil || !bytes.Equal(first, again) || !strings.HasPrefix(string(again), "hsqs") {
		t.Errorf("the same uenv has other bytes, or is no squashfs: %v", err)
	}
}

func wantUenvMounted(t *testing.T, file string, want map[string]string) {
	t.Helper()
	mount := squashfstest.Kernel.MountOrSkip(t, file)
	got := map[string]string{}
	for name, text := range filesOf(t, mount) {
		if !strings.HasPrefix(text, "d") {
			data, err := os.ReadFile(filepath.Join(mount, name))
			if err != nil {
				t.Fatal(err)
			}
			got[name] = string(data)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mounted (-want +got):\n%s", diff)
	}
}

// What cannot be a uenv is refused, and nothing is written.
func TestUenvRefuses(t *testing.T) {
	st := storetest.New(t)
	im := assemble(t, st, makeLayer(t, st, layer.Zstd, regular("opt/env/meta", "a file"), regular("opt/good/bin/x", "")))
	dir := t.TempDir()
	for _, c := range []struct {
		how  UenvOptions
		want string
	}{
		{UenvOptions{}, "no Python environment"},
		{UenvOptions{Root: "/opt/env"}, "meta is no directory"},
		{UenvOptions{Root: "/opt/env/meta"}, "is no directory below"},
		{UenvOptions{Root: "/"}, "mount point"},
		{UenvOptions{Root: "/", Mount: "/user-tools"}, "is no directory below"},
		{UenvOptions{Root: "/opt/gone"}, "opt/gone"},
		{UenvOptions{Root: "/opt/good", Mount: "relative"}, "mount point"},
	} {
		t.Run(fmt.Sprint(c.how), func(t *testing.T) {
			o := clusterOptions(st)
			o.Uenv = c.how
			err := writeTo(t.Context(), im, "uenv:"+filepath.Join(dir, "x"), o)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("there are %v, %v", left, err)
	}
}
