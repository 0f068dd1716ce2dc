package imagetest

import (
	"fmt"
	"strings"
	"time"

	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/quote"
)

// killTime is what a test that takes too long has to end by itself.
const killTime = 30 * time.Second

// script writes the job. It runs the tests one after the other, judges nothing, and needs no sconce but where that starts images. What
// it writes is there whole or not at all; a job that is killed leaves no word of an end.
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
	line("\ncd %s || exit 1\nexport PWD PYTHONUNBUFFERED=1\nulimit -c 0\ntrap 'exit 1' TERM INT", quote.Word(b.dir))
	line("unset PYTHONPATH PYTHONHOME # those of the login shell are for the host's Python")
	line("\nput() { # FILE TEXT: whole or not at all\n    printf '%%s\\n' \"$2\" > \"$1.new\" && mv -f \"$1.new\" \"$1\"\n}")
	line("put started \"${SLURM_JOB_ID-}\"")
	b.writeHosts(line)
	line("%s", runFunction)
	for i, t := range b.Tests {
		if err := b.writeTest(line, i, t); err != nil {
			return "", err
		}
	}
	line("\nput done \"${SLURM_JOB_ID-}\"")
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
		// All ranks are children of one process: by that sconce run knows them to belong together.
		line("put %d/nodes \"$(date +%%s) ${hosts[*]}\"", n)
		line("task() {\nexec %s\n}\nexport -f task", b.here(step.Command))
		line("start() { timeout --foreground --kill-after=%d %d bash -c '%s'; }", seconds(killTime), seconds(t.Limit()), fmt.Sprintf(ranksHere, nodes*step.Tasks))
	} else {
		line("if [ ${#hosts[@]} -lt %d ]; then\n    put %d/lacks \"${#hosts[@]}\"\n    exit\nfi", nodes, n)
		line("put %d/nodes \"$(date +%%s) ${hosts[*]:0:%d}\"", n, nodes)
		line("list=$(IFS=,; printf '%%s' \"${hosts[*]:0:%d}\")", nodes)
		line("start() {\n    timeout --foreground --kill-after=%d %d srun --nodes=%d --nodelist=\"$list\" %s \\\n    %s\n}",
			seconds(killTime), seconds(t.Limit()), nodes, step.Options, step.Command)
	}
	for k := 1; k <= t.Runs(); k++ {
		line("run %d %d || exit", n, k)
	}
	line(")")
	return nil
}

// here has a command of sconce run be that of this very program, in which all ranks share one sandbox.
func (b *batch) here(command string) string {
	return quote.Word(b.Program) + " --quiet --store " + quote.Word(b.Store) + " run --in-job=yes" + strings.TrimPrefix(command, "sconce run")
}

// ranksHere starts so many ranks beside each other, and ends with the first that fails: the others would wait for it.
const ranksHere = `
    trap "kill \$(jobs -p) 2> /dev/null; exit 143" TERM
    export SLURM_NTASKS=%[1]d
    for ((r = 0; r < SLURM_NTASKS; r++)); do
        SLURM_PROCID=$r SLURM_LOCALID=$r task &
    done
    code=0
    for ((r = 0; r < SLURM_NTASKS; r++)); do
        wait -n
        ended=$?
        if ((ended && !code)); then
            code=$ended
            kill $(jobs -p) 2> /dev/null
        fi
    done
    exit $code`

func seconds(d time.Duration) int { return max(1, int(d/time.Second)) }
