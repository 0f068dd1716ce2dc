package lint

import (
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/sbatch"
)

var slurmTime = lazyregexp.New(`^(\d+|\d+:\d{1,2}(:\d{1,2})?|\d+-\d{1,2}(:\d{1,2}(:\d{1,2})?)?|(?i:infinite|unlimited))$`)

func lookTime(s *subject) {
	for _, o := range s.script.Options() {
		if o.Name != "time" {
			continue
		}
		limit, known := longest(s.linter.Target.Slurm.MaxTime)
		switch asked, fixed := slurmMinutes(o.Value); {
		case !slurmTime.MatchString(o.Value):
			s.tell(s.in(o.At), "--time=%s is no time of Slurm's", o.Value)
		case known && fixed && asked > limit:
			s.tell(s.in(o.At), "--time=%s is longer than the %s that %s allows", o.Value, s.linter.Target.Slurm.MaxTime, s.target()).
				Remedy = "ask for less, and have the next job go on from a checkpoint"
		}
	}
}

// slurmMinutes is a time as sbatch takes it: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S.
func slurmMinutes(text string) (float64, bool) {
	days, clock, hasDays := strings.Cut(text, "-")
	if !hasDays {
		days, clock = "0", text
	}
	var n []float64
	for part := range strings.SplitSeq(clock, ":") {
		v, err := strconv.ParseFloat(part, 64)
		if err != nil {
			return 0, false
		}
		n = append(n, v)
	}
	d, err := strconv.ParseFloat(days, 64)
	n = append(n, 0, 0, 0)
	switch fields := strings.Count(clock, ":"); {
	case err != nil || fields > 2:
		return 0, false
	case !hasDays && fields < 2:
		return n[0] + n[1]/60, true
	default:
		return d*24*60 + n[0]*60 + n[1] + n[2]/60, true
	}
}

// longest is a profile's time in minutes: "90m", "24h", "2d".
func longest(text string) (float64, bool) {
	if text == "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(text[:len(text)-1], 64)
	unit := map[byte]float64{'s': 1. / 60, 'm': 1, 'h': 60, 'd': 24 * 60, 'w': 7 * 24 * 60, 'y': 365 * 24 * 60}[text[len(text)-1]]
	return n * unit, err == nil && unit > 0
}

func lookSignal(s *subject) {
	o, ok := sbatch.Find(s.script.Options(), "signal")
	if !ok || !s.script.IsShell() || s.script.Err != nil {
		return
	}
	to, rest, found := strings.Cut(o.Value, ":")
	if !found || !strings.Contains(to, "B") {
		return
	}
	name, _, _ := strings.Cut(rest, "@")
	name = strings.TrimPrefix(strings.ToUpper(name), "SIG")
	for _, c := range s.script.Calls {
		if c.Name == "trap" || c.Name == "source" || c.Name == "." {
			return
		}
	}
	s.tell(s.in(o.At), "SIG%s goes to the batch shell, which has no trap for it", name)
}

func lookRequeue(s *subject) {
	o, ok := sbatch.Find(s.script.Options(), "requeue")
	if !ok {
		return
	}
	for _, c := range s.sruns() {
		if runtimeOf(c) == pyxis {
			s.tell(s.in(o.At), "--requeue, and srun starts containers with pyxis")
			return
		}
	}
}
