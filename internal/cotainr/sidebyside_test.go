package cotainr

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/mirrortest"
	"sconce.dev/sconce/internal/tooltest"
)

var update = flag.Bool("update", false, "write the list of differences anew")

// typed is one command line, and what it meets.
type typed struct {
	name    string
	args    string            // words between blanks; "_" in a word stands for a blank
	answers string            // standard input
	files   map[string]string // in the working directory
	systems string            // what systems.json holds; "": there is none
	lonely  bool              // there is no Apptainer, nor a stand-in
	whole   bool              // all of standard output is compared, not its last line alone
	own     bool              // the text is our own: the exit code is compared alone
}

const (
	base   = " --base-image rootfs"
	twoOf  = `{"small": {"base-image": "rootfs", "notes": [1]}, "large": {"base-image": "rootfs"}}`
	wanted = "o.sif" + base
)

var there = map[string]string{"o.sif": "older"}

var commandLines = []typed{
	{name: "nothing", own: true},
	{name: "version", args: "--version"},
	{name: "version, shortened", args: "--vers"},
	{name: "version with a value", args: "--version=1"},
	{name: "help", args: "-h", own: true},
	{name: "help before a subcommand", args: "--help build", own: true},
	{name: "help of build", args: "build --help", own: true},
	{name: "help after a mistake", args: "build --bogus -h", own: true},
	{name: "help of info", args: "info -h", own: true},
	{name: "a subcommand misspelt", args: "bulid"},
	{name: "a subcommand shortened", args: "b"},
	{name: "an unknown option first", args: "--bogus build " + wanted},
	{name: "an unknown option alone", args: "--bogus"},
	{name: "info with a word", args: "info x"},
	{name: "info with an option", args: "info --bogus y"},
	{name: "build without anything", args: "build"},
	{name: "build without an image", args: "build" + base},
	{name: "build without a base", args: "build o.sif"},
	{name: "base and system", args: "build o.sif --base-image a --system b"},
	{name: "system and base", args: "build o.sif --sys=a --base=b"},
	{name: "verbose and quiet", args: "build -v --quiet " + wanted},
	{name: "quiet and verbose", args: "build --q --verb " + wanted},
	{name: "verbose and quiet in one", args: "build -vq " + wanted},
	{name: "a letter that is unknown", args: "build -z " + wanted},
	{name: "a letter that is unknown behind one that is known", args: "build -vz " + wanted},
	{name: "a value for a letter", args: "build -v=3 " + wanted},
	{name: "a value for a flag", args: "build --no=1 " + wanted},
	{name: "an empty value for a flag", args: "build --no-color= " + wanted},
	{name: "a value that is missing", args: "build o.sif --base-image"},
	{name: "an option for a value", args: "build o.sif --base-image --no-color"},
	{name: "no value for the environment", args: "build --conda-env --base-image a"},
	{name: "two images", args: "build o.sif p.sif" + base},
	{name: "two images and unknown options", args: "build -x o.sif --why p.sif" + base},
	{name: "two dashes before a word", args: "build" + base + " -- --o.sif"},
	{name: "two dashes before an option", args: "build o.sif -- --base-image a"},
	{name: "a word that looks like a number", args: "build -1 --system none"},
	{name: "a word with a blank", args: "build -a_b --system none"},
	{name: "a dash for a word", args: "build - --system none"},

	{name: "no to overwriting", args: "build " + wanted, files: there, answers: "no\n", whole: true},
	{name: "no in capitals", args: "build " + wanted, files: there, answers: "NO\n", whole: true},
	{name: "no without a line's end", args: "build " + wanted, files: there, answers: "no", whole: true},
	{name: "an answer that is none", args: "build " + wanted, files: there, answers: "perhaps\n\n y\nyes \nno\n", whole: true},
	{name: "no answer", args: "build " + wanted, files: there},
	{name: "no answer after one that is none", args: "build " + wanted, files: there, answers: "y"},
	{name: "never an answer", args: "build " + wanted, files: there, answers: strings.Repeat("y\n", 1001), whole: true},
	{name: "the question comes before the system", args: "build o.sif --system none", files: there, answers: "no\n"},
	{name: "quiet, the question is asked", args: "build -q " + wanted, files: there, answers: "no\n", whole: true},

	{name: "no list of systems", args: "build o.sif --system none"},
	{name: "an unknown system", args: "build o.sif --system smal", systems: twoOf},
	{name: "a system without a base", args: "build o.sif --system small", systems: `{"small": {"base-image": "rootfs"}, "odd": {"image": "x"}}`},
	{name: "a system without a base that nobody asked for", args: "build " + wanted, systems: `{"odd": {}}`},
	{name: "systems that are no JSON", args: "build " + wanted, systems: `{"odd": `},
	{name: "a missing environment", args: "build --conda-env nope.yml " + wanted},
	{name: "a missing environment, the image last", args: "build" + base + " --conda-env nope.yml o.sif", own: true},

	{name: "build", args: "build " + wanted},
	{name: "build, overwriting", args: "build " + wanted, files: there, answers: "yes\n"},
	{name: "build quietly", args: "build -qq " + wanted, whole: true},
	{name: "build with letters", args: "build -v --no-color " + wanted},
	{name: "build with log files", args: "build --log --no " + wanted},
	{name: "build for a system", args: "build --sys large o.sif", systems: twoOf},
	{name: "build into a directory below", args: "build sub/../o.sif --accept" + base, files: map[string]string{"sub/x": ""}},
	{name: "build without Apptainer", args: "build " + wanted, lonely: true},
	{name: "build from what is not there", args: "build o.sif --base-image ./nope.sif", lonely: true},

	{name: "info without systems", args: "info"},
	{name: "info without Apptainer", args: "info", lonely: true},
	{name: "info with systems", args: "info", systems: twoOf},
	{name: "info with a system without a base", args: "info", systems: `{"odd": {}}`},
}

// outcome is what is compared of a command line, by what it is called in the list of differences.
type outcome map[string]string

// The real cotainr and this one are given the same command lines, and end with the same exit code, the same last lines and the same
// files. Where they do not, testdata/differences.txt says why; what it lists and is not so is a mistake as well.
func TestSideBySide(t *testing.T) {
	locktest.UV(t)
	if testing.Short() {
		t.Skip("installs cotainr from the real index")
	}
	known := readDifferences(t)
	t.Setenv(systemsVariable, "")
	his := runReal(t, commandLines)
	var found []difference
	for i, c := range commandLines {
		t.Run(c.name, func(t *testing.T) {
			ours := runOurs(t, c)
			for _, part := range []string{"code", "stdout", "stderr", "files"} {
				if his[i][part] == ours[part] || c.own && part != "code" {
					continue
				}
				d := difference{key: c.name + ": " + part, his: his[i][part], ours: ours[part], why: "?"}
				for _, k := range known {
					if k.key == d.key {
						d.why = k.why
					}
				}
				found = append(found, d)
			}
		})
	}
	if *update {
		writeDifferences(t, found)
	}
	compareDifferences(t, found, known)
}

// installed brings cotainr as it was released, and returns the directory that it is in.
func installed(t *testing.T) string {
	t.Helper()
	tooltest.Path(t, "python3")
	dir := t.TempDir()
	out, err := mirrortest.Run(func() *exec.Cmd {
		return exec.Command("uv", "pip", "install", "--quiet", "--no-deps", "--python", "python3", "--target", dir, "cotainr=="+Release)
	})
	if err != nil {
		if bytes.Contains(out, []byte("Failed to fetch")) {
			tooltest.Missing(t, "%v: %s", err, out)
		}
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// job is a command line as testdata/several.py takes it.
type job struct {
	Args    []string `json:"args"`
	Dir     string   `json:"dir"`
	Path    string   `json:"path"`
	Systems string   `json:"systems"`
	Stdin   string   `json:"stdin"`
	Stdout  string   `json:"stdout"`
	Stderr  string   `json:"stderr"`
}

// runReal runs the command lines with the real cotainr, which takes long to start and so is started once.
func runReal(t *testing.T, all []typed) []outcome {
	t.Helper()
	dir := installed(t)
	standin, err := filepath.Abs("testdata/standin")
	if err != nil {
		t.Fatal(err)
	}
	jobs := make([]job, len(all))
	for i, c := range all {
		streams := t.TempDir()
		j := job{Args: c.words(), Dir: workDir(t, c), Path: os.Getenv("PATH"), Systems: c.systems}
		if !c.lonely {
			j.Path = standin + ":" + j.Path
		}
		j.Stdin, j.Stdout, j.Stderr = filepath.Join(streams, "0"), filepath.Join(streams, "1"), filepath.Join(streams, "2")
		write(t, j.Stdin, c.answers)
		write(t, j.Stdout, "")
		write(t, j.Stderr, "")
		jobs[i] = j
	}
	var codes []int
	decode(t, runJobs(t, dir, jobs), &codes)
	outcomes := make([]outcome, len(all))
	for i, c := range all {
		outcomes[i] = c.outcome(t, jobs[i].Dir, codes[i], read(t, jobs[i].Stdout), read(t, jobs[i].Stderr))
	}
	return outcomes
}

// runJobs runs testdata/several.py with the cotainr in dir.
func runJobs(t *testing.T, dir string, jobs []job) []byte {
	t.Helper()
	in, err := json.Marshal(jobs)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("python3", "testdata/several.py", filepath.Join(dir, systemsName))
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1", "COLUMNS=80")
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func decode(t *testing.T, data []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func runOurs(t *testing.T, c typed) outcome {
	t.Helper()
	work := workDir(t, c)
	file := ""
	if c.systems != "" {
		file = filepath.Join(t.TempDir(), systemsName)
		write(t, file, c.systems)
	}
	t.Setenv(systemsVariable, file)
	t.Chdir(work)
	var out, errs bytes.Buffer
	a := newApp(t, &out, &errs)
	a.Stdin = strings.NewReader(c.answers)
	code := a.Run(t.Context(), c.words())
	return c.outcome(t, work, code, out.String(), errs.String())
}

// testApp works in a store of its own.
type testApp struct {
	App
	online bool
}

func newApp(t *testing.T, out, errs *bytes.Buffer) *testApp {
	t.Helper()
	store := t.TempDir()
	a := &testApp{App: App{
		Stdin: strings.NewReader(""), Stdout: out, Stderr: errs, Command: []string{"cotainr", "build"}, Version: "1", Now: time.Now,
	}}
	a.Open = func(ctx context.Context) (*engine.Session, error) {
		s, err := engine.New(ctx, engine.Options{Dir: store, Offline: !a.online})
		if err == nil {
			t.Cleanup(func() { s.Close() })
		}
		return s, err
	}
	return a
}

func (c typed) words() []string {
	words := strings.Fields(c.args)
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], "_", " ")
	}
	return words
}

// workDir makes a directory with the files of the case and a sandbox to build from.
func workDir(t *testing.T, c typed) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "rootfs/etc/os-release"), "ID=tiny\n")
	write(t, filepath.Join(dir, "rootfs/bin/sh"), "")
	if err := os.Chmod(filepath.Join(dir, "rootfs/bin/sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range c.files {
		write(t, filepath.Join(dir, name), text)
	}
	return dir
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// What differs from run to run, or with the release of Python, and what a spinner writes before a line.
var normal = []struct {
	form *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`[\x{2800}-\x{28ff}] [^\n]*?(?:\r?\x1b\[2K\r?|\r)`), ""}, // pictures of the spinner, where there is time for any
	{regexp.MustCompile(`\r?\x1b\[2K\r?|\r`), ""},
	{regexp.MustCompile(`\d\d\d\d-\d\d-\d\d[T ][\d:.,]+\d`), "TIME"},
	{regexp.MustCompile(`in \d\d:\d\d:\d\d`), "in HH:MM:SS"},
	{regexp.MustCompile(`\(choose from .*\)`), "(choose from)"},
}

func (c typed) outcome(t *testing.T, work string, code int, out, errs string) outcome {
	t.Helper()
	entries, err := os.ReadDir(work)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, e := range entries {
		files = append(files, e.Name())
	}
	o := outcome{"code": strconv.Itoa(code), "stdout": out, "stderr": lastLine(errs), "files": strings.Join(files, " ")}
	if !c.whole {
		o["stdout"] = lastLine(out)
	}
	for part, text := range o {
		text = strings.ReplaceAll(text, work, "$WORK")
		if file := os.Getenv(systemsVariable); file != "" {
			text = strings.ReplaceAll(text, file, "$SYSTEMS")
		}
		for _, n := range normal {
			text = n.form.ReplaceAllString(text, n.to)
		}
		o[part] = strings.ReplaceAll(text, "\n", "⏎")
	}
	return o
}

func lastLine(s string) string {
	s = strings.TrimRight(s, "\n")
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// difference is one that is wanted.
type difference struct{ key, why, his, ours string }

const differencesFile = "testdata/differences.txt"

func (d difference) String() string {
	return fmt.Sprintf("== %s\nwhy:     %s\ncotainr: %s\nsconce:  %s\n", d.key, d.why, d.his, d.ours)
}

func readDifferences(t *testing.T) (all []difference) {
	t.Helper()
	text, err := os.ReadFile(differencesFile)
	if err != nil && !*update {
		t.Fatal(err)
	}
	for _, stanza := range strings.Split(string(text), "== ")[min(1, len(text)):] {
		lines := append(strings.Split(stanza, "\n"), "", "", "")
		value := func(i int) string { return strings.TrimSpace(lines[i][min(9, len(lines[i])):]) }
		all = append(all, difference{lines[0], value(1), value(2), value(3)})
	}
	return all
}

func writeDifferences(t *testing.T, all []difference) {
	t.Helper()
	text := "Where sconce's cotainr is another than cotainr " + Release + ", on purpose. The lines are the last ones of what is printed.\n\n"
	for _, d := range all {
		text += d.String() + "\n"
	}
	if err := os.WriteFile(differencesFile, []byte(strings.TrimRight(text, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func compareDifferences(t *testing.T, found, known []difference) {
	t.Helper()
	for i := range found {
		found[i].his, found[i].ours = strings.TrimSpace(found[i].his), strings.TrimSpace(found[i].ours)
		if !slices.Contains(known, found[i]) || cmp.Or(found[i].why, "?") == "?" {
			t.Errorf("not in %s, or not for a reason:\n%s", differencesFile, found[i])
		}
	}
	for _, k := range known {
		if !slices.Contains(found, k) {
			t.Errorf("%s lists what is not so:\n%s", differencesFile, k)
		}
	}
}
