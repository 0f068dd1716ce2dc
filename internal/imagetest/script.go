package imagetest

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/jobstep"
	"sconce.dev/sconce/internal/quote"
)

// killTime is what a test that takes too long has to end by itself.
const killTime = 30 * time.Second

// script writes the job. It runs the tests one after the other, judges nothing, and needs no sconce but where that starts images. What
// it writes is there whole or not at all; a job that is killed leaves no word of an end. bash has read all of it before the first test
// starts: it is one compound command.
func (b *batch) script() (string, error) {
	whole, err := b.whole()
	if err != nil {
		return "", err
	}
	var s strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	line("#!/bin/bash")
	line("%s", quote.Comment(fmt.Sprintf("Tests of %s on %s. sconce test has written this, and reads what it leaves here.", b.Image.Name, b.clusterName())))
	if b.Place != Here {
		step, err := job.StepOf(whole)
		if err != nil {
			return "", err
		}
		line("%s", strings.TrimSuffix(step.Directives, "\n"))
	}
	line("\n{\ncd %s || exit 1\nexport PWD PYTHONUNBUFFERED=1\nulimit -c 0\ntrap 'exit 1' TERM INT", quote.Word(b.dir))
	line("unset PYTHONPATH PYTHONHOME # those of the login shell are for the host's Python")
	line("%s", putFunction)
	line("put started \"${SLURM_JOB_ID-}\"")
	b.writeHosts(line)
	line("%s", runFunction)
	for i, t := range b.Tests {
		if err := b.writeTest(line, i, t); err != nil {
			return "", err
		}
	}
	line("\nput done \"${SLURM_JOB_ID-}\"\nexit\n}")
	return s.String(), nil
}

// writeHosts finds the nodes: those of the job that are not excluded.
func (b *batch) writeHosts(line func(string, ...any)) {
	if b.Place == Here {
		line("hosts=(\"$(hostname)\")\nmaster=127.0.0.1")
		return
	}
	line("\nhosts=()\nfor host in $(scontrol show hostnames \"$SLURM_JOB_NODELIST\"); do")
	line("    case %s in *\" $host \"*) ;; *) hosts+=(\"$host\") ;; esac", quote.Word(" "+strings.Join(b.exclude, " ")+" "))
	line("done\nmaster=${hosts[0]-}")
}

// putFunction writes a file, through no link that may be in its place.
const putFunction = `
put() { # FILE TEXT: whole or not at all
    rm -f "$1.new" && (set -C && printf '%s\n' "$2" > "$1.new") && mv -fT "$1.new" "$1"
}`

// runFunction is a run of a test: the function start is the test, and $seconds how long it may take.
const runFunction = `
run() { # N K: run K of test N
    export MASTER_ADDR=$master MASTER_PORT=$((20000 + (${SLURM_JOB_ID:-$$} * 7 + $1 * 101 + $2) % 12000))
    code=0
    start "$1" < /dev/null >> "$1/log" 2>&1 || code=$?
    put "$1/run-$2.end" "$code $(wc -c < "$1/log")"
    [ "$code" -eq 0 ]
}`

func (b *batch) writeTest(line func(string, ...any), i int, t Test) error {
	step, err := job.StepOf(b.request(i, t))
	if err != nil {
		return fmt.Errorf("test %s: %w", t.Title(), err)
	}
	n, nodes := i+1, t.NodeCount()
	line("\n%s\n(", quote.Comment(fmt.Sprintf("Test %d: %s", n, t.Title())))
	if step.Variables != "" {
		line("%s", strings.Trim(step.Variables, "\n"))
	}
	if b.Place == Here {
		line("put %d/nodes \"$(date +%%s) ${hosts[*]}\"", n)
		line("start() {\n    timeout --foreground --kill-after=%d %d %s\n}", seconds(killTime), seconds(t.Limit()), b.here(step, t, nodes*step.Tasks))
	} else {
		line("if [ ${#hosts[@]} -lt %d ]; then\n    put %d/lacks \"${#hosts[@]}\"\n    exit\nfi", nodes, n)
		line("put %d/nodes \"$(date +%%s) ${hosts[*]:0:%d}\"", n, nodes)
		line("list=$(IFS=,; printf '%%s' \"${hosts[*]:0:%d}\")", nodes)
		line("start() {\n    timeout --foreground --kill-after=%d %d srun --nodes=%d --nodelist=\"$list\" %s \\\n    %s\n}",
			seconds(killTime), seconds(t.Limit()), nodes, step.Options, strings.TrimSpace(step.Start+" "+step.Task))
	}
	for k := 1; k <= t.Runs(); k++ {
		line("run %d %d || exit", n, k)
	}
	line(")")
	return nil
}

// here is the command of a test on this machine: this very program runs all ranks in one sandbox, whose processes, shared memory and queues
// are the test's own.
func (b *batch) here(step job.Step, t Test, ranks int) string {
	words := []string{quote.Word(b.Program), "--quiet", "--store", quote.Word(b.Store), "run", "--in-job=no", "--user=self"}
	for _, name := range slices.Concat([]string{"MASTER_ADDR", "MASTER_PORT"}, tunings(os.Environ()), slices.Sorted(maps.Keys(t.Env))) {
		words = append(words, quote.Word("--env="+name))
	}
	words = append(words, strings.TrimPrefix(step.Start, "sconce run "), "sh", "-c", quote.Word(fmt.Sprintf(ranksHere, ranks)), "ranks", step.Task)
	return strings.Join(words, " ")
}

// tunings names the variables by which the user tunes communication and chooses GPUs. Those of a launcher that has started this process are of
// no use to ranks that it has not.
func tunings(environ []string) []string {
	var names []string
	for _, kv := range jobstep.Variables(environ) {
		name, _, _ := strings.Cut(kv, "=")
		if !slices.ContainsFunc([]string{"SLURM", "SRUN_", "PMI", "PALS_", "FLUX_", "MASTER_"}, func(p string) bool { return strings.HasPrefix(name, p) }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// ranksHere starts so many ranks beside each other, for the shell of the image, and ends with the first that fails: the others would wait for
// it, and end with the sandbox.
const ranksHere = `
trap "exit 143" TERM
trap "read -r code < /dev/shm/.failed; exit \$code" USR1
export SLURM_NTASKS=%[1]d
pids=
r=0
while [ $r -lt $SLURM_NTASKS ]; do
    (
        export SLURM_PROCID=$r SLURM_LOCALID=$r
        "$@"
        code=$?
        if [ $code -ne 0 ] && (set -C && echo $code > /dev/shm/.failed) 2> /dev/null; then
            kill -USR1 $$
        fi
        exit $code
    ) &
    pids="$pids $!"
    r=$((r + 1))
done
for p in $pids; do
    wait $p || exit
done
exit 0`

func seconds(d time.Duration) int { return max(1, int(d/time.Second)) }
