package cotainr

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.Init() // the sandbox starts this very binary again
	os.Exit(m.Run())
}

// parsed is what a build's command line means.
func parsed(t *testing.T, line string) (*build, []string, error) {
	t.Helper()
	var out, errs bytes.Buffer
	b := &build{app: &newApp(t, &out, &errs).App}
	extras, err := b.parse(strings.Fields(line))
	return b, extras, err
}

// The image may stand before the environments, behind them, and behind an option that follows them.
func TestWhereTheImageStands(t *testing.T) {
	for line, want := range map[string]string{
		"o.sif --base-image b --conda-env a.yml":               "o.sif a.yml",
		"o.sif --base-image b --conda-env a.yml b.yml":         "o.sif a.yml b.yml",
		"--base-image b --conda-env a.yml o.sif":               "o.sif a.yml",
		"--base-image b --conda-env a.yml b.yml o.sif":         "o.sif a.yml b.yml",
		"--base-image b --conda-env a.yml b.yml -v o.sif":      "o.sif a.yml b.yml",
		"--conda-env a.yml b.yml -- o.sif --base-image":        "",
		"--base-image b --conda-env=a.yml o.sif":               "o.sif a.yml",
		"--base-image b --conda-env a.yml":                     "",
		"--base-image b --conda-env a.yml b.yml":               "",
		"--base-image b --conda-env a.yml B.YAML":              "",
		"--base-image b --conda-env a.yml --conda-env b.yml o": "o b.yml",
	} {
		b, _, err := parsed(t, line)
		got := ""
		if err == nil {
			got = strings.Join(append([]string{b.image}, b.condaEnvs...), " ")
		}
		if got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// Options of our own take no short form from those of cotainr.
func TestOwnOptions(t *testing.T) {
	b, _, err := parsed(t, "o --base b --lo --locked --lock x.lock")
	if err != nil || !b.logToFile || !b.locked || b.lock != "x.lock" {
		t.Errorf("%+v, %v", b, err)
	}
	if _, _, err := parsed(t, "o --base b --loc"); err == nil || err.Error() != "ambiguous option: --loc could match --lock, --locked" {
		t.Error(err)
	}
}

// The lines at every verbosity, and the colours.
func TestLines(t *testing.T) {
	at := time.Date(2025, 7, 17, 9, 5, 1, 23e6, time.UTC)
	type written struct{ out, err string }
	for verbosity, want := range map[int]written{
		-1: {"", "Cotainr:-:CRITICAL: broken\n"},
		0:  {"Cotainr:-: built\n", "Cotainr:-:WARNING: old\nCotainr:-:CRITICAL: broken\n"},
		1:  {"Cotainr:-: built\nSconce.out:-: hello\n", "Cotainr:-:WARNING: old\nSconce.err:-: fetch torch\nCotainr:-:CRITICAL: broken\n"},
	} {
		var out, errs bytes.Buffer
		l := &log{verbosity: verbosity, out: &out, err: &errs, now: func() time.Time { return at }}
		lines(l)
		if got := (written{out.String(), errs.String()}); got != want {
			t.Errorf("verbosity %d: %q, want %q", verbosity, got, want)
		}
	}
	var out, errs bytes.Buffer
	l := &log{verbosity: 3, color: true, out: &out, err: &errs, now: func() time.Time { return at }}
	lines(l)
	for _, want := range []string{
		"2025-07-17 09:05:01,023 - cotainr.cotainr_test::lines::", "::Cotainr:-:INFO: built\n", "2025-07-17 09:05:01,023 - Sconce.out:-:INFO: hello\n",
		"Cotainr:-:WARNING: \x1b[38;5;3mold\x1b[0m\n", "Sconce.err:-:DEBUG: \x1b[38;5;8mstart: fetch torch\x1b[0m\n",
	} {
		if !strings.Contains(out.String()+errs.String(), want) {
			t.Errorf("no %q in %q and %q", want, out.String(), errs.String())
		}
	}
}

func lines(l *log) {
	s := sink{log: l}
	l.say(info, "built")
	s.Emit(progress.Event{Kind: progress.Warning, Text: "old"})
	s.Emit(progress.Event{Kind: progress.Start, Verb: "fetch", Name: "torch"})
	s.Emit(progress.Event{Kind: progress.Log, Text: "hello"})
	s.Emit(progress.Event{Kind: progress.Done, Verb: "fetch", Name: "torch"})
	l.say(critical, "broken")
}

// Who interrupts at a question is not asked for an answer first.
func TestInterruptedQuestion(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	write(t, filepath.Join(dir, "o.sif"), "older")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	a := newApp(t, &out, &errs)
	a.Stdin, a.Stdout = r, writerFunc(func(p []byte) { cancel() })
	if code := a.Run(ctx, []string{"build", "o.sif", "--base-image", "x"}); code != 1 || errs.Len() > 0 {
		t.Errorf("code %d, %q", code, &errs)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

// Whatever is typed, it is understood or refused; nothing is taken for the image that looks like an environment.
func FuzzArguments(f *testing.F) {
	for _, c := range commandLines {
		f.Add(strings.Join(c.words(), "\n"))
	}
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, "\n")
		a := &App{Stdout: io.Discard, Stderr: io.Discard, Command: []string{"cotainr"}, Now: time.Now}
		b := &build{app: a}
		extras, err := b.parse(args)
		if err == nil && (b.base == "" && b.system == "" && !slices.ContainsFunc(args, emptyValue) || b.verbosity < -1) {
			t.Errorf("%q: %+v, %q", args, b, extras)
		}
	})
}

// emptyValue reports whether an argument may have given an option an empty value.
func emptyValue(arg string) bool { return arg == "" || strings.HasSuffix(arg, "=") }

func FuzzSystems(f *testing.F) {
	for _, text := range []string{twoOf, `{"odd": {}}`, `{"odd": `, `[]`, `{"a": 1}`, `{"a": {"base-image": 1}}`, `{"a": {"base-image": "x"}, "a": {"base-image": "y"}}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		systems, err := parseSystems(data)
		if err != nil {
			return
		}
		for _, s := range systems {
			if image, err := findSystem(systems, s.name, "x"); err != nil || image != s.image {
				t.Errorf("%q: %q, %v", s.name, image, err)
			}
		}
	})
}
