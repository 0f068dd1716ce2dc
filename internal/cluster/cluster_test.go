package cluster

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fault"
)

// home gives the test a configuration directory of its own, which it returns.
func home(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestBuiltIn(t *testing.T) {
	home(t)
	all, wrong := List("")
	if len(wrong) > 0 {
		t.Fatal(wrong)
	}
	var names []string
	for _, f := range all {
		names = append(names, f.Name)
		if f.From == BuiltIn && (f.Description == "" || f.Platform == "" || len(f.GPU) == 0) {
			t.Errorf("%s lacks what a profile is for: %+v", f.Name, f.Profile)
		}
	}
	if !slices.Contains(names, "clariden") || !slices.IsSorted(names) {
		t.Errorf("the profiles are %v", names)
	}
	if _, err := Find("h100", ""); err == nil || !strings.Contains(fault.HintOf(err), `"h100-infiniband"`) {
		t.Errorf("the beginning of a name: %v, %s", err, fault.HintOf(err))
	}
	f, err := Find("clariden", "")
	if err != nil || f.Platform != "linux/arm64" || f.Runtime != ContainerEngine || f.Fabric != Slingshot || f.From != BuiltIn {
		t.Errorf("clariden is %+v, %v", f, err)
	}
}

// What a profile says of a real cluster comes from somewhere, and was read at some time.
func TestBuiltInSources(t *testing.T) {
	files, err := builtIn.ReadDir("profiles")
	if err != nil {
		t.Fatal(err)
	}
	sourced := regexp.MustCompile(`(?m)^# .*\b(docs\.[a-z.]+|github\.com/\S+)`)
	dated := regexp.MustCompile(`(?m)^# .*\b20[0-9]{2}-[01][0-9]\b`)
	for _, f := range files {
		text, err := builtIn.ReadFile("profiles/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if bytes.HasPrefix(text, []byte("# No cluster in particular")) {
			continue
		}
		if !sourced.Match(text) || !dated.Match(text) {
			t.Errorf("%s does not say where it is from, or when that was read", f.Name())
		}
	}
}

// A profile beside the recipe goes before the user's, and that before the one that comes with sconce.
func TestFindOrder(t *testing.T) {
	config, recipe := home(t), t.TempDir()
	user := filepath.Join(config, "sconce", "clusters", "clariden.toml")
	write(t, user, `driver = "570.1"`)
	if f, err := Find("clariden", recipe); err != nil || f.Driver != "570.1" || f.From != user || f.Name != "clariden" {
		t.Errorf("the user's: %+v, %v", f, err)
	}
	beside := filepath.Join(recipe, "clusters", "clariden.toml")
	write(t, beside, `driver = "580.1"`)
	if f, err := Find("clariden", recipe); err != nil || f.Driver != "580.1" || f.From != beside {
		t.Errorf("the recipe's: %+v, %v", f, err)
	}
	write(t, filepath.Join(recipe, "mine.toml"), `name = "Mine"`)
	if f, err := Find("mine.toml", recipe); err != nil || f.Name != "Mine" {
		t.Errorf("a file: %+v, %v", f, err)
	}
	write(t, filepath.Join(recipe, "clusters", "other.toml"), `gpu = ["sm_90", "8.0"]`)
	if f, err := Find("other", recipe); err != nil || !slices.Equal(f.GPU, []string{"8.0", "9.0"}) {
		t.Errorf("GPUs in another notation: %v, %v", f.GPU, err)
	}
	listed := func(all []Found) bool {
		return slices.ContainsFunc(all, func(f Found) bool { return f.Name == "other" })
	}
	all, wrong := List(recipe)
	if len(wrong) > 0 || !listed(all) {
		t.Errorf("the list lacks the recipe's: %v, %v", all, wrong)
	}
	write(t, filepath.Join(recipe, "clusters", "slip.toml"), `drivr = "580"`)
	all, wrong = List(recipe)
	if len(wrong) != 1 || !strings.Contains(wrong[0].Error(), "slip.toml") || !listed(all) {
		t.Errorf("with a slip in another: %v, %v", all, wrong)
	}
}

func TestFindErrors(t *testing.T) {
	home(t)
	dir := t.TempDir()
	for text, want := range map[string]string{
		"drivr = \"550\"\n":                   `line 1: unknown key "drivr"; hint: did you mean "driver"?`,
		"\nfrobnicate = 1\n":                  `line 2: unknown key "frobnicate"; hint: the keys are name`,
		"gpu = \"9.0\"\n":                     "line 1: ",
		"gpu = [\"H100\"]\n":                  `gpu: "H100" is no compute capability`,
		"driver = \"x\"\n":                    `driver: "x" is not a version of NVIDIA's driver`,
		"glibc = \"2\"\n":                     `glibc: "2" is not a version of glibc`,
		"cpu-level = 5\n":                     "cpu-level: 5 is not between 1 and 4",
		"platform = \"linux/riscv\"\n":        "platform: ",
		"runtime = \"docker\"\n":              `runtime: "docker" is not one of "container-engine"`,
		"fabric = \"x\"\n":                    "fabric: ",
		"mpi = \"x\"\n":                       "mpi: ",
		"pmi = \"x\"\n":                       "pmi: ",
		"hides = [\"tmp\"]\n":                 `hides: "tmp" is not an absolute path`,
		"injects = [\"/lib/x.so\"]\n":         `injects: "/lib/x.so" is not the name`,
		"a = [\n":                             "line ",
		"[slrum]\npartition = \"x\"\n":        `line 1: unknown key "slrum"; hint: did you mean "slurm"?`,
		"cpus-per-node = 8\n":                 `did you mean "slurm.cpus-per-node"?`,
		"slurm.max-time = \"1-0\"\n":          `slurm.max-time: "1-0" is not a time`,
		"slurm.gpus-per-node = 0.5\n":         "line 1: ",
		"slurm.partition = \"a b\"\n":         `slurm.partition: "a b" is not one word`,
		"runtimes = [\"docker\"]\n":           `runtimes: "docker" is not one of "container-engine"`,
		"[env]\nA = 1\n":                      `env.A must be a string; hint: write A = "1"`,
		"[env.pyxis]\nA = \"1\"\n":            "unknown table [env.pyxis]; hint: the only table in [env] is [env.uenv]",
		"[env.uenv]\nA = true\n":              `env.uenv.A must be a string`,
		"[env]\n\"A B\" = \"1\"\n":            `env: the name "A B" must be a letter`,
		"container.mounts = [\"$X/a\"]\n":     `container.mounts: "$X/a" is not SRC`,
		"paths.local = \"/a;touch${IFS}M\"\n": `paths.local: "/a;touch${IFS}M" is not an absolute path`,
		"paths.images = \"/a`b`\"\n":          "paths.images: ",
		"paths.cache = \"${A:-$(b)}\"\n":      "paths.cache: ",
		"name = \"a\\u202eb\"\n":              `name: "a\u202eb" holds a control character`,
		"env.A = \"a\\u009bb\"\n":             "env: \"a\\u009bb\" holds a control character",
		"base = \"nowhere\"\n":                `base: there is no other cluster "nowhere"`,
		strings.Repeat("#", 65<<10):           "larger than 64 KiB",
	} {
		file := filepath.Join(dir, "x.toml")
		write(t, file, text)
		_, err := Find(file, "")
		if err == nil || !strings.Contains(err.Error()+"; hint: "+fault.HintOf(err), want) || !strings.Contains(err.Error(), file) || fault.CodeOf(err) != fault.CodeUsage {
			t.Errorf("%q: error %v, want %q", text[:min(30, len(text))], err, want)
		}
	}
	if _, err := Find("claridan", ""); fault.HintOf(err) != `did you mean "clariden"?` || fault.CodeOf(err) != fault.CodeUsage {
		t.Errorf("misspelt: %v, hint %q", err, fault.HintOf(err))
	}
	if _, err := Find("./nowhere.toml", ""); err == nil || fault.CodeOf(err) != fault.CodeUsage {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestOverride(t *testing.T) {
	p := Profile{Name: "a", Platform: "linux/amd64", GPU: []string{"8.0"}, Driver: "1"}
	got := p.Override(Profile{Name: "b", GPU: []string{"9.0"}, Glibc: "2.31"})
	want := Profile{Name: "a", Platform: "linux/amd64", GPU: []string{"9.0"}, Driver: "1", Glibc: "2.31"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got.Empty() || !(Profile{Name: "x", Description: "y"}).Empty() {
		t.Error("Empty is wrong")
	}
	if words := got.Words(); words != "a: linux/amd64, GPU 9.0, driver 1, glibc 2.31" {
		t.Errorf("in words: %s", words)
	}
}

// fieldsOf are the keys that the fields of a type stand for, in their order.
func fieldsOf(typ reflect.Type, in string) []string {
	var names []string
	for f := range typ.Fields() {
		name := in + f.Tag.Get("toml")
		switch {
		case f.Name == "EnvUenv":
			names = append(names, envUenv)
		case f.Type.Kind() == reflect.Struct:
			names = append(names, fieldsOf(f.Type, name+".")...)
		default:
			names = append(names, name)
		}
	}
	return names
}

// Every field of a profile has a key, in its order, with an example that is accepted and that is written as it was read.
func TestKeys(t *testing.T) {
	fields := fieldsOf(reflect.TypeFor[Profile](), "")
	var names []string
	for _, k := range Keys() {
		names = append(names, k.Name)
		p, err := parse([]byte(k.Name + " = " + k.Example + "\n"))
		if err != nil || !k.IsKnown(p) || k.Doc == "" || k.Form != nil && k.FormName == "" || k.NameForm != nil && k.NameFormName == "" {
			t.Errorf("%s = %s: %v", k.Name, k.Example, err)
		}
		again, err := parse([]byte(p.TOML()))
		if diff := cmp.Diff(p, again); err != nil || diff != "" {
			t.Errorf("%s is written as %q: %v\n%s", k.Name, p.TOML(), err, diff)
		}
		if k.Describes() == p.Empty() {
			t.Errorf("%s is empty: %v", k.Name, p.Empty())
		}
		if over := (Profile{}).Override(p); k.Describes() && !k.IsKnown(over) {
			t.Errorf("%s does not override", k.Name)
		}
	}
	if diff := cmp.Diff(fields, names); diff != "" {
		t.Errorf("fields of a profile (-) and keys (+):\n%s", diff)
	}
}

// Every profile that comes with sconce is written as it was read, so that a copy of it is as good.
func TestBuiltInAgain(t *testing.T) {
	home(t)
	all, wrong := List("")
	if len(wrong) > 0 {
		t.Fatal(wrong)
	}
	for _, f := range all {
		again, err := parse([]byte(f.TOML()))
		if diff := cmp.Diff(f.Profile, again); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", f.Name, err, diff)
		}
	}
}

// A profile starts from another: key by key, and under its own name from the next one of that name.
func TestBase(t *testing.T) {
	config, recipe := home(t), t.TempDir()
	write(t, filepath.Join(config, "sconce", "clusters", "clariden.toml"), "base = \"clariden\"\nslurm.account = \"a1\"\nenv.A = \"1\"\nslurm.max-time = \"12h\"\n")
	beside := filepath.Join(recipe, "clusters", "mine.toml")
	write(t, beside, "base = \"clariden\"\ndescription = \"Mine\"\nenv.B = \"2\"\npaths.home-shared = false\n")
	f, err := Find("mine", recipe)
	if err != nil {
		t.Fatal(err)
	}
	built, err := builtIn.ReadFile("profiles/clariden.toml")
	if err != nil {
		t.Fatal(err)
	}
	want, err := parse(built)
	if err != nil {
		t.Fatal(err)
	}
	no := false
	want.Name, want.Description, want.Slurm.Account, want.Slurm.MaxTime, want.Paths.HomeShared = "mine", "Mine", "a1", "12h", &no
	want.Env = map[string]string{"A": "1", "B": "2", "MPICH_GPU_SUPPORT_ENABLED": "0"}
	if diff := cmp.Diff(want, f.Profile); diff != "" || f.From != beside {
		t.Errorf("from %s (-want +got):\n%s", f.From, diff)
	}
	write(t, filepath.Join(recipe, "clusters", "a.toml"), "base = \"b\"\n")
	write(t, filepath.Join(recipe, "clusters", "b.toml"), "base = \"a\"\n")
	if _, err := Find("a", recipe); err == nil || !strings.Contains(err.Error(), `no other cluster "a"`) || fault.CodeOf(err) != fault.CodeUsage {
		t.Errorf("in a circle: %v", err)
	}
	write(t, filepath.Join(recipe, "clusters", "c.toml"), "base = \"./c.toml\"\n")
	if _, err := Find("c", recipe); err == nil || !strings.Contains(err.Error(), "starts from itself") {
		t.Errorf("from itself: %v", err)
	}
}

// What jobs are started with tells by what images are judged, and the other way round.
func TestStarter(t *testing.T) {
	for text, want := range map[string]string{
		"": Sconce, "runtime = \"pyxis\"": "pyxis", "runtime = \"podman\"": PodmanHPC, "runtime = \"enroot\"": Sconce,
		"runtimes = [\"uenv\", \"pyxis\"]": "uenv", "runtimes = [\"sarus\"]": Sarus,
	} {
		file := filepath.Join(t.TempDir(), "x.toml")
		write(t, file, text)
		f, err := Find(file, "")
		if err != nil || f.Starter() != want {
			t.Errorf("%q: %q, want %q: %v", text, f.Starter(), want, err)
		}
		if want == Sarus && f.Runtime != Podman {
			t.Errorf("%q is judged as %q", text, f.Runtime)
		}
	}
}

// A table of the user's own keys is merged key by key, and nothing is shared with what went before.
func TestPutMerges(t *testing.T) {
	to, from := map[string]string{"a": "1", "b": "2"}, map[string]string{"b": "3"}
	before := to
	put(&to, &from)
	if diff := cmp.Diff(map[string]string{"a": "1", "b": "3"}, to); diff != "" || before["b"] != "2" {
		t.Errorf("%v, before %v:\n%s", to, before, diff)
	}
	var none map[string]string
	if put(&none, &from); none["b"] != "3" {
		t.Error(none)
	}
}

// Keys of tables stand behind their headers, and no text gets out of its string.
func TestTOMLOfTables(t *testing.T) {
	inTable := []Key{
		{Name: "driver", field: func(p *Profile) any { return &p.Driver }},
		{Name: "slurm.partition", field: func(p *Profile) any { return &p.MPI }},
		{Name: "slurm.options", field: func(*Profile) any { return &map[string]string{"x y": "1", "a": "2"} }},
		{Name: "paths.scratch", field: func(p *Profile) any { return &p.PMI }},
	}
	got := writeTOML(inTable, Profile{Driver: "550", MPI: "a \"b\" \\ \x1b[m", PMI: "/scratch"})
	want := "driver = \"550\"\n\n[slurm]\npartition = \"a \\\"b\\\" \\\\ \\u001B[m\"\noptions = { \"a\" = \"2\", \"x y\" = \"1\" }\n\n[paths]\nscratch = \"/scratch\"\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What a profile says, whatever it is, is said again by the file that is written of it.
func FuzzParse(f *testing.F) {
	files, err := builtIn.ReadDir("profiles")
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range files {
		data, err := builtIn.ReadFile("profiles/" + e.Name())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("gpu = [\"90\"]\n[env]\nA = \"\\u0001'\\\"\"\n[env.uenv]\nB = \"${X}\"\n[reference]\n\"a@2.b\" = \"1 GB/s\"\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parse(data)
		if err != nil {
			return
		}
		again, err := parse([]byte(p.TOML()))
		if err != nil {
			t.Fatalf("%v\n%s", err, p.TOML())
		}
		if got, want := again.TOML(), p.TOML(); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	})
}
