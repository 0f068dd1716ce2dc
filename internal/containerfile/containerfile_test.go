package containerfile

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/rogpeppe/go-internal/txtar"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fileop"
)

var update = flag.Bool("update", false, "write what the files of testdata should say")

// images are the bases that the tests know.
var images = map[string]*v1.ConfigFile{
	"base": {OS: "linux", Architecture: "amd64", Author: "somebody", Config: v1.Config{
		Env: []string{"PATH=/opt/bin:/bin", "LANG=C.UTF-8"}, Entrypoint: []string{"/entry"}, Cmd: []string{"old"},
		WorkingDir: "/srv", Labels: map[string]string{"from": "base"},
	}},
	"bare":    {OS: "linux", Architecture: "amd64"},
	"trigger": {Config: v1.Config{OnBuild: []string{"ARG MODE=fast", "COPY . /app/$MODE/", "RUN make"}}},
	"broken":  {Config: v1.Config{OnBuild: []string{"COPY --form=x a b"}}},
}

func lookUp(_ context.Context, reference string, _ v1.Platform) (*v1.ConfigFile, error) {
	if c, ok := images[reference]; ok {
		return c, nil
	}
	return nil, fmt.Errorf("%s: there is no such image", reference)
}

// TestGolden evaluates each file of testdata. Its comment holds options as words: arg KEY=VALUE, target NAME.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got := evaluated(archive.Files[0].Data, options(t, string(archive.Comment)))
			if *update {
				archive.Files = []txtar.File{archive.Files[0], {Name: "want", Data: []byte(got)}}
				if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(archive.Files[1].Data), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func options(t *testing.T, comment string) Options {
	o := Options{BuildArgs: map[string]string{}, Platform: v1.Platform{OS: "linux", Architecture: "amd64"}, BuildPlatform: v1.Platform{OS: "linux", Architecture: "riscv64"}}
	words := strings.Fields(comment)
	for i := 0; i+1 < len(words); i += 2 {
		switch words[i] {
		case "arg":
			key, value, _ := strings.Cut(words[i+1], "=")
			o.BuildArgs[key] = value
		case "target":
			o.Target = words[i+1]
		default:
			t.Fatalf("there is no option %s", words[i])
		}
	}
	return o
}

// evaluated returns what a file means, or what is wrong with it, as text.
func evaluated(data []byte, o Options) string {
	f, err := Parse("Containerfile", data)
	if err != nil {
		return failure(err)
	}
	b, err := f.Evaluate(context.Background(), o, lookUp)
	if err != nil {
		return failure(err)
	}
	return dump(b)
}

func failure(err error) string {
	var many fault.Errors[*Error]
	if !errors.As(err, &many) {
		return fmt.Sprintf("exit code %d: %s\nhint: %s\n", fault.CodeOf(err), err, fault.HintOf(err))
	}
	var text strings.Builder
	for _, e := range many {
		text.WriteString(failure(e))
	}
	return text.String()
}

func dump(b *Build) string {
	var w bytes.Buffer
	for _, p := range b.Proxy {
		fmt.Fprintf(&w, "proxy %s\n", p)
	}
	for _, warning := range b.Warnings {
		fmt.Fprintf(&w, "warning: line %d: %s (%s)\n", warning.Line, warning.Message, warning.Hint)
	}
	for i, s := range b.Stages {
		from := s.From
		if s.Parent >= 0 {
			from = fmt.Sprintf("stage %d", s.Parent)
		}
		fmt.Fprintf(&w, "stage %d %s: from %s on %s\n", i, s.Name, from, platformString(s.Platform))
		for _, op := range s.Ops {
			fmt.Fprintf(&w, "  %d: %s\n", op.Line, op.Text)
			dumpOp(&w, op)
		}
		if s.StartInterval != 0 {
			fmt.Fprintf(&w, "  start interval %v\n", s.StartInterval)
		}
		if s.Author != "" {
			fmt.Fprintf(&w, "  author %s\n", s.Author)
		}
		dumpConfig(&w, s.Config)
	}
	return w.String()
}

func dumpOp(w *bytes.Buffer, op Op) {
	switch {
	case op.Run != nil:
		r := op.Run
		fmt.Fprintf(w, "     run %q dir=%s user=%s env=%q\n", r.Args, r.WorkDir, r.User, r.Env)
		if r.NoNetwork {
			fmt.Fprintln(w, "     without network")
		}
		for _, f := range r.Files {
			fmt.Fprintf(w, "     file %s %o %q\n", f.Target, f.Mode, f.Content)
		}
		for _, m := range r.Mounts {
			fmt.Fprintf(w, "     mount %s%s\n", fields(m.Mount), from(m.From))
		}
	case op.Copy != nil:
		fmt.Fprintf(w, "     copy %s%s\n", fields(op.Copy.Copy), from(op.Copy.From))
	case op.WorkDir != nil:
		fmt.Fprintf(w, "     directory %s user=%s\n", op.WorkDir.Dir, op.WorkDir.User)
	}
}

func from(s Source) string {
	switch {
	case s.Context:
		return " from the context"
	case s.Image != "":
		return " from image " + s.Image
	case s.Stage >= 0:
		return fmt.Sprintf(" from stage %d", s.Stage)
	default:
		return ""
	}
}

// fields prints the fields of a struct that hold something.
func fields(v any) string {
	var out []string
	value := reflect.ValueOf(v)
	for i := range value.NumField() {
		if field := value.Field(i); !field.IsZero() {
			out = append(out, fmt.Sprintf("%s=%s", value.Type().Field(i).Name, quoted(field.Interface())))
		}
	}
	return strings.Join(out, " ")
}

func quoted(v any) string {
	switch v := v.(type) {
	case []string, []fileop.InlineFile, []fileop.URL:
		return fmt.Sprintf("%q", v)
	default:
		return fmt.Sprint(v)
	}
}

func dumpConfig(w *bytes.Buffer, c v1.Config) {
	for _, f := range []struct {
		name string
		list []string
	}{
		{"env", c.Env},
		{"entrypoint", c.Entrypoint},
		{"cmd", c.Cmd},
		{"shell", c.Shell},
		{"onbuild", c.OnBuild},
		{"ports", slices.Sorted(maps.Keys(c.ExposedPorts))},
		{"volumes", slices.Sorted(maps.Keys(c.Volumes))},
	} {
		if len(f.list) > 0 {
			fmt.Fprintf(w, "  %s %q\n", f.name, f.list)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c.Labels)) {
		fmt.Fprintf(w, "  label %s=%q\n", key, c.Labels[key])
	}
	if c.User+c.WorkingDir+c.StopSignal != "" {
		fmt.Fprintf(w, "  user=%s dir=%s signal=%s\n", c.User, c.WorkingDir, c.StopSignal)
	}
	if c.Healthcheck != nil {
		fmt.Fprintf(w, "  health %+v\n", *c.Healthcheck)
	}
}

// TestEvaluateTwice: a file may be evaluated again, for another target, and says the same each time.
func TestEvaluateTwice(t *testing.T) {
	f, err := Parse("Containerfile", []byte("FROM base AS a\nARG X=1\nENV Y=$X\nLABEL k=$Y\nFROM a\nRUN --mount=target=/$X true\n"))
	if err != nil {
		t.Fatal(err)
	}
	var first string
	for i := range 3 {
		b, err := f.Evaluate(t.Context(), Options{Platform: v1.Platform{OS: "linux", Architecture: "amd64"}}, lookUp)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = dump(b)
		}
		if diff := cmp.Diff(first, dump(b)); diff != "" {
			t.Error(diff)
		}
	}
	if images["base"].Config.Labels["k"] != "" {
		t.Error("the base's configuration was changed")
	}
}

// TestExpansionBomb: variables that double each other end in an error, not in all of the memory.
func TestExpansionBomb(t *testing.T) {
	var file strings.Builder
	file.WriteString("FROM scratch\nENV A=0123456789\n")
	for range 100 {
		file.WriteString("ENV A=$A$A\n")
	}
	if got := evaluated([]byte(file.String()), Options{}); !strings.Contains(got, "becomes longer") {
		t.Errorf("%.200s", got)
	}
}

// mistakesIn returns what is wrong with a file.
func mistakesIn(text string) error {
	f, err := Parse("Containerfile", []byte(text))
	if err == nil {
		_, err = f.Evaluate(context.Background(), Options{}, lookUp)
	}
	return err
}

// What JSON cannot hold would be one key for two commands.
func TestNotUTF8(t *testing.T) {
	for _, text := range []string{
		"FROM base\nRUN echo \xe8\n", "FROM base\nRUN <<E\necho \xe8\nE\n", "FROM base\nCOPY <<E /x\n\xe8\nE\n", "FROM base\nENV A=1 \\\n# why\n B=\xe8\n",
		"FROM base\nONBUILD RUN echo \xe8\n", "FROM base AS one\nRUN \xe8\nFROM base\n",
	} {
		var at *Error
		if err := mistakesIn(text); !errors.As(err, &at) || at.Line != 2 || !strings.Contains(at.Message, "not UTF-8") {
			t.Errorf("%q: %v", text, err)
		}
	}
	f, err := Parse("Containerfile", []byte("# caf\xe9\nFROM base\nARG A\nRUN echo caf\u00e9 $A \\\n# \xe9\n  more\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Evaluate(t.Context(), Options{BuildArgs: map[string]string{"A": "\xe8"}}, lookUp); err == nil || !strings.Contains(err.Error(), `"A"`) {
		t.Error(err)
	}
	if _, err := f.Evaluate(t.Context(), Options{BuildArgs: map[string]string{"A": "\u00e8"}}, lookUp); err != nil {
		t.Error(err)
	}
}

// FuzzEvaluate: any bytes are a file with a meaning, or an error with a line.
func FuzzEvaluate(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txt")
	for _, name := range files {
		if archive, err := txtar.ParseFile(name); err == nil {
			f.Add(archive.Files[0].Data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("Containerfile", data)
		var one *Error
		if err != nil {
			if !errors.As(err, &one) || one.Line < 1 || fault.CodeOf(err) != fault.CodeUsage {
				t.Errorf("%T: %v", err, err)
			}
			return
		}
		b, err := file.Evaluate(t.Context(), Options{BuildArgs: map[string]string{"X": "1"}}, lookUp)
		if err != nil {
			return
		}
		for i, s := range b.Stages {
			if s.Parent >= i || (s.Parent < 0) != (s.From != "") {
				t.Errorf("stage %d is based on %d and %q", i, s.Parent, s.From)
			}
			for _, op := range s.Ops {
				checkOp(t, i, op)
			}
		}
	})
}

func checkOp(t *testing.T, stage int, op Op) {
	if op.Line < 1 || op.Text == "" {
		t.Errorf("%+v", op)
	}
	if op.Run != nil {
		if len(op.Run.Args) == 0 || len(op.Run.Command.Mounts) > 0 {
			t.Errorf("%+v", op.Run)
		}
		for _, m := range op.Run.Mounts {
			if m.From.Stage >= stage {
				t.Errorf("stage %d uses %d", stage, m.From.Stage)
			}
		}
	}
	if op.Copy != nil && (!strings.HasPrefix(op.Copy.Dest, "/") || op.Copy.From.Stage >= stage) {
		t.Errorf("stage %d: %+v", stage, op.Copy)
	}
}
