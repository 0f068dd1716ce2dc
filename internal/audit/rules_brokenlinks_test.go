package audit

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/facts/factstest"
	"sconce.dev/sconce/internal/tooltest"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/cluster"
)

// linkPrelude has what makes an image: a Python, PyTorch with a library, and the functions for more. Sources are in C, for the
// loader does not know C++ names from others.
const linkPrelude = `set -eu
site=opt/venv/lib/python3.12/site-packages
mkdir -p usr/bin usr/lib/$triplet opt/venv/bin $site/torch/lib lib64
lib() { out=$1 src=$2; shift 2; mkdir -p "${out%/*}"; echo "$src" > "$work/source.c"; gcc -w -nostdlib -shared -fPIC -Wl,-soname,"${out##*/}" -o "$out" "$work/source.c" "$@"; }
prog() { out=$1 src=$2; shift 2; echo "$src" > "$work/source.c"; gcc -w -o "$out" "$work/source.c" -Wl,--no-as-needed -Wl,--allow-shlib-undefined "$@"; }
module() { out=$1 src=$2; shift 2; lib "$out" "void *PyModule_Create2(); void *PyInit_x() { return PyModule_Create2(); } $src" "$@"; }
all=-Wl,--no-as-needed
tag=cpython-312-x86_64-linux-gnu.so
prog usr/bin/python3.12 'int PyModule_Create2() { return 0; } int main() { return 0; }' -rdynamic
ln -s ../../../usr/bin/python3.12 opt/venv/bin/python3
lib $site/torch/lib/libc10.so 'void _ZN3c105ErrorC1Ev() {} void _ZN3c106Device3oldEv() {}'
lib $site/torch/lib/libtorch_global_deps.so 'int deps;'
module $site/torch/_C.$tag 'void _ZN3c105ErrorC1Ev(); void f() { _ZN3c105ErrorC1Ev(); }' $all $site/torch/lib/libc10.so -Wl,-rpath,'$ORIGIN/lib'
touch $site/torch/__init__.py
ln -s usr/lib lib; ln -s ../usr/lib/$triplet/ld-linux-x86-64.so.2 lib64/
for d in flash_attn-2.7.4 torch-2.6.0; do mkdir $site/$d.dist-info; printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' ${d%-*} ${d#*-} > $site/$d.dist-info/METADATA; done
`

// newTorch takes a function out of the library of PyTorch.
const newTorch = "lib $site/torch/lib/libc10.so 'void _ZN3c105ErrorC1Ev() {}'\n"

// buildImage runs a script with gcc in the root of an image that has this machine's C library.
func buildImage(t *testing.T, script string) *facts.Facts {
	t.Helper()
	tooltest.Path(t, "gcc")
	if runtime.GOARCH != "amd64" {
		t.Skip("the names of files in this test are those of amd64")
	}
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", linkPrelude+script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "work="+t.TempDir(), "triplet=x86_64-linux-gnu")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu/libc.so.6"} {
		data, err := os.ReadFile(filepath.Join("/", name))
		if err != nil {
			tooltest.Missing(t, "no C library where Debian has it: %v", err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return gatherLinks(t, dir)
}

func gatherLinks(t *testing.T, dir string) *facts.Facts {
	t.Helper()
	config := v1.Config{Env: []string{"PATH=/opt/venv/bin:/usr/bin"}, Cmd: []string{"start"}}
	f, err := facts.OfRoot(t.Context(), factstest.Dir{Path: dir}, "test", "linux/amd64", config)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// linkFindings looks at facts with the rules on links: severity, rule, message.
func linkFindings(t *testing.T, f *facts.Facts, target cluster.Profile) []string {
	t.Helper()
	var got []string
	for _, r := range linkRules {
		err := r.look(&Subject{Facts: f, Target: target, Context: t.Context()}, func(found Finding) {
			found = r.complete(found)
			wellSaid(t, found)
			got = append(got, string(found.Severity)+" "+found.Rule+" "+strings.ReplaceAll(found.Message, "/opt/venv/lib/python3.12/site-packages", "SITE"))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return got
}

var brokenImages = []struct {
	name   string
	script string
	target cluster.Profile
	want   []string
}{
	{
		name: "a clean image",
		script: `lib usr/lib/$triplet/libx.so.1 'int x() {}'; prog usr/bin/start 'int x(); int main() { x(); }' usr/lib/$triplet/libx.so.1
			module $site/flash_attn_2_cuda.$tag 'void _ZN3c106Device3oldEv(); void f() { _ZN3c106Device3oldEv(); }' $all $site/torch/lib/libc10.so
			lib usr/lib/$triplet/libcuda.so.1 'int cuInit() {}'; prog usr/bin/gpu 'int cuInit(); int main() { cuInit(); }' usr/lib/$triplet/libcuda.so.1; rm usr/lib/$triplet/libcuda.so.1
			echo 'INPUT(libx.so.1)' > usr/lib/$triplet/libx.so`,
		target: cluster.Profile{Platform: "linux/amd64", CPULevel: 1, Glibc: "2.17", Injects: []string{"libmpi.so.12"}},
	},
	{
		name:   "an extension for another PyTorch",
		script: `module $site/flash_attn_2_cuda.$tag 'void _ZN3c106Device3oldEv(); void f() { _ZN3c106Device3oldEv(); }' $all $site/torch/lib/libc10.so` + "\n" + newTorch,
		want:   []string{"error link-undefined-symbol flash-attn 2.7.4 was built for another PyTorch than the image's (2.6.0), which lacks c10::Device::old"},
	},
	{
		name: "an extension for another PyTorch and another CUDA",
		script: `lib old/libcudart.so.12 'int cudaFree() {}'; lib $site/nvidia/lib/libcudart.so.13 'int cudaFree() {}'
			module $site/flash_attn_2_cuda.$tag 'void _ZN3c106Device3oldEv(); void f() { _ZN3c106Device3oldEv(); cudaFree(); }' $all $site/torch/lib/libc10.so old/libcudart.so.12; rm -r old` + "\n" + newTorch,
		want: []string{
			"error link-undefined-symbol flash-attn 2.7.4 was built for another PyTorch than the image's (2.6.0), which lacks c10::Device::old",
			"error link-missing-library SITE/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so needs libcudart.so.12, which the loader does not find in the image",
		},
	},
	{
		name:   "a library of operators without a module",
		script: `lib $site/torchvision/_C.so 'void _ZN3c106Device3oldEv(); void f() { _ZN3c106Device3oldEv(); }' $all $site/torch/lib/libc10.so` + "\n" + newTorch,
		want:   []string{"error link-undefined-symbol torchvision was built for another PyTorch than the image's (2.6.0), which lacks c10::Device::old"},
	},
	{
		name: "symbols of nobody",
		script: `module $site/pkg/_ext.$tag 'void nobody(); void f() { nobody(); }'; echo 'from . import (a, # comment
			_ext)' > $site/pkg/__init__.py
			module $site/other/_ext.$tag 'void nobody(); void f() { nobody(); }'; printf 'try:\n    from ._ext import x\nexcept ImportError:\n    pass\n' > $site/other/__init__.py`,
		want: []string{
			"warning link-undefined-symbol SITE/other/_ext.cpython-312-x86_64-linux-gnu.so needs symbols that nothing defines: nobody",
			"error link-undefined-symbol SITE/pkg/_ext.cpython-312-x86_64-linux-gnu.so needs symbols that nothing defines: nobody",
		},
	},
	{
		name: "libraries that are not there",
		script: `lib old/liba.so.1 'int a;'; prog usr/bin/start 'int main() { }' old/liba.so.1; prog usr/bin/tool 'int main() { }' old/liba.so.1
			module $site/pkg/_ext.$tag '' $all old/liba.so.1; echo 'import pkg.sub' > $site/pkg/__init__.py; echo 'from pkg._ext import x' > $site/pkg/sub.py
			module $site/lazy/_ext.$tag '' $all old/liba.so.1; echo 'def f(): import lazy._ext' > $site/lazy/__init__.py
			lib $site/plug/libplug.so 'int p;' $all old/liba.so.1; lib old/libibverbs.so.1 'int i;'; lib $site/plug/libnet.so 'int p;' $all old/libibverbs.so.1; rm -r old`,
		want: []string{
			"warning link-missing-library SITE/lazy/_ext.cpython-312-x86_64-linux-gnu.so needs liba.so.1, which the loader does not find in the image",
			"error link-missing-library SITE/pkg/_ext.cpython-312-x86_64-linux-gnu.so needs liba.so.1, which the loader does not find in the image",
			"note link-missing-library SITE/plug/libplug.so needs liba.so.1, which the loader does not find in the image",
			"error link-missing-library /usr/bin/start needs liba.so.1, which the loader does not find in the image",
			"warning link-missing-library /usr/bin/tool needs liba.so.1, which the loader does not find in the image",
		},
	},
	{
		name: "libraries that the packages load themselves, and the host's",
		script: `lib old/liba.so.1 'int a;'; module $site/pkg.$tag '' $all old/liba.so.1; mv old/liba.so.1 $site/torch/lib/
			lib old/libmpi.so.12 'int m;'; prog usr/bin/start 'int main() { }' old/libmpi.so.12; rm -r old`,
		target: cluster.Profile{Injects: []string{"libmpi.so.12"}},
	},
	{
		name: "a library that is too old",
		script: `echo 'GLIBCXX_3.4.29 { a; };' > old; echo 'GLIBCXX_3.4.29 { a; }; GLIBCXX_3.4.30 { b; } GLIBCXX_3.4.29;' > new
			lib usr/lib/$triplet/libstdc++.so.6 'int a() {} int b() {}' -Wl,--version-script=new
			module $site/pkg.$tag 'int b(); int f() { b(); }' $all usr/lib/$triplet/libstdc++.so.6
			prog usr/bin/start 'int b(); int main() { b(); }' usr/lib/$triplet/libstdc++.so.6
			lib usr/lib/$triplet/libstdc++.so.6 'int a() {}' -Wl,--version-script=old; rm old new`,
		want: []string{
			"error link-missing-version SITE/pkg.cpython-312-x86_64-linux-gnu.so needs version GLIBCXX_3.4.30 of libstdc++.so.6, but the image's (/usr/lib/x86_64-linux-gnu/libstdc++.so.6) has versions up to GLIBCXX_3.4.29",
			"error link-missing-version /usr/bin/start needs version GLIBCXX_3.4.30 of libstdc++.so.6, but the image's (/usr/lib/x86_64-linux-gnu/libstdc++.so.6) has versions up to GLIBCXX_3.4.29",
		},
	},
	{
		name: "no libraries at all",
		script: `touch usr/lib/$triplet/libempty.so.1; printf 'version https://git-lfs.github.com/spec/v1\noid sha256:1\n' > $site/pkg.so
			lib usr/lib/$triplet/libcut.so 'int a;'; head -c 100 usr/lib/$triplet/libcut.so > x; mv x usr/lib/$triplet/libcut.so`,
		want: []string{
			"error link-unusable-library SITE/pkg.so cannot be loaded",
			"warning link-unusable-library 2 files in /usr/lib/x86_64-linux-gnu cannot be loaded",
		},
	},
	{
		name:   "a program for another C library",
		script: `prog usr/bin/start 'int main() { }' -Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1`,
		want:   []string{"error link-program-interpreter /usr/bin/start needs the loader /lib/ld-musl-x86_64.so.1, which the image does not have"},
	},
	{
		name:   "programs for another processor",
		script: `for i in 1 2 3; do prog usr/bin/p$i 'int main() { }'; printf '\267\000' | dd of=usr/bin/p$i bs=1 seek=18 conv=notrunc status=none; done`,
		want:   []string{"error link-cpu-architecture the image says that it is for amd64, but 3 programs are for arm64 and 1 for amd64"},
	},
}

func TestBrokenLinks(t *testing.T) {
	for _, test := range brokenImages {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := buildImage(t, test.script)
			if diff := cmp.Diff(test.want, linkFindings(t, f, test.target)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(f.Links, gatherLinks(t, f.Root.(factstest.Dir).Path).Links); diff != "" {
				t.Error("another result the second time", diff)
			}
			var read []facts.LinkProblem
			data, err := json.Marshal(f.Links)
			if err == nil {
				err = json.Unmarshal(data, &read)
			}
			if diff := cmp.Diff(f.Links, read); err != nil || diff != "" {
				t.Error(err, diff)
			}
		})
	}
}
