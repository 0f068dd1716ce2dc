package sbatch

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/tooltest"
)

const example = `#!/bin/bash -l
#SBATCH --job-name="a job" -N2   # two
#SBATCH --output logs/%j -C 'a&b'
# a comment

#SBATCH --exclusive --mem=0
##SBATCH --time=1
#sbatch -t 5
set -eux
#SBATCH --qos=late
export A=1 B="$A x"
C=3 srun -N 2 -l --cpu-bind=none -- python train.py
set +x
D=$(srun hostname)
srun --environment=./e.toml -n4 bash -c '
  export RANK=$SLURM_PROCID
  exec torchrun a.py' &
srun --container-image a:1 bash -lc "echo $SLURM_PROCID \$RANK; scontrol x"
srun apptainer exec --nv image.sif mpirun ./a
if true; then for i in 1; do srun -N1 true; done; fi
`

func line(data []byte, at int) int { return 1 + strings.Count(string(data[:at]), "\n") }

func show(options []Option) string {
	var all []string
	for _, o := range options {
		all = append(all, o.Name+"="+o.Value)
	}
	return strings.Join(all, " ")
}

func TestScript(t *testing.T) {
	s := Parse("x", []byte(example))
	if s.Err != nil || s.Shebang != "/bin/bash -l" {
		t.Fatal(s.Err, s.Shebang)
	}
	if got, want := show(s.Options()), "job-name=a job nodes=2 output=logs/%j constraint=a&b exclusive= mem=0"; got != want {
		t.Errorf("directives: %s, want %s", got, want)
	}
	if len(s.Late) != 1 || show(s.Late[0].Options) != "qos=late" || len(s.Near) != 1 || s.Near[0].Mark != "#sbatch" {
		t.Errorf("late: %+v, near: %+v", s.Late, s.Near)
	}
	var calls []string
	for _, c := range s.Calls {
		if c.Name == "srun" || c.Inside != nil {
			inside := ""
			if c.Inside != nil {
				inside = fmt.Sprintf(" in %d", line(s.Data, c.Inside.At))
			}
			command := ""
			if len(c.Command) > 0 {
				command = c.Command[0].Text
			}
			calls = append(calls, fmt.Sprintf("%d %s [%s] %s%s", line(s.Data, c.At), c.Name, show(c.Options), command, inside))
		}
	}
	want := []string{
		"12 srun [nodes=2 label= cpu-bind=none] python",
		"12 python [] train.py in 12",
		"14 srun [] hostname",
		"15 srun [environment=./e.toml ntasks=4] bash",
		"17 exec [] torchrun in 15",
		"17 torchrun [] a.py in 15",
		"18 srun [container-image=a:1] bash",
		"18 echo [] X in 18",
		"18 scontrol [] x in 18",
		"19 srun [] apptainer",
		"19 mpirun [] ./a in 19",
		"20 srun [nodes=1] true",
	}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Error(diff)
	}
	var sets []string
	for _, a := range s.Sets {
		sets = append(sets, fmt.Sprintf("%d %s=%s %v %v", line(s.Data, a.At), a.Name, a.Value, a.Traced, a.Inside != nil))
	}
	want = []string{"11 A=1 true false", "11 B=$A x true false", "12 C=3 true false", "14 D=$(srun hostname) false false", "16 RANK=$SLURM_PROCID false true"}
	if diff := cmp.Diff(want, sets); diff != "" {
		t.Error(diff)
	}
}

// What a script writes into another file is no directive of its own; a comment in a loop is a late one.
func TestWrittenScripts(t *testing.T) {
	s := Parse("x", []byte("#!/bin/bash\n#SBATCH -N1\ncat > job <<EOF\n#!/bin/bash\n#SBATCH -N2\n#sbatch -N3\nEOF\nprintf '\n#SBATCH -N4\n'\nfor i in 1; do\n#SBATCH -N5\nsbatch job\ndone\n"))
	if s.Err != nil || len(s.Near) != 0 || len(s.Late) != 1 || show(s.Late[0].Options) != "nodes=5" {
		t.Errorf("%v, late %+v, near %+v", s.Err, s.Late, s.Near)
	}
}

func TestWords(t *testing.T) {
	for text, want := range map[string]string{
		`srun bash -c "a "$B" c"`:   "true [B]",
		`srun bash -c "a $B c"`:     "false [B]",
		`srun bash -c 'a '"$B"' c'`: "false [B]",
		`srun bash -c "a \$B c"`:    "false []",
		`srun bash -c "a "'$B'" c"`: "false []",
		`srun bash -c "a"$(b)"c"`:   "false []",
		`srun bash -c "a "b" c"`:    "true []",
		`srun bash -c '$B'`:         "false []",
	} {
		s := Parse("x", []byte(text))
		c := s.Calls[0]
		w := c.Command[len(c.Command)-1]
		if got := fmt.Sprint(w.Broken(), w.Expanded()); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestJoined(t *testing.T) {
	for text, want := range map[string]bool{
		"sbatch -C a&b x":   true,
		"sbatch -C 'a&b' x": false,
		"sbatch -C a & b":   false,
		"sbatch -C a&\nb":   false,
		"sbatch -C a && b":  false,
	} {
		if got := Parse("x", []byte(text)).Calls[0].Joined; got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// bash says the same of what is no shell script.
func TestSyntaxAsBash(t *testing.T) {
	bash := tooltest.Path(t, "bash")
	for _, text := range []string{
		example, "if true; then\n", "echo $((1 + 2)) <(x) {a,b}\n", "for i in 1 2; do echo; done\n", "case x in a) ;; esac\n", "echo \"\n", "f() { :; }\n",
		"a=(1 2)\n[[ -n $a && $a =~ ^x$ ]]\n", "fi\n", "echo $(\n", "while read -r x; do :; done < f\n", "}\n", "coproc x { :; }\n",
	} {
		refused := exec.Command(bash, "-n", "-c", text).Run() != nil
		if s := Parse("x", []byte("#!/bin/bash\n"+text)); (s.Err != nil) != refused {
			t.Errorf("%q: %v; bash refuses it: %v", text, s.Err, refused)
		}
	}
}

// Whatever the text, places are in the file.
func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("srun bash -c \"bash -c 'srun sh -c \\\"x $A\\\"'\"\n#SBATCH \\"))
	f.Add([]byte("#!/bin/bash\n#SBTACH -x\nexport A=$'\\n'\nset -o\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := Parse("x", data)
		inside := func(at int) {
			if at < 0 || at > len(data) {
				t.Fatalf("%d of %d bytes", at, len(data))
			}
		}
		for _, c := range s.Calls {
			inside(c.At)
			for _, o := range c.Options {
				inside(o.At)
			}
			for _, w := range c.Command {
				inside(w.At)
				w.Broken()
				w.Expanded()
			}
		}
		for _, o := range s.Options() {
			inside(o.At)
		}
		for _, a := range s.Sets {
			inside(a.At)
		}
	})
}
