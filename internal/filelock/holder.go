package filelock

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

// Holder is what the holder of a lock says of itself, in the lock file, for those who wait. It is only ever shown: it may be
// missing, left by a process that was killed, or anybody's writing, so nothing is decided by it.
type Holder struct {
	PID     int    `json:"pid"`
	Host    string `json:"host"`
	Command string `json:"command"` // "sconce build": never the arguments, which others should not read
	Does    string `json:"does"`    // what it does under the lock, with its verb: "makes torch"
}

// Claim writes into the locked file f who has the lock. Where that fails, as on a full disk or a file of another user, nobody
// is named.
func Claim(f *os.File, does string) {
	data := claim(does)
	if n, err := f.WriteAt(data, 0); err != nil || n < len(data) {
		Disclaim(f)
		return
	}
	_ = f.Truncate(int64(len(data)))
}

// Disclaim takes back what [Claim] wrote. The lock must still be held.
func Disclaim(f *os.File) { _ = f.Truncate(0) }

// claim is one line of JSON.
func claim(does string) []byte {
	name, _ := os.Hostname()
	data, _ := json.Marshal(Holder{PID: os.Getpid(), Host: name, Command: command(os.Args), Does: shown(does, maxDoes)}) // strings and a number always can be
	return append(data, '\n')
}

// command is the program and its first word.
func command(args []string) string {
	if len(args) == 0 {
		return ""
	}
	name := filepath.Base(args[0])
	if len(args) > 1 && !strings.HasPrefix(args[1], "-") && !strings.ContainsAny(args[1], "/.:=") {
		name += " " + args[1]
	}
	return name
}

// What is read of a lock file, in bytes, and shown of each of its words, in characters.
const (
	maxClaim = 4 << 10
	maxWord  = 64
	maxDoes  = 120
)

// ReadHolder returns who has the lock whose file is at path, as far as that is known.
func ReadHolder(path string) (h Holder, known bool) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Holder{}, false
	}
	defer f.Close()
	line, err := bufio.NewReader(io.LimitReader(f, maxClaim)).ReadBytes('\n') // a line without end is being written
	if err != nil || json.Unmarshal(line, &h) != nil {
		return Holder{}, false
	}
	h.Host, h.Command, h.Does = shown(h.Host, maxWord), shown(h.Command, maxWord), shown(h.Does, maxDoes)
	if h.PID <= 0 || h.Host == "" || h.gone() {
		return Holder{}, false
	}
	return h, true
}

// gone reports whether the holder was a process of this machine that has ended.
func (h Holder) gone() bool {
	return h.here() && errors.Is(unix.Kill(h.PID, 0), unix.ESRCH)
}

func (h Holder) here() bool {
	name, err := os.Hostname()
	return err == nil && name == h.Host
}

// Self reports whether the holder is this process, whose progress can be seen anyway.
func (h Holder) Self() bool { return h.here() && h.PID == os.Getpid() }

func (h Holder) String() string {
	text := fmt.Sprintf("process %d on %s", h.PID, h.Host)
	if h.Does != "" {
		text += ", which " + h.Does
	}
	if h.Command != "" {
		text += " (" + h.Command + ")"
	}
	return text
}

// shown makes anybody's text one short line for a terminal.
func shown(text string, most int) string {
	printable := func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r) || r == unicode.ReplacementChar:
			return -1
		}
		return r
	}
	runes := []rune(strings.Join(strings.Fields(strings.Map(printable, text)), " "))
	if len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return string(runes)
}

// When somebody who waits is told so: first, again, and then ever more rarely.
const (
	firstNote  = time.Second
	secondNote = 10 * time.Second
	rarestNote = 5 * time.Minute
)

// Wait is one wait for a lock, of which a person should hear now and then. Its zero value begins at the first [Wait.Note].
type Wait struct {
	began, last, next time.Time
	pause             time.Duration
}

// Note returns what to say now, or "" when there is nothing to say yet. does is what a holder that is not known probably does,
// as in [Holder].
func (w *Wait) Note(path, does string) string { return w.at(time.Now(), path, does) }

// Waited is how long the wait has lasted when it was last asked for a note.
func (w *Wait) Waited() time.Duration { return w.last.Sub(w.began) }

func (w *Wait) at(now time.Time, path, does string) string {
	return w.note(now, does, func() (who string, tell bool) {
		h, known := ReadHolder(path)
		if !known {
			return "", true
		}
		return h.String(), !h.Self()
	})
}

// note is what to say now of a wait for who, or for somebody of whom only what they do is known.
func (w *Wait) note(now time.Time, does string, ask func() (who string, tell bool)) string {
	w.last = now
	if w.began.IsZero() {
		w.began, w.next, w.pause = now, now.Add(firstNote), secondNote
	}
	if now.Before(w.next) {
		return ""
	}
	w.next, w.pause = now.Add(w.pause), min(2*w.pause, rarestNote)
	who, tell := ask()
	if !tell {
		return ""
	}
	if who == "" {
		who = "another process that " + shown(does, maxDoes)
	}
	return fmt.Sprintf("waiting for %s; %s", who, now.Sub(w.began).Round(time.Second))
}
