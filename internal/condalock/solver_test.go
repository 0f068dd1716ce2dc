package condalock

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/fault"
)

func TestSolve(t *testing.T) {
	channel := serve(t, torchChannel())
	s := solver(t, config(t, nil))
	ask := func(f Facts, sources ...Source) Request {
		for i := range sources {
			sources[i].Channels = []string{channel.channel()}
		}
		return Request{Platform: f.Platform, Machine: machine(t, f), Sources: sources}
	}
	torch := Source{Name: "a.yml", Specs: specs("torch")}

	t.Run("with a driver, the build for CUDA", func(t *testing.T) {
		a, err := s.Solve(t.Context(), ask(gpuNode, torch))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := chosen(a), "libz-1.3-h1_0 python-3.12.9-h1_0 torch-2.7.1-cuda128_py312_0"; got != want {
			t.Errorf("chosen: %s, want %s", got, want)
		}
		p := a.Packages[2]
		if p.Channel != channel.channel() || p.URL != channel.channel()+"/linux-64/"+p.File || p.Size == 0 || p.SHA256 == "" || p.BuildNumber != 200 || p.License != "BSD-3-Clause" {
			t.Errorf("the record: %+v", p)
		}
		if len(a.Warnings) > 0 {
			t.Errorf("warnings: %v", a.Warnings)
		}
	})
	t.Run("aarch64 without a driver, from another machine: the build without, and a warning", func(t *testing.T) {
		a, err := s.Solve(t.Context(), ask(Facts{Platform: "linux-aarch64", Glibc: "2.35"}, torch))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := chosen(a), "libz-1.3-h1_0 python-3.12.9-h1_0 torch-2.7.1-cpu_py312_0"; got != want {
			t.Errorf("chosen: %s, want %s", got, want)
		}
		if a.Packages[2].Subdir != "linux-aarch64" {
			t.Errorf("the subdirectory: %s", a.Packages[2].Subdir)
		}
		if len(a.Warnings) != 1 || !strings.Contains(a.Warnings[0].Text, "torch") || !strings.Contains(a.Warnings[0].Hint, "driver") {
			t.Errorf("warnings: %v", a.Warnings)
		}
	})
	t.Run("where CUDA is wanted, no driver is an error", func(t *testing.T) {
		r := ask(Facts{Platform: "linux-64", Glibc: "2.35"}, torch)
		r.WantsCUDA = true
		_, err := s.Solve(t.Context(), r)
		if err == nil || !strings.Contains(err.Error(), "torch comes without CUDA: its builds with CUDA want __cuda >=12.8, and no driver") || fault.HintOf(err) == "" {
			t.Errorf("error: %v", err)
		}
	})
	t.Run("a driver that is too old is no reason to be silent", func(t *testing.T) {
		r := ask(Facts{Platform: "linux-64", Glibc: "2.35", CUDA: "12.4"}, torch)
		r.WantsCUDA = true
		_, err := s.Solve(t.Context(), r)
		if err == nil || !strings.Contains(err.Error(), "and the target's driver runs CUDA up to 12.4") || !strings.Contains(fault.HintOf(err), "torch=*=cpu*") {
			t.Errorf("error: %v, hint %s", err, fault.HintOf(err))
		}
		r.Sources[0].Specs = specs("torch=*=cpu*")
		a, err := s.Solve(t.Context(), r)
		if err != nil || len(a.Warnings) > 0 {
			t.Errorf("asked for by name: %v, %v", a, err)
		}
		r.Sources[0].Specs = specs("uses-torch")
		a, err = s.Solve(t.Context(), r)
		if err != nil || len(a.Warnings) != 1 {
			t.Errorf("not asked for: %v, %v", a, err)
		}
	})
	t.Run("who says that there is no CUDA is not warned", func(t *testing.T) {
		r := ask(Facts{Platform: "linux-64", Glibc: "2.35"}, torch)
		r.Machine = machine(t, Facts{Platform: "linux-64", CUDA: "12.9"}, "CONDA_OVERRIDE_CUDA", "")
		a, err := s.Solve(t.Context(), r)
		if err != nil || len(a.Warnings) > 0 || !strings.Contains(chosen(a), "cpu_py312") {
			t.Errorf("answer: %+v, %v", a, err)
		}
	})
	t.Run("a chain keeps what it can", func(t *testing.T) {
		a, err := s.Solve(t.Context(), ask(gpuNode, Source{Name: "a.yml", Specs: specs("python 3.11.*")}, Source{Name: "b.yml", Specs: specs("torch", "six")}))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := chosen(a), "libz-1.3-h1_0 python-3.11.9-h1_0 six-1.17.0-pyhd8_0 torch-2.7.1-cpu_py311_0"; got != want {
			t.Errorf("chosen: %s, want %s", got, want)
		}
	})
	t.Run("a chain frees what was chosen and not asked for", func(t *testing.T) {
		a, err := s.Solve(t.Context(), ask(gpuNode, Source{Name: "a.yml", Specs: specs("python")}, Source{Name: "b.yml", Specs: specs("libz <1.3")}))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := chosen(a), "libz-1.2-h1_0 python-3.12.9-h1_0"; got != want {
			t.Errorf("chosen: %s, want %s", got, want)
		}
	})
	t.Run("locked packages stay, upgraded ones do not", func(t *testing.T) {
		old, err := s.Solve(t.Context(), ask(gpuNode, Source{Name: "a.yml", Specs: specs("python 3.11.*", "libz 1.2")}))
		if err != nil {
			t.Fatal(err)
		}
		r := ask(gpuNode, Source{Name: "a.yml", Specs: specs("python", "libz")})
		r.Locked = old.Packages
		a, err := s.Solve(t.Context(), r)
		if err != nil || chosen(a) != chosen(old) {
			t.Errorf("chosen: %s, want %s (%v)", chosen(a), chosen(old), err)
		}
		r.Upgrade = []string{"libz"}
		a, err = s.Solve(t.Context(), r)
		if got, want := chosen(a), "libz-1.3-h1_0 python-3.11.9-h1_0"; err != nil || got != want {
			t.Errorf("chosen with an upgrade: %s, want %s (%v)", got, want, err)
		}
	})
	t.Run("a Python brings pip along, as with conda", func(t *testing.T) {
		r := ask(gpuNode, Source{Name: "a.yml", Specs: specs("python")})
		for _, add := range []bool{false, true} {
			r.AddPip = add
			a, err := s.Solve(t.Context(), r)
			if err != nil || strings.Contains(chosen(a), " pip-25.0") != add {
				t.Fatalf("AddPip %t: %v, %v", add, chosen(a), err)
			}
			if p := a.Packages[1]; p.Name != "python" || len(p.Depends) != 1 {
				t.Errorf("AddPip %t: the record of python is not the channel's: %+v", add, p)
			}
		}
		r.Sources[0].Specs = specs("libz")
		if a, err := s.Solve(t.Context(), r); err != nil || chosen(a) != "libz-1.3-h1_0" {
			t.Errorf("without a Python: %s, %v", chosen(a), err)
		}
	})
	t.Run("a channel in a spec", func(t *testing.T) {
		a, err := s.Solve(t.Context(), ask(gpuNode, Source{Name: "a.yml", Specs: specs(channel.channel() + "::six")}))
		if err != nil || !strings.Contains(chosen(a), "six-1.17.0") {
			t.Errorf("answer: %v, %v", a, err)
		}
	})
	t.Run("offline, from what the store has", func(t *testing.T) {
		before := len(channel.requests())
		offline := *s
		offline.Offline = true
		a, err := offline.Solve(t.Context(), ask(gpuNode, torch))
		if err != nil || !strings.Contains(chosen(a), "cuda128") {
			t.Errorf("answer: %v, %v", a, err)
		}
		if n := len(channel.requests()) - before; n > 0 {
			t.Errorf("%d requests", n)
		}
	})
}

// The priority of channels decides where a package comes from that several have: strictly from the first one, from it where that can
// be, or from whichever has the newest.
func TestSolvePriority(t *testing.T) {
	one := func(name, version string) condatest.Package { return condatest.Package{Name: name, Version: version} }
	first := serve(t, []condatest.Package{one("a", "1.0")})
	second := serve(t, []condatest.Package{one("a", "2.0"), {Name: "b", Version: "1.0", Depends: []string{"a >=2"}}})
	s := solver(t, config(t, nil))
	for _, c := range []struct{ priority, spec, want string }{
		{"strict", "a", "a-1.0-0"},
		{"flexible", "a", "a-1.0-0"},
		{"disabled", "a", "a-2.0-0"},
		{"strict", "b", ""},
		{"flexible", "b", "a-2.0-0 b-1.0-0"},
		{"disabled", "b", "a-2.0-0 b-1.0-0"},
		{"", "b", ""},
	} {
		r := oneChannel(t, first.channel())
		r.Sources[0].Channels = append(r.Sources[0].Channels, second.channel())
		r.Sources[0].Specs, r.Priority = specs(c.spec), c.priority
		a, err := s.Solve(t.Context(), r)
		if c.want == "" {
			var conflict *ConflictError
			if !errors.As(err, &conflict) {
				t.Errorf("%s, %s: %+v, %v", c.priority, c.spec, a, err)
			}
		} else if err != nil || chosen(a) != c.want {
			t.Errorf("%s, %s: %+v, want %s (%v)", c.priority, c.spec, a, c.want, err)
		}
	}
}

// Where no channel has pip, a Python comes without it.
func TestSolveWithoutPip(t *testing.T) {
	channel := serve(t, []condatest.Package{{Name: "python", Version: "3.12.9"}})
	r := oneChannel(t, channel.channel())
	r.AddPip = true
	if a, err := solver(t, config(t, nil)).Solve(t.Context(), r); err != nil || chosen(a) != "python-3.12.9-0" {
		t.Errorf("answer: %+v, %v", a, err)
	}
}

func TestSolveConflicts(t *testing.T) {
	channel := serve(t, torchChannel())
	s := solver(t, config(t, nil))
	for _, test := range []struct {
		name    string
		facts   Facts
		chain   [][]string
		file    string
		rivals  []string
		in      []string // parts of the message
		hint    string
		anyKind bool // not a ConflictError
	}{
		{
			name: "two files", facts: gpuNode, chain: [][]string{{"python 3.11.*"}, {"six"}, {"torch=*=cuda*"}},
			file: "3.yml", rivals: []string{"1.yml"}, in: []string{"3.yml does not fit with 1.yml", "3.yml:1:5 asks for torch=*=cuda*\n1.yml:1:5 asks for python 3.11.*"},
		},
		{
			name: "no driver", facts: Facts{Platform: "linux-64", Glibc: "2.35"}, chain: [][]string{{"torch=*=cuda*"}},
			file: "1.yml", in: []string{"__cuda"}, hint: "CONDA_OVERRIDE_CUDA",
		},
		{
			name: "a slip", facts: gpuNode, chain: [][]string{{"pyhton"}},
			file: "1.yml", in: []string{"1.yml:1:5 asks for pyhton"}, hint: "did you mean python?",
		},
		{
			name: "another platform's", facts: Facts{Platform: "linux-aarch64"}, chain: [][]string{{"intel-only"}},
			file: "1.yml", in: []string{"intel-only"}, hint: "linux-64, and not for linux-aarch64",
		},
		{
			name: "no spec at all", facts: gpuNode, chain: [][]string{{"python", "=1=2=3=4"}, {"numpy >>2"}}, anyKind: true,
			in: []string{`1.yml:2:5: "=1=2=3=4"`, `2.yml:1:5: "numpy >>2"`},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := Request{Platform: test.facts.Platform, Machine: machine(t, test.facts)}
			for i, texts := range test.chain {
				r.Sources = append(r.Sources, Source{Name: string(rune('1'+i)) + ".yml", Channels: []string{channel.channel()}, Specs: specs(texts...)})
			}
			_, err := s.Solve(t.Context(), r)
			if err == nil {
				t.Fatal("no error")
			}
			var conflict *ConflictError
			if errors.As(err, &conflict); conflict == nil != test.anyKind {
				t.Fatalf("not the error that was expected: %v", err)
			}
			if conflict != nil && (conflict.File != test.file || !slices.Equal(conflict.Rivals, test.rivals)) {
				t.Errorf("between %s and %v, want %s and %v", conflict.File, conflict.Rivals, test.file, test.rivals)
			}
			for _, part := range test.in {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is not in:\n%v", part, err)
				}
			}
			if !strings.Contains(fault.HintOf(err), test.hint) {
				t.Errorf("hint: %q, want one with %q", fault.HintOf(err), test.hint)
			}
		})
	}
}

// What .condarc pins holds for packages that nobody named, brings none by itself, and is named where it leaves no solution.
func TestSolvePinned(t *testing.T) {
	channel := serve(t, torchChannel())
	ask := func(rc string, texts ...string) (*Answer, error) {
		s := solver(t, config(t, map[string]string{".condarc": rc}))
		return s.Solve(t.Context(), Request{Platform: "linux-64", Machine: machine(t, gpuNode), Sources: []Source{{Name: "a.yml", Channels: []string{channel.channel()}, Specs: specs(texts...)}}})
	}
	a, err := ask("pinned_packages: ['libz <1.3', 'torch 1.*']\n", "python")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := chosen(a), "libz-1.2-h1_0 python-3.12.9-h1_0"; got != want {
		t.Errorf("chosen: %s, want %s", got, want)
	}
	_, err = ask("pinned_packages: [python 3.11.*]\n", "python 3.12.*")
	if err == nil || !strings.Contains(err.Error(), "pinned_packages of conda's configuration has python 3.11.*") || !strings.Contains(fault.HintOf(err), "CONDA_PINNED_PACKAGES") {
		t.Errorf("a conflict: %v, hint %s", err, fault.HintOf(err))
	}
	_, err = ask("pinned_packages: [numpy >>2]\n", "python")
	if err == nil || !strings.Contains(err.Error(), `pinned_packages of conda's configuration: "numpy >>2" is not a conda requirement`) {
		t.Errorf("no spec: %v", err)
	}
}

// TestConflictHint has explanations in the solver's words.
func TestConflictHint(t *testing.T) {
	for text, want := range map[string]string{
		"└─ torch 2.7.1 would require\n   └─ __cuda >=12.8, for which no candidates were found.":                                           "runs CUDA up to 12.9",
		"└─ new-libc 1 would require\n   └─ __glibc >=2.99, for which no candidates were found.":                                           "newer base",
		"└─ new 1 would require\n   └─ __cuda_arch >=9, for which no candidates were found.":                                               "CONDA_OVERRIDE_CUDA_ARCH",
		"└─ fast 1 would require\n   └─ __archspec 1 zen4, for which no candidates were found.":                                            "CONDA_OVERRIDE_ARCHSPEC",
		"numpy 1 is excluded because due to strict channel priority not using this option from: 'https://conda.anaconda.org/conda-forge/'": "flexible",
		"a and b conflict": "",
	} {
		hint := conflictHint(text, nil, &Request{Machine: machine(t, gpuNode)})
		if !strings.Contains(hint, want) || want == "" && hint != "" {
			t.Errorf("%s\nhint %q, want one with %q", text, hint, want)
		}
	}
}

// TestSolveFaults has servers that do what they should not. No error shows a secret.
func TestSolveFaults(t *testing.T) {
	for _, test := range []struct {
		name  string
		check func(w http.ResponseWriter, r *http.Request) bool
		hint  string
	}{
		{"a login is asked for", status(http.StatusUnauthorized), "login"},
		{"nothing is there", status(http.StatusNotFound), "no channel is there"},
		{"an index that is no JSON", func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "repodata.json") {
				w.Header().Set("ETag", `"1"`)
				_, _ = w.Write([]byte(`{"packages.conda": {`))
			} else {
				http.NotFound(w, r)
			}
			return false
		}, "not the index of a channel"},
		{"a damaged zst", func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, ".zst") {
				w.Header().Set("ETag", `"1"`)
				_, _ = w.Write([]byte("\x28\xb5\x2f\xfdnot a frame"))
			} else {
				http.NotFound(w, r)
			}
			return false
		}, "not the index of a channel"},
	} {
		t.Run(test.name, func(t *testing.T) {
			channel := serve(t, torchChannel())
			channel.check = test.check
			s := solver(t, config(t, nil))
			_, err := s.Solve(t.Context(), oneChannel(t, strings.Replace(channel.channel(), "http://", "http://me:hunter22@", 1)))
			if err == nil {
				t.Fatal("no error")
			}
			if strings.Contains(err.Error(), "hunter22") {
				t.Errorf("the error shows a password: %v", err)
			}
			if !strings.Contains(err.Error(), "conda channel") || !strings.Contains(fault.HintOf(err), test.hint) {
				t.Errorf("error: %v\nhint: %s", err, fault.HintOf(err))
			}
		})
	}
}

func oneChannel(t *testing.T, channel string) Request {
	return Request{Platform: "linux-64", Machine: machine(t, gpuNode), Sources: []Source{{Name: "a.yml", Channels: []string{channel}, Specs: specs("python")}}}
}

func status(code int) func(w http.ResponseWriter, r *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(code)
		return false
	}
}

func TestSolveTooManyRequests(t *testing.T) {
	channel := serve(t, torchChannel())
	refused := map[string]bool{}
	channel.check = func(w http.ResponseWriter, r *http.Request) bool {
		channel.mu.Lock()
		defer channel.mu.Unlock()
		if refused[r.URL.Path] {
			return true
		}
		refused[r.URL.Path] = true
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusTooManyRequests)
		return false
	}
	a, err := solver(t, config(t, nil)).Solve(t.Context(), oneChannel(t, channel.channel()))
	if err != nil || !strings.Contains(chosen(a), "python-3.12.9") {
		t.Errorf("answer: %v, %v", a, err)
	}
}

// TestSolveForms has the indexes of a channel in each of their forms. Complete finds there what an @EXPLICIT file leaves out.
func TestSolveForms(t *testing.T) {
	channel := serve(t, torchChannel())
	for _, form := range []string{"repodata_shards.msgpack.zst", "repodata.json.zst", "repodata.json"} {
		channel.check = func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/repodata") && !strings.HasSuffix(r.URL.Path, "/"+form) {
				http.NotFound(w, r)
				return false
			}
			return true
		}
		s := solver(t, config(t, nil))
		a, err := s.Solve(t.Context(), oneChannel(t, channel.channel()))
		if err != nil {
			t.Errorf("%s: %v", form, err)
			continue
		}
		var want []conda.Package
		for _, p := range channel.made.Packages(channel.channel()) {
			if strings.Contains(chosen(a), strings.TrimSuffix(p.File, ".conda")) && p.Subdir == "linux-64" {
				want = append(want, p)
			}
		}
		if diff := cmp.Diff(want, a.Packages, cmpopts.EquateEmpty()); diff != "" || len(want) != 2 {
			t.Errorf("%s: -made +chosen:\n%s", form, diff)
		}
		if form != "repodata.json" {
			continue
		}
		other := packageAt("unknown", "1", "0", "linux-64")
		other.Channel, other.URL = want[0].Channel, want[0].Channel+"/linux-64/unknown-1-0.conda"
		bare := []conda.Package{{Name: "python", Version: "3.12.9", Build: "h1_0", Channel: want[1].Channel, Subdir: "linux-64", File: want[1].File, URL: want[1].URL, MD5: want[1].MD5}, other}
		whole, err := s.Complete(t.Context(), "linux-64", bare)
		if diff := cmp.Diff([]conda.Package{want[1], other}, whole, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("completed: %v, -want +got:\n%s", err, diff)
		}
		bare[0].MD5 = strings.Repeat("0", 32)
		if whole, err := s.Complete(t.Context(), "linux-64", bare[:1]); err != nil || whole[0].SHA256 != "" {
			t.Errorf("completed with another archive: %+v, %v", whole, err)
		}
	}
}

func TestSolveHangs(t *testing.T) {
	channel := serve(t, torchChannel())
	stop := make(chan struct{})
	channel.check = func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-stop:
		case <-r.Context().Done():
		}
		return false
	}
	t.Cleanup(func() { close(stop) })
	s := solver(t, config(t, nil))
	s.Timeout = 3 * time.Second
	_, err := s.Solve(t.Context(), oneChannel(t, channel.channel()))
	if err == nil || !strings.Contains(err.Error(), "no answer in 3s") {
		t.Errorf("error: %v", err)
	}
}

// TestSolverDies has a uv that ends in several ways instead of solving.
func TestSolverDies(t *testing.T) {
	for _, test := range []struct{ name, script, want, hint string }{
		{"crashed", "kill -SEGV $$", "died: signal: segmentation fault", ""},
		{"killed", "kill -KILL $$", "died: signal: killed", "memory"},
		{"killed below uv", "exit 137", "died: exit status 137", "memory"},
		{"with a traceback", "printf 'Traceback (most recent call last):\n  File\nValueError: no such thing\n' >&2; exit 1", "died: exit status 1: ValueError: no such thing", ""},
		{"without an answer", "exit 0", "the solver ended without an answer", ""},
		{"half an answer", "printf '{\"packages\": [' > \"$answer\"", "the solver's answer", ""},
		{"a package that is a path", `printf '{"packages": [{"name": "a", "version": "1", "build": "0", "subdir": "../x", "fn": "a.conda", "url": "https://x/a"}]}' > "$answer"`, `its subdirectory "../x" is wrong`, ""},
		{
			"no py-rattler", "printf 'error: No solution found\n  cause: Because py-rattler was not found in the cache\n\nhint: x\n' >&2; exit 1",
			"uv cannot run the solver of conda packages: No solution found: cause: Because py-rattler was not found in the cache", "with the network",
		},
		{"no Python", "echo 'error: No interpreter found for Python >=3.10' >&2; exit 2", "No interpreter found", "uv python install"},
		{"no index", "echo 'error: Request failed after 3 retries' >&2; exit 2", "Request failed", "UV_DEFAULT_INDEX"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := solver(t, config(t, nil))
			dir := t.TempDir()
			writeProgram(t, dir+"/uv", "#!/bin/sh\nfor answer; do :; done\n"+test.script+"\n")
			s.UV = func(context.Context) (string, error) { return dir + "/uv", nil }
			_, err := s.Solve(t.Context(), oneChannel(t, "https://channel.example.org/x"))
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(fault.HintOf(err), test.hint) {
				t.Errorf("error: %v\nwant %s\nhint: %s", err, test.want, fault.HintOf(err))
			}
		})
	}
}

func TestSolveWithoutUV(t *testing.T) {
	s := solver(t, config(t, nil))
	s.UV = func(context.Context) (string, error) {
		return "", fault.Hint(errors.New("no index has it"), "name an index")
	}
	_, err := s.Solve(t.Context(), oneChannel(t, "https://channel.example.org/x"))
	if err == nil || !strings.Contains(err.Error(), "needs uv: no index has it") || !strings.HasPrefix(fault.HintOf(err), "name an index; or ") || !strings.Contains(fault.HintOf(err), "conda-lock.yml") {
		t.Errorf("error: %v, hint %s", err, fault.HintOf(err))
	}
}

// A spec may say which of the channels its package is to come from, in both forms that conda has for it.
func TestSolveChannelOfSpec(t *testing.T) {
	first := serve(t, []condatest.Package{{Name: "tool", Version: "2.0", Noarch: "generic"}})
	second := serve(t, []condatest.Package{{Name: "tool", Version: "1.0", Noarch: "generic"}})
	s := solver(t, config(t, nil))
	for text, want := range map[string]string{
		"tool": "tool-2.0-0", second.channel() + "::tool": "tool-1.0-0", "tool[channel=" + second.channel() + "]": "tool-1.0-0",
	} {
		a, err := s.Solve(t.Context(), Request{Platform: "linux-64", Machine: machine(t, gpuNode), Sources: []Source{
			{Name: "a.yml", Channels: []string{first.channel(), second.channel()}, Specs: specs(text), NoDefaults: true},
		}})
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got := chosen(a); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
