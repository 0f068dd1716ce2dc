package job

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/sbatch"
	"sconce.dev/sconce/internal/tooltest"
)

// hostile are names that a stranger gives to a file or a directory. Where a shell looks into one, a file M is made.
var hostile = []string{
	"my image", "it's", `say "hi"`, "a;touch M;=b", "a&touch M&=b", "a|touch M", "$(touch M)", "x=$(touch M)", "`touch M`", "a;touch${IFS}M;b", "a${HOME}b", "-x", "--flag=$(touch M)",
	"=ls", "*", "[a-z]", "{a,b}", "~", "#a", "a #b", `\`, `a\`, `\$(touch M)`, "'$(touch M)'", `"$(touch M)"`, "!!", "%j", "ünï 漢", strings.Repeat("é'", 60),
	"a\ntouch M\n#", "a\rtouch M", "a\tb", "\u202egnp", "\u009b31m", "\x1b[31m", "\u2028touch M", "\x7f",
}

// expanded is what a shell makes of the variables of a text.
func expanded(text, home string) string {
	return strings.NewReplacer("${HOME}", home, "${IFS}", " \t\n", "${image}", "").Replace(text)
}

// recorders are functions in place of the programs that a script or a line to paste calls: each writes down its words.
func recorders(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		b.WriteString(strings.ReplaceAll(name, "-", "_") + "() { printf '%s\\000' " + name + " \"$@\" >> \"$LOG\"; printf '\\001' >> \"$LOG\"; }\n")
	}
	return b.String()
}

// run runs lines in a directory that holds nothing, and returns the words of the calls that were written down.
func run(t *testing.T, lines string, shell ...string) [][]string {
	t.Helper()
	dir, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	cmd := exec.Command(shell[0], append(shell[1:], "-c", lines, "job.sbatch", "further", "a  b")...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=/usr/bin:/bin", "LOG=" + log, "HOME=/home/ada lovelace", "USER=ada", "SCRATCH=/scratch", "SLURM_JOB_NODELIST=node7", "SLURM_JOB_ID=12345", "SLURM_NNODES=1", "SLURM_CPUS_PER_TASK=4",
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s\n%s", shell, err, out, lines)
	}
	made, err := os.ReadDir(dir)
	if err != nil || len(made) > 0 {
		t.Errorf("%s: a command of a name has run: %v %v\n%s", shell, made, err, lines)
	}
	data, err := os.ReadFile(log)
	if err != nil {
		t.Errorf("%s: nothing was called\n%s", shell, lines)
	}
	var calls [][]string
	for call := range strings.SplitSeq(strings.TrimSuffix(string(data), "\x00\x01"), "\x00\x01") {
		calls = append(calls, strings.Split(call, "\x00"))
	}
	return calls
}

// launchers are what starts an image, and the word of srun by which it is named.
var launchers = map[string]struct {
	ext  string
	word func(file string) string
}{
	"pyxis":           {".sqsh", func(file string) string { return "--container-image=" + file }},
	"apptainer":       {".sif", func(file string) string { return file }},
	cluster.Sconce:    {".sqsh", func(file string) string { return file }},
	"uenv":            {".squashfs", nil},
	containerEngine:   {".sqsh", nil},
	cluster.Sarus:     {".sqsh", nil},
	cluster.PodmanHPC: {".sqsh", func(string) string { return "registry.example.org/team/x:1" }},
}

// ofName is a job with a name in all places that one can have.
func ofName(name, launcher string, nodes int) Request {
	file := "/images/" + name + launchers[launcher].ext
	p := ours(launcher)
	p.Paths.Stripe, p.Paths.Images, p.Paths.Local = "-c 4", "/images/"+name, "/local/"+name
	p.Container.Mounts = nil
	return Request{
		Name: name, Runtime: launcher, Cluster: p, From: quote.Words("sconce", "export", "sbatch", name), EDF: "/edf/" + name,
		Image: Image{
			Name: name, File: file, Reference: "registry.example.org/team/x:1", Workdir: "/work/" + name,
			Put: quote.Words("sconce", "copy", name) + " " + Path(file),
		},
		Job: Job{
			Nodes: nodes, Time: "1h", Command: "train a", WarnBefore: "5m", Env: map[string]string{"HOSTILE": name},
			Account: name, Partition: name, QOS: name, Constraint: name, Reservation: name, Dependency: name,
		},
	}
}

// What a file is called stays a name: no line of a script runs it, in no shell that reads the script, and srun is given it as one word. What
// nobody sees, or ends a line, is refused.
func TestHostileNames(t *testing.T) {
	for launcher, how := range launchers {
		t.Run(launcher, func(t *testing.T) {
			t.Parallel()
			for i, name := range hostile {
				for _, nodes := range []int{1, spreadNodes} {
					r := ofName(name, launcher, nodes)
					text, err := Sbatch(r)
					if strings.ContainsFunc(name, quote.Harmful) {
						if err == nil || fault.CodeOf(err) != fault.CodeUsage || !strings.Contains(err.Error(), "control character") {
							t.Errorf("%q: %v", name, err)
						}
						continue
					}
					if err != nil {
						t.Errorf("%q: %v", name, err)
						continue
					}
					checkDirectives(t, r, text)
					stubs := recorders("srun", "sbcast") + "scontrol() { echo node7; }\n"
					for _, shell := range [][]string{{"bash"}, {"bash", "--posix"}}[:1+i%2] {
						checkCalls(t, r, how.word, run(t, stubs+text, shell...))
					}
				}
			}
		})
	}
}

// checkDirectives has a reader of sbatch's directives say what Slurm is asked for.
func checkDirectives(t *testing.T, r Request, text string) {
	t.Helper()
	script := sbatch.Parse("job.sbatch", []byte(text))
	if script.Err != nil {
		t.Errorf("%v\n%s", script.Err, text)
		return
	}
	want := map[string]string{"account": r.Job.Account, "partition": r.Job.Partition, "reservation": r.Job.Reservation, "job-name": fileName(r.Name)}
	if r.Runtime == uenv && !variable.MatchString(r.Image.File) {
		want["uenv"] = r.Image.File
	}
	for name, value := range want {
		if o, ok := sbatch.Find(script.Options(), name); !ok || o.Value != value {
			t.Errorf("--%s is %q for Slurm, want %q", name, o.Value, value)
		}
	}
	if len(script.Late)+len(script.Near) > 0 {
		t.Errorf("%v %v", script.Late, script.Near)
	}
}

// checkCalls wants one call of srun that starts the image, which is one of its words.
func checkCalls(t *testing.T, r Request, word func(string) string, calls [][]string) {
	t.Helper()
	const home = "/home/ada lovelace"
	file := expanded(r.Image.File, home)
	for _, call := range calls {
		if call[0] == "sbcast" {
			if len(call) != 4 || call[2] != file {
				t.Errorf("sbcast is given %q, want %q", call, file)
			}
			file = call[3]
			if !strings.HasPrefix(file, expanded(r.Cluster.Paths.Local, home)+"/12345-") {
				t.Errorf("the image is sent to %q", file)
			}
		}
	}
	at := slices.IndexFunc(calls, func(call []string) bool {
		return call[0] == "srun" && strings.Contains(call[max(0, len(call)-4)], "exec train a")
	})
	if at < 0 {
		t.Errorf("srun is given %q", calls)
		return
	}
	call := calls[at]
	if word != nil && !slices.Contains(call, word(file)) {
		t.Errorf("srun is given %q, want %q", call, word(file))
	}
	if tail := call[len(call)-3:]; tail[0] != fileName(r.Name) || tail[1] != "further" || tail[2] != "a  b" {
		t.Errorf("the command has %q", tail)
	}
	edf := "/edf/" + expanded(r.Name, home)
	if r.ReadsEDF() && !slices.Contains(call, "--environment="+edf) && !slices.Contains(call, "--edf="+edf) {
		t.Errorf("srun is given %q, want %q", call, edf)
	}
}

// The lines that a script has for people to paste name things as words, in every shell in which they are pasted.
func TestHostileNamesPasted(t *testing.T) {
	for _, shell := range [][]string{{"bash"}, {tooltest.Path(t, "dash")}, {tooltest.Path(t, "busybox"), "sh"}} {
		lines := recorders("sconce", "mkdir", "lfs")
		var want []string
		for _, name := range hostile {
			if strings.ContainsFunc(name, quote.Harmful) {
				continue
			}
			text, err := Sbatch(ofName(name, "pyxis", 1))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(text) {
				if command, ok := strings.CutPrefix(line, "#   "); ok {
					lines += command
				}
			}
			want = append(want, name)
		}
		calls := run(t, lines, shell...)
		for i, name := range want {
			if len(calls) < 5*i+5 {
				t.Fatalf("%s: %d calls", shell, len(calls))
			}
			dir := "/images/" + expanded(name, "/home/ada lovelace")
			for j, last := range []string{name, dir, dir, dir + ".sqsh", dir + ".sqsh"} { // of which the first has variables as they are
				if call := calls[5*i+j]; call[len(call)-1] != last {
					t.Errorf("%s: %q does not end with %q", shell, call, last)
				}
			}
		}
	}
}

// An environment definition file has names as values, and nothing else of them.
func TestHostileNamesInEDF(t *testing.T) {
	for _, launcher := range []string{containerEngine, cluster.Sarus} {
		for _, name := range hostile {
			r := ofName(name, launcher, 1)
			text, err := EDF(r)
			if strings.ContainsFunc(name, quote.Harmful) {
				if err == nil || fault.CodeOf(err) != fault.CodeUsage {
					t.Errorf("%q: %v\n%s", name, err, text)
				}
				continue
			}
			if err != nil {
				t.Errorf("%q: %v", name, err)
				continue
			}
			var doc struct {
				Image string
				Env   map[string]string
			}
			if err := toml.Unmarshal([]byte(text), &doc); err != nil {
				t.Errorf("%q: %v\n%s", name, err, text)
			}
			if doc.Env["HOSTILE"] != name || launcher == containerEngine && doc.Image != r.Image.File {
				t.Errorf("%q: %+v", name, doc)
			}
		}
	}
}

// A command behind -- is given its words by the shell of the image, bash or not.
func TestHostileCommand(t *testing.T) {
	for _, shell := range [][]string{{"bash"}, {tooltest.Path(t, "dash")}, {tooltest.Path(t, "busybox"), "sh"}} {
		words := slices.Clone(hostile)
		if strings.HasSuffix(shell[0], "dash") { // which knows no $'', and can be given no control character
			words = slices.DeleteFunc(words, func(w string) bool { return strings.ContainsFunc(w, quote.Harmful) })
		}
		r := Request{Name: "x", Cluster: ours("pyxis"), Image: Image{Name: "x", File: "/x.sqsh", NoBash: true}}
		r.Job.Command = quote.Words(append([]string{"printf", `%s\000`}, words...)...)
		s, err := r.settle()
		if err != nil {
			t.Fatal(err)
		}
		lines, err := s.lines()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(shell[0], append(shell[1:], "-c", strings.Join(lines, "\n"), "x")...)
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		if got := bytes.Split(bytes.TrimSuffix(out, []byte{0}), []byte{0}); err != nil || len(got) != len(words) {
			t.Fatalf("%s: %v\n%q", shell, err, out)
		} else {
			for i, w := range words {
				if string(got[i]) != w {
					t.Errorf("%s: %q became %q", shell, w, got[i])
				}
			}
		}
	}
}
