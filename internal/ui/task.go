package ui

import (
	"strings"
	"time"

	"sconce.dev/sconce/internal/progress"
)

// task is what a view remembers of a task in progress.
type task struct {
	id      string
	title   string // verb and name, clean
	verb    string
	name    string
	started time.Time
	current int64
	total   int64
	log     []string // the last lines its program printed, clean
	meter   meter
	said    bool      // plain: its start was printed
	told    time.Time // plain: when its progress was printed last
}

// keptLog is how many log lines are kept to be shown if the task fails.
const keptLog = 40

func newTask(e progress.Event) *task {
	verb, name := Clean(e.Verb), Clean(e.Name)
	return &task{
		id: e.Task, title: strings.TrimSpace(verb + " " + name), verb: verb, name: name,
		started: e.Time, told: e.Time, total: e.Total,
	}
}

func (t *task) progress(e progress.Event) {
	t.current, t.total = e.Current, e.Total
	t.meter.add(e.Time, e.Current)
}

func (t *task) addLog(line string) {
	t.log = append(t.log, line)
	if len(t.log) > keptLog {
		t.log = t.log[1:]
	}
}

// left returns how long the task will still take, 0 when unknown.
func (t *task) left() time.Duration {
	return timeLeft(t.total-t.current, t.meter.rate())
}

func timeLeft(bytes int64, rate float64) time.Duration {
	if rate <= 0 || bytes <= 0 {
		return 0
	}
	const forever = 100 * time.Hour
	return time.Duration(min(float64(bytes)/rate*float64(time.Second), float64(forever)))
}

// tasks are the tasks in progress, in the order in which they began.
type tasks []*task

func (ts tasks) find(id string) *task {
	for _, t := range ts {
		if t.id == id {
			return t
		}
	}
	return nil
}

func (ts tasks) without(t *task) tasks {
	for i := range ts {
		if ts[i] == t {
			return append(ts[:i:i], ts[i+1:]...)
		}
	}
	return ts
}

// meter measures a rate over the last seconds. It begins with the first count that it is given: what a resumed
// download had before says nothing about the network.
type meter struct {
	samples []sample
}

type sample struct {
	at    time.Time
	count int64
}

// meterSpan is how far back a rate looks: long enough not to jump, short enough to notice a stall.
const meterSpan = 4 * time.Second

// sampleInterval bounds how many samples are kept.
const sampleInterval = 200 * time.Millisecond

func (m *meter) add(at time.Time, count int64) {
	if n := len(m.samples); n > 1 && at.Sub(m.samples[n-2].at) < sampleInterval {
		m.samples[n-1] = sample{at, count}
		return
	}
	m.samples = append(m.samples, sample{at, count})
	for len(m.samples) > 2 && at.Sub(m.samples[1].at) >= meterSpan {
		m.samples = m.samples[1:]
	}
}

// rate returns bytes per second, 0 when unknown.
func (m *meter) rate() float64 {
	if len(m.samples) < 2 {
		return 0
	}
	first, last := m.samples[0], m.samples[len(m.samples)-1]
	span := last.at.Sub(first.at).Seconds()
	if span <= 0 || last.count <= first.count {
		return 0
	}
	return float64(last.count-first.count) / span
}
