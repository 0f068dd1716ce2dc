package condalock

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sconce.dev/sconce/internal/fault"
)

func TestReadEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "environment.yml")
	write(t, file, `name: train
prefix: /home/me/envs/train
channels:
  - nvidia
  - conda-forge
  - nodefaults
  - conda-forge
dependencies:
  - python=3.12
  - &np "numpy >=2,<3"   # any of these
  - mkl   # [linux64]
  - openblas   # [aarch64 or (osx and not x86_64)]
  - pywin32  # [win]
  - plain  # [see the notes]
  - sel(linux): patchelf
  - sel(osx): llvm
  - conda-forge::scipy[version='>=1.14']
  - pip:
      - --extra-index-url https://download.example.org/whl/cu128
      - torch==2.7.1
      - -r more.txt
      - -e ./src
      - -c limits.txt
      - "git+https://example.org/apex.git@master#egg=apex"
      - flash-attn --no-build-isolation
      - "deepspeed>=0.16; python_version<'3.13'  # a comment"
      - 'apex --config-settings "--build-option=--cpp_ext --cuda_ext" --no-build-isolation'
      - --no-build-isolation
      - xformers
      - -r last.txt
variables:
  DS_BUILD_OPS: 1
  PIP_NO_BUILD_ISOLATION: 0
  RATE: 1.10
  ON: true
  EMPTY: ""
extra: things
`)
	env, err := ReadEnvironment(file, "linux-64")
	if err != nil {
		t.Fatal(err)
	}
	want := &Environment{
		File: file, Name: "train", Prefix: "/home/me/envs/train", Channels: []string{"nvidia", "conda-forge"}, NoDefaults: true,
		Specs: []Spec{
			{"python=3.12", 9, 5},
			{"numpy >=2,<3", 10, 5},
			{"mkl", 11, 5},
			{"plain", 14, 5},
			{"patchelf", 15, 17},
			{"conda-forge::scipy[version='>=1.14']", 17, 5},
		},
		Pip: []PipItem{
			{Options: []PipOption{{"extra-index-url", "https://download.example.org/whl/cu128"}}},
			{Requirement: "torch==2.7.1"},
			{File: "more.txt"},
			{Requirement: "./src", Editable: true},
			{Constraints: "limits.txt"},
			{Requirement: "git+https://example.org/apex.git@master#egg=apex"},
			{Requirement: "flash-attn", NoIsolation: true},
			{Requirement: "deepspeed>=0.16; python_version<'3.13'"},
			{Requirement: "apex", NoIsolation: true, Options: []PipOption{{"config-settings", "--build-option=--cpp_ext --cuda_ext"}}},
			{Requirement: "xformers", NoIsolation: true},
			{File: "last.txt", NoIsolation: true},
		},
		Variables: map[string]string{"DS_BUILD_OPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "RATE": "1.10", "ON": "True", "EMPTY": ""},
		Warnings:  []Warning{{Text: file + `:37:1: unknown key "extra" has no effect`}},
	}
	if diff := cmp.Diff(want, env, cmpopts.IgnoreFields(PipItem{}, "Line", "Column")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if p := env.Pip[1]; p.Line != 20 || p.Column != 9 {
		t.Errorf("torch is at %d:%d, want 20:9", p.Line, p.Column)
	}
	arm, err := ReadEnvironment(file, "linux-aarch64")
	if err != nil || arm.Specs[2].Text != "openblas" {
		t.Errorf("for aarch64: %+v, %v", arm, err)
	}
}

func TestReadEnvironmentErrors(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []string
		hint       string
	}{
		{"nothing", "", []string{"e.yml:1:1: the environment file is empty"}, ""},
		{"no mapping", "- python\n", []string{"e.yml:1:1: an environment file is a mapping"}, ""},
		{"no YAML", "a: [\n", []string{"e.yml:", "not YAML"}, ""},
		{"no dependencies", "name: x\n", []string{"e.yml:1:1: no dependencies"}, "dependencies: ["},
		{"a key twice", "dependencies: []\ndependencies: []\n", []string{"e.yml:2:1: \"dependencies\" is there twice"}, ""},
		{"a number", "dependencies:\n - 3.10\n", []string{"e.yml:2:4: a dependency is text, and 3.10 is not"}, `"3.10"`},
		{"a mapping for a spec", "dependencies:\n - numpy: 1.26\n", []string{`e.yml:2:4: "numpy" is no installer`}, "- numpy=1.26"},
		{"another installer", "dependencies:\n - npm: [x]\n", []string{`e.yml:2:4: "npm" is no installer`}, ""},
		{"text for a list", "dependencies: python\n", []string{"e.yml:1:15: dependencies is a list"}, ""},
		{"two mistakes", "channels: [[a]]\ndependencies: [null]\n", []string{"e.yml:1:12: a channel is text", "e.yml:2:16: a dependency has no value"}, ""},
		{"a bad selector", "dependencies:\n - a # [linux and cuda]\n", []string{`e.yml:2:9: selector [linux and cuda]: unknown word "cuda"`}, ""},
		{"an open parenthesis", "dependencies:\n - a # [(linux]\n", []string{"a parenthesis stays open"}, ""},
		{"a bad dictionary selector", "dependencies:\n - sel(linux64): a\n", []string{`e.yml:2:4: selector "sel(linux64)": unknown word "linux64"`}, ""},
		{"an unknown pip option", "dependencies:\n - pip: [--frobnicate]\n", []string{"e.yml:2:10: pip: unknown option --frobnicate"}, ""},
		{"an index behind a requirement", "dependencies:\n - pip: [torch --index-url https://x.example.org]\n", []string{"goes into an item of its own, not behind \"torch\""}, ""},
		{"an open quote", "dependencies:\n - pip: ['a --hash=\"x']\n", []string{"a quote stays open"}, ""},
		{"a variable's name", "dependencies: []\nvariables: {a-b: 1}\n", []string{`e.yml:2:13: "a-b" cannot be the name of a variable`}, ""},
		{"a variable's list", "dependencies: []\nvariables: {A: [1]}\n", []string{"e.yml:2:16: the variable A is not text"}, ""},
		{"a name with a slash", "name: a/b\ndependencies: []\n", []string{`e.yml:1:7: the name "a/b"`}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := parseEnvironment("e.yml", "linux-64", []byte(test.text))
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is not in: %v", part, err)
				}
			}
			if !strings.Contains(fault.HintOf(err), test.hint) {
				t.Errorf("hint: %q, want one with %q", fault.HintOf(err), test.hint)
			}
			if fault.CodeOf(err) != fault.CodeUsage {
				t.Errorf("exit code %d, want %d", fault.CodeOf(err), fault.CodeUsage)
			}
		})
	}
}

func FuzzEnvironment(f *testing.F) {
	f.Add("channels: [a]\ndependencies:\n - x # [linux]\n - sel(unix): y\n - pip:\n   - -r a\n   - b --hash=sha256:1\nvariables: {A: 1}\n")
	f.Add("dependencies: &a\n - *a\n")
	f.Fuzz(func(t *testing.T, text string) {
		env, err := parseEnvironment("e.yml", "linux-64", []byte(text))
		if err != nil {
			if fault.CodeOf(err) != fault.CodeUsage {
				t.Errorf("not a mistake of the user's: %v", err)
			}
			return
		}
		for _, s := range env.Specs {
			if strings.TrimSpace(s.Text) == "" || strings.Contains(s.Text, "\n") || s.Line < 1 {
				t.Errorf("spec: %+v", s)
			}
		}
		for _, p := range env.Pip {
			if p.empty() {
				t.Errorf("an empty item: %+v", p)
			}
		}
	})
}

func TestVirtual(t *testing.T) {
	for _, test := range []struct {
		name    string
		facts   Facts
		env     []string
		want    string
		without []string
	}{
		{
			"a GPU node",
			Facts{Platform: "linux-64", Glibc: "2.28", CUDA: "12.4", CUDAArch: "8.0", CPU: "zen3", Kernel: "5.14.0"},
			nil,
			"__archspec=1=zen3 __cuda=12.4=0 __cuda_arch=8.0=0 __glibc=2.28=0 __linux=5.14.0=0 __unix=0=0", nil,
		},
		{"little known", Facts{Platform: "linux-aarch64"}, nil, "__archspec=0=aarch64 __linux=5.10=0 __unix=0=0", nil},
		{"an architecture without a driver says nothing", Facts{Platform: "linux-64", CUDAArch: "9.0"}, nil, "__archspec=0=x86_64 __linux=5.10=0 __unix=0=0", nil},
		{
			"variables go before what is set, and that before facts",
			Facts{Platform: "linux-64", Glibc: "2.28", CUDA: "12.4", Set: map[string]string{"__cuda": "12.6", "__glibc": "2.31", "__archspec": "zen4"}},
			[]string{"CONDA_OVERRIDE_CUDA", "13.0"},
			"__archspec=1=zen4 __cuda=13.0=0 __glibc=2.31=0 __linux=5.10=0 __unix=0=0", nil,
		},
		{
			"an empty value takes away",
			Facts{Platform: "linux-64", CUDA: "12.4", CUDAArch: "8.0", Set: map[string]string{"__linux": ""}},
			[]string{"CONDA_OVERRIDE_CUDA", ""},
			"__archspec=0=x86_64 __unix=0=0",
			[]string{"__cuda", "__linux"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := machine(t, test.facts, test.env...)
			var got []string
			for _, v := range m.Packages {
				got = append(got, v.String())
			}
			if strings.Join(got, " ") != test.want || !cmp.Equal(m.Without, test.without) {
				t.Errorf("got %v without %v\nwant %s without %v", got, m.Without, test.want, test.without)
			}
		})
	}
	if _, err := Virtual(Facts{}, variables("CONDA_OVERRIDE_CUDA", "new")); err == nil || !strings.Contains(err.Error(), "CONDA_OVERRIDE_CUDA=new") {
		t.Errorf("a version that is none: %v", err)
	}
}
