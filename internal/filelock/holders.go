package filelock

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxNamed is how many holders of one lock are named.
const maxNamed = 8

// NoteOn is [Wait.Note] for a flock that leaves no word on its holder: on a directory, or shared by many. Those of this machine are named by
// the kernel's table of locks, as far as it shows them. does is what a holder does, as in [Holder].
func (w *Wait) NoteOn(f *os.File, does string) string {
	return w.note(time.Now(), does, func() (string, bool) { return nameAll(holdersOf(f), does), true })
}

// nameAll names processes of this machine, the first one with what all of them do. It is "" when there are none, or only this one.
func nameAll(pids []int, does string) string {
	pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == os.Getpid() })
	if len(pids) == 0 {
		return ""
	}
	node, _ := os.Hostname()
	text := Holder{PID: pids[0], Host: node, Does: shown(does, maxDoes), Command: commandOf(pids[0])}.String()
	for i, pid := range pids[1:] {
		if i == maxNamed-1 {
			return fmt.Sprintf("%s, and %d more", text, len(pids)-maxNamed)
		}
		text += fmt.Sprintf(", and process %d", pid)
		if command := commandOf(pid); command != "" {
			text += " (" + command + ")"
		}
	}
	return text
}

// commandOf is the program of a process and its first word, "" when it cannot be seen.
func commandOf(pid int) string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(line) == 0 {
		return ""
	}
	return shown(command(strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")), maxWord)
}

// holdersOf returns the processes of this machine that hold a flock on the file that is open as f: by its number, and, as Btrfs and overlays
// number their files in another way for stat(2) than for locks, by the files that they have open, where that may be seen.
func holdersOf(f *os.File) []int {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return nil
	}
	table, err := os.ReadFile("/proc/locks")
	if err != nil {
		return nil
	}
	number := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	return holdersIn(table, func(pid int, file string) bool { return file == number || locks(pid, &st) })
}

// holdersIn reads a table of locks (proc_locks(5)): those for which is holds, each once. A line with an arrow is of one who waits; a process of
// another name space has no number here.
func holdersIn(table []byte, is func(pid int, file string) bool) (pids []int) {
	lines := bufio.NewScanner(bytes.NewReader(table))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1] != "FLOCK" {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil && pid > 0 && !slices.Contains(pids, pid) && is(pid, fields[5]) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// locks reports whether a process has a file open and locked.
func locks(pid int, file *unix.Stat_t) bool {
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return false
	}
	for _, fd := range open {
		var st unix.Stat_t
		if unix.Stat(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()), &st) != nil || st.Dev != file.Dev || st.Ino != file.Ino {
			continue
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd.Name()))
		if err == nil && bytes.Contains(info, []byte("lock:")) {
			return true
		}
	}
	return false
}
