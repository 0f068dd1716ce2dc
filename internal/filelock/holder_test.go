package filelock

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func put(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lock")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestClaim(t *testing.T) {
	path := put(t, strings.Repeat("an older and longer claim\n", 100))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	Claim(f, "makes\ttorch\x1b[31m\nwith care")
	h, known := ReadHolder(path)
	if !known || !h.Self() || h.Does != "makes torch[31m with care" {
		t.Errorf("%+v, known %v", h, known)
	}
	if data, _ := os.ReadFile(path); strings.Contains(string(data), "older") {
		t.Errorf("the older claim is left: %q", data)
	}
	Disclaim(f)
	if h, known := ReadHolder(path); known {
		t.Errorf("after the lock was given up: %+v", h)
	}
	readOnly, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer readOnly.Close()
	Claim(readOnly, "makes torch") // writes nothing, and harms nothing
	if data, _ := os.ReadFile(path); len(data) != 0 {
		t.Errorf("%q", data)
	}
}

// Whatever is in the file, nobody is named who does not hold the lock, and nothing is shown that a terminal would obey.
func TestClaimsThatAreNone(t *testing.T) {
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	node, _ := os.Hostname()
	for name, text := range map[string]string{
		"empty":          "",
		"an older form":  "held\n",
		"binary":         "\x00\xff\x7fELF\n",
		"half written":   `{"pid":12,"host":"node7","command":"sco`,
		"without end":    `{"pid":12,"host":"node7","command":"sconce build"}`,
		"no process":     `{"pid":0,"host":"node7"}` + "\n",
		"all processes":  `{"pid":-1,"host":"node7"}` + "\n",
		"no host":        `{"pid":12,"host":"\u001b\u0007"}` + "\n",
		"another type":   `{"pid":"12","host":["node7"]}` + "\n",
		"endless":        `{"pid":12,"host":"` + strings.Repeat("x", 1<<20) + "\"}\n",
		"an ended one":   string(claimOf(ended.Process.Pid, node)),
		"a list of them": "[{}]\n",
	} {
		if h, known := ReadHolder(put(t, text)); known {
			t.Errorf("%s: %+v", name, h)
		}
	}
	if _, known := ReadHolder(t.TempDir()); known {
		t.Error("a directory holds a lock")
	}
	h, known := ReadHolder(put(t, `{"pid":12,"host":"node7","command":"sconce\u001b[2J build","does":"`+strings.Repeat("makes ", 100)+`"}`+"\n"))
	if text := h.String(); !known || strings.ContainsAny(text, "\x1b\n") || len(text) > 300 {
		t.Errorf("%q", text)
	}
}

func claimOf(pid int, host string) []byte {
	return []byte(strings.NewReplacer("PID", strconv.Itoa(pid), "HOST", host).Replace(`{"pid":PID,"host":"HOST","command":"sconce build","does":"makes torch"}` + "\n"))
}

func TestNotesAreRare(t *testing.T) {
	other := put(t, string(claimOf(1234, "node7.of.another.cluster")))
	const named = "waiting for process 1234 on node7.of.another.cluster, which makes torch (sconce build); "
	var w Wait
	start := time.Now()
	var said []string
	for s := range 3600 {
		if note := w.at(start.Add(time.Duration(s)*time.Second), other, "makes torch"); note != "" {
			said = append(said, note)
		}
	}
	if len(said) < 10 || len(said) > 20 || said[0] != named+"1s" || said[1] != named+"11s" || said[2] != named+"31s" {
		t.Errorf("in an hour: %q", said)
	}

	w = Wait{}
	w.at(start, put(t, ""), "makes torch")
	if got := w.at(start.Add(time.Second), put(t, ""), "makes torch"); got != "waiting for another process that makes torch; 1s" {
		t.Errorf("of one that is not known: %q", got)
	}
	w = Wait{}
	own := put(t, string(claim("makes torch")))
	w.at(start, own, "makes torch")
	if got := w.at(start.Add(time.Minute), own, "makes torch"); got != "" {
		t.Errorf("of this very process: %q", got)
	}
}

func TestCommandHasNoArguments(t *testing.T) {
	for want, args := range map[string][]string{
		"":             nil,
		"sconce":       {"/usr/bin/sconce"},
		"sconce build": {"/usr/bin/sconce", "build", "--secret", "id=x"},
		"x":            {"x", "--token=secret"},
		"y":            {"y", "docker://user:secret@host"},
	} {
		if got := command(args); got != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
}
