package execop

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/progress"
)

// printed feeds pieces to an output, and returns what is shown, what the log has, and the output.
func printed(t *testing.T, mask masker, pieces ...string) (shown, log string, o *output) {
	return printedUpTo(t, maxLog, mask, pieces...)
}

// printedUpTo does so with a limit on the log.
func printedUpTo(t *testing.T, limit int64, mask masker, pieces ...string) (shown, log string, o *output) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	var events recorder
	o = newOutput(progress.Begin(progress.With(t.Context(), &events), "run", "test", 0), f, mask)
	o.limit = limit
	for _, p := range pieces {
		if n, err := o.Write([]byte(p)); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return events.text(), string(data), o
}

func TestOutputLines(t *testing.T) {
	long := strings.Repeat("é", maxLine)
	for _, test := range []struct {
		pieces []string
		want   string
	}{
		{nil, ""},
		{[]string{"one\ntw", "o\n\nend"}, "one\ntwo\n\nend\n"},
		{[]string{"dos\r\nline\r", "\nend\r"}, "dos\nline\nend\n"},
		{[]string{" 1%\r 2%\r", "99%\rdone\n"}, "done\n"},
		{[]string{"\x1b[31mred\x1b[0m \x1b]0;title\x07text\x1b[K\n"}, "red text\n"},
		{[]string{"a\x00b\x07c\xff\xfe\x80d\te\u202ef\n"}, "abc\ufffdd\tef\n"},
		{[]string{"\x1b[", "31mx\n"}, "x\n"},
		{[]string{long}, strings.Repeat("é", maxLine/2) + "\n" + strings.Repeat("é", maxLine/2) + "\n"},
		{[]string{strings.Repeat("\n", 3)}, "\n\n\n"},
	} {
		if _, log, _ := printed(t, masker{}, test.pieces...); log != test.want {
			t.Errorf("%.60q: log %.200q, want %.200q", test.pieces, log, test.want)
		}
	}
	shown, _, o := printed(t, masker{}, strings.Repeat("x", maxLine)+"\n")
	if len(shown) > maxShown+10 || len(o.tail()[0]) > maxShown+10 {
		t.Errorf("%d bytes are shown", len(shown))
	}
	if shown, log, _ := printed(t, masker{}, "first\rsecond\rthird\n"); shown != "first\nthird\n" || log != "third\n" {
		t.Errorf("shown %q, log %q", shown, log)
	}
}

// Whoever follows the log of a long step sees each line as it comes.
func TestLogIsThere(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	o := newOutput(progress.Begin(t.Context(), "run", "test", 0), f, masker{})
	defer o.Close()
	if _, err := o.Write([]byte("one\ntw")); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(f.Name()); err != nil || string(data) != "one\n" {
		t.Errorf("%q, %v", data, err)
	}
}

// A command that prints without end fills neither disk nor memory.
func TestEndlessOutput(t *testing.T) {
	line := strings.Repeat("y", 999) + "\n"
	piece := strings.Repeat(line, 1000)
	const limit = 4 << 20
	pieces := make([]string, limit/len(piece)+5)
	for i := range pieces {
		pieces[i] = piece
	}
	_, log, o := printedUpTo(t, limit, masker{}, append(pieces, "the end\n")...)
	if len(log) > limit+100 || !strings.HasSuffix(log, "y\n[the output beyond 4.2 MB is left out]\n") {
		t.Errorf("the log has %d bytes and ends with %q", len(log), log[len(log)-50:])
	}
	if tail := o.tail(); tail[len(tail)-1] != "the end" {
		t.Errorf("tail %q", tail)
	}
}

func TestMask(t *testing.T) {
	secrets := []string{"secret", "secretive", "two\nlines of it\n", "xyx", "ab", "cret-ends"}
	var mask masker
	for _, s := range secrets {
		mask.add([]byte(s))
	}
	for in, want := range map[string]string{
		"a secret.":                    "a ***.",
		"secretive secretiv secre":     "*** ***iv secre",
		"two\nlines of it\nend":        "***\nend",
		"lines of it":                  "***",
		"xyxyx":                        "***yx",
		"ab":                           "ab", // too short to be hidden
		"secret-ends":                  "***-ends",
		"sesecret":                     "se***",
		"secsecsecret":                 "secsec***",
		strings.Repeat("secret", 1000): strings.Repeat("***", 1000),
	} {
		for range 20 {
			m := mask
			var out []byte
			for rest := []byte(in); len(rest) > 0; {
				n := min(len(rest), 1+rand.IntN(10))
				out = append(out, m.feed(bytes.Clone(rest[:n]))...)
				rest = rest[n:]
			}
			if out = append(out, m.rest()...); string(out) != want {
				t.Fatalf("%.50q: %.50q, want %.50q", in, out, want)
			}
		}
	}
	shown, log, o := printed(t, mask, "the sec", "ret\r\nis sec", "retive")
	if want := "the ***\nis ***\n"; shown != want || log != want || strings.Join(o.tail(), "\n") != "the ***\nis ***" {
		t.Errorf("shown %q, log %q, tail %q", shown, log, o.tail())
	}
}

func FuzzOutput(f *testing.F) {
	f.Add([]byte("a\rb\nsecret\x1b[0m"), 3)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		var mask masker
		mask.add([]byte("secret"))
		var pieces []string
		for n := size%7 + 1; len(data) > 0 && n > 0; data = data[min(n, len(data)):] {
			pieces = append(pieces, string(data[:min(n, len(data))]))
		}
		_, log, _ := printed(t, mask, pieces...)
		if strings.ContainsAny(log, "\x00\x1b\r") {
			t.Errorf("log %q", log)
		}
	})
}

func ExampleFailure() {
	fmt.Println(&Failure{Title: "RUN make", Code: 2})
	// Output: RUN make: the command ended with exit code 2
}
