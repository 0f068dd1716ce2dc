package runtimefiles

import (
	"context"
	"io"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"

	"sconce.dev/sconce/internal/image"
)

// Apptainer runs what an image has in env, and a runscript of an OCI image, in the shell that is the package mvdan.cc/sh,
// and only looks at the command and the environment that exec is given in the end. So do these tests.

// evaluate runs a script with arguments and returns what it would have executed.
func evaluate(tb testing.TB, script string, env []string, args ...string) (command []string, after map[string]string) {
	tb.Helper()
	parsed, err := syntax.NewParser().Parse(strings.NewReader(script), "script")
	if err != nil {
		tb.Fatalf("%v in\n%s", err, script)
	}
	capture := func(interp.ExecHandlerFunc) interp.ExecHandlerFunc {
		return func(ctx context.Context, args []string) error {
			command, after = args, map[string]string{}
			interp.HandlerCtx(ctx).Env.Each(func(name string, v expand.Variable) bool {
				if v.Exported {
					after[name] = v.String()
				} else {
					delete(after, name)
				}
				return true
			})
			return nil
		}
	}
	runner, err := interp.New(
		interp.Env(expand.ListEnviron(env...)), interp.StdIO(nil, io.Discard, io.Discard), interp.ExecHandlers(capture),
		interp.Params(append([]string{"--"}, args...)...),
	)
	if err != nil {
		tb.Fatal(err)
	}
	if err := runner.Run(context.Background(), parsed); err != nil {
		tb.Errorf("%v of\n%s", err, script)
	}
	return command, after
}

// envScripts returns the scripts of env in the order in which Apptainer reads them.
func envScripts(tb testing.TB, tree *image.Tree) string {
	tb.Helper()
	nodes, err := tree.ReadDir("/.singularity.d/env")
	if err != nil {
		tb.Fatal(err)
	}
	var b strings.Builder
	for _, n := range nodes {
		data, err := tree.ReadFile(path.Join("/.singularity.d/env", n.Name()), 1<<20)
		if err != nil {
			tb.Fatal(err)
		}
		b.Write(data)
		b.WriteByte('\n')
	}
	return b.String()
}

func TestApptainersShell(t *testing.T) {
	env, want := awkwardEnv()
	want["LD_LIBRARY_PATH"] += ":/.singularity.d/libs"
	tree, _ := dressed(t, configured(append([]string{"/bin/show"}, awkward...), awkward, append(env, "UID=5", "IFS=x", "PWD=/x")))
	_, after := evaluate(t, envScripts(t, tree)+"exec true\n", nil)
	got := map[string]string{}
	for name := range want {
		got[name] = after[name]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	run, err := tree.ReadFile(runscriptPath, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	// Apptainer knows the runscript of an OCI image by this line.
	if !slices.Contains(strings.Split(string(run), "\n"), `eval "set ${SINGULARITY_OCI_RUN}"`) {
		t.Error("Apptainer would not know the runscript")
	}
	all := append([]string{"/bin/show"}, awkward...)
	for _, env := range [][]string{nil, {"APPTAINER_NO_EVAL=1"}} {
		if got, _ := evaluate(t, string(run), env); !slices.Equal(got, append(slices.Clone(all), awkward...)) {
			t.Errorf("%v without arguments: %q", env, got)
		}
	}
	if got, _ := evaluate(t, string(run), []string{"APPTAINER_NO_EVAL=1"}, awkward...); !slices.Equal(got, append(slices.Clone(all), awkward...)) {
		t.Errorf("with arguments: %q", got)
	}
	if got, _ := evaluate(t, string(run), []string{"A=1 2"}, "-e", "$A"); !slices.Equal(got, append(slices.Clone(all), "-e", "1 2")) {
		t.Errorf("evaluated: %q", got)
	}
	tree, _ = dressed(t, configured(nil, []string{"/bin/show"}, nil))
	if run, err = tree.ReadFile(runscriptPath, 1<<20); err != nil {
		t.Fatal(err)
	}
	if got, _ := evaluate(t, string(run), nil, "-e", "x"); !slices.Equal(got, []string{"-e", "x"}) {
		t.Errorf("an argument that looks like an option of set: %q", got)
	}
}

// text makes up a text of what scripts get wrong.
func text(r *rand.Rand) string {
	const alphabet = "ab \t\n'\"`$\\{}(),;&|<>*?[]!#~=%-+.:/@^_\x01é✓" // Apptainer's shell makes \r\n to \n
	runes := []rune(alphabet)
	out := make([]rune, r.IntN(24))
	for i := range out {
		out[i] = runes[r.IntN(len(runes))]
	}
	return string(out)
}

func texts(r *rand.Rand) []string {
	all := make([]string, r.IntN(4))
	for i := range all {
		all[i] = text(r)
	}
	return all
}

// TestAnythingSurvives has all shells, and Apptainer's, bring made-up arguments and variables back.
func TestAnythingSurvives(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	roots := map[string]*root{}
	for _, shell := range shells {
		roots[shell] = newRoot(t, shell, configured(nil, nil, nil))
	}
	for range 25 {
		entrypoint, cmd, args := append([]string{"/bin/show"}, texts(r)...), texts(r), texts(r)
		want := map[string]string{}
		var env []string
		for _, name := range []string{"A", "B_", "c3"} {
			want[name] = text(r)
			env = append(env, name+"="+want[name])
		}
		im := configured(entrypoint, cmd, env)
		im.Config.Config.WorkingDir = "/"
		anythingSurvives(t, im, args, want, roots)
	}
}

func anythingSurvives(t *testing.T, im Image, args []string, want map[string]string, roots map[string]*root) {
	t.Helper()
	f, err := factsOf(im)
	if err != nil {
		t.Fatal(err)
	}
	scripts := map[string]string{}
	for p, make := range map[string]func(*facts) (string, error){
		runscriptPath: runscript, dockerEnvPath: dockerEnv, rcPath: rc, environmentPath: environment,
	} {
		if scripts[p], err = make(f); err != nil {
			t.Fatal(err)
		}
	}
	command := slices.Concat(f.entrypoint, args)
	if len(args) == 0 {
		command = slices.Concat(f.entrypoint, f.cmd)
	}
	noEval := "APPTAINER_NO_EVAL=1"
	if got, _ := evaluate(t, scripts[runscriptPath], []string{noEval}, args...); !slices.Equal(got, command) {
		t.Errorf("Apptainer's shell made %q of\n%s", got, scripts[runscriptPath])
	}
	if got, _ := evaluate(t, scripts[runscriptPath], nil); !slices.Equal(got, slices.Concat(f.entrypoint, f.cmd)) {
		t.Errorf("Apptainer's shell made %q of\n%s", got, scripts[runscriptPath])
	}
	_, after := evaluate(t, scripts[dockerEnvPath]+"exec true\n", nil)
	maps.DeleteFunc(after, func(name, _ string) bool { _, ok := want[name]; return !ok })
	if diff := cmp.Diff(want, after); diff != "" {
		t.Errorf("Apptainer's shell: %s", diff)
	}
	names := slices.Sorted(maps.Keys(want))
	var wanted []string
	for _, n := range names {
		wanted = append(wanted, want[n])
	}
	for shell, r := range roots {
		for p, script := range scripts {
			r.write(p, script)
		}
		out, _ := r.enroot(shell, nil, args...)
		if diff := cmp.Diff(command[1:], split(out)); diff != "" && len(command) > 1 {
			t.Errorf("%s, enroot: %s", shell, diff)
		}
		out, _ = r.action([]string{noEval}, "run", args...)
		if diff := cmp.Diff(command[1:], split(out)); diff != "" && len(command) > 1 {
			t.Errorf("%s, apptainer: %s", shell, diff)
		}
		got := values(names, func(args ...string) (string, int) { return r.action(nil, "exec", args...) })
		if diff := cmp.Diff(wanted, got); diff != "" {
			t.Errorf("%s, apptainer: %s", shell, diff)
		}
		r.write("etc/rc.local", "exec \"$@\"\n")
		got = values(names, func(args ...string) (string, int) { return r.enroot(shell, nil, args...) })
		r.write("etc/rc.local", "")
		if diff := cmp.Diff(wanted, got); diff != "" {
			t.Errorf("%s, enroot: %s", shell, diff)
		}
	}
}

// FuzzRecover makes sure that nothing a root file system can hold does harm, that what is found can be written again, and
// that what is written is found again.
func FuzzRecover(f *testing.F) {
	fs, err := factsOf(python())
	if err != nil {
		f.Fatal(err)
	}
	for kind, p := range []string{recordPath, rcPath, environmentPath, dockerEnvPath, labelsPath} {
		for _, file := range files() {
			if file.path == p {
				text, err := file.text(fs)
				if err != nil {
					f.Fatal(err)
				}
				f.Add(uint8(kind), text, "")
			}
		}
	}
	f.Add(uint8(3), "export A=\"${A:-\"x\"}\"\nexport B=\"${B:-}\"\nexport PATH=\"\\$x\"\n", `{"a":"b"}`)
	f.Fuzz(func(t *testing.T, kind uint8, one, two string) {
		in := map[string]string{}
		switch kind % 4 {
		case 0:
			in[RecordPath] = one
		case 1, 2:
			in["/"+rcPath], in["/"+environmentPath] = one, two
		case 3:
			in["/"+runAction], in["/"+dockerEnvPath], in["/"+labelsPath] = "", one, two
		}
		found, err := Recover(mapReader(in))
		if err != nil {
			return
		}
		im := Image{Config: found.Config}
		facts, err := factsOf(im)
		if err != nil {
			return
		}
		out := map[string]string{}
		for _, file := range files() {
			if out["/"+file.path], err = file.text(facts); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Metadata(im); err != nil {
			t.Fatal(err)
		}
		again, err := Recover(mapReader(out))
		if err != nil {
			t.Fatalf("%v of %s", err, out[RecordPath])
		}
		if diff := cmp.Diff(found.Config.Config.Env, again.Config.Config.Env); diff != "" {
			t.Error(diff)
		}
		// Without the record: what the script of the environment says.
		env, all := parseDockerEnv(out["/"+dockerEnvPath])
		for _, v := range facts.env {
			if !slices.Contains(ownedByShell, v.name) && !slices.Contains(env, v.name+"="+v.value) {
				t.Errorf("%v is lost in\n%s", v, out["/"+dockerEnvPath])
			}
		}
		if !all {
			t.Errorf("not understood:\n%s", out["/"+dockerEnvPath])
		}
	})
}
