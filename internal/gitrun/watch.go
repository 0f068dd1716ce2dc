package gitrun

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// looks is how often a git is looked at within the limit. One that moved at none of them stands still: looks are counted, and not time, since
// this process may have been stopped meanwhile.
const looks = 4

// watch ends each git of a process group that stands still, and all that it has started.
//
// A git moves when one of its processes reads or writes, computes, or waits for a disk. Through ssh and git:// all that a server sends is
// read by git itself, and so is what the process for http hands on. What ssh does by itself is not counted: its keepalives are answered,
// however silent the git behind them is. An http connection that brings something but too little to hand on is git's own to judge,
// as long as that has begun within the limit.
type watch struct {
	limit time.Duration
	trees map[int]*tree // by the number of the git that the others come from
	ended bool          // whether one stood still
}

// tree is a git with its children, as it was when it last moved.
type tree struct {
	last  use
	still int // looks since then
}

// use is what the git processes of a tree have done so far.
type use struct {
	bytes int64 // read and written
	ticks int64 // of computing, hundredths of a second (proc(5))
	busy  bool  // whether one waits for a disk, or nobody can say what it does
}

// working is the share of time, as a divisor, that a git computes that has something to do. Waiting for an answer to http takes less
// than a tenth of that.
const working = 100

// look looks at the group once.
func (w *watch) look(group int) {
	all := groupOf(group)
	now := map[int]*tree{}
	for _, p := range all {
		if parent, ok := all[p.parent]; !p.isGit() || ok && parent.isGit() {
			continue
		}
		t := w.trees[p.pid]
		if t == nil {
			t = &tree{}
		}
		now[p.pid] = t
		family := familyOf(p.pid, all)
		if t.moved(useOf(family), w.limit/looks) {
			continue
		}
		w.ended = w.ended || t.still >= looks
		end(family, t.still-looks)
	}
	w.trees = now
}

// moved notes what the tree has done by now, and reports whether that is more than at the last look.
func (t *tree) moved(now use, between time.Duration) bool {
	work := max(1, int64(between/(10*time.Millisecond))/working)
	if now.busy || now.bytes != t.last.bytes || now.ticks < t.last.ticks || now.ticks-t.last.ticks > work {
		t.last, t.still = now, 0
		return true
	}
	t.still++
	return false
}

// end ends a family that stands still. Git tidies up when it is told to end, which one that does not listen is not asked a second time.
func end(family []process, overdue int) {
	signal := syscall.SIGTERM
	switch {
	case overdue < 0:
		return
	case overdue > 0:
		signal = syscall.SIGKILL
	}
	for _, p := range family {
		_ = syscall.Kill(p.pid, signal) // it may just have ended
	}
}

// process is a process of a group.
type process struct {
	pid, parent int
	name        string
	disk        bool // it waits for a disk
	ticks       int64
}

// isGit reports whether a process is git or one of its own programs, git-remote-https for one.
func (p process) isGit() bool { return p.name == "git" || strings.HasPrefix(p.name, "git-") }

// groupOf reads the processes of a group, by their numbers. What cannot be read has just ended.
func groupOf(group int) map[int]process {
	all := map[int]process{}
	names, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is a good one
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		if p, of, ok := readStat(string(text)); ok && of == group {
			all[p.pid] = p
		}
	}
	return all
}

// readStat reads /proc/PID/stat (proc(5)), of which the name may hold anything but ends at the last parenthesis.
func readStat(text string) (p process, group int, ok bool) {
	open, shut := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || shut < open {
		return p, 0, false
	}
	fields := strings.Fields(text[shut+1:])
	if len(fields) < 13 {
		return p, 0, false
	}
	number := func(s string) int {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		ok = ok && err == nil
		return n
	}
	ok = true
	p = process{pid: number(text[:open]), parent: number(fields[1]), name: text[open+1 : shut], disk: fields[0] == "D"}
	p.ticks = int64(number(fields[11]) + number(fields[12]))
	return p, number(fields[2]), ok
}

// familyOf lists a process and all that come from it.
func familyOf(pid int, all map[int]process) []process {
	family := []process{all[pid]}
	for _, p := range all {
		if p.parent == pid {
			family = append(family, familyOf(p.pid, all)...)
		}
	}
	return family
}

func useOf(family []process) (u use) {
	for _, p := range family {
		if p.isGit() {
			bytes, ok := bytesOf(p.pid)
			u.bytes += bytes
			u.ticks += p.ticks
			u.busy = u.busy || p.disk || !ok
		}
	}
	return u
}

// bytesOf is how much a process has read and written (proc(5), /proc/PID/io).
func bytesOf(pid int) (n int64, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, false
	}
	var read, written int64
	_, err = fmt.Sscanf(string(text), "rchar: %d\nwchar: %d", &read, &written)
	return read + written, err == nil
}
